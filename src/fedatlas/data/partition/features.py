"""Feature skew of one client's rows: measurements as if by another instrument."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from fedatlas.errors import DataError


def apply_feature_skew(x: Tensor, spec: Mapping[str, float], stream: torch.Generator) -> Tensor:
    """Turn and disturb model inputs: x' = rotate(x) + noise * N(0, 1).

    x: float (n, channels, height, width) or (n, columns), as the model sees it (`Dataset.inputs`); never changed in
    place. spec: one entry of ``Partition.feature_skew``: ``rotate`` in degrees anticlockwise (images), ``noise`` the
    standard deviation in units of x. stream: CPU generator of the noise; call once for all rows that a client trains on,
    and with another stream for those it holds out, so that a row keeps its noise. Whole quarter turns of square images are
    exact, other angles bilinear with the border continued. DataError for token ids, and for the rotation of a table.

    Source: D12 (Sattler et al. 2021; Li et al. 2022).
    """
    if not x.is_floating_point():
        raise DataError("feature skew needs floating-point inputs: it cannot turn or disturb token ids or raw bytes.")
    degrees, noise = spec.get("rotate", 0.0), spec.get("noise", 0.0)
    if degrees % 360:
        if x.dim() != 4:
            raise DataError("feature skew can rotate images only: use noise for tables and sequences.")
        x = _rotate(x, degrees)
    if noise:
        drawn = torch.randn(x.shape, generator=stream, dtype=torch.float32)
        x = x + noise * drawn.to(device=x.device, dtype=x.dtype)
    return x


def _rotate(x: Tensor, degrees: float) -> Tensor:
    height, width = x.shape[2:]
    turns, rest = divmod(degrees, 90)
    if not rest and (height == width or not turns % 2):
        return torch.rot90(x, int(turns), (2, 3))
    a = math.radians(degrees)
    # Grid coordinates run from -1 to 1 along both axes, y downwards: the ratios keep the pixels square.
    theta = x.new_tensor(
        [[math.cos(a), -math.sin(a) * height / width, 0.0], [math.sin(a) * width / height, math.cos(a), 0.0]]
    )
    grid = functional.affine_grid(theta.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
