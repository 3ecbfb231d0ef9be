"""Client weights p_k of the server's mean, as functions of the server's knowledge of a round (C3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field

from fedatlas.algorithm import Coefficients, Round, by_samples

Weighting = Annotated[
    Literal["samples", "uniform"], Field(description="of clients in the mean: by their rows, or all equally")
]


def uniform(round: Round) -> Coefficients:
    """Return p_k = 1 / m for the m clients that returned."""
    return dict.fromkeys(round.cohort, 1 / round.m)


def weighting(name: Weighting) -> Callable[[Round], Coefficients]:
    """Return the function that ``algorithm.weights`` names."""
    return {"samples": by_samples, "uniform": uniform}[name]
