"""What is held out of training, and what the baselines beside a run train on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from configured import run_one, set_up
from fedatlas import config
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.runs.baselines import baseline_config
from fedatlas.setup.assembly import judged_rows
from fedatlas.setup.cohort import draw_round
from fedatlas.setup.party_rows import HELD_OUT

FEW = ("partition={name='iid', clients=4}", "rounds=2", "data.limit=200")


@pytest.mark.parametrize("key", ["validation", "clients"])
def test_a_share_that_holds_out_nothing_is_refused_before_anything_is_trained(key: str) -> None:
    chosen = [*FEW, "evaluation.on=validation", "evaluation.validation=0.1", f"evaluation.{key}=0.004"]
    with pytest.raises(
        ConfigError, match=rf"evaluation.{key} = 0.004 holds out no row of any client, as the largest has 50"
    ):
        set_up(config.read(None, chosen), 1)


def test_held_out_rows_have_a_noise_of_their_own() -> None:
    skew = "partition={name='feature_skew', clients=2, rotate=[0, 0], noise=1.0}"
    held = "evaluation.on=validation", "evaluation.validation=0.2", "evaluation.clients=0.2"
    setup = set_up(config.read(None, [skew, *held, "data.limit=200"]), 1)

    def noise(seen: Rows, index: np.ndarray) -> torch.Tensor:
        d = setup.dataset
        return seen.x - d.inputs(d.train.x[torch.from_numpy(index)])

    train = noise(setup.bench.rows(1), setup.partition.clients[1])[:20]
    own = noise(setup.rows.kept(1, HELD_OUT), setup.held_out[1])
    judged = noise(judged_rows(setup), np.concatenate([setup.validation[0], setup.validation[1]]))[-20:]
    for a, b in ((train, own), (train, judged), (own, judged)):
        assert abs(float(np.corrcoef(a.flatten(), b.flatten())[0, 1])) < 0.1


def test_the_pooled_baseline_draws_as_many_examples_as_came_back(tmp_path: Path) -> None:
    """H0: as many as the federated run drew, drop-outs and stragglers off."""
    chosen = [*FEW, "local.epochs=3", "failures={dropout=0.3, stragglers=0.5}", "rounds=4"]
    whole = config.read(None, chosen)
    pooled = baseline_config(whole, "centralised", 4)
    assert not baseline_config(whole, "local_only", 4).failures.dropout
    sizes = set_up(whole, 1).sizes
    drawn = [draw_round(whole, sizes, 1, t).round.examples for t in range(1, 5)]
    assert len(set(drawn)) > 1
    done = run_one(pooled, tmp_path / "run")
    rows = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()][1:]
    forward = done.summary["forward_flops"]
    assert [row["flops"] for row in rows] == [3 * forward * examples for examples in drawn]


def test_a_client_without_rows_has_no_figure_of_a_personal_method(tmp_path: Path) -> None:
    split = "partition={name='dirichlet_fedseq', clients=30, alpha=0.02}"
    done = run_one(
        config.read(None, [split, "algorithm.name=local_only", "rounds=1", "data.limit=300"]), tmp_path / "run"
    )
    by = {row["client"]: row for row in done.summary["per_client"]}
    empty = [k for k, row in by.items() if not row["train_rows"]]
    assert empty
    assert all((row["value"] is None) == (k in empty) for k, row in by.items())
    assert done.summary["final"]["accuracy"] == pytest.approx(
        np.mean([row["value"] for row in by.values() if row["train_rows"]])
    )
