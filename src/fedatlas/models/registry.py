"""Models by name: a builder takes the shape of a row, the number of outputs and its own keyword arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedatlas import registry
from fedatlas.errors import ConfigError
from fedatlas.models.cnn import cnn1, cnn2, emnist_cnn, lenet5, lenet_sigmoid
from fedatlas.models.dense import har3, har4, logistic, mlp, mlp1, mlp2
from fedatlas.models.inspection import parameter_count
from fedatlas.models.lstm import shakespeare_lstm, stackoverflow_lstm
from fedatlas.models.network import Shape
from fedatlas.models.resnet import resnet1, resnet2

Builder = Callable[..., nn.Module]

MODELS: dict[str, Builder] = {
    "mlp": mlp,
    "logistic": logistic,
    "mlp1": mlp1,
    "mlp2": mlp2,
    "cnn1": cnn1,
    "cnn2": cnn2,
    "resnet1": resnet1,
    "resnet2": resnet2,
    "lenet5": lenet5,
    "lenet_sigmoid": lenet_sigmoid,
    "emnist_cnn": emnist_cnn,
    "shakespeare_lstm": shakespeare_lstm,
    "stackoverflow_lstm": stackoverflow_lstm,
    "har4": har4,
    "har3": har3,
}

PAPER_SIZES: dict[str, tuple[Shape, int]] = {  # shape of a row and outputs, if fixed by a paper
    "mlp1": ((1, 28, 28), 10),
    "mlp2": ((1, 28, 28), 10),
    "cnn1": ((1, 28, 28), 10),
    "cnn2": ((1, 28, 28), 10),
    "resnet1": ((1, 28, 28), 10),
    "resnet2": ((1, 28, 28), 10),
    "lenet5": ((3, 32, 32), 10),
    "lenet_sigmoid": ((1, 16, 16), 10),
    "emnist_cnn": ((1, 28, 28), 62),
    "shakespeare_lstm": ((80,), 80),
    "stackoverflow_lstm": ((20,), 10_004),
    "har4": ((561,), 6),
    "har3": ((561,), 6),
}


OWN = "own:"  # followed by its class: the name of a network given as an object


def find_model(name: str) -> Builder:
    """Return the builder of that name: built in, from a plug-in, or from the entry-point group ``fedatlas.models``."""
    if name.startswith(OWN):
        raise ConfigError(
            f"model.name = '{name}': this network was given in Python, and a file cannot build it: pass it again with "
            "Experiment.read(..., module=...), or use --plugin to add a custom builder that files can name."
        )
    return registry.find("models", MODELS, name)


def describe_models() -> list[dict[str, Any]]:
    """Return a plain record for each model: name, summary, its keys with defaults, and its size in its paper if it has one."""
    records = [registry.row_of(*item) for item in registry.builders_of("models", MODELS).items()]
    for record in records:
        if record["name"] in PAPER_SIZES:
            shape, outputs = PAPER_SIZES[record["name"]]
            with torch.device("meta"):  # shapes without numbers: uses no memory and draws nothing
                count = parameter_count(MODELS[record["name"]](shape, outputs))
            record |= {"shape": list(shape), "outputs": outputs, "trainable": count}
    return records
