"""What the sections of a study's page share: how settings are called, which figures there are, how cells are shaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.reporting.drawing.charts import Shaded
from fedatlas.wording import bytes_text, flops_text, number, seconds_text

Analysis = Mapping[str, Any]
BASELINE = "all rows together"
DRAWN = 24  # settings whose fronts are drawn; the table has all
NAMED = 12  # settings that a picture names; of more, their numbers
RESPONSES = {
    "accuracy": ("Accuracy", number),
    "macro_f1": ("Macro-F1", number),
    "client_accuracy_p10": ("Accuracy of the client at the tenth percentile", number),
    "cpu_seconds": ("CPU-seconds", seconds_text),
    "bytes": ("Bytes sent", bytes_text),
    "flops": ("Operations", flops_text),
    "memory": ("Memory in MiB", number),
}


def named(found: Analysis) -> list[str]:
    """The settings as they are called in words."""
    return [", ".join(f"{f} {v}" for f, v in one["levels"].items()) or "the base" for one in found["settings"]]


def accuracy_of(one: Mapping[str, Any], choice: str) -> float | None:
    """Of a choice in a setting; None where it has none."""
    return next((member["quality"] for member in one["choices"] if member["choice"] == choice), None)


def ordered(level: str) -> tuple[float, str]:
    """Numbers by size; other levels after them, by name, "low" before "middle" before "high"."""
    try:
        return float(level), ""
    except ValueError:
        return float("inf"), {"low": "0", "middle": "1", "high": "2"}.get(level, level)


def short(v: float | None) -> str:
    """0.8123 -> '.81', for a cell."""
    return "" if v is None else f"{v:.2f}".removeprefix("0") if v < 1 else "1"


def shaded(lines: Sequence[Sequence[tuple[float | None, str]]]) -> list[list[Shaded]]:
    """Cells of values and what they say; darker is more."""
    known = [v for line in lines for v, _ in line if v is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    span = max(high - low, 1e-9)
    return [
        [Shaded(None if v is None else 0.08 + 0.92 * (v - low) / span, short(v), said) for v, said in line]
        for line in lines
    ]
