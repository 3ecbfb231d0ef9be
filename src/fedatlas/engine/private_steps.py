"""Mechanisms that act inside local steps: they draw the batches and form the gradient row by row (`Work.batches`, `Work.gradient`).

Only work whose update leaves a client under ``[[privacy]]`` has them: what stays with a client, such as a personal model, has no noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

from fedatlas.algorithm import Batch, Budget, plain_loss
from fedatlas.data.batches import Sampling
from fedatlas.engine.gradient import Gradient, Objective, gradient
from fedatlas.engine.row_gradients import clipped_sum, dense_layers
from fedatlas.privacy.mechanism import Protection, Work
from fedatlas.privacy.protocol import Doing
from fedatlas.tree import Tree

Word = Mapping[str, Any] | None
"""The facts by which the update of a job is sealed; None if it is not protected."""


def acts_on_steps(how: Protection | None, word: Word) -> Work | None:
    """Return the mechanism that acts on the steps of a job, or None."""
    if how is None or word is None:
        return None
    return next((work for work in how.works if work.gradient is not None), None)


def sampling_of(
    how: Protection | None, word: Word, doing: Doing, budget: Budget, batch_size: int, params: Tree
) -> Sampling | None:
    """Return how a mechanism draws the batches of a training; None for shuffled epochs."""
    work = acts_on_steps(how, word)
    if how is None or work is None or work.batches is None:
        return None
    found: Sampling = work.batches(how, doing, budget, batch_size, params)
    return found


def gradient_of(how: Protection | None, word: Word, objective: Callable[..., Tensor], module: nn.Module) -> Gradient:
    """Return the gradient that the steps of a job use. ``objective``: the task's."""
    work = acts_on_steps(how, word)
    if work is None or work.gradient is None:
        return gradient
    private, layers = work.gradient, dense_layers(module) if objective is plain_loss else None

    def noised(objective: Objective, params: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return private(partial(clipped_sum, layers, objective, params), params, batch)

    return noised
