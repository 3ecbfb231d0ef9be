"""The geometric median by secure sums: equal to the one that sees changes, what it withstands and what not (B5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from configured import set_up, share_out
from fedatlas import Experiment
from fedatlas.algorithms.median_by_sums import BASE, digits, value_of
from fedatlas.api import run
from fedatlas.config import parse
from fedatlas.deployment import plain_refusals
from fedatlas.engine import job as jobs
from fedatlas.errors import ConfigError

TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 10},
    "model": {"hidden": [32]},
    "local": {"lr": 0.05, "epochs": 5, "batch_size": 10},
    "engine": {"name": "fast", "workers": 1},
    "evaluation": {"every": 2},
    "aggregation": {"name": "geometric_median"},
}
MASKED = [{"name": "secagg"}]
WRONG = [{"name": "label_flip", "clients": [1, 4, 7], "pairs": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]}]


def done(out: Path, **tables: Any) -> Path:
    return run(Experiment.of(**{**TABLES, **tables}), out=out, baselines=False).path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def accuracy(path: Path) -> float:
    return float(rows(path)[-1]["accuracy"])


@given(st.floats(1e-15, 1.0))
def test_digits_are_the_number_and_their_mean_is_its_mean(x: float) -> None:
    found = digits(x)
    assert all(0 <= float(digit) <= 1 and float(digit) * BASE == int(float(digit) * BASE) for digit in found)
    assert value_of(found.double()) == pytest.approx(x, rel=1e-2 if x < 1e-13 else 1e-4, abs=1e-17)
    both = (digits(x).double() + digits(1.0).double()) / 2
    assert value_of(both) == pytest.approx((x + 1) / 2, rel=1e-12)


@pytest.mark.slow
def test_masked_steps_give_the_point_of_the_server_that_sees_all_changes(tmp_path: Path) -> None:
    """Up to the coarseness of masked values, 2^-19, on a direction of length 1 and a handful of steps."""
    plain, masked = done(tmp_path / "plain"), done(tmp_path / "masked", privacy=MASKED)
    one, other = (load_file(path / "model.safetensors") for path in (plain, masked))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-4
    assert max(float((one[name]).abs().max()) for name in one) > 0.1
    notices = json.loads((masked / "summary.json").read_text())["notices"]
    assert any("not one that claims more rows" in one for one in notices)
    row = rows(masked)[-1]
    assert row["clients"] == list(range(10))
    assert not row.get("given_up")
    small = {"rounds": 1, "data": {"name": "digits", "limit": 300}, "partition": {"name": "iid", "clients": 4}}
    for name in ("two_server", "threshold_paillier"):
        paths = done(tmp_path / f"p-{name}", **small), done(tmp_path / name, privacy=[{"name": name}], **small)
        seen = [load_file(path / "model.safetensors") for path in paths]
        assert all(torch.allclose(seen[0][each], seen[1][each], atol=1e-4) for each in seen[0]), name
    uniform = {"algorithm": {"name": "fedprox", "weights": "uniform"}, "rounds": 1}
    a, b = done(tmp_path / "u", **uniform), done(tmp_path / "um", privacy=MASKED, **uniform)
    found = (load_file(path / "model.safetensors") for path in (a, b))
    assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(*(each.values() for each in found), strict=True))


def test_it_withstands_bad_data_and_not_a_client_that_lies_about_its_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of ten train on exchanged labels. Then they also claim 20 times their rows, which no sum can tell from the truth."""
    clean = accuracy(done(tmp_path / "clean", privacy=MASKED))
    bad = accuracy(done(tmp_path / "bad", privacy=MASKED, attack=WRONG))
    mean = accuracy(done(tmp_path / "mean", privacy=MASKED, attack=WRONG, aggregation={"name": "mean"}))
    assert bad > clean - 0.05
    assert bad > mean + 0.03
    honest = jobs.protected

    def lying(bench: Any, job: Any, task: Any, update: Any, n: int) -> Any:
        return honest(bench, job, task, update, n * 20 if job.client in {1, 4, 7} else n)

    monkeypatch.setattr(jobs, "protected", lying)
    assert accuracy(done(tmp_path / "lie", privacy=MASKED, attack=WRONG)) < 0.2


def test_it_is_refused_where_it_cannot_be() -> None:
    def refused(**tables: Any) -> str:
        with pytest.raises(ConfigError) as error:
            share_out(parse({**TABLES, "privacy": MASKED, **tables}))
        return str(error.value)

    assert "its rounds are more than one training" in refused(algorithm={"name": "fedmd"})
    assert "its rounds are more than one training" in refused(algorithm={"name": "scaffold"})
    uniform = {"name": "fedavg", "weights": "uniform"}
    noise = {"name": "central_dp", "noise_multiplier": 1.0, "clip": 1.0, "delta": 1e-3, "noise": "seed"}
    assert "not under 'central_dp'" in refused(privacy=[noise, *MASKED], algorithm=uniform)
    assert "none is sent" in refused(compression={"name": "clip", "norm": 1.0})
    assert "shows the server only sums" in refused(aggregation={"name": "geometric_median", "pre": "nnm"})
    assert "shows the server only sums" in refused(aggregation={"name": "median"})
    altered = refused(attack=[{"name": "sign_flip", "clients": [1]}])
    assert "'geometric_median' by secure sums, whose clients send no change" in altered
    normed = {"model": {"hidden": [8], "norm": "batch"}}
    with pytest.raises(ConfigError, match="not with batch norm"):
        set_up(parse({**TABLES, "privacy": MASKED, **normed}))
    said = [*plain_refusals.of_rows({**TABLES, "privacy": MASKED})]
    assert any("aggregation.name = 'geometric_median': not in this version of deployment" in one for one in said)
    pre = [*plain_refusals.of_rows({**TABLES, "aggregation": {"name": "mean", "pre": "arc"}})]
    assert any("aggregation.pre = 'arc': not in this version of deployment" in one for one in pre)
