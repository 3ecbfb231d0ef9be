"""A party's network as plain values, and back; with the label also the fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import State
from fedatlas.vertical.networks.network import Weights
from fedatlas.vertical.networks.passive import own_sizes
from fedatlas.vertical.parties import Columns, tensor


def export(data: Columns, state: State) -> Mapping[str, Any]:
    """Return {"table": the party's network and the scale of its columns, "model": the fusion, or None}."""
    nets = state["nets"]
    table = {"columns": list(data.names), "mean": nets["mean"].tolist(), "sd": nets["sd"].tolist()}
    table["network"] = _plain(nets["weights"])
    if "fusion" not in nets:
        return {"table": table, "model": None}
    model = {"task": nets["task"], "unit": nets["unit"].tolist(), "fusion": _plain(nets["fusion"])}
    return {"table": table, "model": {**model, "parties": list(data.parties)}}


def _plain(weights: Weights) -> dict[str, Any]:
    return {name: one.tolist() for name, one in weights.items()}


def loaded(data: Columns, exported: Mapping[str, Any]) -> State:
    """Return the party's state for prediction on new rows."""
    table, model = exported["table"], exported.get("model")
    nets: dict[str, Any] = {name: tensor(np.array(table[name], np.float64)) for name in ("mean", "sd")}
    nets["weights"] = _weights(table["network"])
    if model is not None:
        nets |= {"task": model["task"], "unit": tensor(np.array(model["unit"]))}
        nets["fusion"] = _weights(model["fusion"])
    return {"nets": nets}


def _weights(plain: Mapping[str, Any]) -> Weights:
    return {name: torch.tensor(one, dtype=torch.float64) for name, one in plain.items()}


def own(data: Columns, state: State) -> Sequence[float]:
    """Return the size of a party's own weights by column."""
    found: list[float] = own_sizes(state).tolist()
    return found
