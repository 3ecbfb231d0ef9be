"""The answers of the party with the label while a tree grows: gradients, the best split of each node, the leaves.

Labels, margins, the secret key, opened sums and the trees' structure never leave the party. It tells the others the
gradients (encrypted, or in the clear in a simulation), which of their candidates won, and which rows its own splits
send left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedatlas import secret
from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import numpy_stream
from fedatlas.vertical.boosting import gains, goss, modes, records, sealed
from fedatlas.vertical.boosting.histogram import left_sums, summed
from fedatlas.vertical.boosting.letter_kinds import (
    BINS,
    GRADIENTS,
    LEVEL,
    RECORDED,
    WANTED,
    of_level,
    sums_letter,
)
from fedatlas.vertical.boosting.nodes import moved, some_of
from fedatlas.vertical.boosting.passive import (
    Answered,
    cut,
    divided,
    offered,
    session_of,
    under_way,
)
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.letters import LETTERS, blamed, letter, others, taken, unusable
from fedatlas.vertical.parties import Columns, PartyLeft, Whole, aligned, places, tensor

KEY = "key"  # key of a session's memory that lasts over rounds and is never stored


def start(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Cut the party's own columns into bins, start all margins, and note how many candidates the others announced."""
    _, state, _ = cut(how, model, data, message, state, session)
    own, train = aligned(data, state), places(state, "train")
    assert own.y is not None
    weight = None if own.weight is None else own.weight[train]
    unit = gains.unit_of(own.y[train], weight, data.task)
    boost = {
        **state["boost"],
        "margin": tensor(np.zeros(len(own.y))),
        "task": unit.task,
        "unit": tensor(np.array([unit.start, unit.scale])),
        "announced": {str(k): taken(data, message, k, BINS)["candidates"] for k in others(data)},
        "nodes": records.empty(records.SKELETON),
    }
    if how.goss is not None:  # who knows the seed of the draws can work out which rows have large gradients
        secretly = data.row_order == "secret"
        boost["draws"] = int.from_bytes(secret.random_bytes(7), "little") if secretly else data.seed
    return {"started": True}, {**state, "boost": boost}, session


def unit(boost: records.Boost) -> gains.MarginUnit:
    """Return the unit of margins."""
    return gains.MarginUnit(boost["task"], *boost["unit"].tolist())


