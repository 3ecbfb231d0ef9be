"""A forest as plain values, and back: the trees as all schemes write them, and the number of each node and leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.vertical.forest.records import SHAPE, shapes
from fedatlas.vertical.parties import Columns, tensor
from fedatlas.vertical.trees import files, records


def export(data: Columns, state: State) -> dict[str, Any]:
    """Return the parts of `trees.files.export`; a party's own splits with their nodes, and every tree's leaves."""
    found, boost = files.export(data, state), state["boost"]
    nodes = boost["table"]["node"].tolist()
    own = [{**one, "node": node} for one, node in zip(found["table"]["records"], nodes, strict=True)]
    model = None if found["model"] is None else {**found["model"], "least": boost["least"]}
    return {"table": {"records": own, "leaves": shapes(state)}, "model": model, "own": {"nodes": own}}


def loaded(data: Columns, exported: Mapping[str, Any]) -> State:
    """Return the party's state for prediction on new rows. DataError if its table lacks a column that a split uses."""
    boost = files.loaded(data, exported)["boost"]
    table = exported["table"]
    numbers = np.array([one["node"] for one in table["records"]], np.int64)
    leaves = [{"tree": tree, "leaf": v} for tree, own in enumerate(table["leaves"]) for v in own]
    boost |= {"table": {**boost["table"], "node": tensor(numbers)}}
    boost |= {"shape": records.appended(records.empty(SHAPE), leaves, SHAPE)}
    if (model := exported.get("model")) is not None:
        boost |= {"least": model["least"]}
    return {"boost": boost}
