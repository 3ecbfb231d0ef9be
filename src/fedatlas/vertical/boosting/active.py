"""The answers of the party with the label while a tree grows: gradients, the best split of each node, the leaves.

Labels, margins, the secret key, opened sums and the trees' structure never leave the party. It tells the others the
gradients (encrypted, or in the clear in a simulation), which of their candidates won, and which rows its own splits
send left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas import secret
from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import numpy_stream
from fedatlas.vertical.boosting import gains, goss, modes, sealed
from fedatlas.vertical.boosting.histogram import left_sums, summed
from fedatlas.vertical.boosting.letter_kinds import (
    BINS,
    BY_CLASS,
    GRADIENTS,
    RECORDED,
    WANTED,
    classes_summed,
    nodes_summed,
    sums_letter,
)
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
from fedatlas.vertical.trees import records
from fedatlas.vertical.trees.letter_parts import LEVEL, of_level
from fedatlas.vertical.trees.nodes import begun, level_of, moved, own_tree, passed, roots, some_of, tree_of

KEY = "key"  # key of a session's memory that lasts over rounds and is never stored


def start(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Cut the party's own columns into bins, start all margins, and note how many candidates the others announced."""
    _, state, _ = cut(how, model, data, message, state, session)
    own, train = aligned(data, state), places(state, "train")
    assert own.y is not None
    weight = None if own.weight is None else own.weight[train]
    unit = gains.unit_of(own.y[train], weight, data.task, data.classes)
    if how.encrypted:
        sealed.fields(
            drawn(how, len(train)), how, unit.outputs
        )  # a key that is too short is refused before the first tree
    several = unit.outputs > 1
    boost = {
        **state["boost"],
        "margin": tensor(np.zeros((len(own.y), unit.outputs) if several else len(own.y))),
        **({"classes": unit.outputs} if several else {}),
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
    start, scale = boost["unit"].tolist()
    return gains.MarginUnit(boost["task"], start, scale, boost.get("classes", 1))


def drawn(how: SecureBoost, rows: int) -> int:
    """Return on how many of so many training rows a tree is grown."""
    return max(1, round(how.subsample * rows)) if how.subsample < 1 else rows


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
        some = numpy_stream(data.seed, "boosting", tree).choice(rows, drawn(how, len(rows)), replace=False)
        rows = np.sort(some)
    weight = None if own.weight is None else own.weight[rows]
    g, h = gains.gradients(own.y[rows], boost["margin"].numpy()[rows], weight, unit(boost), how)
    if how.goss is not None:
        kept = goss.kept(goss.sizes(g), how.goss, numpy_stream(boost["draws"], "boosting", "goss", tree))
        rows, g, h = rows[kept.rows], kept.weighted(g), kept.weighted(h)
    fixed, several = gains.by_class(g, h, how.precision), unit(boost).outputs > 1
    found, spots = offered(how, data, state, tree)
    trees = how.forest(len(fixed))
    now = {"tree": tree, "grid": found, "spots": spots, "rows": rows, "fixed": fixed}
    now |= {"at": begun(trees, len(own.y)), "open": roots(trees), "asked": {}, "tree_nodes": {}, "level": 0}
    told: dict[str, Any] = {"tree": tree, "rows": tensor(rows) if how.sampled else None}
    told |= {"classes": len(fixed)} if several else {}
    counts, to = {}, modes.summing(how, modes.crew_of(data), tree, 1)
    if to and how.encrypted:
        holder, form = session["run"][KEY], sealed.fields(len(rows), how, len(fixed))
        batches = sealed.sealed(fixed, form, holder, data.workers)
        told |= {"public": holder.public.plain(), "ciphertexts": [one.plain() for one in batches]}
        made = len(rows) * len(batches)
        counts = {"ciphertexts": made * len(to), "encryptions": made, "exponentiations": made}
    elif to:
        told |= {name: tensor(one if several else one[:, 0]) for name, one in zip("gh", stacked(fixed), strict=True)}
    sent = [letter(data, to, BY_CLASS if several else GRADIENTS, told)] if to else []
    return {LETTERS: sent, "counts": counts}, state, {**session_of(session), "boost": now}


def stacked(found: Sequence[gains.Fixed], rows: Any = slice(None)) -> tuple[Whole, Whole]:
    """Return g and h of some rows, (rows, classes)."""
    return np.stack([one.g[rows] for one in found], axis=1), np.stack([one.h[rows] for one in found], axis=1)


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
        spot, fixed = np.flatnonzero(own_tree(now["at"], v)[now["rows"]] == v), _classes(now, v)
        whole, spots = _total(fixed, spot), now["spots"][now["rows"][spot]]
        sums = {k: _possible(one[v], whole, data.parties[k], how) for k, one in sums_of.items()}
        if data.party in modes.growing(how, modes.crew_of(data), now["tree"], now["level"]):
            sums[data.party] = left_sums(summed(spots, *stacked(fixed, spot), now["grid"].width), now["grid"])
        best = gains.chosen({k: gains.gains(left, whole, fixed, how) for k, left in sums.items()})
        if best is not None:
            counts = sums[best.party][best.ties, -1]  # candidates with equal gain may divide the rows differently
            choices[v] = (best, counts.max(), whole[-1] - counts.min())
    now, told, after = _own_splits(data, state, now, choices)
    now = {**now, "open": _next(how, choices, len(now["at"]))}
    sent = _news(how, data, now, told, choices)
    reply = {LETTERS: sent, "owners": sorted(now["asked"]), "open": len(now["open"]), "counts": opened}
    return reply, after, {**session, "boost": now}


def _news(how: SecureBoost, data: Columns, now: Mapping[str, Any], told: Any, choices: Mapping[int, Any]) -> list[Any]:
    """Return the letters after the choice of a level's splits.

    Who sums up a child is told how its parent divides. Owners are told what to divide, and what of it to pass on.
    """
    level, open_ = now["level"], now["open"]
    on = {k: passed(nodes, open_) for k, nodes in sorted(now["asked"].items())}
    to = modes.summing(how, modes.crew_of(data), now["tree"], level + 1) if open_ else ()
    sent = []
    if to:
        own = some_of(told, passed(told["nodes"], open_))
        said = {"told": own, "open": open_, "owners": [k for k, nodes in on.items() if nodes]}
        sent.append(letter(data, to, LEVEL.topic, said, level))
    for k, nodes in on.items():
        asked = now["asked"][k]
        wanted = {"nodes": asked, "ties": [tensor(choices[v][0].ties) for v in asked], "passed": nodes if to else []}
        sent.append(letter(data, [k], WANTED.topic, wanted, level))
    return sent


def _settled(how: SecureBoost, data: Columns, state: State, now: Mapping[str, Any], message: Any) -> dict[str, Any]:
    """Return the session with the results of the owners of the last level's splits."""
    nodes, at = dict(now["tree_nodes"]), now["at"]
    for k, asked in now["asked"].items():
        sizes = of_level(how.depth, now["level"], len(at))
        first = int((state["boost"]["nodes"]["party"] == k).sum())
        first += sum(party == k and record >= 0 for party, record, _ in nodes.values())
        numbers = {"told": len(asked), "first": first, "beyond": first + len(asked)}
        said = taken(data, message, k, RECORDED, now["level"], **numbers, **sizes)
        if said["told"]["nodes"] != asked:
            raise unusable(data.parties[k], RECORDED.topic, "it divides other nodes than it was asked to")
        with blamed(data, k, RECORDED):
            at = moved(at, [said["told"]])
        for v, record in zip(asked, said["records"], strict=True):
            nodes[v] = (*nodes[v][:1], record, *nodes[v][2:])
    return {**now, "at": at, "tree_nodes": nodes, "asked": {}}


def _classes(now: Mapping[str, Any], v: int) -> tuple[gains.Fixed, ...]:
    """Return the gradients of the classes of a node's tree: of one, or of all if the round is one tree."""
    trees, t = len(now["at"]), tree_of(v, len(now["at"]))
    found: tuple[gains.Fixed, ...] = now["fixed"] if trees == 1 else now["fixed"][t : t + 1]
    return found


def _total(found: Sequence[gains.Fixed], spot: Whole) -> Whole:
    """Return (2 classes + 1,), the sums of a node: g and h of each class, and rows."""
    pairs = [(one.g[spot].sum(), one.h[spot].sum()) for one in found]
    return np.array([*(each for pair in pairs for each in pair), len(spot)], np.int64)


def _opened(how: SecureBoost, data: Columns, state: State, now: Mapping[str, Any], message: Any, session: Any) -> Any:
    """Return ({party: {node: left sums of its tree's classes}}, counts).

    PartyLeft, naming the party, for values that are not such sums.
    """
    found: dict[int, dict[int, Whole]] = {}
    decryptions, outputs, trees = 0, len(now["fixed"]), len(now["at"])
    asked = modes.summing(how, modes.crew_of(data), now["tree"], now["level"])
    form = sealed.fields(len(now["rows"]), how, outputs) if how.encrypted and asked else None
    kind = sums_letter(how, classes_summed(how, outputs))
    most = len(now["rows"]) << how.precision  # no sum of a node is larger
    summed_ = nodes_summed(how, now["level"], now["open"])
    sizes = {"open": len(summed_), "least": -most, "above": most + 1}
    for k in asked:
        said, name = taken(data, message, k, kind, now["level"], **sizes), data.parties[k]
        announced, candidates = state["boost"]["announced"][str(k)], said["candidates"]
        if candidates > announced or (how.columns == 1 and candidates != announced):
            raise PartyLeft(f"party '{name}' answered with {candidates} sums per node, but its bins give {announced}.")
        if form is None:
            found[k] = {v: one.numpy() for v, one in zip(now["open"], said["left"], strict=True)}
            continue
        with blamed(data, k, kind):
            opened = {
                v: sealed.opened(session["run"][KEY], one, form, candidates, data.workers)
                for v, one in zip(summed_, said["left"], strict=True)
            }
        each = {v: opened.get(v, opened[summed_[0]]) for v in now["open"]}
        found[k] = {v: one if trees == 1 else gains.of_class(one, tree_of(v, trees)) for v, one in each.items()}
        decryptions += sum(form.batches(candidates)) * len(said["left"])
    return found, {"decryptions": decryptions, "exponentiations": decryptions} if decryptions else {}


def _possible(left: Whole, whole: Whole, name: str, how: SecureBoost) -> Whole:
    """Return the same sums; PartyLeft if no rows of the node can have them."""
    g, h, count = left[:, :-1:2], left[:, 1:-1:2], left[:, -1:]
    top = 1 << how.precision
    odd = (count < 0) | (count > whole[-1]) | (h < 0) | (h > whole[1:-1:2]) | (np.abs(g) > count * top)
    wrong = odd.any(axis=1)
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


def _next(how: SecureBoost, choices: Mapping[int, Any], trees: int) -> list[int]:
    """Return the nodes that may be split further: not too deep, and with enough rows for two leaves."""
    found = []
    for v, (_, left, right) in choices.items():
        for child, rows in ((2 * v, left), (2 * v + 1, right)):
            if level_of(child, trees) <= how.depth and rows >= 2 * how.min_leaf:
                found.append(child)
    return sorted(found)


def leaves(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return the number of nodes of each party; set the leaves, the margins of all rows, and add the round's trees."""
    before, boost = under_way(session), state["boost"]
    if before["open"] or not before["level"]:
        raise ProtocolError("the tree is not grown to its end.")
    now = _settled(how, data, state, before, message)
    split, trees, lines = now["tree_nodes"], len(now["at"]), list[dict[str, Any]]()
    margin = boost["margin"].numpy().copy()
    for t, own in enumerate(margin.T if trees > 1 else [margin]):
        for v, line in _nodes(how, now, t).items():
            lines.append(line)
            if v not in split:
                own[now["at"][t] == v] += line["value"]
    nodes = records.appended(boost["nodes"], lines, records.SKELETON)
    owners = {name: sum(party == k for party, *_ in split.values()) for k, name in enumerate(data.parties)}
    after = {**state, "boost": {**boost, "margin": tensor(margin), "nodes": nodes}}
    done = {name: one for name, one in session.items() if name != "boost"}
    return {"nodes": {**owners, "leaves": len(lines) - len(split)}}, after, done


def _nodes(how: SecureBoost, now: Mapping[str, Any], t: int) -> dict[int, dict[str, Any]]:
    """Return the lines of the skeleton of tree t of the round, by node."""
    trees, fixed = len(now["at"]), _classes(now, roots(len(now["at"]))[t])
    split = {v: one for v, one in now["tree_nodes"].items() if tree_of(v, trees) == t}
    order = sorted({roots(trees)[t], *(c for v in split for c in (2 * v, 2 * v + 1))})
    place, at = {v: i for i, v in enumerate(order)}, now["at"][t][now["rows"]]
    count = {v: int(np.count_nonzero(at == v)) for v in order}
    for v in reversed(order[1:]):
        count[v // 2] += count[v]
    nothing = 0.0 if len(fixed) == 1 else [0.0] * len(fixed)
    bare = {"tree": (now["tree"] - 1) * trees + t, "party": -1, "record": -1, "left": -1, "right": -1, "gain": 0.0}
    found = {}
    for v in order:
        line: dict[str, Any] = {**bare, "value": nothing, "rows": count[v]}
        if v in split:
            party, record, gain = split[v]
            line |= {"party": party, "record": record, "left": place[2 * v], "right": place[2 * v + 1], "gain": gain}
        else:
            whole = _total(fixed, np.flatnonzero(at == v))
            each = [gains.leaf(gains.of_class(whole, c), one, how) for c, one in enumerate(fixed)]
            line["value"] = each[0] if len(each) == 1 else each
        found[v] = line
    return found