def keys(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Make a key pair if this process has none yet. It is never stored, and no tree depends on it."""
    kept = dict(session_of(session).get("run", {}))
    if KEY not in kept:
        kept[KEY] = paillier.holder(paillier.generate(how.key_bits, testing=how.testing))
    return {"bits": how.key_bits}, state, {**session_of(session), "run": kept}


def gradients(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return the gradients of the tree's rows as the others get them: encrypted, or in the clear."""
    own, boost, tree = aligned(data, state), state["boost"], message["tree"]
    assert own.y is not None
    if "boost" in session_of(session):
        raise ProtocolError("a tree is under way already.")
    rows = places(state, "train")
    if how.subsample < 1:
        some = max(1, round(how.subsample * len(rows)))
        rows = np.sort(numpy_stream(data.seed, "boosting", tree).choice(rows, some, replace=False))
    weight = None if own.weight is None else own.weight[rows]
    g, h = gains.gradients(own.y[rows], boost["margin"].numpy()[rows], weight, unit(boost))
    if how.goss is not None:
        kept = goss.kept(np.abs(g), how.goss, numpy_stream(boost["draws"], "boosting", "goss", tree))
        rows, g, h = rows[kept.rows], g[kept.rows] * kept.weight, h[kept.rows] * kept.weight
    fixed = gains.fixed(g, h, how.precision)
    found, spots = offered(how, data, state, tree)
    now = {"tree": tree, "grid": found, "spots": spots, "rows": rows, "fixed": fixed}
    now |= {"at": np.ones(len(own.y), np.int64), "open": [1], "asked": {}, "tree_nodes": {}, "level": 0}
    told: dict[str, Any] = {"tree": tree, "rows": tensor(rows) if how.drawn else None}
    counts, to = {}, modes.summing(how, modes.crew_of(data), tree, 1)
    if to and how.encrypted:
        holder, form = session["run"][KEY], sealed.fields(len(rows), how)
        batches = sealed.sealed(fixed, form, holder, data.workers)
        told |= {"public": holder.public.plain(), "ciphertexts": [one.plain() for one in batches]}
        made = len(rows) * len(batches)
        counts = {"ciphertexts": made * len(to), "encryptions": made, "exponentiations": made}
    elif to:
        told |= {"g": tensor(fixed.g), "h": tensor(fixed.h)}
    sent = [letter(data, to, GRADIENTS, told)] if to else []
    return {LETTERS: sent, "counts": counts}, state, {**session_of(session), "boost": now}


def choose(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Open the others' sums and take the best split of each open node.

    Divide the rows of the nodes that this party wins.
    """
    before = under_way(session)
    if not before["open"]:
        raise ProtocolError("no node of the tree is open.")
    now = {**_settled(how, data, state, before, message), "level": before["level"] + 1}
    sums_of, opened = _opened(how, data, state, now, message, session)
    choices = {}
    for v in now["open"]:
        members = now["rows"][now["at"][now["rows"]] == v]
        spot = np.searchsorted(now["rows"], members)
        whole = _total(now, spot)
        sums = {k: _possible(one[v], whole, data.parties[k], how) for k, one in sums_of.items()}
        if data.party in modes.growing(how, modes.crew_of(data), now["tree"], now["level"]):
            histogram = summed(now["spots"][members], now["fixed"].g[spot], now["fixed"].h[spot], now["grid"].width)
            sums[data.party] = left_sums(histogram, now["grid"])
        best = gains.chosen({k: gains.gains(left, whole, now["fixed"], how) for k, left in sums.items()})
        if best is not None:
            counts = sums[best.party][best.ties, 2]  # candidates with equal gain may divide the rows differently
            choices[v] = (best, counts.max(), whole[2] - counts.min())
    now, told, after = _own_splits(data, state, now, choices)
    now = {**now, "open": _next(how, choices)}
    sent = _news(how, data, now, told, choices)
    reply = {LETTERS: sent, "owners": sorted(now["asked"]), "open": len(now["open"]), "counts": opened}
    return reply, after, {**session, "boost": now}


def _news(how: SecureBoost, data: Columns, now: Mapping[str, Any], told: Any, choices: Mapping[int, Any]) -> list[Any]:
    """Return the letters after the choice of a level's splits.

    Who sums up a child is told how its parent divides. Owners are told what to divide, and what of it to pass on.
    """
    level, open_ = now["level"], now["open"]
    passed = {k: modes.passed(nodes, open_) for k, nodes in sorted(now["asked"].items())}
    to = modes.summing(how, modes.crew_of(data), now["tree"], level + 1) if open_ else ()
    sent = []
    if to:
        own = some_of(told, modes.passed(told["nodes"], open_))
        said = {"told": own, "open": open_, "owners": [k for k, nodes in passed.items() if nodes]}
        sent.append(letter(data, to, LEVEL.topic, said, level))
    for k, nodes in passed.items():
        asked = now["asked"][k]
        wanted = {"nodes": asked, "ties": [tensor(choices[v][0].ties) for v in asked], "passed": nodes if to else []}
        sent.append(letter(data, [k], WANTED.topic, wanted, level))
    return sent


def _settled(how: SecureBoost, data: Columns, state: State, now: Mapping[str, Any], message: Any) -> dict[str, Any]:
    """Return the session with the results of the owners of the last level's splits."""
    nodes, at = dict(now["tree_nodes"]), now["at"]
    for k, asked in now["asked"].items():
        first = int((state["boost"]["nodes"]["party"] == k).sum())
        first += sum(party == k and record >= 0 for party, record, _ in nodes.values())
        numbers = {"told": len(asked), "first": first, "beyond": first + len(asked)}
        said = taken(data, message, k, RECORDED, now["level"], **numbers, **of_level(how, now["level"]))
        if said["told"]["nodes"] != asked:
            raise unusable(data.parties[k], RECORDED.topic, "it divides other nodes than it was asked to")
        with blamed(data, k, RECORDED):
            at = moved(at, [said["told"]])
        for v, record in zip(asked, said["records"], strict=True):
            nodes[v] = (*nodes[v][:1], record, *nodes[v][2:])
    return {**now, "at": at, "tree_nodes": nodes, "asked": {}}


def _total(now: Mapping[str, Any], spot: Whole) -> Whole:
    """Return (3,), the sums of a node: g, h and rows."""
    return np.array([now["fixed"].g[spot].sum(), now["fixed"].h[spot].sum(), len(spot)], np.int64)


def _opened(how: SecureBoost, data: Columns, state: State, now: Mapping[str, Any], message: Any, session: Any) -> Any:
    """Return ({party: {node: (k, 3) left sums}}, counts). PartyLeft, naming the party, for values that are not such sums."""
    found: dict[int, dict[int, Whole]] = {}
    decryptions = 0
    asked = modes.summing(how, modes.crew_of(data), now["tree"], now["level"])
    form = sealed.fields(len(now["rows"]), how) if how.encrypted and asked else None
    kind, most = sums_letter(how), len(now["rows"]) << how.precision  # no sum of a node is larger
    sizes = {"open": len(now["open"]), "least": -most, "above": most + 1}
    for k in asked:
        said, name = taken(data, message, k, kind, now["level"], **sizes), data.parties[k]
        announced, candidates = state["boost"]["announced"][str(k)], said["candidates"]
        if candidates > announced or (how.columns == 1 and candidates != announced):
            raise PartyLeft(f"party '{name}' answered with {candidates} sums per node, but its bins give {announced}.")
        if form is None:
            found[k] = {v: one.numpy() for v, one in zip(now["open"], said["left"], strict=True)}
            continue
        with blamed(data, k, kind):
            found[k] = {
                v: sealed.opened(session["run"][KEY], one, form, candidates, data.workers)
                for v, one in zip(now["open"], said["left"], strict=True)
            }
        decryptions += sum(form.batches(candidates)) * len(said["left"])
    return found, {"decryptions": decryptions, "exponentiations": decryptions} if decryptions else {}


def _possible(left: Whole, whole: Whole, name: str, how: SecureBoost) -> Whole:
    """Return the same sums; PartyLeft if no rows of the node can have them."""
    g, h, count = left.T
    top = 1 << how.precision
    wrong = (count < 0) | (count > whole[2]) | (h < 0) | (h > whole[1]) | (np.abs(g) > count * top)
    if wrong.any():
        raise PartyLeft(
            f"party '{name}' answered with {int(wrong.sum())} sums that no rows of a node can have: they are broken or forged."
        )
    return left


def _own_splits(data: Columns, state: State, now: Mapping[str, Any], choices: Mapping[int, Any]) -> Any:
    """Divide the party's own nodes, and note which nodes the others have to divide.

    Returns the session, the splits to tell everybody, and the party's state.
    """
    nodes, asked = dict(now["tree_nodes"]), dict[int, list[int]]()
    for v, (best, *_) in choices.items():
        nodes[v] = (best.party, -1, best.gain)
        if best.party != data.party:
            asked.setdefault(best.party, []).append(v)
    mine = [v for v, (best, *_) in choices.items() if best.party == data.party]
    wanted = [records.first_of(choices[v][0].ties) for v in mine]
    told, numbers, after = divided(data, state, now, mine, wanted)
    for v, record in zip(mine, numbers, strict=True):
        nodes[v] = (data.party, record, nodes[v][2])
    return {**now, "tree_nodes": nodes, "asked": asked, "at": moved(now["at"], [told])}, told, after


def _next(how: SecureBoost, choices: Mapping[int, Any]) -> list[int]:
    """Return the nodes that may be split further: not too deep, and with enough rows for two leaves."""
    found = []
    for v, (_, left, right) in choices.items():
        for child, rows in ((2 * v, left), (2 * v + 1, right)):
            if child.bit_length() <= how.depth and rows >= 2 * how.min_leaf:
                found.append(child)
    return sorted(found)


def leaves(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return the number of nodes of each party; set the leaves, the margins of all rows, and one more tree."""
    before, boost = under_way(session), state["boost"]
    if before["open"] or not before["level"]:
        raise ProtocolError("the tree is not grown to its end.")
    now = _settled(how, data, state, before, message)
    split, tree = now["tree_nodes"], now["tree"] - 1
    order = sorted({1, *(c for v in split for c in (2 * v, 2 * v + 1))})
    place = {v: i for i, v in enumerate(order)}
    margin, lines = boost["margin"].numpy().copy(), []
    at = now["at"][now["rows"]]
    count = {v: int(np.count_nonzero(at == v)) for v in order}
    for v in reversed(order[1:]):
        count[v // 2] += count[v]
    bare = {"tree": tree, "party": -1, "record": -1, "left": -1, "right": -1, "gain": 0.0, "value": 0.0}
    for v in order:
        line: dict[str, Any] = {**bare, "rows": count[v]}
        if v in split:
            party, record, gain = split[v]
            line |= {"party": party, "record": record, "left": place[2 * v], "right": place[2 * v + 1], "gain": gain}
        else:
            line["value"] = gains.leaf(_total(now, np.flatnonzero(at == v)), now["fixed"], how)
            margin[now["at"] == v] += line["value"]
        lines.append(line)
    nodes = records.appended(boost["nodes"], lines, records.SKELETON)
    owners = {name: sum(party == k for party, *_ in split.values()) for k, name in enumerate(data.parties)}
    after = {**state, "boost": {**boost, "margin": tensor(margin), "nodes": nodes}}
    done = {name: one for name, one in session.items() if name != "boost"}
    return {"nodes": {**owners, "leaves": len(order) - len(split)}}, after, done
