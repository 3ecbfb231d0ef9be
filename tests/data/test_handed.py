"""Rows that are handed over in Python: the same run as from a file, kept in its folder, and found there by all who read it again."""

from __future__ import annotations

import datetime
import gc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from typer.testing import CliRunner

from fedatlas import ConfigError, DataError, Experiment, dry_run, predict, report, resume, run
from fedatlas.cli import app
from fedatlas.data import kept
from fedatlas.data.cells import numbers, texts
from fedatlas.data.sources import load_dataset
from fedatlas.data.table_file import read_table
from fedatlas.runs.run_key import data_hashes, keys

KEYS = {"label": "poor", "client": "office", "missing": "median"}


def frame(n: int = 240) -> pd.DataFrame:
    """Rows with a column of each kind that a frame may have."""
    rng = np.random.default_rng(5)
    tenure = rng.choice(["own", "rent", " free "], n)
    age = rng.integers(18, 90, n)
    return pd.DataFrame(
        {
            "office": rng.choice(["Wien", "Tirol", "Kärnten"], n),
            "age": age,
            "rooms": pd.array([None if x == 0 else x for x in rng.integers(0, 6, n)], dtype="Int64"),
            "income": rng.normal(30, 5, n).astype(np.float32),
            "tenure": pd.Categorical(tenure),
            "size": pd.Categorical(rng.choice([1, 2, 3], n)),
            "married": rng.random(n) < 0.5,
            "told": [None if x == 0 else x == 1 for x in rng.integers(0, 3, n)],
            "month": pd.to_datetime("2020-01-01") + pd.to_timedelta(30 * rng.integers(0, 5, n), unit="D"),
            "born": [datetime.date(1980 + int(x), 1, 1) for x in rng.integers(0, 5, n)],
            "note": [None if x == 0 else f"{x}.0" for x in rng.integers(0, 3, n)],
            "poor": np.where(age / 90 + (tenure == "rent") > 0.9, "yes", "no"),
        },
        index=np.arange(n) * 7,
    )


def bits(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "judged.npz", "preprocess.json")}


def test_each_kind_of_column_is_read_as_from_parquet(tmp_path):
    rows, file = frame(), tmp_path / "rows.parquet"
    rows.to_parquet(file)
    held = kept.Held(kept.TABLE, kept.table_arrays(rows))
    ours, theirs = read_table(kept.located(held.name)), read_table(file)
    assert list(ours.columns) == list(theirs.columns) == list(rows.columns)
    for name in rows.columns:
        assert texts(ours[name]).tolist() == texts(theirs[name]).tolist(), name
        mine, other = numbers(ours[name]), numbers(theirs[name])
        assert (mine is None) == (other is None), name
        assert mine is None or np.array_equal(mine, other, equal_nan=True), name
    assert numbers(ours["rooms"]) is not None
    assert numbers(ours["married"]) is None


def test_a_frame_gives_the_bits_of_the_same_table_in_a_file(tmp_path):
    frame().to_parquet(tmp_path / "rows.parquet")
    data = {"name": "file", "path": str(tmp_path / "rows.parquet"), **KEYS}
    run(Experiment.of(data=data, partition={"name": "natural"}, rounds=2), out=tmp_path / "file", baselines=False)
    done = run(Experiment.of(data=frame(), rounds=2, **KEYS), out=tmp_path / "frame", baselines=False)
    assert bits(tmp_path / "frame") == bits(tmp_path / "file")
    assert done.summary["data_facts"]["called"] == "data frame"
    assert "trained the model" in report(done.path).read_text()


def test_the_content_names_the_rows(tmp_path):
    one, same, other = (Experiment.of(data=rows, **KEYS) for rows in (frame(), frame(), frame().assign(age=40)))
    assert one.config.hash() == same.config.hash() != other.config.hash()
    first, second, third = (keys(x.config.plain(), data_hashes(x.config)).run_key for x in (one, same, other))
    assert first == second != third
    run(one, out=tmp_path / "run", baselines=False)
    here = one.config
    before = data_hashes(here)
    place = one.held[0].place
    del one, same
    gc.collect()
    assert not place.exists(), "nothing refers to the rows any more"
    assert data_hashes(here) == before, "those in the run's folder"


