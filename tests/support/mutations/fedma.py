"""What goes wrong in FedMA: units that are averaged but are not the same, inputs that still name the old units, wrong shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedatlas.algorithm import Data, Facts, Message, Network, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.layers import Axis, Layer, put, widened
from fedatlas.tree import Tree
from layerwise import copies_are_recovered
from mutations import Mutation, oracle

RIGHT = ALGORITHMS["fedma"]
fedma = import_module("fedatlas.algorithms.fedma")  # the package's name `fedma` is the builder
matching = import_module("fedatlas.algorithms.matching")
later_layers, counted, taken, gain_of_old = fedma.later_layers, fedma.count_rows, fedma.own_units, matching.gain_of_old


def instead(module: Any, name: str, wrong: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A function of the module replaced."""
    return lambda patch: patch.setattr(module, name, wrong)


def by_place(clients: Sequence[Any], *rest: Any) -> list[Any]:
    return [np.arange(len(V)) for V in clients]


def old_names(params: Mapping[str, Tensor], layer: Layer, index: Tensor, width: int) -> dict[str, Tensor]:
    return widened(params, layer, torch.arange(len(index)), width)


def not_frozen(message: Message, client: State, facts: Facts) -> Tree:
    return Tree({**message["W"], **later_layers(message, client, facts)})


def one_of_each(model: Network, data: Data, message: Message, client: State) -> Mapping[str, Any]:
    found = counted(model, data, message, client)
    return {name: torch.ones_like(x) for name, x in found.items()}


def twice(V: Any, total: Any, n: Any, J: int, prior: Any) -> Any:
    return gain_of_old(V, total, n, J, prior) + 2 * np.log(n / (J - n))


def one_side(x: Tensor, axis: Axis, index: Tensor, width: int) -> Tensor:
    own = axis == Axis(1)  # of hidden-to-hidden weights alone, as fedma.py places nothing else
    return put(x, axis, torch.arange(len(index)) if own else index, width)


def first_units(message: Message, client: State, facts: Facts) -> Tree:
    if "last" in message:
        client = {**client, "pi": {name: torch.arange(len(index)) for name, index in client["pi"].items()}}
    return taken(message, client, facts)


MUTATIONS = [
    Mutation(
        "fedma",
        "units averaged by their place, as FedAvg does",
        RIGHT,
        (oracle("fedma", gamma=7.0), copies_are_recovered),
        instead(fedma, "matched", by_place),
    ),
    Mutation(
        "fedma",
        "the next layer's inputs keep the places of the old units",
        RIGHT,
        (oracle("fedma", gamma=7.0), copies_are_recovered),
        instead(fedma, "widened", old_names),
    ),
    Mutation(
        "fedma",
        "hidden-to-hidden weights renamed on one side only",
        RIGHT,
        (copies_are_recovered,),
        instead(fedma, "put", one_side),
    ),
    Mutation(
        "fedma",
        "layers that are matched are trained on",
        RIGHT,
        (oracle("fedma"),),
        instead(fedma, "later_layers", not_frozen),
    ),
    Mutation(
        "fedma",
        "all clients' last layers weigh the same",
        RIGHT,
        (oracle("fedma"),),
        instead(fedma, "count_rows", one_of_each),
    ),
    Mutation(
        "fedma",
        "log(n / (J - n)) added twice",
        RIGHT,
        (oracle("fedma", gamma=0.5, sigma2=0.05, sigma0_2=4.0, problem={"m": 5}),),
        instead(matching, "gain_of_old", twice),
    ),
    Mutation(
        "fedma",
        "every client goes on with the first units",
        RIGHT,
        (oracle("fedma", gamma=7.0),),
        instead(fedma, "own_units", first_units),
    ),
]
