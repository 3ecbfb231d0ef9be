"""The answers of the party with the label, which is the master of the forest: draws, the best split of each node, leaves.

It decodes the sums that the others send. So every gain, leaf and cut of a branch is computed from the labels themselves,
and none depends on the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.vertical.forest import coding, draws, leaf_sets, passive, splits
from fedatlas.vertical.forest.letter_kinds import BEST, LABELS, SETS, SHAPE, TREE, WANTED, WIDTH
from fedatlas.vertical.forest.pruning import pruned
from fedatlas.vertical.forest.records import kept_tree, own_records, shapes
from fedatlas.vertical.forest.settings import FederatedForest
from fedatlas.vertical.letters import LETTERS, blamed, letter, others, taken
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, places, tensor
from fedatlas.vertical.trees import records
from fedatlas.vertical.trees.letter_parts import LEVEL, SPLIT, of_level
from fedatlas.vertical.trees.nodes import level_of, moved, passed, some_of, unpacked

Answered = passive.Answered


def start(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the code of the labels, and send them to the others in it. ProtocolError the second time: under another code."""
    if "boost" in state:
        raise ProtocolError("the labels are coded already.")
    y = _labels(data, state)
    widths = [taken(data, message, k, WIDTH)["columns"] if k != data.party else len(data.names) for k in _all(data)]
    scale = None if data.task == "classes" else coding.scale_of(y)
    labels, key = coding.whole_numbers(y, scale), coding.mask(data.classes)
    told = {"classes": data.classes, "labels": tensor(coding.coded(labels, key, data.classes))}
    nothing = np.zeros((len(aligned(data, state).x), *([data.classes] if data.classes else [])))
    boost = {
        **passive.empty(),
        **({"classes": data.classes} if data.classes else {}),
        "task": data.task,
        "unit": tensor(np.array([0.0, 1.0])),
        "least": 0.5 / len(y),
        "labels": tensor(labels),
        "steps": 1.0 if scale is None else scale.unit,
        "key": tensor(key),
        "widths": widths,
        "nodes": records.empty(records.SKELETON),
        "votes": tensor(nothing),
    }
    return {"started": True, LETTERS: _to_others(data, LABELS.topic, told)}, {**state, "boost": boost}, session


def _all(data: Columns) -> range:
    return range(len(data.parties))


def _labels(data: Columns, state: State) -> Floats:
    y = aligned(data, state).y
    assert y is not None
    return y[places(state, "train")]


def _to_others(data: Columns, topic: str, told: Mapping[str, Any], step: int = 0) -> list[Any]:
    to = others(data)
    return [letter(data, to, topic, told, step)] if to else []