@pytest.fixture
def three(tmp_path) -> Path:
    """The folder of a run of two rounds whose frame is gone, moved to another place."""
    run(Experiment.of(data=frame(), rounds=2, **KEYS), out=tmp_path / "began", baselines=False)
    gc.collect()
    (tmp_path / "began").rename(tmp_path / "moved")
    kept._PLACES.clear()
    return tmp_path / "moved"


def test_a_moved_run_is_resumed_reported_and_repeated_without_the_frame(three, tmp_path):
    resume(three, ["rounds=3"])
    run(Experiment.of(data=frame(), rounds=3, **KEYS), out=tmp_path / "once", baselines=False)
    assert bits(three) == bits(tmp_path / "once")
    assert report(three).exists()
    assert list(predict(three, frame())["prediction"]) == list(predict(tmp_path / "once", frame())["prediction"])
    kept._PLACES.clear()
    again = ["run", str(three / "config.toml"), "--out", str(tmp_path / "again"), "--no-baselines", "--quiet"]
    assert CliRunner().invoke(app, again).exit_code == 0
    assert bits(three) == bits(tmp_path / "again")


@pytest.mark.parametrize("how", ["gone", "altered"])
def test_rows_that_are_not_those_of_the_run_are_refused(three, how):
    (file,) = (three / "data").iterdir()
    file.unlink() if how == "gone" else file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="is not in the run's folder" if how == "gone" else "was altered"):
        resume(three, ["rounds=3"])


def test_report_and_predictions_need_no_rows_of_the_run(three):
    (file,) = (three / "data").iterdir()
    file.unlink()
    assert report(three).exists()
    assert len(predict(three, frame())) == len(frame())


def test_seeds_and_baselines_share_one_copy(tmp_path):
    wanted = Experiment.of(data=frame(), rounds=1, seeds=[1, 2], engine={"name": "loop"}, **KEYS)
    done = run(wanted, out=tmp_path / "run", baselines=True)
    del wanted
    assert len(list(done.path.rglob("*.table"))) == 1
    kept._PLACES.clear()
    gc.collect()
    resume(done.path, ["rounds=2"])


def test_a_refused_run_leaves_nothing(tmp_path):
    wrong = Experiment.of(data=frame(), rounds=1, seeds=[1, 2], label="poor", client="office", missing="error")
    with pytest.raises(DataError, match="missing"):
        run(wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64), rng.choice(["a", "b"], 120)


class Rows(Dataset):
    """A torch Dataset of rows with owners."""

    def __len__(self) -> int:
        return len(arrays()[0])

    def __getitem__(self, i: int):
        x, y, owner = arrays()
        return torch.from_numpy(x[i]), int(y[i]), str(owner[i])


def test_arrays_and_torch_datasets_give_the_bits_of_a_npz(tmp_path):
    x, y, owner = arrays()
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=y, client_train=owner)
    model = {"name": "logistic"}
    data = {"name": "file", "path": str(tmp_path / "rows.npz")}
    first = Experiment.of(data=data, partition={"name": "natural"}, rounds=1, model=model)
    run(first, out=tmp_path / "file", baselines=False)
    forms = {
        "arrays": (x, torch.from_numpy(y), owner),
        "mapping": {"x_train": x, "y_train": y, "client_train": owner},
        "torch": Rows(),
    }
    for name, form in forms.items():
        run(Experiment.of(data=form, rounds=1, model=model), out=tmp_path / name, baselines=False)
        assert bits(tmp_path / name) == bits(tmp_path / "file"), name
    assert Experiment.of(data=TensorDataset(torch.from_numpy(x), torch.from_numpy(y))).config.partition.clients == 12


def sizes(experiment: Experiment) -> tuple[int, int]:
    found = load_dataset(experiment.config.data, 1)
    return len(found.train.y), len(found.test.y)


def test_test_rows_are_handed_over_too():
    x, y, owner = arrays()
    assert sizes(Experiment.of(data=(x[:80], y[:80], owner[:80]), test=(x[80:], y[80:]))) == (80, 40)
    rows = frame()
    assert sizes(Experiment.of(data=rows[:160], test=rows[160:], **KEYS)) == (160, 80)


