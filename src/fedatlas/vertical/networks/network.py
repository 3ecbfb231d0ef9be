"""A party's network on its own columns: how columns are scaled, where weights begin, forward, and a step of plain SGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedatlas.models import init_model
from fedatlas.models.dense import mlp
from fedatlas.models.network import HeadedModel, Shape, dense_layers
from fedatlas.rng import derive, torch_stream
from fedatlas.vertical.parties import Floats, Whole, tensor

Weights = Mapping[str, Tensor]
FUSION = "fusion"


class Scale(NamedTuple):
    """Mean and deviation of each column over a party's training rows."""

    mean: Floats  # (columns,)
    sd: Floats

    def of(self, x: Floats, dtype: torch.dtype) -> Tensor:
        """Return (rows, columns), scaled; a missing value becomes 0, the mean of its column."""
        return tensor(np.nan_to_num((x - self.mean) / self.sd, nan=0.0)).to(dtype)


def scale_of(x: Floats) -> Scale:
    """Return the scale of these rows; a column with one value, or none, becomes 0 everywhere."""
    known = ~np.isnan(x)
    count = np.maximum(known.sum(axis=0), 1)
    mean = np.where(known, x, 0.0).sum(axis=0) / count
    sd = np.sqrt((np.where(known, x - mean, 0.0) ** 2).sum(axis=0) / count)
    same = sd <= 1e-12 * np.abs(mean)  # only rounding tells its values apart
    return Scale(mean, np.where(same, 1.0, sd))


def body(columns: int, hidden: tuple[int, ...]) -> nn.Sequential:
    """Return a party's network."""
    return nn.Sequential(*dense_layers(columns, hidden))


def first_body(columns: int, hidden: tuple[int, ...], seed: int, party: int) -> Weights:
    """Return the weights with which a party's network begins."""

    def built(shape: Shape, outputs: int) -> nn.Module:
        return body(shape[0], hidden)

    return weights_of(init_model(built, (columns,), hidden[-1], derive(seed, "init", "body", party)))


def first_shared(columns: int, hidden: tuple[int, ...], outputs: int, seed: int) -> Weights:
    """Return the weights with which the network on shared columns begins: those of ``mlp`` in a run on rows."""
    return weights_of(init_model(mlp, (columns,), outputs, seed, hidden=hidden))


def first_fusion(inputs: int, outputs: int, seed: int) -> Weights:
    """Return the weights with which the fusion begins."""

    def built(shape: Shape, outputs: int) -> nn.Module:
        return nn.Linear(shape[0], outputs)

    return weights_of(init_model(built, (inputs,), outputs, derive(seed, "init", FUSION)))


def weights_of(module: nn.Module) -> Weights:
    """Return copies of a module's weights."""
    return {name: one.detach().clone() for name, one in module.named_parameters()}


def body_of(weights: Weights, dtype: torch.dtype) -> nn.Module:
    """Return a party's network with these weights, of which it holds copies."""
    shapes = [one.shape for name, one in weights.items() if name.endswith("weight")]
    with torch.device("meta"):  # nothing is drawn
        module = body(shapes[0][1], tuple(shape[0] for shape in shapes))
    return _filled(module, weights, dtype)


def fusion_of(weights: Weights, dtype: torch.dtype) -> nn.Module:
    """Return the fusion with these weights, of which it holds copies."""
    outputs, inputs = weights["weight"].shape
    with torch.device("meta"):
        module = nn.Linear(inputs, outputs)
    return _filled(module, weights, dtype)


def shared_of(weights: Weights, dtype: torch.dtype) -> HeadedModel:
    """Return the network on shared columns with these weights, of which it holds copies; its body gives the embedding."""
    shapes = [one.shape for name, one in weights.items() if name.endswith("weight")]
    with torch.device("meta"):
        module = mlp((shapes[0][1],), shapes[-1][0], hidden=tuple(shape[0] for shape in shapes[:-1]))
    found = _filled(module, weights, dtype)
    assert isinstance(found, HeadedModel)
    return found


def _filled(module: nn.Module, weights: Weights, dtype: torch.dtype) -> nn.Module:
    module = module.to_empty(device="cpu").to(dtype)
    module.load_state_dict(dict(weights))
    return module


def stepped(module: nn.Module, rate: float) -> None:
    """Move the weights down their gradients, and forget these."""
    with torch.no_grad():
        for one in module.parameters():
            if one.grad is not None:
                one.sub_(rate * one.grad)
                one.grad = None


def batches(train: Whole, size: int, seed: int, number: int, party: int = 0) -> list[Whole]:
    """Return the places of each batch of a round: all parties find the same, from the common seed.

    ``party``: whose own rows they are, if they are a party's; the batches are then those of `data.batches`.
    """
    order = torch.randperm(len(train), generator=torch_stream(seed, "shuffle", number, party, 0)).numpy()
    return [train[order[start : start + size]] for start in range(0, len(train), size)]
