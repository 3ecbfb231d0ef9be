"""`fedatlas recommend` from a file to files that run: by numbers, by an experiment, measured; what it refuses, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedatlas
from fedatlas.cli import main
from fedatlas.config import parse
from fedatlas.errors import ConfigError, DataError
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.recommender import shipped
from fedatlas.recommender.epsilon import epsilons
from fedatlas.recommender.shipped import ARRAYS, NAMES, load_study, save
from fedatlas.study.plan import PlannedRun
from fedatlas.study.read_measurements import measured, references, twins
from fedatlas.study.study import Study
from fedatlas.study.table import Table
from study_tables import filled

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 500},
    "partition": {"name": "dirichlet", "clients": 4},
    "evaluation": {"clients": 0.2},
}
NOISE = {"name": "central_dp", "clip": 1.0, "noise_multiplier": 0.5, "delta": 0.001}
NOISED = {"privacy": [NOISE], "algorithm.weights": "uniform", "data.scale": "none"}
LEVELS = [
    {"name": "fedavg", "set": {"algorithm.name": "fedavg"}},
    {"name": "masked", "set": {"algorithm.name": "fedavg", "privacy": [{"name": "secagg"}]}},
    {"name": "noised", "set": {"algorithm.name": "fedavg", **NOISED}},
]
SETTINGS = [
    {"name": "0.3", "set": {"partition.alpha": 0.3, "partition.clients": 8}},
    {"name": "30.0", "set": {"partition.alpha": 30.0, "partition.clients": 3}},
]
FEDERATION = {"nodes": 5, "rows": 450, "heterogeneity": 0.4, "classes": 10, "centralised": 0.93}
MINE = """
data = { limit = 400 }
partition = { name = "dirichlet", clients = 5, alpha = 0.5 }
local = { epochs = 7 }
algorithm = { name = "fedprox" }
"""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that was run."""
    out = tmp_path_factory.mktemp("known")
    factors = [
        {"name": "skew", "role": "setting", "level": SETTINGS},
        {"name": "scheme", "role": "choice", "level": LEVELS},
    ]
    given = Study.of("known", base=BASE, seeds=[1, 2], factor=factors, tuning={"keys": {"local.lr": [0.02, 0.1]}})
    filled(given, out / "table.sqlite", accuracy, h=lambda job: skewed(job, 0.95, 0.05), train_rows=rows)
    return out


def skewed(job: PlannedRun, much: float, little: float) -> float:
    """One of two values, by the skew of a run's setting."""
    return much if dict(job.levels)["skew"] == "0.3" else little


def rows(job: PlannedRun) -> float:
    """From 60 to 120 rows a node."""
    assert job.config is not None
    return job.config.partition.clients * skewed(job, 60, 120)


def accuracy(job: PlannedRun) -> float:
    """All rows together do best, noise costs, and a rate of 0.1 is better than one of 0.02; seeds differ a little."""
    assert job.config is not None
    if job.kind == "baseline":
        return 0.93
    scheme = dict(job.levels)["scheme"]
    return (
        {"fedavg": 0.85, "masked": 0.85, "noised": 0.7}[scheme]
        - 0.1 * (job.config.local.lr < 0.1)
        + 0.005 * (job.seed % 3)
    )


def asked(known: Path, **more: Any) -> dict[str, Any]:
    return {"study": str(known), "federation": FEDERATION, **more}


def toml(path: Path, tables: dict[str, Any]) -> Path:
    import tomli_w

    path.write_text(tomli_w.dumps(tables))
    return path


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedatlas", "recommend", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_by_numbers_the_answer_has_files_that_run(known: Path, tmp_path: Path):
    answer = fedatlas.recommend(asked(known), out=tmp_path)
    assert answer["answer"] == "found"
    assert answer["top"][0]["choice"] == "fedavg"  # nothing is told apart from it
    for entry in answer["top"]:
        text = Path(entry["experiment"]).read_text()
        config = parse(tomllib.loads(text))
        assert config.rounds == entry["rounds"]
        assert "replace them with your own" in text
        assert all(table.parameters().get("noise", "os") == "os" for table in config.privacy)
        keys = {
            "choice",
            "rounds",
            "experiment",
            "predicted",
            "utility",
            "chance",
            "finishes",
            "front",
            "binding",
            "distance",
            "evidence",
        }
        assert entry.keys() == keys
    assert (
        fedatlas.dry_run(fedatlas.Experiment.read(answer["top"][0]["experiment"]))["rounds"]
        == answer["top"][0]["rounds"]
    )
    kept = json.loads((tmp_path / "answer.json").read_text())
    assert kept["top"] == answer["top"]
    assert kept["track_record"]["federations"] == 2


