"""What a run evaluates, saves and predicts with, whatever it is made of.

A torch network is one kind (`setup.torch_model`). Trees whose tests are held by several parties, or a regression in closed form, are
others: they may ask over the link before they answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol, Self

from torch import Tensor


class Scores(NamedTuple):
    """What every figure is made of, row by row: raw outputs of thousands of classes are not kept."""

    predicted: Tensor  # class numbers (n,) or (n, length); numbers in the standardised unit
    losses: Tensor  # (n,) or (n, length)
    margin: Tensor | None  # log-odds of class 1 of two


class Model(Hashable, Protocol):
    """A trained model. Models that are equal (``==``) answer alike, so that what one was asked need not be asked again.

    ``x`` are rows as `Preprocess` gives them to the model, ``y`` their targets as its loss reads them.
    """

    @property
    def size(self) -> int:
        """How many numbers it has learnt."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations of a prediction for one row."""
        ...

    def predict(self, x: Tensor) -> Tensor:
        """Raw outputs (n, outputs): scores of the classes, or numbers in the unit that was learnt; of texts, what comes after them."""
        ...

    def scores(self, x: Tensor, y: Tensor) -> Scores:
        """Predictions and losses."""
        ...

    def finite(self) -> bool:
        """Whether every number that it has learnt is one."""
        ...

    def save(self) -> Mapping[str, Tensor]:
        """All that is needed to have it again, as named tensors: what a ``.safetensors`` file of a run holds."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> Self:
        """The model of this kind that `save` gave ``state`` for; ConfigError for one of another model's."""
        ...
