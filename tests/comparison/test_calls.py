"""`compare` and `tune` in Python make the runs of the commands, for a file and for rows that are in memory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from fedatlas import Experiment, compare, tune
from fedatlas.cli import app
from fedatlas.comparison.calls import words_of
from fedatlas.comparison.values import given_keys
from fedatlas.config import value_of
from fedatlas.errors import ConfigError
from fedatlas.wording import number

FILE = "rounds = 2\nengine = {name = 'loop'}\nmodel = {name = 'logistic'}\n[data]\nlimit = 200\n[partition]\nname = 'iid'\nclients = 3\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(FILE)
    return path


def households() -> pd.DataFrame:
    stream = np.random.default_rng(2)
    x = pd.DataFrame({"a": stream.normal(size=300), "site": np.where(np.arange(300) < 150, "North", "South")})
    x["y"] = (x["a"] + stream.normal(size=300) > 0).astype(int)
    return x


def test_values_of_keys_are_the_words_of_the_command() -> None:
    keys = {
        "algorithm.name": ["fedavg", "fedprox"],
        "local.lr": "0.01..0.3",
        "privacy": [[], [{"name": "secagg"}]],
        "data.path": ["a, b.csv", "true"],
        "cohort": {"fraction": 0.5},
        "local.nesterov": [True, np.float64(0.5)],
    }
    words = words_of(keys)
    assert words[:2] == ["algorithm.name=fedavg,fedprox", "local.lr=0.01..0.3"]
    read = {key: [value_of(text) for text in texts] for key, texts in given_keys([words[0], *words[2:]])}
    assert read == {
        "algorithm.name": ["fedavg", "fedprox"],
        "privacy": [[], [{"name": "secagg"}]],
        "data.path": ["a, b.csv", "true"],
        "cohort": [{"fraction": 0.5}],
        "local.nesterov": [True, 0.5],
    }
    with pytest.raises(ConfigError, match="a mapping of keys"):
        words_of("local.lr=1,2")


def test_a_comparison_is_that_of_the_command(file: Path, tmp_path: Path) -> None:
    """The same folder for both: the command finds nothing left to run, and both tell the same answer."""
    found = compare(file, {"algorithm.name": ["fedavg", "fedprox"]}, seeds=3, out=tmp_path / "out")
    args = [
        "compare",
        str(file),
        "algorithm.name=fedavg,fedprox",
        "--seeds",
        "3",
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    said = CliRunner().invoke(app, args)
    assert said.exit_code == 0, said.output
    record = json.loads(said.stdout.splitlines()[-1])
    assert record["answer"] == json.loads(json.dumps(found.record["answer"]))
    assert found.answer == "\n".join(record["answer"]["sentences"])
    frame = found.frame()
    assert list(frame.scheme) == [row["scheme"] for row in record["answer"]["rows"]]
    assert len(frame) == 2
    html = found._repr_html_()
    assert html.count("<tr>") == 3
    assert "comparison.html" in html
    assert found.page is not None
    assert found.page.exists()
    means = {row["scheme"]: number(row["mean"]) for row in record["answer"]["rows"]}
    take = record["answer"]["take"]
    assert repr(found).endswith(f": accuracy fedavg {means['fedavg']}, fedprox {means['fedprox']}; take {take}>")
    assert f"Take {take}" in found.answer
    assert {"alone", "pooled"} <= {*frame.columns}
    assert frame["alone"].tolist() == [row["local_only"] for row in record["answer"]["rows"]]
    assert found.plot().count("<path") >= 2


def test_rows_in_memory_are_compared_and_stay_with_the_runs(tmp_path: Path) -> None:
    given = Experiment.of(data=households(), label="y", client="site", rounds=1, model="logistic")
    found = compare(given, {"local.lr": [0.1, 0.5]}, seeds=[1, 4], out=tmp_path / "out", baselines=False)
    assert sorted(found.frame().scheme) == ["lr=0.1", "lr=0.5"]
    assert all(list(seeds) == [1, 4] for seeds in found.frame().seeds)
    assert list((tmp_path / "out" / "lr=0.1" / "data").glob("*.table"))


def test_a_tuning_is_that_of_the_command(file: Path, tmp_path: Path) -> None:
    found = tune(file, {"local.lr": [0.02, 0.5]}, budget=2, out=tmp_path / "out")
    said = CliRunner().invoke(
        app, ["tune", str(file), "local.lr=0.02,0.5", "--budget", "2", "--out", str(tmp_path / "out"), "--json"]
    )
    assert said.exit_code == 0, said.output
    record = json.loads(said.stdout.splitlines()[-1])
    assert record["winner"] == found.picked
    assert record["trials"] == json.loads(json.dumps(found.record["trials"]))
    frame = found.frame()
    assert frame["local.lr"][0] == found.picked["local.lr"]
    assert frame.validation.is_monotonic_decreasing
    assert found.winner.path == tmp_path / "out" / "winner"
    assert "on test rows, which no choice has used" in found.answer
    assert found.winner.answer in found.answer
    shown = found._repr_html_()
    assert shown.count("<tr>") == 3
    assert "run_key" not in frame.columns
    assert number(frame.validation[0]) in shown
    assert not re.search(r"\d\.\d{6}", shown), "rounded"
    assert "local.lr" in repr(found)


def test_what_cannot_be_compared_is_refused_before_any_run(tmp_path: Path) -> None:
    import torch

    own = Experiment.of(torch.nn.Linear(64, 10), data="digits", rounds=1)
    with pytest.raises(ConfigError, match="plug-in file"):
        compare(own, {"local.lr": [0.1, 0.2]}, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(None, {"local.lr": 0.1}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_progress_of_compare_and_tune_is_shown_on_request(file: Path, tmp_path: Path, capsys) -> None:
    compare(
        file, {"algorithm.name": ["fedavg", "fedprox"]}, seeds=1, out=tmp_path / "c", baselines=False, progress=True
    )
    assert "fedprox" in capsys.readouterr().err
    tune(file, {"local.lr": [0.05, 0.1]}, budget=2, out=tmp_path / "t", progress=True)
    assert "The winner" in capsys.readouterr().err
