"""The blog's two small residual networks (M5, M6)."""

from __future__ import annotations

from torch import Tensor, nn

from fedatlas.models.cnn import flattened, picture
from fedatlas.models.network import HeadedModel, Norm, Projection, Shape, dense_layers, norm_layers


class ResidualBlock(nn.Module):
    """relu(conv5x5(relu(conv5x5(x))) + conv1x1(x)), "same" padding; S4 gives the two convolutions, the rest is a choice."""

    def __init__(self, before: int, after: int, norm: Norm) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 5, padding=2),
            *norm_layers(norm, after, 2),
            nn.ReLU(),
            nn.Conv2d(after, after, 5, padding=2),
            *norm_layers(norm, after, 2),
        )
        self.shortcut = nn.Conv2d(before, after, 1)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, before, height, width) to (n, after, height, width)."""
        y: Tensor = self.relu(self.residual(x) + self.shortcut(x))
        return y


def _resnet(
    model: str, shape: Shape, outputs: int, channels: tuple[int, int], hidden: int, norm: Norm, projection: int
) -> nn.Module:
    before, height, width = picture(model, shape)
    flat = flattened(model, channels[1], (height, width), ((0, 2), (0, 2)))
    body = nn.Sequential(
        ResidualBlock(before, channels[0], norm),
        nn.MaxPool2d(2),
        ResidualBlock(channels[0], channels[1], norm),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *dense_layers(flat, (hidden,)),
    )
    return HeadedModel(body, hidden, outputs, projection)


def resnet1(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M5 ResNet1: residual blocks of 5 and 10 channels, each followed by a pool, fc50, outputs (MNIST, S4)."""
    return _resnet("resnet1", shape, outputs, (5, 10), 50, norm, projection)


def resnet2(shape: Shape, outputs: int, *, norm: Norm = "none", projection: Projection = 0) -> nn.Module:
    """M6 ResNet2: residual blocks of 32 and 64 channels, each followed by a pool, fc512, outputs (MNIST, S4)."""
    return _resnet("resnet2", shape, outputs, (32, 64), 512, norm, projection)
