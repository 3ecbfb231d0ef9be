"""Algorithms of every kind train under a mechanism on rows: their rounds are as without it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import run
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import made
from reports import rows, summary

TABLES: dict[str, dict[str, Any]] = {
    "rotation": {"bounds": [-4, 4]},
    "randomised_response": {"epsilon": 2.0, "classes": ["no", "yes"]},
    "additive_noise": {"bounds": [-4, 4]},
    "anonymise": {"quasi": ["a", "b"], "k": 5},
}
"""mechanism -> its keys."""
KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "hwfedavg": {},
    "scaffold": {},
    "fedseq": {"phi": "random"},
    "gossip": {},
    "cfl": {},
    "ditto": {},
    "fedma": {},
    "feddf": {},
    "centralised": {},
    "local_only": {},
}
"""An algorithm of every kind, with its keys."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = np.random.default_rng(0)
    x = stream.normal(size=(240, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{'yes' if a + b > c else 'no'}" for a, b, c in x]
    path = tmp_path_factory.mktemp("rows") / "rows.csv"
    path.write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    return path


QUICK = {*(("fedavg", name) for name in TABLES), *zip(KINDS, itertools.cycle(TABLES), strict=False)}
"""FedAvg under each mechanism, and each algorithm under one of them, taken in turn."""


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        pytest.param(algorithm, name, marks=() if (algorithm, name) in QUICK else pytest.mark.slow)
        for algorithm in KINDS
        for name in TABLES
    ],
)
def test_it_trains_as_without(algorithm: str, name: str, table: Path, tmp_path: Path) -> None:
    asked = Experiment.of(
        rounds=1,
        data={"name": "file", "path": str(table), "label": "y", "test": 0.25},
        partition={"name": "iid", "clients": 4},
        algorithm={"name": algorithm, **KINDS[algorithm]},
        model={"hidden": [8]},
        privacy=[{"name": name, **TABLES[name]}],
        evaluation={"on": "validation" if made(name).blind else "test"},
    )
    if why := made(name).limits.why_not(ALGORITHMS[algorithm](**KINDS[algorithm])):
        with pytest.raises(ConfigError, match=why):
            run(asked, out=tmp_path / "run", baselines=False)
        return
    done = run(asked, out=tmp_path / "run", baselines=False).path
    assert len(rows(done)) == 2
    assert summary(done)["privacy"]["mechanisms"][0]["name"] == name
