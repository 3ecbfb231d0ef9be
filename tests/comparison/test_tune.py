"""Tuning: what is drawn, what decides, and that test rows are seen by the winner alone."""

from __future__ import annotations

import json
import tomllib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from fedatlas import Experiment, Table, run
from fedatlas.cli import app
from fedatlas.comparison.draws import Searched, searched_keys, trials_of
from fedatlas.comparison.tune import WINNER, tune, tuning_of, winner
from fedatlas.comparison.tune_notices import near_end, told_apart
from fedatlas.comparison.values import given_keys
from fedatlas.course.progress import Run, Silent
from fedatlas.errors import ConfigError
from fedatlas.privacy.terms import CHOSEN
from fedatlas.record.run_folder import TUNED
from fedatlas.runs.epsilon import account
from fedatlas.study.study import TABLE
from fedatlas.wording import signed
from reports import Page

SMALL = "rounds = 2\n[data]\nlimit = 200\n[partition]\nname = 'iid'\nclients = 3\n"
LR = Searched("local.lr", ends=(0.001, 1.0))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def tuned(
    file: Path, out: Path, *words: str, budget: int = 3, say: Any = lambda line: None
) -> tuple[Run, dict[str, Any]]:
    return tune(tuning_of(file, words), out, budget, Silent(), say=say)


def test_draws_are_even_on_a_log_scale_and_follow_the_seed() -> None:
    drawn = [one["local.lr"] for one in trials_of([LR], 600, 1)]
    thirds = [sum(10**low <= x < 10 ** (low + 1) for x in drawn) for low in (-3, -2, -1)]
    assert all(150 < n < 250 for n in thirds), thirds  # 200 each, by a standard deviation of 12
    assert trials_of([LR], 600, 1)[:20] == trials_of([LR], 20, 1)  # a larger budget begins with the same
    assert trials_of([LR], 20, 2) != trials_of([LR], 20, 1)
    assert all(float(f"{x:.4g}") == x for x in drawn)


def test_whole_ends_give_whole_numbers_and_both_ends_are_reached() -> None:
    one = Searched("local.epochs", ends=(1.0, 4.0), whole=True)
    assert sorted(trial["local.epochs"] for trial in trials_of([one], 50, 1)) == [1, 2, 3, 4]  # no combination twice


