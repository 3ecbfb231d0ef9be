"""Parts shared by the sections of a study's page: names of settings, values of choices, shaded cells."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedatlas.reporting.blocks import NARROW, WIDE, Figure
from fedatlas.reporting.drawing.charts import Shaded, heat
from fedatlas.study.measurements import levels_text
from fedatlas.study.plain import Row
from fedatlas.wording import csv_text, number

Analysis = Row
BASELINE = "all rows together"
DRAWN = 24  # most settings whose fronts are drawn; the table has all
CLOSE = 0.1  # a range of values that two digits hardly tell apart
NAMED = 12  # most settings named in a picture; more are numbered


def setting_names(found: Analysis) -> list[str]:
    """Return the settings as readable text."""
    return [levels_text(one["levels"]) for one in found["settings"]]


def accuracy_of(one: Row, choice: str) -> float | None:
    """Return the accuracy of a choice in a setting; None if it has none."""
    return next((member["quality"] for member in one["choices"] if member["choice"] == choice), None)


def ordered(level: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, then other levels by name, with "low" before "middle" before "high"."""
    try:
        return float(level), ""
    except ValueError:
        return float("inf"), {"low": "0", "middle": "1", "high": "2"}.get(level, level)


def heat_figure(
    id: str,
    label: str,
    how: str,
    titles: tuple[str, str],
    rows: Sequence[str],
    columns: Sequence[str],
    lines: Sequence[Sequence[tuple[float | None, str]]],
    heads: Sequence[str] = (),
) -> Figure:
    """Return a shaded table of values with their tips, and of which range its shades are.

    ``heads``: short column headings for the picture, if needed.
    """
    cells, (low, high) = shaded(lines), ends_of(lines)
    how = f"{how} The palest cell is {number(low)}, the darkest {number(high)}."
    draw = partial(heat, rows=rows, columns=heads or columns, cells=cells, titles=titles, label=label)
    table = [[row, *(v for v, _ in line)] for row, line in zip(rows, lines, strict=True)]
    return Figure(id, label, how, draw, csv_text([titles[0], *columns], table), (NARROW, WIDE))


def short(v: float | None, decimals: int = 2) -> str:
    """Return a number for a cell: 0.8123 -> '.81'."""
    return "" if v is None else f"{v:.{decimals}f}".removeprefix("0") if v < 1 else "1"


def ends_of(lines: Sequence[Sequence[tuple[float | None, str]]]) -> tuple[float, float]:
    """Return the smallest and the largest of the values."""
    known = [v for line in lines for v, _ in line if v is not None]
    return min(known, default=0.0), max(known, default=1.0)


def shaded(lines: Sequence[Sequence[tuple[float | None, str]]]) -> list[list[Shaded]]:
    """Return cells of values and their tips; darker is more. Where all values are close, cells print a third digit if it fits."""
    low, high = ends_of(lines)
    span = max(high - low, 1e-9)
    decimals = 3 if span < CLOSE and max(map(len, lines), default=0) <= NAMED else 2
    return [
        [Shaded(None if v is None else 0.08 + 0.92 * (v - low) / span, short(v, decimals), said) for v, said in line]
        for line in lines
    ]
