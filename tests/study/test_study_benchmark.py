"""The benchmark of studies: its tables of planted effects are covered."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("study")


def test_planted_effects_are_covered(script: Any):
    found = script.coverage(60)
    assert found["effects"] == 3 + 2 + 4 + 6 + 12 + 8
    assert found["covered"] >= 0.85  # 95% with a standard error of 3%
