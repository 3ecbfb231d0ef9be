"""A party's network as plain values, and back; with the label also the fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fedatlas.algorithm import State
from fedatlas.errors import DataError
from fedatlas.vertical.networks.network import Weights
from fedatlas.vertical.networks.passive import own_sizes
from fedatlas.vertical.parties import Columns, tensor


def export(data: Columns, state: State) -> Mapping[str, Any]:
    """Return {"table": the party's network and the scale of its columns, "model": the fusion, or None}."""
    nets = state["nets"]
    own = nets.get("own", torch.arange(len(data.names))).tolist()
    table = {"columns": [data.names[i] for i in own], "mean": nets["mean"].tolist(), "sd": nets["sd"].tolist()}
    table["network"] = _plain(nets["weights"])
    if "fusion" not in nets:
        return {"table": table, "model": None}
    model = {"task": nets["task"], "unit": nets["unit"].tolist(), "fusion": _plain(nets["fusion"])}
    if nets.get("model"):
        mean, sd = nets["shared_scale"].tolist()
        columns = [data.names[i] for i in nets["shared"].tolist()]
        model["shared"] = {"columns": columns, "mean": mean, "sd": sd, "network": _plain(nets["model"])}
    return {"table": table, "model": {**model, "embed": [data.parties[k] for k in nets["embed"]]}}


def _plain(weights: Weights) -> dict[str, Any]:
    return {name: one.tolist() for name, one in weights.items()}


def loaded(data: Columns, exported: Mapping[str, Any]) -> State:
    """Return the party's state for prediction on new rows. DataError if its table lacks a column of its network."""
    table, model = exported["table"], exported.get("model")
    nets: dict[str, Any] = {name: tensor(np.array(table[name], np.float64)) for name in ("mean", "sd")}
    nets |= {"weights": _weights(table["network"]), "own": _places(data, table["columns"])}
    if model is not None:
        nets["embed"] = [data.parties.index(name) for name in model["embed"]]
        nets |= {"task": model["task"], "unit": tensor(np.array(model["unit"]))}
        nets["fusion"] = _weights(model["fusion"])
        if (shared := model.get("shared")) is not None:
            scale = tensor(np.array([shared["mean"], shared["sd"]]))
            nets |= {"shared": _places(data, shared["columns"]), "shared_scale": scale}
            nets["model"] = _weights(shared["network"])
    return {"nets": nets}


def _places(data: Columns, names: Sequence[str]) -> torch.Tensor:
    if lacking := [name for name in names if name not in data.names]:
        raise DataError(f"the table of '{data.name}' has no column '{lacking[0]}', which the model was trained on.")
    return tensor(np.array([data.names.index(name) for name in names], np.int64))


def _weights(plain: Mapping[str, Any]) -> Weights:
    return {name: torch.tensor(one, dtype=torch.float64) for name, one in plain.items()}


def own(data: Columns, state: State) -> Sequence[float]:
    """Return the size of a party's own weights by column."""
    found: list[float] = own_sizes(state, len(data.names)).tolist()
    return found