def test_epsilon_is_computed_for_the_users_nodes_and_rounds(known: Path, tmp_path: Path):
    answer = fedatlas.recommend(asked(known, at_most={"epsilon": 1e6}), out=tmp_path)
    first = answer["top"][0]
    assert first["choice"] == "noised"
    assert first["predicted"]["epsilon"]["value"] == pytest.approx(epsilon_of(first["rounds"] ** 0.5 / 0.5, 0.001))
    by_nodes = {"privacy": [{"name": "central_dp", "clip": 1.0, "noise_multiplier": 2.0}]}
    assert epsilons(by_nodes, 100, [4]) == [pytest.approx(epsilon_of(1.0, 100**-1.1))]
    assert epsilons({"privacy": [{"name": "secagg"}]}, 10, [1, 5]) == [np.inf, np.inf]
    assert epsilons({"privacy": [{"name": "local_dp", "epsilon": 3.0}]}, 10, [1, 5]) == [3.0, 3.0]
    assert epsilons({"privacy": [{"name": "nbafl"}]}, 10, [1]) is None


def test_what_the_server_may_see_bars_choices_and_the_masked_twin_is_then_the_reference(known: Path, tmp_path: Path):
    answer = fedatlas.recommend(asked(known, privacy={"server_sees": "sums"}), out=tmp_path)
    assert answer["reference"] == answer["top"][0]["choice"] == "masked"
    assert {one["choice"] for one in answer["refused"]} == {"fedavg", "noised"}
    whole = fedatlas.recommend(asked(known, privacy={"server_sees": "noisy_sums"}), out=tmp_path)
    assert (whole["answer"], whole["nearest_miss"]) == ("none", None)


