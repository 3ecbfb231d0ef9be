"""The keys of private ridge regression."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedatlas.privacy.paillier.keys import LENGTHS
from fedatlas.registry import Rate
from fedatlas.vertical.ridge.numbers import FEWEST, MOST

Bits = Annotated[int, Field(ge=FEWEST, le=MOST)]


class Ridge(NamedTuple):
    """Settings by which owners of rows fit a linear model."""

    l2: float
    precision: int | None  # None: the largest that the key has room for
    reveal: Literal["engine", "owners"]
    key_bits: int = LENGTHS[0]  # that the numbers must fit; in the clear, too, so that both give the same bits
    encrypted: bool = False  # else in the clear: a simulation

    @property
    def told(self) -> str:
        """Who gets the coefficients besides the owners: in the clear always the engine, which sees the equations."""
        return self.reveal if self.encrypted else "engine"

    @property
    def testing(self) -> bool:
        """Whether the key is shorter than one that protects."""
        return self.key_bits < LENGTHS[0]


def private_ridge(
    *, l2: Rate = 1.0, precision: Bits | Literal["auto"] = "auto", reveal: Literal["engine", "owners"] = "engine"
) -> Ridge:
    """Ridge regression over rows of several owners, from encrypted normal equations (Giacomelli et al., ACNS 2018).

    l2: lambda of ||X b - y||^2 + lambda ||b||^2, a sum over rows; the intercept is not penalised.
    precision: bits after the point of every number; "auto": the most that the key has room for (in the clear: one of 2,048 bits).
    reveal: who learns the coefficients besides the owners: the "engine", or nobody ("owners").
    """
    return Ridge(l2, None if precision == "auto" else precision, reveal)
