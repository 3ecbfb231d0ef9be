"""Prediction by several parties: the active party walks every tree, and asks other nodes' owners which rows go left.

All trees are walked at once. So the number of questions is the largest number of other parties' nodes on a path. An
owner learns which rows reach its nodes. No party learns another party's threshold, and owners learn no prediction. A
row that an owner lacks goes where missing values go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.errors import ProtocolError
from fedatlas.vertical.boosting.letter_kinds import ANSWERED, ASKED
from fedatlas.vertical.boosting.passive import Answered, session_of
from fedatlas.vertical.boosting.settings import SecureBoost
from fedatlas.vertical.letters import LETTERS, blamed, letter, taken
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, order, tensor
from fedatlas.vertical.trees import records
from fedatlas.vertical.trees.letter_parts import common
from fedatlas.vertical.trees.nodes import bits, unpacked


def walk(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Walk on at the active party until only other parties' nodes are left. At the end, set the margins."""
    boost, own = state["boost"], aligned(data, state)
    skeleton = {name: one.numpy() for name, one in boost["nodes"].items()}
    roots = np.flatnonzero(np.diff(skeleton["tree"], prepend=-1))
    now = session_of(session).get("walk")
    if now is None:
        now = {"at": np.repeat(roots[:, None], len(order(state)), axis=1), "asked": {}, "step": 0}
    at, step = now["at"].copy(), now["step"]
    for party, some in now["asked"].items():
        answers = taken(data, message, party, ANSWERED, step, asked=len(some))["left"]
        with blamed(data, party, ANSWERED):
            _answered(at, skeleton, roots, some, answers)
    asked: dict[int, list[tuple[int, Whole]]] = {}
    for tree in range(len(roots)):
        for node, rows in _onwards(at[tree], skeleton, roots[tree], data.party, own.x, boost["table"]):
            asked.setdefault(int(skeleton["party"][node]), []).append((node, rows))
    sent = []
    for party, some in asked.items():
        numbers = tensor(np.array([skeleton["record"][node] for node, _ in some], np.int64))
        places = [tensor(rows.astype(np.int32)) for _, rows in some]
        sent.append(letter(data, [party], ASKED.topic, {"records": numbers, "rows": places}, step + 1))
    session = {**session_of(session), "walk": {"at": at, "asked": asked, "step": step + 1}}
    if not asked:
        margin = records.margins(skeleton, at, boost.get("classes", 1))
        state = {**state, "boost": {**boost, "margin": tensor(margin)}}
    return {"owners": sorted(asked), LETTERS: sent}, state, session


def _onwards(
    at: Whole, skeleton: Mapping[str, Any], root: int, party: int, x: Floats, table: Any
) -> list[tuple[int, Whole]]:
    """Move a tree's rows (N,) through the party's own nodes; return (node, rows) of the others' nodes reached."""
    todo, foreign = np.unique(at).tolist(), []
    while todo:
        node = todo.pop()
        owner, rows = int(skeleton["party"][node]), np.flatnonzero(at == node)
        if owner < 0 or not len(rows):
            continue
        if owner != party:
            foreign.append((node, rows))
            continue
        left = records.ways(table, int(skeleton["record"][node]), x[rows])
        children = skeleton["left"][node] + root, skeleton["right"][node] + root
        at[rows] = np.where(left, *children)
        todo += [int(child) for child in children]
    return sorted(foreign, key=lambda one: one[0])


def _answered(at: Whole, skeleton: Mapping[str, Any], roots: Whole, asked: Any, answers: Any) -> None:
    for (node, rows), packed in zip(asked, answers, strict=True):
        tree = int(skeleton["tree"][node])
        root = roots[tree]
        children = skeleton["left"][node] + root, skeleton["right"][node] + root
        at[tree, rows] = np.where(unpacked(packed, len(rows)), *children)


def way(how: SecureBoost, model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
    """Return, at the owner of some nodes, which rows these send left."""
    table, x = state["boost"]["table"], aligned(data, state).x
    said, answers = taken(data, message, data.active, ASKED, message["step"], places=common(state)), []
    for record, rows in zip(said["records"].tolist(), said["rows"], strict=True):
        if not 0 <= record < len(table["tree"]):
            raise ProtocolError(
                f"party '{data.name}' was asked for split {record}, which is not in its file: use the files of a single run."
            )
        answers.append(bits(records.ways(table, record, x[rows.numpy()])))
    return {LETTERS: [letter(data, [data.active], ANSWERED.topic, {"left": answers}, message["step"])]}, state, session
