"""Dense networks: the blog's MLPs, the HAR networks, and ``mlp`` and ``logistic`` for any table (M1, M2, M11, M12)."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn

from fedatlas.errors import ConfigError
from fedatlas.models.network import HeadedModel, Norm, Projection, Shape, dense_layers
from fedatlas.registry import Whole

Widths = Annotated[tuple[Whole, ...], Field(description="units of each hidden layer")]


def mlp(
    shape: Shape, outputs: int, *, hidden: Widths = (64,), norm: Norm = "none", projection: Projection = 0
) -> nn.Module:
    """Dense network with the given hidden widths, ReLU between; rows of any shape are flattened."""
    if min(hidden, default=1) < 1:
        raise ConfigError(f"model.hidden: every width must be at least 1, not {min(hidden)}.")
    body = nn.Sequential(nn.Flatten(), *dense_layers(math.prod(shape), hidden, norm))
    return HeadedModel(body, hidden[-1] if hidden else math.prod(shape), outputs, projection)


def logistic(shape: Shape, outputs: int) -> nn.Module:
    """One linear layer: logistic regression for classes, linear regression for numbers."""
    return mlp(shape, outputs, hidden=())


def mlp1(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M1 MLP1: inputs-200-outputs (MNIST, S4)."""
    return mlp(shape, outputs, hidden=(200,), norm=norm, projection=projection)


def mlp2(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M2 MLP2, the 2NN of McMahan et al. 2017: inputs-200-200-outputs (MNIST, S4)."""
    return mlp(shape, outputs, hidden=(200, 200), norm=norm, projection=projection)


def har4(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M11 HAR-4: inputs-437-312-outputs (human activity recognition, S0)."""
    return mlp(shape, outputs, hidden=(437, 312), norm=norm, projection=projection)


def har3(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M12 HAR-3, the shallow one: inputs-432-outputs (human activity recognition, S0)."""
    return mlp(shape, outputs, hidden=(432,), norm=norm, projection=projection)