def test_lists_that_fit_the_budget_are_tried_in_full() -> None:
    keys = searched_keys(given_keys(["local.momentum=0,0.5", "local.lr=0.1,0.2"]))
    assert trials_of(keys, 4, 1) == [{"local.momentum": m, "local.lr": r} for m in (0, 0.5) for r in (0.1, 0.2)]
    assert len(trials_of(keys, 3, 1)) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["local.lr=0.01..x"], "two numbers"),
        (["local.lr=0..0.1"], "both ends are above 0"),
        (["local.lr=0.3..0.01"], "smaller one"),
        (["local.lr=0.3..0.01", "local.momentum=0..1"], "smaller one; .*above 0"),  # all that is wrong at once
        (["local.lr=0.1"], "nothing to tune"),
        (["seed=1,2"], "a seed is not tuned"),
        (["local.lr=0.1..0.2", "seeds=[1,2]"], "one seed"),
        (["algorithm.name=fedavg,fedprx", "local.lrr=0.1..0.2"], "did you mean 'local.lr'"),
        (["algorithm.name=fedavg,fedprx", "model.name=mlp,mlpp"], "fedprx: .*did you mean.*mlpp: .*did you mean"),
        (["local.momentum=0.5,1.5"], r"^local\.momentum=1\.5: "),
        (["data.name=nothing", "local.lr=0.1..0.2"], "^unknown data"),  # the file's, so that no value is named
    ],
)
def test_wrong_words_are_refused_before_any_trial(file: Path, tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tuned(file, tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


def test_the_best_on_validation_rows_wins_and_the_earlier_of_equals() -> None:
    def trial(figure: str, value: float | None) -> dict[str, Any]:
        return {"values": {"x": value}, "status": "done", "figure": figure, "validation": value}

    assert winner([trial("accuracy", x) for x in (0.5, None, 0.9, 0.7)])["validation"] == 0.9
    assert winner([trial("rmse", x) for x in (0.5, 0.2, 0.7)])["validation"] == 0.2
    assert winner([trial("log_loss", x) for x in (0.5, 0.2, 0.7)])["validation"] == 0.2
    assert winner([trial("auc", x) for x in (0.5, None, 0.7)])["validation"] == 0.7
    first, second = trial("accuracy", 0.5), trial("accuracy", 0.5)
    assert winner([first, second]) is first
    with pytest.raises(ConfigError, match="no trial came to its end"):
        winner([trial("accuracy", None)])


def test_trials_never_look_at_test_rows_and_the_winner_is_the_files_experiment(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done, record = tuned(file, out, "local.lr=0.0001,0.1")
    assert record["winner"] == {"local.lr": 0.1}
    assert [one["status"] for one in record["trials"]] == ["done", "done"]
    by_hand = run(Experiment.read(out / WINNER), out=tmp_path / "by hand")
    assert (done.path / "model.safetensors").read_bytes() == (by_hand.path / "model.safetensors").read_bytes()
    assert tomllib.loads((out / WINNER).read_text())["local"] == {"lr": 0.1}
    assert done.summary["final"] == by_hand.summary["final"]
    table = Table.open(out / TABLE)
    for one in table.members("tune"):
        assert one["configuration"]["evaluation"]["on"] == "validation"
        kept = table.summary(one["run_key"])
        assert kept is not None
        assert "test" not in kept
    assert json.loads((out / TUNED).read_text()) == record


def test_the_metric_of_the_file_decides(file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL + "[evaluation]\nmetric = 'log_loss'\n")
    _, record = tuned(file, tmp_path / "out", "local.lr=0.0001,0.1")
    assert [one["figure"] for one in record["trials"]] == ["log_loss", "log_loss"]
    assert record["validation"] == min(one["validation"] for one in record["trials"])


def test_a_tuning_that_was_stopped_goes_on_and_may_grow(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pulled(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(file, out, "local.lr=0.01..0.3", say=pulled)
    told: list[str] = []
    _, record = tuned(file, out, "local.lr=0.01..0.3", say=told.append)
    assert len(record["trials"]) == 3
    assert sum(line.startswith("trial") for line in told) < 3  # the first had ended
    told.clear()
    _, more = tuned(file, out, "local.lr=0.01..0.3", budget=4, say=told.append)
    assert more["trials"][:3] == record["trials"]
    assert sum(line.startswith("trial") for line in told) == 1
    assert not any(" min" in line or "0 left" in line for line in told)  # seconds, and nothing once all have ended
    with pytest.raises(ConfigError, match="another tuning"):
        tuned(file, out, "local.lr=0.01..0.4")


def test_the_command_prints_the_winner_on_test_rows(file: Path, tmp_path: Path) -> None:
    words = ["tune", str(file), "local.lr=0.01,0.1", "--budget", "2", "--out", str(tmp_path / "out"), "--quiet"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    assert "The winner, local.lr=0.1, reaches accuracy" in said.output
    assert "be told apart from the next: accuracy" in said.output
    assert json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)["winner"] == {"local.lr": 0.1}


@pytest.mark.parametrize(
    ("value", "said"), [(0.001, "lower"), (0.0019, "lower"), (0.0021, ""), (0.4, ""), (0.6, "upper"), (1.0, "upper")]
)
def test_a_winner_near_the_end_of_its_range_is_said(value: float, said: str) -> None:
    """A tenth of 0.001..1 on a log scale ends at 0.001 * 1000^0.1 = 0.001995."""
    found = near_end([LR, Searched("local.momentum", values=(0, 0.5))], {"local.lr": value, "local.momentum": 0.5})
    assert [f"{said} end of its range, 0.001..1" in line for line in found] == [True] * bool(said)


def test_whether_the_winner_can_be_told_apart_is_said() -> None:
    def trials(figure: str, *values: float, rows: int | None = 100) -> list[dict[str, Any]]:
        return [{"figure": figure, "validation": value, "rows": rows} for value in values]

    # of 0.9 and 0.8 on 100 rows: 1.96 * root((0.09 + 0.16) / 100) = 0.098
    assert (
        "can be told apart from the next: accuracy 0.900 and 0.800 on 100"
        in told_apart(trials("accuracy", 0.9, 0.8))[0]
    )
    assert "cannot be told apart" in told_apart(trials("accuracy", 0.9, 0.81))[0]
    assert "cannot be told apart" in told_apart(trials("accuracy", 1.0, 0.995))[0]
    assert "cannot be said from their figures alone" in told_apart(trials("auc", 0.9, 0.1))[0]
    assert told_apart(trials("accuracy", 0.9)) == told_apart(trials("accuracy", 0.9, 0.1, rows=None)) == []


def test_the_next_trial_is_compared_on_the_same_validation_rows(file: Path, tmp_path: Path) -> None:
    """The same draws of the rows for both, so the interval is that of their difference; of any figure, also the macro-F1."""
    given = tuning_of(file, ["local.lr=0.02,0.5", "evaluation.metric=macro_f1"])
    _, record = tune(given, tmp_path / "out", 2, Silent(), say=lambda line: None)
    (notice,) = [line for line in record["notices"] if "told apart" in line]
    best, other = sorted((one["validation"] for one in record["trials"]), reverse=True)
    assert f"(a difference of {signed(best - other)}, " in notice
    with closing(Table.open(tmp_path / "out" / TABLE)) as table:
        keys = [one["run_key"] for one in record["trials"]]
        drawn = [table.summary(key)["judged"]["parties"][0]["together"] for key in keys]  # type: ignore[index]
    gaps = np.subtract(*map(np.array, drawn))[1:]
    rows = record["trials"][0]["rows"]
    half = stats.t.ppf(0.975, rows - 1) * gaps.std() * (rows / (rows - 1)) ** 0.5
    assert f"{signed(best - other - half)} to {signed(best - other + half)}" in notice


NOISY = """privacy = [{ name = 'central_dp', clip = 1.0, noise_multiplier = 2.0 }]
rounds = 1
[data]
limit = 200
scale = 'none'
[partition]
name = 'iid'
clients = 6
[algorithm]
weights = 'uniform'
"""


def test_the_epsilon_of_a_winner_is_said_not_to_cover_its_tuning(file: Path, tmp_path: Path) -> None:
    """Trials release sums of the same rows, and validation rows choose among them without noise."""
    file.write_text(NOISY)
    out = tmp_path / "out"
    done, record = tuned(file, out, "local.lr=0.01,0.1")
    assert record["notices"][-1] == CHOSEN
    assert CHOSEN in " ".join(Page(done.path / "report.html").text().split())
    for folder in (out, done.path):
        (found,) = account([folder])["accounts"]
        assert f"{done.path.resolve()}: {CHOSEN}" in found["notes"]


def test_a_winner_without_epsilon_is_told_nothing_of_one(file: Path, tmp_path: Path) -> None:
    _, record = tuned(file, tmp_path / "out", "local.lr=0.01,0.1")
    assert CHOSEN not in record["notices"]