def test_the_command_says_none_with_exit_code_1_and_the_nearest_miss(
    known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    file, out = tmp_path / "r.toml", str(tmp_path / "out")
    toml(file, asked(known, at_most={"bytes": 10.0}))
    assert call(monkeypatch, str(file), "--out", out) == 1
    said = capsys.readouterr().out
    assert (
        "None fits if choices cost in your federation what they do in the nearest measured one, in proportion." in said
    )
    assert "misses bytes sent by" in said
    toml(file, asked(known, at_least={"accuracy": 0.99}))  # two federations do not show that none fits
    assert call(monkeypatch, str(file), "--out", out) == 1
    said = capsys.readouterr().out
    assert "Not known: no choice can be promised to keep all limits with 90% confidence, and one may." in said
    assert "1. fedavg for" in said
    toml(file, asked(known))
    assert call(monkeypatch, str(file), "--out", out) == 0
    said = capsys.readouterr().out
    for words in (
        "1. fedavg for",
        "It finishes with chance",
        "Nearest evidence, digits",
        "Track record: of the 2",
        "File: ",
    ):
        assert words in said
    assert call(monkeypatch, str(file), "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "found"


WRONG = [
    ({"at_most": {"joules": 5}}, "at_most.joules is not supported in this version"),
    ({"at_most": {"seconds": 5}}, "numbers are not enough to predict it"),
    ({"weights": {"accuracy": 0}}, "all 0"),
    ({"at_least": {"accuracy": 0.9}, "at_most": {"accuracy": 0.8}}, "exclude each other"),
    ({"study": "smal"}, "smal"),
    ({"at_least": {"acuracy": 0.9}}, "did you mean 'accuracy'"),
]


@pytest.mark.parametrize(("tables", "sentence"), WRONG)
def test_wrong_requirements_end_in_one_sentence_and_exit_code_2(
    tables: dict[str, Any], sentence: str, known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    file = toml(tmp_path / "r.toml", asked(known) | tables)
    assert call(monkeypatch, str(file), "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="there is no requirements file"):
        fedatlas.recommend(tmp_path / "r.toml")


def test_a_study_of_numbers_says_so(tmp_path: Path):
    factors = [{"name": "scheme", "role": "choice", "level": LEVELS[:1]}]
    path = filled(
        Study.of("numbers", base=BASE, factor=factors), tmp_path / "table.sqlite", lambda _: 0.5, accuracy=None
    )
    with pytest.raises(DataError, match="predicts a number"):
        measured(Table.open(path))


def test_a_study_is_kept_as_arrays_and_answers_the_same(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    save(Table.open(known / "table.sqlite"), None, tmp_path / "kept")
    one, other = (fedatlas.recommend(asked(place), out=tmp_path / "out") for place in (known, tmp_path / "kept"))
    assert one == other
    monkeypatch.setattr(shipped, "HERE", tmp_path)
    assert load_study("kept").fitted.choices == ["fedavg", "masked", "noised"]
    with pytest.raises(ConfigError, match="did you mean 'kept'"):
        load_study("kep")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no study"):
        load_study(str(tmp_path / "empty"))


def test_of_an_unfinished_study_whole_settings_are_kept(known: Path, tmp_path: Path):
    (tmp_path / "table.sqlite").write_bytes((known / "table.sqlite").read_bytes())
    table = Table.open(tmp_path / "table.sqlite", write=True)
    frame = table.frame()
    runs = frame[(frame.kind == "cell") & (frame["skew"] == "0.3")].run_key
    table.release(runs.iloc[0], "It was stopped.")
    kept = save(table, None, tmp_path / "kept")
    assert kept.fitted.settings == [("30.0",)]
    assert kept.about["runs"] == {"done": 14}  # 2 baselines, 3 choices by 2 rates and 2 seeds
    for key in frame.run_key:
        table.release(key, "It was stopped.")
    with pytest.raises(DataError, match=r"has finished"):
        save(table, None, tmp_path / "kept")


def test_a_kept_study_that_is_newer_or_damaged_is_refused(known: Path, tmp_path: Path):
    save(Table.open(known / "table.sqlite"), None, tmp_path)
    names = json.loads((tmp_path / NAMES).read_text())
    (tmp_path / NAMES).write_text(json.dumps({**names, "version": 99}))
    with pytest.raises(ConfigError, match="newer fedatlas"):
        load_study(str(tmp_path))
    (tmp_path / NAMES).write_text(json.dumps(names))
    (tmp_path / ARRAYS).write_bytes((tmp_path / ARRAYS).read_bytes()[:1000])
    with pytest.raises(ConfigError, match="is damaged"):
        load_study(str(tmp_path))


def test_numbers_alone_need_no_torch(known: Path, tmp_path: Path):
    save(Table.open(known / "table.sqlite"), None, tmp_path)
    file = toml(tmp_path / "r.toml", asked(tmp_path))
    code = (
        f"import sys; sys.argv = ['fedatlas', 'recommend', {str(file)!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "from fedatlas.cli import main\ntry: main()\nexcept SystemExit as end: print(end.code, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    code_of, *loaded = done.stdout.splitlines()[-1].split()
    assert code_of == "0"
    assert not {"torch", "pandas", "sklearn", "scipy"} & set(loaded)


def test_by_experiment_without_a_race(known: Path, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(MINE)
    tables = {
        "study": str(known),
        "minutes": 0,
        "federation": {"experiment": "mine.toml"},
        "at_most": {"seconds": 3600},
        "at_least": {"accuracy": 0.01},
    }
    file, said = toml(tmp_path / "r.toml", tables), list[str]()
    before = fedatlas.recommend(file, out=tmp_path / "out", say=said.append)
    setting = before["setting"]
    assert (setting["nodes"], setting["rows"], setting["classes"]) == (5, 400, 10)
    assert 0 < setting["heterogeneity"] < 1
    assert any("Training on all rows together" in line for line in said)
    forecast = fedatlas.dry_run(fedatlas.Experiment.read(before["top"][0]["experiment"]), baselines=False)
    first = before["top"][0]["predicted"]
    assert (
        first["bytes"]["value"] == forecast["bytes_total"] - 8 * 0 or first["bytes"]["value"] <= forecast["bytes_total"]
    )
    assert first["seconds"]["value"] > 0
    config = fedatlas.Experiment.read(before["top"][0]["experiment"]).config
    assert config.algorithm.name == "fedavg"
    assert config.local.epochs == 1  # the study's


def test_reference_and_twin_are_read_from_what_was_run():
    def row(name: str, lr: float, *mechanisms: str) -> dict[str, Any]:
        tables = [{"name": one} for one in mechanisms]
        config = {
            "algorithm": {"name": name},
            "local": {"lr": lr, "epochs": 1},
            **({"privacy": tables} if tables else {}),
        }
        return {"configuration": config, "rates": {"local.lr": lr}}

    examples = {
        "a": {("x",): row("fedavg", 0.1)},
        "b": {("x",): row("fedavg", 0.5, "secagg")},
        "c": {("x",): row("fedavg", 0.5, "central_dp")},
        "d": {("x",): row("fedprox", 0.5, "paillier")},
    }
    assert references(examples) == ("a", "b")
    assert twins(examples) == {"b": "a"}
