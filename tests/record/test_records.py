"""What a run's folder says by itself: which rows of the source trained, what a model needs to predict, what was sent."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import nn

import fedatlas
from configured import set_up
from fedatlas import Experiment, config
from fedatlas.api import dry_run, run
from fedatlas.course.evaluation import Evaluator
from fedatlas.errors import ConfigError, DataError, DivergedError
from fedatlas.runs import ensure
from fedatlas.setup.assembly import judged_rows
from fedatlas.setup.checked import Checked
from fedatlas.setup.party_rows import raw_bytes
from fedatlas.setup.refusals import checked
from fedatlas.wire import codec
from tables import of_table, table


def record(*overrides: str) -> tuple[Any, dict[str, Any]]:
    setup = set_up(config.read(None, overrides), 1)
    return setup, setup.partition_record()


def test_which_rows_of_the_source_train(tmp_path: Path) -> None:
    """A limit, public rows and a test fraction: the rows can be found again in scikit-learn's own arrays."""
    setup, kept = record("data.limit=600", "public.from=train", "public.per_class=3", "partition.name=iid")
    source = load_digits().images.astype(np.float32)
    assert len(kept["rows"]) == 600 - 30
    assert len(set(kept["rows"]) | set(kept["test_rows"])) == len(kept["rows"]) + len(kept["test_rows"])
    assert np.array_equal(source[kept["rows"]], setup.dataset.train.x.numpy()[:, 0])
    assert np.array_equal(source[kept["test_rows"]], setup.dataset.test.x.numpy()[:, 0])


def test_replaying_a_limited_run_from_its_files_alone(tmp_path: Path) -> None:
    """Full batches: w <- mean of w - lr grad F_k(w), from scikit-learn's rows and nothing of fedatlas."""
    tables = {"local": {"batch_size": 0, "lr": 0.01}, "engine": {"precision": "float64"}, "data": {"limit": 500}}
    path = run(Experiment.of(rounds=2, **tables), out=tmp_path / "run", baselines=False).path
    kept = json.loads((path / "partition.json").read_text())
    digits = load_digits()
    x = torch.tensor(digits.images.reshape(-1, 64))[kept["rows"]]
    y = torch.tensor(digits.target, dtype=torch.int64)[kept["rows"]]
    w = load_file(path / "initial.safetensors")
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
    names = dict(zip(sorted(w), sorted(module.state_dict()), strict=True))
    for _ in range(2):
        local = []
        for index in kept["clients"].values():
            module.load_state_dict({names[name]: value for name, value in w.items()})
            module.zero_grad()
            nn.functional.cross_entropy(module(x[index]), y[index]).backward()
            new = dict(module.named_parameters())
            local.append({name: (new[names[name]] - 0.01 * new[names[name]].grad).detach() for name in w})  # type: ignore[operator]
        w = {name: torch.stack([one[name] for one in local]).mean(0) for name in w}
    end = load_file(path / "model.safetensors")
    assert max(float((end[name] - w[name]).abs().max()) for name in w) < 1e-12


