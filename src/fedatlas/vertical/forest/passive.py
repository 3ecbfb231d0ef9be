"""The answers of a party without the label: its best split of each node, the rows of nodes that it won, its leaf sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.algorithm import State, Update
from fedatlas.errors import ProtocolError
from fedatlas.vertical.forest import draws, leaf_sets, splits
from fedatlas.vertical.forest.letter_kinds import BEST, LABELS, SETS, SHAPE, TREE, WANTED, WIDTH
from fedatlas.vertical.forest.records import SHAPE as SHAPES
from fedatlas.vertical.forest.records import TABLE, kept_tree, own_records, shapes
from fedatlas.vertical.forest.settings import FederatedForest
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken, there
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, places, tensor
from fedatlas.vertical.trees import records
from fedatlas.vertical.trees.descent import descended
from fedatlas.vertical.trees.letter_parts import LEVEL, SPLIT, of_level
from fedatlas.vertical.trees.nodes import begun, bits, moved, some_of

Answered = tuple[Update, State, Any]


def width(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Tell the party with the label how many columns this party has."""
    told = letter(data, [data.active], WIDTH.topic, {"columns": len(data.names)})
    return {LETTERS: [told]}, state, session


def empty() -> dict[str, Any]:
    """Return the part of a party's state that holds trees, before the first."""
    return {"table": records.empty(TABLE), "shape": records.empty(SHAPES)}


