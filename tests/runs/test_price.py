"""``--price``: the same run without protection beside a run, and what the answer says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedatlas import Experiment, resume, run
from fedatlas.cli import app
from fedatlas.comparison.jobs import Heard
from fedatlas.errors import ConfigError
from fedatlas.record.run_folder import RunFolder
from fedatlas.runs.price import unprotected_config
from fedatlas.verdict.price import Price, RunEffort, price_text
from fedatlas.verdict.rule import Ends
from reports import Page

NOISY = {"name": "local_dp", "epsilon": 1.0, "clip": 1.0, "noise": "seed"}


def experiment(*privacy: dict[str, Any], **more: Any) -> Experiment:
    return Experiment.of(
        **{
            "rounds": 3,
            "data": {"name": "digits"},
            "partition": {"name": "iid", "clients": 4},
            "model": {"name": "logistic"},
            "algorithm": {"name": "fedavg", "weights": "uniform"},
            "local": {"lr": 0.2, "schedule": {"name": "cosine"}},
            "engine": {"workers": 1},
            "privacy": list(privacy),
            **more,
        }
    )


def test_noise_has_its_price_in_the_figure_in_bytes_and_in_seconds(tmp_path: Path):
    """At epsilon 1 for each client the model is ruined; without noise it is that of a run that never had any."""
    done = run(experiment(NOISY), out=tmp_path / "run", baselines=False, price=True)
    price = done.summary["answer"]["price"]
    bare = run(experiment(), out=tmp_path / "bare", baselines=False)
    assert price["without"] == pytest.approx(bare.summary["final"]["accuracy"])
    assert price["lost"]["low"] > 0
    lost = bare.summary["final"]["accuracy"] - done.summary["final"]["accuracy"]
    assert price["lost"]["value"] == pytest.approx(lost)
    for name, one in (("bare", bare), ("protected", done)):
        cost = one.summary["cost"]
        assert price[name]["sent"] == cost["bytes_up"] + cost["bytes_down"] + cost["bytes_peer"]
    assert "Without protection, the same run reaches accuracy" in done.answer
    page = Page(done.path / "report.html")
    assert " ".join(done.answer.rpartition("Without protection")[2].split()) in page.text()
    assert "add --price to the command below" not in page.text()
    assert "--price" in page.text(), "the command that repeats it"


def test_masks_cost_bytes_and_nothing_else(tmp_path: Path):
    done = run(experiment({"name": "secagg"}), out=tmp_path / "run", baselines=False, price=True)
    price = done.summary["answer"]["price"]
    assert price["lost"]["low"] <= 0 <= price["lost"]["high"]
    assert "so not told apart" in done.answer
    assert price["bare"]["sent"] < price["protected"]["sent"]


def test_a_later_price_is_that_of_a_run_that_had_it_from_the_start(tmp_path: Path):
    first = run(experiment(NOISY), out=tmp_path / "run", baselines=False)
    assert first.summary["answer"]["price"] is None
    assert "add --price to the command below" in Page(first.path / "report.html").text()
    with_it = resume(first.path, price=True)
    other = run(experiment(NOISY), out=tmp_path / "other", baselines=False, price=True)
    same = [{**one.summary["answer"]["price"], "bare": 0, "protected": 0} for one in (with_it, other)]
    assert same[0] == same[1]
    again = resume(first.path)
    assert again.summary["answer"]["price"] == with_it.summary["answer"]["price"]


def test_over_seeds_each_price_is_measured_within_its_seed(tmp_path: Path):
    done = run(experiment(NOISY, seeds=[1, 2, 3]), out=tmp_path / "run", baselines=False, price=True)
    price = done.summary["answer"]["price"]
    each = [RunFolder(tmp_path / "run" / f"seed-{k}").summary()["answer"]["price"] for k in (1, 2, 3)]
    assert price["lost"]["value"] == pytest.approx(sum(one["lost"]["value"] for one in each) / 3)
    assert price["lost"]["low"] < price["lost"]["value"] < price["lost"]["high"]
    assert price["bare"]["seconds"] == pytest.approx(sum(one["bare"]["seconds"] for one in each) / 3)
    assert " a seed instead of " in done.answer


def test_only_the_protection_is_taken_away():
    config = experiment(
        NOISY, compression={"name": "float16"}, stop={"patience": 2}, attack=[{"name": "label_flip", "clients": [1]}]
    ).config
    plain = unprotected_config(config, 2).plain()
    wanted = {**config.plain(), "rounds": 2}
    wanted["local"]["schedule"]["rounds"] = 3
    assert plain == {key: value for key, value in wanted.items() if key not in {"privacy", "stop"}}


def test_a_price_of_nothing_is_refused_before_anything_is_made(tmp_path: Path):
    with pytest.raises(ConfigError, match="this experiment has none: leave it out"):
        run(experiment(), out=tmp_path / "run", price=True)
    assert not (tmp_path / "run").exists()
    said = CliRunner().invoke(app, ["run", "privacy.secagg={}", "--dry-run", "--price"])
    assert "--dry-run measures no price" in said.output + str(said.exception)


def test_a_run_without_protection_that_diverges_has_no_price(tmp_path: Path):
    """At this rate training gives NaN, which ends a run unless noise covers it."""
    heard = Heard()
    keys = {"local": {"lr": 1e38}, "rounds": 2}
    done = run(experiment(NOISY, **keys), out=tmp_path / "run", baselines=False, price=True, progress=heard)
    assert any(
        notice.startswith("The price of protection is not told: without protection, ") for notice in heard.notices
    )
    assert done.summary["answer"]["price"] is None
    assert "Without protection" not in done.answer


def test_the_sentence_says_what_is_certain():
    effort = RunEffort(1000, 1.5), RunEffort(3000, 2.5)
    sure = price_text(Price(0.9, Ends(0.1, 0.05, 0.15, 0.02), *effort), "AUC")
    assert (
        "reaches AUC 0.900 (+0.100, +0.050 to +0.150), with 1.00\xa0kB and 1.50\xa0s instead of 3.00\xa0kB and 2.50\xa0s."
        in sure
    )
    unsure = price_text(Price(0.9, Ends(0.1, -0.05, 0.25, 0.1), *effort), "RMSE", lower_is_better=True)
    assert "(+0.100, error avoided, −0.050 to +0.250, so not told apart)" in unsure
    hidden = price_text(Price(0.9, None, RunEffort(None, 1.0), RunEffort(None, 2.0)), "AUC", several=True)
    assert "(no interval, since too few seeds or test rows), with 1.00\xa0s a seed instead of 2.00\xa0s." in hidden
