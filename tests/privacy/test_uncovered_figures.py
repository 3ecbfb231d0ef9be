"""Figures of training rows on a private run's page: each says which epsilon covers it, or that none does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment
from fedatlas.api import run
from fedatlas.reporting.uncovered import COUNTED, KEPT_OUT, NAMED, RESPONSES
from reports import Page

MIX = COUNTED.format(" and the mix of classes")
RESPONSE = {"name": "randomised_response", "epsilon": 1.0, "classes": ["no", "yes"]}
NOISE = {"name": "local_dp", "epsilon": 8.0, "clip": 1.0}
ROWS = {"name": "additive_noise", "bounds": {"age": [0, 120], "dose": [0, 2]}}
KEPT = {"evaluation": {"on": "validation", "validation": 0.2}}


def page(folder: Path, *privacy: dict[str, Any], **tables: Any) -> str:
    """The text of a run's page: three clients with rows of two columns of numbers and two classes."""
    stream = np.random.default_rng(3)
    age, dose = stream.integers(20, 90, 120), stream.random(120)
    lines = [f"{a},{d:.3f},{'yes' if a + 20 * d > 60 else 'no'}" for a, d in zip(age, dose, strict=True)]
    (folder / "rows.csv").write_text("\n".join(["age,dose,ill", *lines]) + "\n")
    asked = {
        "rounds": 2,
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "data": {"name": "file", "path": str(folder / "rows.csv"), "label": "ill", "test": 0.25, "scale": "none"},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "logistic"},
        "engine": {"name": "loop"},
        "privacy": list(privacy),
        **tables,
    }
    return Page(run(Experiment.of(**asked), out=folder / "run", baselines=False).path / "report.html").text()


def test_a_run_without_an_epsilon_says_nothing_of_one(tmp_path: Path) -> None:
    text = page(tmp_path, ROWS, **KEPT)
    assert "epsilon covers" not in text.replace(
        "no epsilon covers them.", "", 1
    )  # the one beside additive noise's own figures
    assert NAMED not in text


def test_random_classes_cover_their_shares_and_no_validation_rows(tmp_path: Path) -> None:
    text = page(tmp_path, RESPONSE, **KEPT)
    assert KEPT_OUT in text
    assert RESPONSES in text
    assert "so the epsilon of randomised_response covers them, and no other epsilon does." in text
    assert NAMED not in text  # the file lists them
    assert MIX not in text


def test_noise_in_rounds_covers_neither_counts_nor_names_nor_columns(tmp_path: Path) -> None:
    text = page(tmp_path, ROWS, NOISE)
    assert "These figures of columns follow from the training rows with this noise: no epsilon covers them." in text
    assert MIX in text
    assert NAMED in text
    assert "nothing about anybody's rows" not in text
    assert KEPT_OUT not in text  # the server's test rows judge


@pytest.mark.parametrize("evaluation", [{"clients": 0.2}, KEPT["evaluation"]])
def test_figures_of_clients_own_rows_have_no_noise(tmp_path: Path, evaluation: dict[str, Any]) -> None:
    assert KEPT_OUT in page(tmp_path, NOISE, evaluation=evaluation)
