"""Convolutional networks for pictures (channels, height, width) (M3, M4, M7, M8).

padding: of the 5x5 convolutions: "same" keeps height and width, "valid" reduces both by 4 pixels.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from fedatlas.errors import ConfigError
from fedatlas.models.dropout import Dropout
from fedatlas.models.network import HeadedModel, Norm, Projection, Shape, dense_layers, norm_layers

Padding = Literal["same", "valid"]


def picture(model: str, shape: Shape) -> tuple[int, int, int]:
    """Return the row's (channels, height, width); ConfigError for rows that are not pictures."""
    if len(shape) != 3:
        raise ConfigError(
            f"model '{model}' needs pictures (channels, height, width), but a row here has shape {tuple(shape)}: "
            "use 'mlp' or 'logistic' for tables."
        )
    channels, height, width = shape
    return channels, height, width


def flattened(model: str, channels: int, sides: tuple[int, int], cuts: tuple[tuple[int, int], ...]) -> int:
    """Return the number of inputs of the first dense layer, after each (pixels a convolution removes, pool) in turn."""
    height, width = sides
    for cut, pool in cuts:
        height, width = (height - cut) // pool, (width - cut) // pool
    if min(height, width) < 1:
        raise ConfigError(
            f"pictures of {sides[0]}x{sides[1]} are too small for model '{model}': nothing is left after its "
            "convolutions and pools; use a model with padding = \"same\", or 'mlp'."
        )
    return channels * height * width


def two_convolutions(
    model: str,
    shape: Shape,
    outputs: int,
    channels: tuple[int, int],
    hidden: tuple[int, ...],
    padding: Padding,
    norm: Norm,
    projection: int,
) -> nn.Module:
    """Build conv5x5-pool, conv5x5-pool, dense layers: the plan shared by M3, M4 and M7."""
    before, height, width = picture(model, shape)
    cut = 4 if padding == "valid" else 0
    flat = flattened(model, channels[1], (height, width), ((cut, 2), (cut, 2)))
    layers: list[nn.Module] = []
    for after in channels:
        convolution = nn.Conv2d(before, after, 5, padding=2 - cut // 2)
        layers += [convolution, *norm_layers(norm, after, 2), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    body = nn.Sequential(*layers, nn.Flatten(), *dense_layers(flat, hidden))
    return HeadedModel(body, hidden[-1], outputs, projection)


def cnn1(
    shape: Shape, outputs: int, *, padding: Padding = "same", norm: Norm = "none", projection: Projection = 0
) -> nn.Module:
    """M3 CNN1: conv5x5(5)-pool, conv5x5(10)-pool, fc50, outputs (MNIST, S4)."""
    return two_convolutions("cnn1", shape, outputs, (5, 10), (50,), padding, norm, projection)


def cnn2(
    shape: Shape, outputs: int, *, padding: Padding = "same", norm: Norm = "none", projection: Projection = 0
) -> nn.Module:
    """M4 CNN2, the CNN of McMahan et al. 2017: conv5x5(32)-pool, conv5x5(64)-pool, fc512, outputs (MNIST, S4)."""
    return two_convolutions("cnn2", shape, outputs, (32, 64), (512,), padding, norm, projection)


def lenet5(
    shape: Shape, outputs: int, *, padding: Padding = "valid", norm: Norm = "none", projection: Projection = 0
) -> nn.Module:
    """M7 LeNet-5 (64-64-384-192): conv5x5(64)-pool twice, fc384, fc192, outputs (CIFAR, S3).

    S3's table 5.1 puts a ReLU after the last layer; its code has none, and logits must be unbounded.
    """
    return two_convolutions("lenet5", shape, outputs, (64, 64), (384, 192), padding, norm, projection)


def lenet_sigmoid(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """A8 LeNet with sigmoids: conv5x5(12) of stride 2, 2 and 1, outputs; weights and biases start as U(-1/2, 1/2).

    Attacks on gradients are usually measured on this network: its derivatives are smooth and, with this start, do not vanish.
    """
    channels, height, width = picture("lenet_sigmoid", shape)
    layers: list[nn.Module] = []
    for before, stride in ((channels, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(before, 12, 5, stride, padding=2), *norm_layers(norm, 12, 2), nn.Sigmoid()]
    height, width = ((side + 3) // 4 for side in (height, width))  # each stride of 2 rounds up
    model = HeadedModel(nn.Sequential(*layers, nn.Flatten()), 12 * height * width, outputs, projection)
    for layer in model.modules():
        for x in layer.parameters(recurse=False) if isinstance(layer, nn.Conv2d | nn.Linear) else ():
            nn.init.uniform_(x, -0.5, 0.5)
    return model


def emnist_cnn(
    shape: Shape, outputs: int, *, table_literal: bool = False, norm: Norm = "none", projection: Projection = 0
) -> nn.Module:
    """M8 EMNIST CNN: conv3x3(32), conv3x3(64), pool, dropout .25, fc128, dropout .5, outputs (EMNIST, S3).

    table_literal: leave out the ReLU after the first convolution and after fc128, which the thesis' table 5.2 does not list; the
        two convolutions are then one linear map.
    """
    channels, height, width = picture("emnist_cnn", shape)
    flat = flattened("emnist_cnn", 64, (height, width), ((2, 1), (2, 2)))
    relu: list[nn.Module] = [] if table_literal else [nn.ReLU()]
    first = [nn.Conv2d(channels, 32, 3), *norm_layers(norm, 32, 2), *relu]
    second = [nn.Conv2d(32, 64, 3), *norm_layers(norm, 64, 2), nn.ReLU(), nn.MaxPool2d(2), Dropout(0.25)]
    dense = [nn.Flatten(), nn.Linear(flat, 128), *relu, Dropout(0.5)]
    return HeadedModel(nn.Sequential(*first, *second, *dense), 128, outputs, projection)
