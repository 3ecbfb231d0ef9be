"""The answers of a party without the label while a tree grows: sums of its bins, and the rows of nodes that it won."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.algorithm import State, Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import numpy_stream
from fedatlas.vertical.boosting import modes, sealed
from fedatlas.vertical.boosting.bins import Grid, cuts_of, grid, numbered, spots
from fedatlas.vertical.boosting.histogram import Clear
from fedatlas.vertical.boosting.letter_kinds import (
    BINS,
    BY_CLASS,
    SUMS,
    WANTED,
    gradients_letter,
    nodes_summed,
)
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken, there, unusable
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, places, tensor
from fedatlas.vertical.psi import shuffle
from fedatlas.vertical.trees import records
from fedatlas.vertical.trees.descent import descended
from fedatlas.vertical.trees.letter_parts import SPLIT, common, of_level
from fedatlas.vertical.trees.nodes import begun, bits, moved, own_tree, parents, roots, smaller, some_of, tree_of

Answered = tuple[Update, State, Any]


def cut(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Cut the party's columns into bins, using only training rows, and return how many candidates they give."""
    x = aligned(data, state).x[places(state, "train")]
    cuts = [cuts_of(column, how.bins) for column in x.T]
    holes: NDArray[np.bool_] = np.asarray(np.isnan(x).any(axis=0))
    boost = {
        "cuts": tensor(np.concatenate([*cuts, np.empty(0)])),
        "lengths": tensor(np.array([len(one) for one in cuts], np.int64)),
        "holes": tensor(holes),
        "table": records.empty(records.TABLE),
    }
    whole = grid(range(len(cuts)), cuts, holes)
    told = letter(data, [data.active], BINS.topic, {"candidates": len(whole.at)})
    return {LETTERS: [told]}, {**state, "boost": boost}, session


def offered(how: SecureBoost, data: Columns, state: State, tree: int) -> tuple[Grid, Whole]:
    """Return the party's candidates for a tree, and (N, columns), the positions of its rows in the histogram."""
    boost, own = state["boost"], aligned(data, state)
    cuts, columns = records.column_cuts(boost), range(len(data.names))
    if how.columns < 1 and columns:
        drawn = numpy_stream(data.seed, "boosting", tree, data.party)
        some = drawn.choice(len(columns), max(1, round(how.columns * len(columns))), replace=False)
        found = grid(sorted(some.tolist()), cuts, boost["holes"].numpy())
    else:
        found = grid(columns, cuts, boost["holes"].numpy())
    return found, spots(numbered(own.x, cuts), found)


