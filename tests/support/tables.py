"""A small table of two classes, and a short experiment on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedatlas import Experiment


def table(path: Path, seed: int = 0, n: int = 60) -> None:
    """A table of two classes."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(n, 2))
    lines = ["a,b,y", *(f"{a:.6f},{b:.6f},{'yes' if a + b > 0 else 'no'}" for a, b in x)]
    path.write_text("\n".join(lines) + "\n")


def of_table(path: Path, **tables: Any) -> Experiment:
    """A short experiment on that table."""
    return Experiment.of(
        **{
            "rounds": 2,
            "data": {"name": "file", "path": str(path), "label": "y"},
            "partition": {"name": "iid", "clients": 3},
            "model": {"name": "logistic"},
            **tables,
        }
    )