def test_rows_of_a_table_with_holes(tmp_path: Path) -> None:
    """Rows without a target and rows with a hole leave; the others keep their number in the file."""
    lines = ["a,b,y"] + [f"{i},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(40)]
    lines[1 + 5] = "5,2,"
    lines[1 + 9] = "9,,yes"
    (tmp_path / "holes.csv").write_text("\n".join(lines))
    given = (
        "data.name=file", f"data.path={tmp_path / 'holes.csv'}", "data.label=y", "data.missing=drop", "data.scale=none",
        "partition.name=iid", "partition.clients=2",
    )  # fmt: skip
    setup, kept = record(*given)
    assert setup.dataset.train.x[:, 0].tolist() == kept["rows"]
    assert setup.dataset.test.x[:, 0].tolist() == kept["test_rows"]
    assert sorted(kept["rows"] + kept["test_rows"]) == [i for i in range(40) if i not in {5, 9}]


def test_nothing_is_said_where_nothing_was_taken_out(tmp_path: Path) -> None:
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.arange(20) % 2
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    given = ("data.name=file", f"data.path={tmp_path / 'all.npz'}", "partition.name=iid", "partition.clients=2")
    _, kept = record(*given)
    assert "rows" not in kept
    assert "test_rows" not in kept
    setup, kept = record(*given, "data.test=0.5")  # both parts together, cut anew: numbers run through both
    assert np.array_equal(np.concatenate([x, x[:6]])[kept["rows"]], setup.dataset.train.x.numpy())


def test_a_model_is_used_without_its_data(tmp_path: Path) -> None:
    """The training file is gone: loading and predicting need the run's folder only."""
    file = tmp_path / "data.csv"
    table(file, n=200)
    done = run(of_table(file, rounds=5, local={"lr": 0.5}), out=tmp_path / "run", baselines=False)
    table(tmp_path / "new.csv", seed=5)
    before = fedatlas.predict(done.path, tmp_path / "new.csv")
    file.unlink()
    shutil.move(done.path, tmp_path / "moved")
    loaded = fedatlas.load(tmp_path / "moved")
    assert list(loaded.rows["round"]) == list(range(6))
    assert fedatlas.predict(tmp_path / "moved", tmp_path / "new.csv").equals(before)
    rows = {"a": [3.0, -3.0], "b": [3.0, -3.0]}
    assert list(loaded.predict(rows)["prediction"]) == ["yes", "no"]
    assert list(loaded.predict(rows).columns) == ["prediction", "p_no", "p_yes"]
    keyed = {"key": ["007", "x"], **rows}
    assert loaded.predict(keyed, keep=["key", "b"]).to_numpy()[:, :3].tolist() == [
        ["007", 3.0, "yes"],
        ["x", -3.0, "no"],
    ]
    pandas.DataFrame(keyed).to_csv(tmp_path / "keyed.csv", index=False)
    assert list(fedatlas.predict(tmp_path / "moved", tmp_path / "keyed.csv", keep=["key"])["key"]) == ["007", "x"]
    with pytest.raises(ConfigError, match="unknown column 'kay': did you mean 'key'"):
        loaded.predict(keyed, keep=["kay"])
    with pytest.raises(ConfigError, match="only tables have columns to keep"):
        loaded.predict(np.zeros((1, 2)), keep=["key"])
    with pytest.raises(DataError, match="lack column 'b'"):
        loaded.predict({"a": [1.0]})
    with pytest.raises(DataError, match="'a' is missing in 1 rows"):
        loaded.predict({"a": ["3", ""], "b": [3.0, 3.0]})
    with pytest.warns(UserWarning, match="^2 of 4 rows hold an infinite or missing value"):
        found = loaded.predict({"a": ["3", "", "1e40", "-3"], "b": [3.0, 3.0, 3.0, -3.0]}, holes="empty")
    assert found.isna().all(axis=1).tolist() == [False, True, True, False]
    assert found.dropna().reset_index(drop=True).equals(loaded.predict(rows))


def test_a_model_in_double_precision_predicts(tmp_path: Path) -> None:
    done = run(Experiment.of(rounds=1, engine={"precision": "float64"}), out=tmp_path / "run", baselines=False)
    assert len(fedatlas.predict(done.path, np.zeros((3, 1, 8, 8), np.float32))) == 3


def test_a_model_that_began_from_a_file_is_used_without_it(tmp_path: Path) -> None:
    first = run(Experiment.of(rounds=1), out=tmp_path / "first", baselines=False).path
    start = tmp_path / "start.safetensors"
    shutil.copy(first / "model.safetensors", start)
    done = run(Experiment.of(rounds=1, model={"init": str(start)}), out=tmp_path / "run", baselines=False)
    start.unlink()
    assert len(fedatlas.predict(done.path, np.zeros((2, 1, 8, 8), np.float32))) == 2


def test_pooling_costs_the_rows_once_and_staying_alone_nothing(tmp_path: Path) -> None:
    """H0: centralised sends the raw data up, once; who trains alone sends nothing."""
    path = run(Experiment.of(rounds=2), out=tmp_path / "run", baselines=True).path
    lines = {
        name: [json.loads(text) for text in (path / "baselines" / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("local_only", "centralised")
    }
    setup = set_up(config.read(path / "config.toml"), 1)
    raw = sum(
        len(codec.encode({"x": setup.dataset.train.x[rows], "y": setup.dataset.train.y[rows]}))
        for rows in setup.partition.clients
    )
    assert raw_bytes(setup.dataset, setup.partition.sizes) == raw
    assert [row["bytes_up"] for row in lines["centralised"]] == [0, raw, 0]
    assert [row["bytes_down"] for row in lines["centralised"]] == [0, 0, 0]
    assert all(row["bytes_up"] == row["bytes_down"] == 0 for row in lines["local_only"])
    looked = dry_run(config.read(None, ["algorithm.name=centralised", "rounds=7"]))
    assert looked["bytes_total"] == raw
    assert dry_run(config.read(None, ["algorithm.name=local_only"]))["bytes_total"] == 0


def test_a_dry_run_says_what_a_run_then_sends(tmp_path: Path) -> None:
    tables = {"rounds": 4, "cohort": {"size": 5}, "failures": {"dropout": 0.5}}
    looked = fedatlas.dry_run(Experiment.of(**tables))
    spent = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False).summary["cost"]
    assert looked["bytes_total"] == pytest.approx(
        spent["bytes_up"] + spent["bytes_down"], rel=1e-4
    )  # to the byte, but for rounding
    assert looked["cohort"] == 5
    assert looked["returning"] < 5


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedseq"}, {"name": "fedmd", "start_epochs": 1}, {"name": "ifca", "starts": 2}]
)
def test_a_dry_run_knows_the_set_up(algorithm: dict[str, object], tmp_path: Path) -> None:
    """One client's set-up stands for everybody's; how many clients a chain has follows from their rows."""
    tables = {"rounds": 2, "algorithm": algorithm}
    looked = fedatlas.dry_run(Experiment.of(**tables))
    done = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    rows = fedatlas.load(done.path).rows
    sent = rows["bytes_up"] + rows["bytes_down"] + rows["bytes_peer"]
    assert looked["bytes_setup"] == pytest.approx(sent[0], rel=0.01)
    assert looked["bytes_setup"] > 0
    assert looked["bytes_total"] == pytest.approx(sent.sum(), rel=0.1)
    assert 0 < looked["seconds_evaluation"] < looked["seconds_about"] - looked["seconds_setup"]


def test_preparing_the_columns_is_paid_for_in_row_0(tmp_path: Path) -> None:
    """Not where all rows go up: whoever has them needs no sums from anybody."""
    tables = {"rounds": 2, "data": {"name": "breast_cancer_wdbc"}, "partition": {"name": "iid", "clients": 3}}
    looked = fedatlas.dry_run(Experiment.of(**tables))
    done = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    first, *others = fedatlas.load(done.path).rows.to_dict("records")
    prepared = json.loads((done.path / "preprocess.json").read_text())
    assert (first["bytes_up"], first["bytes_down"]) == (prepared["bytes_up"], prepared["bytes_down"])
    assert looked["bytes_setup"] == first["bytes_up"] + first["bytes_down"] > 0
    assert done.summary["cost"]["bytes_up"] == sum(row["bytes_up"] for row in (first, *others))
    pooled = run(Experiment.of(**tables, algorithm={"name": "centralised"}), out=tmp_path / "pooled", baselines=False)
    assert fedatlas.load(pooled.path).rows["bytes_up"][0] == 0


def test_a_dry_run_knows_who_was_there_in_the_round_before(tmp_path: Path) -> None:
    """FedMA sends them the last layer alone."""
    tables = {"rounds": 12, "cohort": {"size": 5}, "algorithm": {"name": "fedma", "sweeps": 1}}
    looked = fedatlas.dry_run(Experiment.of(**tables))
    spent = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False).summary["cost"]
    assert looked["bytes_total"] == pytest.approx(spent["bytes_up"] + spent["bytes_down"], rel=0.03)


