"""Laplace noise for labels that are numbers in a public range: pure epsilon for each, where any other could stand in its place.

A number is clipped to [low, high], so that two of them differ by high - low at most, and gets Laplace noise of scale
(high - low) / epsilon (P1, P4). The sum is rounded to a grid (`privacy.noise`), which depends on the range and epsilon only. It is not
clipped again, so that its mean stays the clipped number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedatlas.errors import ConfigError
from fedatlas.privacy.column_bounds import Range, check_bounds
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Learns, Limits, Mechanism, Noise, Words, Work

if TYPE_CHECKING:
    from torch import Tensor

    from fedatlas.privacy.own_rows import OwnRows, RowsHow

NAME = "randomised_response"
LABEL_KEYS = ("epsilon", "classes", "noise", "range")

LEARNS = Learns(
    "what follows from labels with noise: of a row's label no more than epsilon allows; no noise covers its columns",
    "no more than the server",
    "the server with all other parties learns no more than the server",
)
DONE = (
    "<b>Noise in the label.</b> The party with the label clipped it to {range} and added Laplace noise, once and before anything was "
    "computed from it, so that each label has an epsilon of {epsilon:g}."
)
ONLY = f"{NAME} protects the label of a row, not its other columns: a model may still tell what they hold."
COUNTED = f"{NAME}: epsilon = {{:g}} for the label of each row, once in a run."
FOR_COLUMNS = f"privacy.{NAME}.range is for a label of parties that hold columns: leave it out."
BOTH = f"privacy.{NAME}: 'classes' and 'columns' are for classes, and 'range' is for a label that is a number: leave one out."
OF_CLASSES = (
    f"privacy.{NAME}.range is for a label that is a number, and this label is a class: list its 'classes' instead."
)


def of_numbers(keys: Mapping[str, Any]) -> Mechanism:
    """Return the record for a label that is a number, at a party that holds columns. ``keys``: those of its table."""
    epsilon, ends, noise = keys["epsilon"], keys["range"], keys["noise"]
    check_bounds(NAME, ends, "range")
    if keys["classes"] is not None or keys["columns"] is not None:
        raise ConfigError(BOTH)
    width = ends[1] - ends[0]

    def rows(own: OwnRows, how: RowsHow) -> OwnRows:
        if own.classes:
            raise ConfigError(OF_CLASSES)
        return own._replace(y=noisy_numbers(own.y, ends, epsilon, Noise(secret=how.own), "number"))

    def entered() -> Event:
        return Event(NAME, 0, "laplace", 1 / epsilon, width, "record", "replace", 0.0, source=noise)

    return Mechanism(
        name=NAME,
        keys=keys,
        place=-2,
        trust="nobody",
        learns=LEARNS,
        work=lambda: Work(rows=rows, row_figures=lambda pairs: {"range": [*ends], "scale": width / epsilon}),
        words=Words(
            DONE,
            (ONLY,),
            (f"{COUNTED.format(epsilon)} {ONLY}",),
            rows=sentences,
            covers="the label of a row",
        ),
        acts_on="rows",
        entered=entered,
        limits=Limits(refuses=lambda asked: FOR_COLUMNS, labels=LABEL_KEYS),
    )


def noisy_numbers(y: Tensor, ends: Range, epsilon: float, noise: Noise, *key: int | str) -> Tensor:
    """Return (n,) the numbers with noise, float64; the same for the same secret and ``key``."""
    from fedatlas.privacy.noise import laplace, on_grid

    low, high = ends
    scale = (high - low) / epsilon
    return on_grid(y.double().clamp(low, high) + laplace(len(y), scale, noise, *key), scale)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the figures of a run in sentences."""
    if "scale" not in found:
        return []
    low, high = found["range"]
    return [f"A label was clipped to {low:g} to {high:g} and got Laplace noise of scale {found['scale']:.4g}."]
