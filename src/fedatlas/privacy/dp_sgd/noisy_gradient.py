"""The gradient of a step of DP-SGD: the sum of clipped gradients of rows, with noise, over a fixed number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.privacy.dp_sgd.poisson import NOISE, SIZE
from fedatlas.privacy.noise import GRID
from fedatlas.tree import Tree

ClippedSum = Callable[[Batch, float], tuple[Tensor, Tree]]
"""(batch, S) -> (mean loss of its rows, sum over its rows of their gradients, each at most S long)."""


def noisy_gradient(
    clipped_sum: ClippedSum, params: Tree, batch: Batch, *, clip: float, std: float
) -> tuple[Tensor, Tree]:
    """Return (loss, (sum of clipped gradients + noise) / B). ``batch.extra`` holds the noise and B (`Poisson.beside`).

    The noised sum is rounded to 2^-20 of the noise, as every release is (`privacy.noise.noised`), so that the last bits of
    the sum do not show through.
    """
    extra = {name: x for name, x in batch.extra.items() if name not in {NOISE, SIZE}}
    loss, total = clipped_sum(batch._replace(extra=extra), clip)
    noise = torch.split(batch.extra[NOISE], [x.numel() for x in params.values()])
    grid = math.ldexp(1.0, math.floor(math.log2(std)) - GRID) if std else 0.0

    def released(x: Tensor, drawn: Tensor) -> Tensor:  # in place: the sum belongs to nobody else
        x = x.add_(drawn.view(x.shape))
        return (x.mul_(1 / grid).round_().mul_(grid) if grid else x).div_(batch.extra[SIZE])

    return loss, Tree({name: released(total[name], drawn) for name, drawn in zip(params, noise, strict=True)})