def hub(rows: pd.DataFrame, **names: list[str]) -> object:
    """What we use of a ``datasets.Dataset``."""
    features = {name: SimpleNamespace(dtype="int64") for name in rows.columns}
    features |= {name: SimpleNamespace(names=each) for name, each in names.items()}

    class Hub:
        def __init__(self) -> None:
            self.column_names, self.features = list(rows.columns), features

        def __getitem__(self, name: str) -> list[object]:
            return rows[name].tolist()

        def to_pandas(self) -> pd.DataFrame:
            return rows.copy()

    return Hub()


def test_a_hugging_face_table_is_the_frame_with_names_for_classes():
    rows = frame()
    coded = rows.assign(poor=(rows["poor"] == "yes").astype(int))
    given = Experiment.of(data=hub(coded, poor=["no", "yes"]), **KEYS)
    assert given.config == Experiment.of(data=rows, **KEYS).config
    parts = {"train": hub(coded[:160], poor=["no", "yes"]), "test": hub(coded[160:], poor=["no", "yes"])}
    assert sizes(Experiment.of(data=parts, **KEYS)) == (160, 80)


@pytest.mark.parametrize(
    ("data", "more", "said"),
    [
        (frame(), {}, "label must name the target: one of office, age"),
        (frame(), {"lable": "poor"}, "unknown key 'lable': did you mean 'label'"),
        (frame(), {"label": "pour"}, "data.label = 'pour': 'data frame' has no such column"),
        (frame()[:0], {"label": "poor"}, "the data frame has no rows"),
        (frame().rename(columns={"age": "rooms"}), {"label": "poor"}, "two columns called 'rooms'"),
        (frame().assign(age=[[1]] * 240), {"label": "poor"}, "column 'age' holds lists"),
        (arrays()[:2], {"label": "poor"}, "label names a column, but arrays have none"),
        (arrays()[0], {}, "data = ndarray: give a DataFrame"),
        ({"x": arrays()[0]}, {}, r"data = \{x\}: give a DataFrame"),
        ([1, 2], {}, "data = list: give a DataFrame"),
        (TensorDataset(torch.zeros(3, 2)), {}, r"each item of a torch Dataset must be \(x, y\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(data, more, said):
    with pytest.raises((ConfigError, DataError), match=said):
        dry_run(Experiment.of(data=data, **more))


def test_keys_of_a_table_stay_keys():
    experiment = Experiment.of(data={"name": "digits", "test": float(np.float64(0.5)), "limit": 100})
    assert experiment.held == ()
    assert Experiment.of(data={"name": "digits", "test": np.float64(0.5), "limit": 100}).config == experiment.config


def test_a_dropped_column_may_hold_lists():
    rows = frame().assign(age=[[1]] * 240)
    assert sizes(Experiment.of(data=rows, drop=["age"], **KEYS)) == (180, 60)


def test_a_name_stands_for_a_table_that_names_a_component():
    short = Experiment.of(data="digits", model="logistic", algorithm="fedprox", partition="iid")
    named = {
        key: {"name": name} for key, name in (("model", "logistic"), ("algorithm", "fedprox"), ("partition", "iid"))
    }
    assert short.config == Experiment.of(data={"name": "digits"}, **named).config


def test_an_owner_that_was_forgotten_is_noticed():
    """By its name, since a category of few values may be anything."""
    frame = pd.DataFrame(
        {"hospital": ["A", "B"] * 60, "job": ["x", "y", "z"] * 40, "age": range(120), "y": [0, 1, 1, 0] * 30}
    )
    said = dry_run(Experiment.of(data=frame, label="y", partition={"name": "iid", "clients": 4}))["notices"]
    wanted = "Column 'hospital' is an input, and 4 clients get the rows by partition.name = 'iid'."
    assert [one for one in said if "who holds a row" in one] == [
        f"{wanted} If 'hospital' says who holds a row, name it: data.client = 'hospital', in Python client='hospital'."
    ]
    named = dry_run(Experiment.of(data=frame, label="y", client="hospital"))["notices"]
    assert not [one for one in named if "who holds a row" in one]