def histogram(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return the left sums of all candidates of the open nodes, in a secret order."""
    if "boost" in session_of(session):
        now, asked = _onwards(how, data, message, session["boost"])
    else:
        now = _begun(how, data, message, state)
        asked = roots(len(now["at"]))
    sent, found = nodes_summed(how, now["level"], asked), now["grid"]
    held = _level(how, now, asked)
    orders = {v: shuffle(len(found.at)) for v in sent}
    left = [_sums(now, v).returned(held[v], found, orders[v]) for v in sent]
    orders = {v: orders.get(v, orders[sent[0]]) for v in asked}
    told = letter(data, [data.active], SUMS, {"candidates": len(found.at), "left": left}, now["level"])
    now = {**now, "held": held, "orders": orders}
    return {LETTERS: [told], "counts": _counted(how, now, left)}, state, {**session_of(session), "boost": now}


def _onwards(how: SecureBoost, data: Columns, message: Any, now: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """Return (the session on the next level, its open nodes)."""
    level = now["level"] + 1
    if data.party not in modes.summing(how, modes.crew_of(data), now["tree"], level):
        raise ProtocolError(f"level {level} of tree {now['tree']} is not grown on the columns of '{data.name}'.")
    return descended(how.depth, data, message, now)


def session_of(session: Any) -> dict[str, Any]:
    """Return a copy of the session's content so far."""
    return dict(session or {})


def under_way(session: Any) -> dict[str, Any]:
    """Return the tree, or the round's trees, that are being grown. ProtocolError if there is none."""
    if "boost" not in session_of(session):
        raise ProtocolError("no tree is under way.")
    return dict(session["boost"])


def _begun(how: SecureBoost, data: Columns, message: Any, state: State) -> dict[str, Any]:
    several, train = there(message, BY_CLASS), places(state, "train")
    kind = gradients_letter(how, several=several)
    sizes = {"places": common(state), "trees": how.trees + 1} | ({} if how.sampled else {"rows": len(train)})
    told = taken(data, message, data.active, kind, **sizes)
    tree = told["tree"]
    if data.party not in modes.summing(how, modes.crew_of(data), tree, 1):
        raise unusable(
            data.parties[data.active], kind.topic, f"tree {tree} is not grown on the columns of '{data.name}'"
        )
    outputs = told["classes"] if several else 1
    trees, (found, at_bins) = how.forest(outputs), offered(how, data, state, tree)
    rows = told["rows"].numpy() if told["rows"] is not None else train
    sums: Any
    if how.encrypted:
        with blamed(data, data.active, kind):
            sums = [_cipher(how, data, told, len(rows), outputs)] * trees
    else:
        g, h = told["g"].numpy(), told["h"].numpy()
        sums = [Clear(g, h)] if trees == 1 else [Clear(*pair) for pair in zip(g.T, h.T, strict=True)]
    now = {"tree": tree, "level": 1, "divided": False, "grid": found, "spots": at_bins}
    return {**now, "rows": rows, "sums": sums, "at": begun(trees, len(at_bins)), "held": {}}


def _cipher(how: SecureBoost, data: Columns, told: Mapping[str, Any], rows: int, outputs: int) -> sealed.Cipher:
    """Return the sums of a round: one ciphertext a row serves all its trees. ProtocolError for other ciphertexts."""
    public, form = paillier.public_key(told["public"], testing=how.testing), sealed.fields(rows, how, outputs)
    if len(told["ciphertexts"]) != len(form.widths):
        raise ProtocolError("it holds other ciphertexts than those of its classes")
    batches = tuple(paillier.received(public, one, rows) for one in told["ciphertexts"])
    return sealed.Cipher(public, batches, form, data.workers)


def _sums(now: Mapping[str, Any], v: int) -> Any:
    """Return the gradients of a node's tree."""
    return now["sums"][tree_of(v, len(now["at"]))]


def _level(how: SecureBoost, now: Mapping[str, Any], asked: Sequence[int]) -> dict[int, Any]:
    """Return the histograms of some nodes.

    Of two siblings the smaller is summed, and the other is the parent minus it.
    """
    rows, before, width = now["rows"], now["held"], now["grid"].width

    def direct(v: int) -> Any:
        members = np.flatnonzero(own_tree(now["at"], v)[rows] == v)
        return _sums(now, v).histogram(members, now["spots"][rows[members]], width)

    if len(nodes_summed(how, now["level"], asked)) < len(asked):
        return dict.fromkeys(asked, direct(asked[0]))
    found: dict[int, Any] = {}
    for parent in parents(asked):
        children = [v for v in (2 * parent, 2 * parent + 1) if v in asked]
        if parent not in before or not how.subtract:
            found |= {v: direct(v) for v in children}
            continue
        small = smaller(own_tree(now["at"], children[0])[rows], parent)
        pair = {small: direct(small)}
        if small ^ 1 in children:
            pair[small ^ 1] = _sums(now, small).sister(before[parent], pair[small])
        found |= {v: pair[v] for v in children}
    return found


def _counted(how: SecureBoost, now: Mapping[str, Any], left: Sequence[Any]) -> dict[str, int]:
    """Count the ciphertexts sent and the work for them; exponentiations are those that blind or gather sums."""
    if not how.encrypted:
        return {}
    sent = sum(len(batch["ciphertexts"]) for one in left for batch in one)
    sums = len(left) * len(now["grid"].at) * len(now["sums"][0].form.widths)
    return {"ciphertexts": sent, "encryptions": sent, "exponentiations": max(sent, sums)}


def split(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Add records to the party's table, and return which rows of each node they send left."""
    now = under_way(session)
    said = taken(data, message, data.active, WANTED, now["level"], **of_level(how.depth, now["level"], len(now["at"])))
    if now["divided"]:
        raise ProtocolError("the nodes of this level are divided already.")
    with blamed(data, data.active, WANTED):
        if not {*said["passed"]} <= {*said["nodes"]}:
            raise ProtocolError("nodes are to be passed on that are not to be divided.")
        wanted = [
            _first(now["orders"].get(v), ties, data.name) for v, ties in zip(said["nodes"], said["ties"], strict=True)
        ]
    told, numbers, after = divided(data, state, now, said["nodes"], wanted)
    summing = modes.summing(how, modes.crew_of(data), now["tree"], now["level"] + 1)
    to, passed = [k for k in summing if k != data.party], some_of(told, said["passed"])
    sent = [letter(data, to, SPLIT.topic, {"told": passed}, now["level"])] if to and passed["nodes"] else []
    sent.append(letter(data, [data.active], SPLIT.topic, {"told": told, "records": numbers}, now["level"]))
    at = moved(now["at"], [told])
    return {LETTERS: sent}, after, {**session, "boost": {**now, "at": at, "divided": True}}


def _first(order: Whole | None, ties: Any, name: str) -> int:
    """Return the first candidate among those named by their positions in the secret order.

    ProtocolError if the party never offered them.
    """
    if order is None or not len(ties) or not (int(ties.min()) >= 0 and int(ties.max()) < len(order)):
        raise ProtocolError(f"party '{name}' was asked for a split that it never offered.")
    return records.first_of(order[ties.numpy()])


def divided(
    data: Columns, state: State, now: Mapping[str, Any], nodes: Sequence[int], wanted: Sequence[int]
) -> tuple[dict[str, Any], list[int], State]:
    """Split nodes by these candidates.

    Return the message to the others, the new records' numbers and the party's state.
    """
    x = aligned(data, state).x
    found = now["grid"]
    left = found.left[list(wanted)].tolist() if data.rules < 2 else _ways_of_holes(now, x, nodes, wanted)
    trees = len(now["at"])
    places_ = [(now["tree"] - 1) * trees + tree_of(v, trees) for v in nodes]
    lines = [
        {"tree": tree, "gain": np.nan, "column": found.column[i], "cut": found.cut[i], "left": way}
        for i, way, tree in zip(wanted, left, places_, strict=True)
    ]
    after, numbers = records.with_lines(state, lines)
    table, at = after["boost"]["table"], now["at"]
    left = [bits(records.ways(table, r, x[own_tree(at, v) == v])) for v, r in zip(nodes, numbers, strict=True)]
    return {"nodes": list(nodes), "left": left}, numbers, after


def _ways_of_holes(now: Mapping[str, Any], x: Floats, nodes: Sequence[int], wanted: Sequence[int]) -> list[bool]:
    """Return whether missing values go left, by node: as the candidate says if the node's training rows have some.

    Else they go with more of these rows, and left if both children have the same number.
    """
    found, rows = now["grid"], now["rows"]
    out = []
    for v, i in zip(nodes, wanted, strict=True):
        values = x[rows[own_tree(now["at"], v)[rows] == v], found.column[i]]
        most = 2 * np.count_nonzero(values <= found.cut[i]) >= len(values)
        out.append(bool(found.left[i] if np.isnan(values).any() else most))
    return out
