"""The study that comes with fedatlas: it is whole, small, answers without torch, and its cells reproduce from their files."""

from __future__ import annotations

import copy
import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment
from fedatlas.api import run
from fedatlas.config import parse
from fedatlas.recommender.contest import logit
from fedatlas.recommender.shipped import ARRAYS, HERE, NAMES, Basis, load_study, refit
from fedatlas.record.run_folder import RunFolder
from fedatlas.study.cells import cells_of
from fedatlas.study.configurations import Configurations
from fedatlas.study.design import read_study_file
from fedatlas.study.levels import factors_of

FOLDER = HERE / "small"
CHOICES = {"fedavg", "fedprox", "scaffold", "fedyogi", "hwfedavg", "fedavg_dp_eps30", "fedavg_dp_eps300"}


@pytest.fixture(scope="module")
def small() -> Basis:
    return load_study("small")


def test_it_is_whole_and_small(small: Basis):
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 5_000_000
    assert small.about["study_sha256"] == hashlib.sha256((FOLDER / "STUDY.toml").read_bytes()).hexdigest()
    assert set(small.fitted.choices) >= CHOICES
    assert small.about["seeds"] == [1, 2, 3]
    assert small.rates == {"local.lr": [0.02, 0.1, 0.5]}
    assert small.fitted.references[0] == "fedavg"
    measured = np.isfinite(small.fitted.finishes[:, [small.fitted.choices.index(name) for name in CHOICES]])
    assert measured.all(), "every choice was run in every setting"
    assert (np.exp(small.fitted.x[:, 1]) >= 15).all(), (
        "at least 20 rows a node, of which a fifth are kept for its own test"
    )


def test_its_settings_are_of_its_file(
    small: Basis, shared_data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
):
    shared_data("tables/adult_train.csv.gz")
    monkeypatch.chdir(FOLDER)  # constants are named from there
    study = read_study_file(FOLDER / "STUDY.toml")
    factors, _ = factors_of(study, Configurations())
    settings = {tuple(level for _, level in cell.setting) for cell in cells_of(study, factors)}
    assert settings >= set(small.fitted.settings)


def test_its_contest_is_that_of_today(small: Basis, tmp_path: Path):
    """The arrays that answer come from the measurements kept beside them, by the predictors of this version."""
    for name in (NAMES, ARRAYS):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    again = refit(tmp_path).fitted
    assert again.way == small.fitted.way
    assert again.score == pytest.approx(small.fitted.score)
    for name, values in small.fitted.by_data.items():
        np.testing.assert_allclose(again.by_data[name], values, atol=1e-8)


ASK = """
import sys
from fedatlas.recommender.answer import answer_for
from fedatlas.recommender.requirements import requirements
from fedatlas.recommender.shipped import load_study
small = load_study("small")
asked = requirements({"federation": {"nodes": 20, "rows": 2000, "heterogeneity": 0.4, "classes": 2, "centralised": 0.8}})
found = answer_for(small.fitted, asked)
assert found["answer"] == "found", found
assert found["track_record"]["federations"] > 0
assert not {"torch", "pandas", "sklearn", "scipy"} & sys.modules.keys(), sorted(sys.modules)
print(found["top"][0]["choice"])
"""


def test_it_answers_without_torch(small: Basis):
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in small.fitted.choices


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["fedavg", "scaffold", "fedavg_dp_eps300"])
def test_a_cell_reproduces_from_its_file(
    small: Basis,
    choice: str,
    shared_data: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The cheapest setting: three seeds and the baselines beside them give its gaps again, up to another machine's rounding."""
    shared_data("mnist.npz")
    monkeypatch.chdir(FOLDER)
    i = int(np.argmin(small.fitted.x[:, 0] + small.fitted.x[:, 1]))
    given = copy.deepcopy(dict(small.configurations[i, choice]))
    gaps = []
    for seed in small.about["seeds"]:
        rows = curve({**given, "seed": seed}, tmp_path / f"{seed}")
        alone = {key: x for key, x in given.items() if key not in ("privacy", "algorithm")}
        usual = {**alone, "seed": seed, "algorithm": {"name": "centralised"}, "local": {**given["local"], "lr": 0.05}}
        base = curve(usual, tmp_path / f"base-{seed}")[50]
        gaps.append([float(logit(rows[r]) - logit(base)) for r in small.fitted.rounds])
    stored = small.fitted.gaps["accuracy"][i, small.fitted.choices.index(choice)]
    np.testing.assert_allclose(np.mean(gaps, axis=0), stored, atol=0.15)


def curve(values: dict[str, Any], folder: Path) -> dict[int, float]:
    """round -> accuracy of a run."""
    path = run(Experiment(parse(values)), out=folder, baselines=False).path
    return {row["round"]: row["accuracy"] for row in RunFolder.open(path).rows() if row["accuracy"] is not None}
