"""The common form of all registered models: a body, an optional projection head, and a last linear layer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

Shape = tuple[int, ...]
Norm = Annotated[Literal["none", "group", "batch"], Field(description="normalisation between a layer and its ReLU")]
Projection = Annotated[int, Field(ge=0, description="width of a projection head before the last layer; 0 = none")]

_GROUP = 16  # channels per group; Wu & He 2018, table 3: as good as their 32 groups, and it suits narrow layers


class HeadedModel(nn.Module):
    """``forward(x) = head(features(x))``; ``features`` is the input of the last linear layer.

    With ``projection = p`` a two-layer head h -> h -> p with one ReLU is placed between body and last layer, and
    stays there at inference (MOON: Li, He, Song, CVPR 2021; H12). The body is drawn before the
    heads, so two models that differ only in ``projection`` start from the same body.
    """

    def __init__(self, body: nn.Module, width: int, outputs: int, projection: int = 0) -> None:
        super().__init__()
        self.body = body
        self.projection = projection  # width of z, 0 without a projection head
        self.project = projection_head(width, projection) if projection else nn.Identity()
        self.head = nn.Linear(projection or width, outputs)

    def features(self, x: Tensor) -> Tensor:
        """Map (n, ...) to (n, h): the hidden representation, or z with a projection head."""
        z: Tensor = self.project(self.body(x))
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, ...) to (n, outputs) logits or numbers; (n, length, outputs) for a model with outputs at every step."""
        y: Tensor = self.head(self.features(x))
        return y


def projection_head(width: int, out: int) -> nn.Sequential:
    """Return h -> h -> out with one ReLU between (H12)."""
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


def norm_layers(norm: Norm, width: int, dims: Literal[1, 2]) -> list[nn.Module]:
    """Return the layer between a layer and its ReLU: nothing, GroupNorm (16 channels per group, else one group) or BatchNorm."""
    if norm == "group":
        return [nn.GroupNorm(width // _GROUP if width % _GROUP == 0 else 1, width)]
    if norm == "batch":
        return [nn.BatchNorm1d(width) if dims == 1 else nn.BatchNorm2d(width)]
    return []


def dense_layers(width: int, hidden: tuple[int, ...], norm: Norm = "none") -> list[nn.Module]:
    """Return Linear, norm, ReLU for every width in ``hidden``."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(width, units), *norm_layers(norm, units, 1), nn.ReLU()]
        width = units
    return layers
