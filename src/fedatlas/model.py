"""The interface of every model that a run evaluates, saves and predicts with.

A torch network is one kind (`setup.torch_model`). Others, such as trees whose splits are held by several parties or a
regression in closed form, may have to ask over the link before they answer.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple, Protocol, Self

from torch import Tensor


class Scores(NamedTuple):
    """Values from which every figure is computed, row by row; raw outputs for thousands of classes are not kept."""

    predicted: Tensor  # class numbers (n,) or (n, length); numbers in the standardised unit
    losses: Tensor  # (n,) or (n, length)
    margin: Tensor | None  # log-odds of class 1 of two


class Model(Hashable, Protocol):
    """A trained model. Equal models (``==``) give equal results, so results can be reused.

    ``x`` are rows in the form in which `Preprocess` gives them to the model, and ``y`` their targets in the form its loss reads.
    """

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        ...

    @property
    def flops(self) -> int:
        """Floating-point operations of a prediction for one row."""
        ...

    def predict(self, x: Tensor) -> Tensor:
        """Return raw outputs (n, outputs): class scores, or numbers in training units; for texts, of the next token."""
        ...

    def scores(self, x: Tensor, y: Tensor) -> Scores:
        """Return predictions and losses."""
        ...

    def finite(self) -> bool:
        """Return whether every trained parameter is finite."""
        ...

    def save(self) -> Mapping[str, Tensor]:
        """Return the named tensors that restore the model, as in a run's ``.safetensors`` file."""
        ...

    def load(self, state: Mapping[str, Tensor]) -> Self:
        """Return the model with a ``state`` from `save`; ConfigError if the state belongs to another kind of model."""
        ...
