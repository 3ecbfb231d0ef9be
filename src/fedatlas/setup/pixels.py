"""Black and white as a network reads them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import ConfigError

WHITE = {"digits": 16.0}  # the largest pixel value of data sets whose pixels are not bytes


class Refused(NamedTuple):
    """The words of a refusal."""

    others: str  # of rows that are no pictures; {} is what they are
    purpose: str  # "to invert gradients"


INVERTED = Refused("gradients can only be inverted to pictures, but these rows are {}.", "to invert gradients")


def pixel_range(done: Preprocess, data: str, refused: Refused = INVERTED) -> tuple[Tensor, Tensor]:
    """Return black and white as the network reads them, to be broadcast over (channels, h, w).

    ConfigError, in the words of ``refused``, if the rows are not pictures, or each client scales them differently.
    """
    if done.kind != "pictures" or len(done.shape) != 3:
        raise ConfigError(refused.others.format(f"{done.kind} of shape {tuple(done.shape)}"))
    if done.scale == "client":
        raise ConfigError(
            f"data.scale = 'client' scales pixels differently at each client: use data.scale = 'auto' {refused.purpose}."
        )
    white = WHITE.get(data, 2.0**done.depth - 1)
    return tuple(done.apply(torch.full((1, *done.shape), v))[0] for v in (0.0, white))  # type: ignore[return-value]