def learn(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the coded labels of the training rows."""
    said = taken(data, message, data.active, LABELS, rows=len(places(state, "train")))
    classes, labels = said["classes"], said["labels"].numpy()
    with blamed(data, data.active, LABELS):
        if classes and (labels.min() < 0 or labels.max() >= classes):
            raise ProtocolError("a code of a class is out of its range")
    boost = {**empty(), "labels": said["labels"], "coded": classes}
    return {}, {**state, "boost": boost}, session


def tree_begun(data: Columns, state: State, tree: int, columns: Sequence[int], classes: int) -> dict[str, Any]:
    """Return what a party knows of a tree before its first split: the drawn rows, all at the root."""
    boost, train = state["boost"], places(state, "train")
    times = draws.bag(data.seed, tree, len(train))
    drawn = np.flatnonzero(times)
    sums = splits.row_sums(boost["labels"].numpy()[drawn], classes, times[drawn])
    now = {"tree": tree, "level": 1, "columns": [*columns], "rows": train[drawn], "sums": sums}
    return {**now, "at": begun(1, len(drawn)), "open": [1], "held": {}, "own": {}, "divided": False}


def offered(data: Columns, state: State, now: Mapping[str, Any]) -> dict[int, splits.NodeSplit]:
    """Return the party's best split of each open node that it can split."""
    x, found = aligned(data, state).x[now["rows"]], {}
    for v in now["open"]:
        rows = np.flatnonzero(now["at"][0] == v)
        if (one := splits.best(x[rows], now["columns"], now["sums"][rows])) is not None:
            found[v] = one
    return found


def under_way(session: Any) -> dict[str, Any]:
    """Return the tree that is being grown. ProtocolError if there is none."""
    if "forest" not in (session or {}):
        raise ProtocolError("no tree is under way.")
    return dict(session["forest"])


def best(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Tell the party with the label the sums on the left of the best split of each open node; 0 rows: there is none."""
    begins = there(message, TREE.topic)
    now = _planted(how, data, message, state, session) if begins else _onwards(how, data, message, under_way(session))
    held = offered(data, state, now)
    none = np.zeros(now["sums"].shape[1], np.int64)
    left = np.array([held[v].sums if v in held else none for v in now["open"]], np.int64).reshape(-1, len(none))
    told = letter(data, [data.active], BEST.topic, {"left": tensor(left)}, now["level"])
    return {LETTERS: [told]}, state, {**(session or {}), "forest": {**now, "held": held}}


def _planted(how: FederatedForest, data: Columns, message: Any, state: State, session: Any) -> dict[str, Any]:
    said = taken(data, message, data.active, TREE, trees=how.trees + 1, columns=len(data.names))
    if "forest" in (session or {}) or said["tree"] <= len(shapes(state)):
        raise ProtocolError(f"tree {said['tree']} is grown already, or under way.")
    return tree_begun(data, state, said["tree"], said["columns"], state["boost"]["coded"])


def _onwards(how: FederatedForest, data: Columns, message: Any, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree on the next level."""
    after, open_ = descended(how.depth, data, message, now)
    with blamed(data, data.active, LEVEL):
        if not {*open_} <= {*after["at"][0].tolist()}:
            raise ProtocolError("a node is open that no row is at")
    return {**after, "open": open_}


def split(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Divide the rows of the nodes that this party won: all for the party with the label, those that go on for the others."""
    now = under_way(session)
    said = taken(data, message, data.active, WANTED, now["level"], **of_level(how.depth, now["level"]))
    if now["divided"]:
        raise ProtocolError("the nodes of this level are divided already.")
    with blamed(data, data.active, WANTED):
        if not {*said["passed"]} <= {*said["nodes"]} <= {*now["held"]}:
            raise ProtocolError("it names a node that this party offered no split of")
    told, now = divided(data, state, now, said["nodes"])
    others = [k for k in range(len(data.parties)) if k not in (data.party, data.active)]
    passed = some_of(told, said["passed"])
    sent = [letter(data, others, SPLIT.topic, {"told": passed}, now["level"])] if others and passed["nodes"] else []
    sent.append(letter(data, [data.active], SPLIT.topic, {"told": told}, now["level"]))
    return {LETTERS: sent}, state, {**session, "forest": {**now, "divided": True}}


def divided(
    data: Columns, state: State, now: Mapping[str, Any], nodes: Sequence[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide nodes by the party's best splits. Return which rows go left, and the tree with these splits."""
    x, left = aligned(data, state).x[now["rows"]], []
    for v in nodes:
        one, rows = now["held"][v], np.flatnonzero(now["at"][0] == v)
        values = x[rows, one.column]
        left.append(bits(np.where(np.isnan(values), one.left, values <= one.cut)))
    told = {"nodes": [*nodes], "left": left}
    own = {**now["own"], **{v: now["held"][v] for v in nodes}}
    return told, {**now, "own": own, "at": moved(now["at"], [told])}


def keep(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Keep the tree as it was pruned, and send the leaf sets of the rows outside of training."""
    begins = there(message, TREE.topic)  # its root is a leaf
    now = _planted(how, data, message, state, session) if begins else under_way(session)
    inner = taken(data, message, data.active, SHAPE, now["tree"], above=1 << how.depth)["inner"]
    with blamed(data, data.active, SHAPE):
        if any(v > 1 and v // 2 not in inner for v in inner):
            raise ProtocolError("a node hangs at no other")
    after = kept_tree(state, now, inner)
    told = _letter(data, after, aligned(data, state).x[judged(state)], [now["tree"] - 1], now["tree"])
    done = {name: one for name, one in (session or {}).items() if name != "forest"}
    return {LETTERS: [told]}, after, done


def judged(state: State) -> Whole:
    """Return the places, ascending, of the rows that do not train."""
    return np.sort(np.concatenate([places(state, "held"), places(state, "test")]))


def reach(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Send the leaf sets of all rows in all trees."""
    trees = range(len(shapes(state)))
    return {LETTERS: [_letter(data, state, aligned(data, state).x, trees, 0)]}, state, session


def _letter(data: Columns, state: State, x: Floats, trees: Sequence[int], step: int) -> Any:
    table, forms = state["boost"]["table"], shapes(state)
    sets = [tensor(leaf_sets.told(x, forms[t], table, own_records(table, t))) for t in trees]
    return letter(data, [data.active], SETS.topic, {"sets": sets}, step)
