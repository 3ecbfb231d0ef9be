"""`evaluation.drift`: do local models drift apart as their labels do (C12)?"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from configured import set_up
from fedatlas.algorithm import Update
from fedatlas.api import Experiment, run
from fedatlas.course.drift import Drift
from fedatlas.errors import ConfigError
from fedatlas.federation.link import Request
from reports import Page, npz, rows, write_report

SHARDS = {"partition": {"name": "shards", "clients": 6}, "engine": {"workers": 1}}


def correlations(folder: Path) -> list[float | None]:
    return [row["drift_correlation"] for row in rows(folder)]


def test_it_is_spearmans_over_the_pairs_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worked out again from what the clients sent and from partition.json; two of three rounds are evaluated."""
    sent: list[tuple[int, np.ndarray]] = []
    kept = Drift.opened

    def opened(self: Drift, request: Request, update: Update) -> None:
        sent.append((request.client, np.concatenate([x.numpy().ravel() for x in update["model"].values()])))
        kept(self, request, update)

    monkeypatch.setattr(Drift, "opened", opened)
    wanted = Experiment.of(rounds=3, evaluation={"drift": True, "every": 2}, **SHARDS)
    run(wanted, out=tmp_path / "run", baselines=False)
    labels = set_up(wanted.config, 1).dataset.train.y.numpy()
    held = json.loads((tmp_path / "run" / "partition.json").read_text())["clients"]
    last = sent[-6:]
    assert [k for k, _ in last] == list(range(6))
    shares = [np.bincount(labels[held[str(k)]], minlength=10) / len(held[str(k)]) for k, _ in last]
    pairs = list(itertools.combinations(range(6), 2))
    drift = [((last[i][1] - last[j][1]).astype(float) ** 2).sum() for i, j in pairs]
    apart = [((shares[i] - shares[j]) ** 2).sum() for i, j in pairs]
    none, blank, second, third = correlations(tmp_path / "run")
    assert (none, blank) == (None, None)
    assert second is not None
    assert third == pytest.approx(spearmanr(drift, apart).statistic, abs=1e-6)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["final"]["drift_correlation"] == third
    page = Page(write_report([tmp_path / "run"], tmp_path / "page.html"))
    found = [(r["round"], float(r["drift_correlation"])) for r in page.table("drift_correlation-by-round")]
    assert found == [("2", second), ("3", third)]


@pytest.mark.parametrize(
    ("tables", "known"),
    [
        ({"algorithm": {"name": "scaffold"}, "compression": {"name": "qsgd"}}, True),
        ({"algorithm": {"name": "gossip"}}, True),
        ({"algorithm": {"name": "ditto"}}, True),
        (
            {"algorithm": {"name": "fedseq", "phi": "random", "max_clients": 6, "min_examples": 10_000}},
            False,
        ),  # one chain
        ({"algorithm": {"name": "fednova"}}, False),  # changes, normalised
        ({"algorithm": {"name": "local_only"}}, False),  # nothing is sent
        ({"cohort": {"size": 2}}, False),  # one pair has no order
    ],
)
def test_only_models_of_single_clients_count(tmp_path: Path, tables: dict[str, Any], known: bool) -> None:
    run(Experiment.of(rounds=1, evaluation={"drift": True}, **SHARDS, **tables), out=tmp_path / "run", baselines=False)
    assert (correlations(tmp_path / "run")[-1] is not None) is known


def test_models_that_began_apart_are_not_compared(tmp_path: Path) -> None:
    """Nodes of a graph begin alike in the first round only."""
    tables = {"rounds": 2, "algorithm": {"name": "gossip"}, "evaluation": {"drift": True}, **SHARDS}
    run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    assert [value is None for value in correlations(tmp_path / "run")][1:] == [False, True]


@pytest.mark.parametrize(("clusters", "known"), [(1, True), (3, False)])
def test_a_cluster_s_model_is_a_start_of_its_own(tmp_path: Path, clusters: int, known: bool) -> None:
    """IFCA's models begin apart; who picks which is seen from what it sends."""
    tables = {"rounds": 1, "algorithm": {"name": "ifca", "clusters": clusters, "starts": 1}, **SHARDS}
    run(Experiment.of(evaluation={"drift": True}, **tables), out=tmp_path / "run", baselines=False)
    assert (correlations(tmp_path / "run")[-1] is not None) is known


def test_a_target_without_classes_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "n.npz", np.ones((40, 2), np.float32), np.linspace(0, 1, 40, dtype=np.float32))
    wanted = Experiment.of(data={"name": "file", "path": path}, partition={"name": "iid"}, evaluation={"drift": True})
    with pytest.raises(
        ConfigError, match=r"evaluation.drift = true compares shares of classes, and '.*' has no classes"
    ):
        run(wanted, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
