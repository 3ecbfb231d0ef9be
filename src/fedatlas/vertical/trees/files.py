"""Convert a model to plain values for files, and back: each party's own splits, and the active party's skeleton."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.algorithm import State
from fedatlas.errors import DataError
from fedatlas.vertical.parties import Columns, tensor
from fedatlas.vertical.trees import records


def export(data: Columns, state: State) -> dict[str, Any]:
    """Return {"table": the party's own splits, "model": the skeleton, or None, "own": private results of the party}.

    A threshold of None means that every known value goes left and missing values go right.
    """
    boost = state["boost"]
    lines = {name: one.tolist() for name, one in boost["table"].items()}
    table = [
        {
            "tree": lines["tree"][r],
            "record": r,
            "column": data.names[lines["column"][r]],
            "threshold": lines["cut"][r] if math.isfinite(lines["cut"][r]) else None,
            "missing": "left" if lines["left"][r] else "right",
            "gain": None if math.isnan(lines["gain"][r]) else lines["gain"][r],
        }
        for r in range(len(lines["tree"]))
    ]
    model = _skeleton(data, boost) if "nodes" in boost else None
    return {"table": {"records": table}, "model": model, "own": {"nodes": table}}


def _skeleton(data: Columns, boost: records.Boost) -> dict[str, Any]:
    nodes = {name: one.tolist() for name, one in boost["nodes"].items()}
    trees: list[list[dict[str, Any]]] = [[] for _ in range(nodes["tree"][-1] + 1 if nodes["tree"] else 0)]
    for i, tree in enumerate(nodes["tree"]):
        one = {"id": len(trees[tree]), "rows": nodes["rows"][i]}
        if nodes["party"][i] < 0:
            one |= {"leaf": nodes["value"][i]}
        else:
            one |= {"party": data.parties[nodes["party"][i]]}
            one |= {name: nodes[name][i] for name in ("record", "left", "right", "gain")}
        trees[tree].append(one)
    start, scale = boost["unit"].tolist()
    model: dict[str, Any] = {"task": boost["task"], "start": start, "unit": scale}
    if "classes" not in boost:
        return {**model, "trees": [{"nodes": one} for one in trees]}
    classes, whole = boost["classes"], boost["nodes"]["value"].ndim > 1
    of = [{} if whole else {"class": tree % classes} for tree in range(len(trees))]
    return {
        **model,
        "classes": classes,
        "trees": [{**one, "nodes": nodes} for one, nodes in zip(of, trees, strict=True)],
    }


def reads(table: Mapping[str, Any]) -> frozenset[str]:
    """Return the columns on which a party's exported splits are."""
    return frozenset(one["column"] for one in table["records"])


def loaded(data: Columns, exported: Mapping[str, Any]) -> State:
    """Return the party's state for prediction on new rows. DataError if its table lacks a column that a split uses."""
    found = exported["table"]["records"]
    if lacking := sorted({one["column"] for one in found} - {*data.names}):
        raise DataError(f"the table of '{data.name}' has no column '{lacking[0]}', which the model was trained on.")
    lines = [
        {
            "tree": one["tree"],
            "column": data.names.index(one["column"]),
            "cut": math.inf if one["threshold"] is None else one["threshold"],
            "left": one["missing"] == "left",
            "gain": math.nan if one.get("gain") is None else one["gain"],
        }
        for one in found
    ]
    boost: dict[str, Any] = {"table": records.appended(records.empty(records.TABLE), lines, records.TABLE)}
    if (model := exported.get("model")) is not None:
        boost |= {
            "task": model["task"],
            **({"classes": model["classes"]} if "classes" in model else {}),
            "unit": tensor(np.array([model["start"], model["unit"]], np.float64)),
            "nodes": records.appended(records.empty(records.SKELETON), _lines(data, model["trees"]), records.SKELETON),
        }
    return {"boost": boost}


def _lines(data: Columns, trees: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines = []
    vector = next((one["leaf"] for tree in trees for one in tree["nodes"] if isinstance(one.get("leaf"), list)), None)
    nothing = 0.0 if vector is None else [0.0] * len(vector)
    for tree, one in enumerate(trees):
        for node in one["nodes"]:
            if "party" in node and node["party"] not in data.parties:
                raise DataError(f"the model has splits of '{node['party']}': give this party's file, too.")
            leaf = {"party": -1, "record": -1, "left": -1, "right": -1, "gain": 0.0, "value": node.get("leaf", nothing)}
            split = {name: node[name] for name in ("record", "left", "right", "gain") if name in node}
            owner = {"party": data.parties.index(node["party"])} if "party" in node else {}
            lines.append({"tree": tree, "rows": node.get("rows", 0), **leaf, **split, **owner})
    return lines