def plant(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Draw the tree's columns, and tell each party its own."""
    if "forest" in (session or {}):
        raise ProtocolError("a tree is under way already.")
    tree, boost = message["tree"], state["boost"]
    drawn = draws.columns(how, data.seed, tree, boost["widths"])
    now = passive.tree_begun(data, state, tree, drawn[data.party], data.classes)
    now |= {"open": _open(how, data, {1: now["sums"].sum(axis=0)}), "asked": {}, "split": {}}
    sent = [letter(data, [k], TREE.topic, {"tree": tree, "columns": drawn[k]}) for k in others(data)]
    return {LETTERS: sent, "open": len(now["open"])}, state, {**(session or {}), "forest": now}


def _open(how: FederatedForest, data: Columns, sums: Mapping[int, Whole]) -> list[int]:
    """Return the nodes that may be split: not too deep, with enough rows, and not of one class."""
    return [
        v
        for v, one in sorted(sums.items())
        if level_of(v, 1) <= how.depth and one[0] >= how.min_samples and not (data.classes and one[1:].max() == one[0])
    ]


def choose(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Take the best split of each open node, the first party's of equal ones, and divide the nodes that this party wins."""
    before = passive.under_way(session)
    if not before["open"]:
        raise ProtocolError("no node of the tree is open.")
    now = _settled(how, data, before, message)
    now["held"] = passive.offered(data, state, now)
    total = _totals(now, now["open"])
    said = {k: _decoded(data, state, now, message, k, total) for k in others(data)}
    left: dict[int, tuple[int, Whole, Fraction]] = {}
    for i, v in enumerate(now["open"]):
        offers = {k: one[i] for k, one in said.items() if one[i, 0]}
        offers |= {data.party: now["held"][v].sums} if v in now["held"] else {}
        gains = {k: splits.gain(one.tolist(), total[v].tolist()) for k, one in sorted(offers.items())}
        if gains and max(gains.values()) > 0:
            won = max(gains, key=lambda k: (gains[k], -k))
            left[v] = (won, offers[won], gains[won])
    told, now = passive.divided(data, state, now, [v for v, (k, *_) in left.items() if k == data.party])
    asked = {k: [v for v, (won, *_) in left.items() if won == k] for k in others(data)}
    now |= {"asked": {k: nodes for k, nodes in asked.items() if nodes}, "split": {**now["split"], **left}}
    sides = {2 * v + side: one if not side else total[v] - one for v, (_, one, _) in left.items() for side in (0, 1)}
    now["open"] = _open(how, data, sides)
    sent = _news(data, now, told)
    now["level"] += 1
    reply = {LETTERS: sent, "owners": sorted(now["asked"]), "open": len(now["open"])}
    return reply, state, {**session, "forest": now}


def _news(data: Columns, now: Mapping[str, Any], told: Mapping[str, Any]) -> list[Any]:
    """Return the letters after a level's choices: owners are told what to divide, all how rows of open nodes went."""
    level, open_ = now["level"], now["open"]
    on = {k: passed(nodes, open_) for k, nodes in sorted(now["asked"].items())}
    own = some_of(told, passed(told["nodes"], open_))
    said = {"told": own, "open": open_, "owners": [k for k, nodes in on.items() if nodes]}
    sent = _to_others(data, LEVEL.topic, said, level) if open_ else []
    for k, nodes in on.items():
        sent.append(letter(data, [k], WANTED.topic, {"nodes": now["asked"][k], "passed": nodes}, level))
    return sent


def _settled(how: FederatedForest, data: Columns, now: Mapping[str, Any], message: Any) -> dict[str, Any]:
    """Return the tree with the rows as the owners of the last level's splits divided them."""
    at, level = now["at"], now["level"] - 1
    for k, asked in now["asked"].items():
        told = taken(data, message, k, SPLIT, level, **of_level(how.depth, level))["told"]
        with blamed(data, k, SPLIT):
            if told["nodes"] != asked:
                raise ProtocolError("it divides other nodes than it was asked to")
            for v, packed in zip(asked, told["left"], strict=True):
                rows = np.flatnonzero(at[0] == v)
                if (now["sums"][rows[unpacked(packed, len(rows))]].sum(axis=0) != now["split"][v][1]).any():
                    raise ProtocolError("it divides a node in another way than it offered")
            at = moved(at, [told])
    return {**now, "at": at, "asked": {}}


def _totals(now: Mapping[str, Any], nodes: Sequence[int]) -> dict[int, Whole]:
    return {v: now["sums"][now["at"][0] == v].sum(axis=0) for v in nodes}


def _decoded(
    data: Columns, state: State, now: Mapping[str, Any], message: Any, k: int, total: Mapping[int, Whole]
) -> Whole:
    """Return (open, 1 + width), the sums that a party offers. PartyLeft if no rows of a node can have them."""
    sizes = {"open": len(now["open"]), "width": now["sums"].shape[1]}
    left = taken(data, message, k, BEST, now["level"], **sizes)["left"].numpy()
    with blamed(data, k, BEST):
        found = coding.decoded(left, state["boost"]["key"].numpy(), data.classes)
        whole = np.array([total[v] for v in now["open"]])
        offers = found[:, 0] != 0
        odd = (found[:, 0] < 0) | (found[:, 0] >= whole[:, 0])
        if data.classes:
            odd |= (found[:, 1:] < 0).any(axis=1) | (found > whole).any(axis=1)
            odd |= found[:, 1:].sum(axis=1) != found[:, 0]
        else:
            odd |= (found[:, 1] < 0) | (found[:, 1] > found[:, 0] << coding.PRECISION)
        if (odd & offers).any():
            raise ProtocolError("its sums are those of no rows of a node")
    return found


def ripen(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Prune the tree, form its leaves, and tell the others its shape."""
    before = passive.under_way(session)
    if before["open"] or "ripe" in before:
        raise ProtocolError(f"the tree is {'settled already' if 'ripe' in before else 'not grown to its end'}.")
    now, boost = _settled(how, data, before, message), state["boost"]
    split = now["split"]
    held = _rows_of(now, split)
    alpha = Fraction(how.ccp_alpha)
    inner = pruned(
        split, {v: _cost(now, rows, boost) for v, rows in held.items()} if alpha else dict.fromkeys(held, alpha), alpha
    )
    lines = _lines(data, state, now, inner, held)
    after = kept_tree(state, now, inner)
    nodes = records.appended(boost["nodes"], lines, records.SKELETON)
    after = {**after, "boost": {**after["boost"], "nodes": nodes}}
    owners = {name: sum(split[v][0] == k for v in inner) for k, name in enumerate(data.parties)}
    sent = _to_others(data, SHAPE.topic, {"inner": inner}, now["tree"])
    return (
        {LETTERS: sent, "nodes": {**owners, "leaves": len(inner) + 1}},
        after,
        {**session, "forest": {**now, "ripe": True}},
    )


def _rows_of(now: Mapping[str, Any], split: Mapping[int, Any]) -> dict[int, Whole]:
    """Return the rows of each node of the tree, as places among those drawn."""
    found = {v: np.flatnonzero(now["at"][0] == v) for v in leaf_sets.leaves_of(split)}
    for v in sorted(split, reverse=True):
        found[v] = np.concatenate([found[2 * v], found[2 * v + 1]])
    return found


def _cost(now: Mapping[str, Any], rows: Whole, boost: Mapping[str, Any]) -> Fraction:
    """Return a node's share of the drawn rows times its impurity: Gini, or variance in the label's unit."""
    sums: list[int] = now["sums"][rows].sum(axis=0).tolist()
    unit, drawn = Fraction(boost["steps"]), int(now["sums"][:, 0].sum())
    if boost["task"] == "classes":
        return Fraction(sums[0] - Fraction(sum(one * one for one in sums[1:]), sums[0])) / drawn
    labels = now["sums"][rows, 1] // now["sums"][rows, 0]
    squares: int = sum(n * q * q for n, q in zip(now["sums"][rows, 0].tolist(), labels.tolist(), strict=True))
    return (squares - Fraction(sums[1] * sums[1], sums[0])) * unit * unit / drawn


def _lines(
    data: Columns, state: State, now: Mapping[str, Any], inner: Sequence[int], held: Mapping[int, Whole]
) -> list[dict[str, Any]]:
    """Return the lines of the tree in the skeleton."""
    order = sorted({*inner, *leaf_sets.leaves_of(inner)})
    place, boost, drawn = {v: i for i, v in enumerate(order)}, state["boost"], int(now["sums"][:, 0].sum())
    y = _labels(data, state)[np.searchsorted(places(state, "train"), now["rows"])]
    count = {k: int((boost["nodes"]["party"] == k).sum()) for k in _all(data)}
    nothing = [0.0] * data.classes if data.classes else 0.0
    bare = {"tree": now["tree"] - 1, "party": -1, "record": -1, "left": -1, "right": -1, "gain": 0.0, "value": nothing}
    unit, found = Fraction(boost["steps"]) ** 2, []
    for v in order:
        sums = now["sums"][held[v]]
        line = {**bare, "rows": int(sums[:, 0].sum())}
        if v in inner:
            party, _, gain = now["split"][v]
            line |= {"party": party, "record": count[party], "left": place[2 * v], "right": place[2 * v + 1]}
            line |= {"gain": float(gain * unit / drawn)}
            count[party] += 1
        elif data.classes:
            line["value"] = (sums[:, 1:].sum(axis=0) / line["rows"]).tolist()
        else:
            line["value"] = math.fsum(np.repeat(y[held[v]], sums[:, 0]).tolist()) / line["rows"]
        found.append(line)
    return found


def vote(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Add the new tree's leaves to the votes of the rows outside of training."""
    now = passive.under_way(session)
    if "ripe" not in now:
        raise ProtocolError("the tree is not settled.")
    tree, rows = now["tree"], passive.judged(state)
    votes = state["boost"]["votes"].numpy().copy()
    votes[rows] += next(_values(data, state, message, rows, [tree - 1], tree))
    done = {name: one for name, one in session.items() if name != "forest"}
    return {"voted": True}, {**state, "boost": {**state["boost"], "votes": tensor(votes)}}, done


def gather(how: FederatedForest, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Add up the leaves of all rows over all trees."""
    boost, rows = state["boost"], np.arange(len(aligned(data, state).x))
    votes = np.zeros((len(rows), *([boost["classes"]] if "classes" in boost else [])))
    for one in _values(data, state, message, rows, range(len(shapes(state))), 0):
        votes += one
    return {"voted": True}, {**state, "boost": {**boost, "votes": tensor(votes)}}, session


def _values(data: Columns, state: State, message: Any, rows: Whole, trees: Sequence[int], step: int) -> Any:
    """Yield the values of the rows' leaves, tree by tree."""
    boost, forms, x = state["boost"], shapes(state), aligned(data, state).x[rows]
    sizes = {"sets": len(trees), "packed": -(-len(rows) // 8)}
    said = {k: taken(data, message, k, SETS, step, **sizes)["sets"] for k in others(data)}
    tree_of, party = boost["nodes"]["tree"].numpy(), boost["nodes"]["party"].numpy()
    for i, t in enumerate(trees):
        leaves, lines = forms[t], np.flatnonzero(tree_of == t)
        inner = leaf_sets.inner_of(leaves)
        owner = party[lines][np.searchsorted(sorted({*inner, *leaves}), inner)]
        told = {data.party: leaf_sets.told(x, leaves, boost["table"], own_records(boost["table"], t))}
        left: dict[int, leaf_sets.Packed] = {}
        for k in _all(data):
            nodes = np.array(inner, np.int64)[owner == k].tolist()
            with blamed(data, k, SETS):
                if len(lines_ := told[k] if k in told else said[k][i].numpy()) != len(nodes):
                    raise ProtocolError("it tells of other nodes than are its own")
            left |= dict(zip(nodes, lines_, strict=True))
        yield boost["nodes"]["value"].numpy()[lines[party[lines] < 0]][leaf_sets.reached(len(rows), leaves, left)]


def outputs(state: State) -> Floats:
    """Return outputs in the active party's state: (N,) log-odds of the second class, or numbers in the label's unit.

    For three or more classes: (N, classes), log-probabilities. A probability is the mean share of a class in the leaves,
    and not taken for less than half a training row.
    """
    boost = state["boost"]
    found: Floats = boost["votes"].numpy() / max(1, len(shapes(state)))
    if boost["task"] == "numbers":
        return found
    least = boost["least"]
    if boost["classes"] == 2:
        p = np.clip(found[:, 1], least, 1 - least)
        return np.asarray(np.log(p) - np.log(1 - p))
    p = np.maximum(found, least)
    return np.asarray(np.log(p / p.sum(axis=1, keepdims=True)))