def test_a_dry_run_where_nobody_returns() -> None:
    looked = fedatlas.dry_run(Experiment.of(failures={"dropout": 1.0}))
    assert (looked["returning"], looked["bytes_total"]) == (0, 0)
    assert any("no client ever returns" in notice for notice in looked["notices"])


def test_validation_rows_are_seen_as_their_client_sees_them() -> None:
    """Quarter turns of every second client: its validation rows are turned too."""
    given = ("evaluation.on=validation", "partition={name='feature_skew', clients=2, rotate=[0, 90], noise=0.0}")
    setup = set_up(config.read(None, given), 1)
    held = [setup.validation[k] for k in (0, 1)]
    assert min(map(len, held)) > 50
    plain = setup.dataset.train.x
    expected = torch.cat([plain[held[0]], torch.rot90(plain[held[1]], 1, (2, 3))])
    seen = judged_rows(setup)
    assert torch.equal(seen.x, expected)
    assert torch.equal(seen.y, setup.dataset.train.y[np.concatenate(held)])
    assert setup.partition_record()["validation"] == sorted(np.concatenate(held).tolist())


@pytest.mark.parametrize("stop", [{"patience": 2}, {"accuracy": 0.3}])
def test_the_last_round_that_runs_is_evaluated(tmp_path: Path, stop: dict[str, Any]) -> None:
    """Also where [stop] ends the run and only every third round is evaluated."""
    tables = {"rounds": 40, "evaluation": {"every": 3}, "stop": stop, "local": {"lr": 0.01}}
    done = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    last = json.loads((done.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["round"] == done.summary["rounds"] == done.summary["final"]["round"] < 40
    assert last["accuracy"] is not None
    assert f"after round {last['round']} of 40" in done.summary["stopped"]
    assert "This run stopped</b> after round" in fedatlas.report(done.path).read_text()


def test_figures_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece of the rows is one thread's."""
    for name, value in {"SHARED": 0, "PICTURES": 100}.items():
        monkeypatch.setattr(f"fedatlas.setup.torch_model.{name}", value)
    setup = set_up(config.read(None, ["model.name=cnn1"]), 1)
    networks = setup.models(threads=3)
    one, three = setup.models().initial()[""], networks.initial()[""]
    assert Evaluator(setup).row(one) == Evaluator(setup).row(three)
    rows = judged_rows(setup)
    assert torch.equal(one.scores(rows.x, rows.y).losses, three.scores(rows.x, rows.y).losses)
    assert [len(found) for found in networks._modules.values()] == [3]


def test_a_report_of_a_run_that_diverged(tmp_path: Path) -> None:
    """What was done is kept, can be looked at and used, and says what happened; it does not count as finished."""
    path = tmp_path / "run"
    with pytest.raises(DivergedError):
        run(Experiment.of(rounds=5, algorithm={"name": "fedavgm", "server_lr": 1e38}), out=path, baselines=False)
    page = fedatlas.report(path).read_text()
    assert "This run diverged" in page
    assert "diverged in round" in json.loads((path / "summary.json").read_text())["diverged"]
    loaded = fedatlas.load(path)
    assert all(bool(torch.isfinite(x).all()) for x in loaded.model.state_dict().values())
    with pytest.raises(DivergedError):
        fedatlas.resume(path)


def test_a_report_of_seeds_of_which_one_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which one, in which round, and the others as they are, also those behind it."""
    run_one = ensure.run_one

    def diverging(given: Checked, *where: Any, **how: Any) -> Any:
        rule = {"algorithm": {"name": "fedavgm", "server_lr": 1e38}} if given.config.seed == 3 else {}
        return run_one(checked(config.parse({**given.config.plain(), **rule})), *where, **how)

    monkeypatch.setattr(ensure, "run_one", diverging)
    path = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"seed 3: the run diverged in round \d"):
        run(Experiment.of(rounds=2, seeds=[1, 2, 3, 4]), out=path, baselines=False)
    page = (path / "report.html").read_text()
    assert fedatlas.report(path).read_text() == page
    assert "<b>run, seed 3 diverged</b>" in page
    assert "the run diverged in round" in page
    ends = [json.loads((path / f"seed-{s}" / "summary.json").read_text())["final"]["accuracy"] for s in (1, 2, 4)]
    assert f"{sum(ends) / 3:.3f}" in page
    assert "Means are over the other seeds." in page
    assert "mean of 3 seeds" in page
    assert "Each seed drew different test rows" in page
    (path / "seed-3" / "summary.json").unlink()
    with pytest.raises(ConfigError, match="not finished"):
        fedatlas.report(path)


def test_looking_and_reporting_in_python(tmp_path: Path) -> None:
    held = fedatlas.partition(Experiment.of(partition={"name": "iid", "clients": 4}), tmp_path / "held.svg")
    assert [len(rows) for rows in held.clients] == held.facts["sizes"]
    assert (tmp_path / "held.svg").read_text().startswith("<svg")
    unsuited = Experiment.of(model={"name": "shakespeare_lstm"})  # who looks at the rows has not chosen a network yet
    assert fedatlas.partition(unsuited).facts["sizes"] == fedatlas.partition().facts["sizes"]
    with pytest.raises(ConfigError, match="token ids"):
        fedatlas.dry_run(unsuited)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    small = fedatlas.dry_run(Experiment.of(rounds=2)._replace(module=module))["bytes_total"]
    assert small < fedatlas.dry_run(Experiment.of(rounds=2))["bytes_total"]
    a = run(Experiment.of(rounds=1), out=tmp_path / "a", baselines=False).path
    b = run(Experiment.of(rounds=2), out=tmp_path / "b", baselines=False).path
    assert "2 runs compared" in fedatlas.report([a, b], tmp_path / "both.html").read_text()
