"""data.constants: what a file in the form of preprocess.json settles, no row does."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configured import set_up
from fedatlas import Experiment, config, summaries
from fedatlas.api import resume, run
from fedatlas.data.constants import read_constants, with_constants
from fedatlas.data.dataset import Column, Dataset, Partition, Split
from fedatlas.data.preprocess import Preprocess, preprocess
from fedatlas.errors import ConfigError, DataError

CLIENTS = Partition((np.array([0, 2]), np.array([1, 3, 4])))
SCHEMA = (Column("age"), Column("colour", ("blue", "green", "red")), Column("income"))


def table(task: str = "numbers", hole: bool = False) -> Dataset:
    x = torch.tensor([[20.0, 0, 1], [40, 2, 3], [30, 0, 5], [50, 2, 7], [60, 0, 9]])
    if hole:
        x[1, 0] = torch.nan
    y = torch.tensor([1.0, 2, 3, 4, 10]) if task == "numbers" else torch.tensor([0, 1, 0, 1, 0])
    test = Split(torch.tensor([[40.0, 1, 5], [10, 2, 5]]), y[:2].clone())
    names = () if task == "numbers" else ("no", "yes")
    return Dataset("toy", {"train": Split(x, y), "test": test}, task, names, schema=SCHEMA)


def pictures() -> Dataset:
    x = torch.arange(5 * 2 * 3 * 3).reshape(5, 2, 3, 3).to(torch.uint8)
    y = torch.tensor([0, 1, 0, 1, 0])
    return Dataset("shots", {"train": Split(x, y), "test": Split(x[:2], y[:2])}, "classes", ("a", "b"))


def written(tmp_path: Path, done: Preprocess, **changes: Any) -> str:
    values = {**done.to_json(), **changes}
    file = tmp_path / "constants.json"
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return str(file)


@pytest.fixture
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, whatever a client would say of its rows is an error."""

    def never(*_: Any) -> Any:
        raise AssertionError("a client said something of its rows")

    def forbid() -> None:
        for name, asked in [*vars(summaries).items()]:
            if inspect.isfunction(asked) and asked.__module__ == summaries.__name__ and name != "filled":
                monkeypatch.setattr(summaries, name, never)

    return forbid


@pytest.mark.parametrize("missing", ["error", "median"])
@pytest.mark.parametrize("task", ["numbers", "classes"])
def test_a_runs_own_constants_give_the_runs_own_inputs(
    task: str, missing: Any, tmp_path: Path, nobody_asks: Callable[[], None]
) -> None:
    raw = table(task, hole=missing == "median")
    usual, done = preprocess(raw, CLIENTS, "auto", missing)
    file = written(tmp_path, done)
    nobody_asks()
    given, again = with_constants(raw, file, missing)
    for split in ("train", "test"):
        assert torch.equal(given.splits[split].x, usual.splits[split].x)
        assert torch.equal(given.targets(given.splits[split].y), usual.targets(usual.splits[split].y))
    assert given.columns == usual.columns
    assert (
        again.columns
        == done.columns
        == ("age", *(["age missing"] if missing == "median" else []), "colour=blue", "colour=red", "income")
    )
    assert (again.rules, again.target_mean, again.target_sd) == (done.rules, done.target_mean, done.target_sd)
    assert (again.scale, again.bytes_up, again.bytes_down) == ("constants", 0, 0)
    rows = {"age": [33.0], "colour": ["red"], "income": [4.0]}
    assert torch.equal(again.apply(rows), done.apply(rows))


def test_pictures_take_a_number_for_each_channel(tmp_path: Path, nobody_asks: Callable[[], None]) -> None:
    usual, done = preprocess(pictures(), CLIENTS, "federated")
    file = written(tmp_path, done)
    nobody_asks()
    given, again = with_constants(pictures(), file)
    assert torch.equal(given.inputs(given.train.x), usual.inputs(usual.train.x))
    assert again.input_scale == done.input_scale
    one = written(tmp_path, done, input_scale=[0.5], input_shift=[-1.0])
    given, _ = with_constants(pictures(), one)
    assert torch.equal(given.inputs(given.train.x), pictures().train.x.float() * 0.5 - 1)


def test_the_files_order_of_columns_is_the_models(tmp_path: Path) -> None:
    _, done = preprocess(table(), CLIENTS)
    rules = done.to_json()["rules"]
    given, again = with_constants(table(), written(tmp_path, done, rules=[rules[2], rules[0], rules[1]]))
    usual, _ = preprocess(table(), CLIENTS)
    assert given.columns == again.columns == ("income", "age", "colour=blue", "colour=red")
    assert torch.equal(given.train.x, usual.train.x[:, [3, 0, 1, 2]])


def test_a_category_of_the_file_that_nobody_holds_has_its_column(tmp_path: Path) -> None:
    _, done = preprocess(table(), CLIENTS)
    rules = done.to_json()["rules"]
    rules[1]["categories"] = ["red", "violet", "green"]
    given, _ = with_constants(table(), written(tmp_path, done, rules=rules))
    assert given.columns == ("age", "colour=red", "colour=violet", "colour=green", "income")
    assert given.train.x[:, 1:4].tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert given.test.x[:, 1:4].tolist() == [[0, 0, 1], [1, 0, 0]]


def test_a_loss_in_the_targets_own_unit_is_not_standardised(tmp_path: Path) -> None:
    _, done = preprocess(table(), CLIENTS)
    assert done.target_mean == 4.0
    given, again = with_constants(table(), written(tmp_path, done), scale_target=False)
    assert (given.target_mean, given.target_sd, again.target_mean, again.target_sd) == (0.0, 1.0, 0.0, 1.0)


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {name: value for name, value in values.items() if name != key}


def rule(j: int, **changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(values: dict[str, Any]) -> dict[str, Any]:
        rules = [dict(each) for each in values["rules"]]
        rules[j] |= changes
        return {**values, "rules": rules}

    return change


def changed(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda values: {**values, **changes}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("rules"), "it lacks the key 'rules'"),
        (without("input_scale"), "it lacks the key 'input_scale'"),
        (lambda values: [values], "it lacks the key 'kind'"),
        (changed(kind="pictures"), "it was made for pictures, but 'toy' holds table"),
        (changed(task="classes"), "its target is of the kind 'classes', but that of 'toy' is 'numbers'"),
        (lambda values: {**values, "rules": values["rules"][:2]}, "it lacks column 'income' of 'toy'"),
        (lambda values: {**values, "rules": [*values["rules"], {**values["rules"][0], "name": "height"}]}, "'toy' has no column 'height'"),
        (lambda values: {**values, "rules": [*values["rules"], values["rules"][0]]}, "it lists a column twice"),
        (rule(0, categories=["young"]), "column 'age' of 'toy' holds numbers, but the file has categories for it"),
        (rule(1, categories=[]), "column 'colour' of 'toy' holds texts, but the file has numbers for it"),
        (rule(0, sd=0.0), "a deviation is not above 0"),
        (rule(0, mean=float("nan")), "nan is not a finite number"),
        (rule(0, mean="4"), "'4' is not a finite number"),
        (rule(0, colour=1), "not have the form of a run's preprocess.json"),
        (changed(client_constants=[[[0.0, 1.0]]]), "its constants differ from client to client"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_suit_is_one_sentence(
    change: Callable[[dict[str, Any]], Any], said: str, tmp_path: Path
) -> None:
    _, done = preprocess(table(), CLIENTS)
    file = tmp_path / "c.json"
    file.write_text(json.dumps(change(done.to_json())))
    with pytest.raises(ConfigError) as error:
        with_constants(table(), str(file))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert "give a file in the form of preprocess.json" in str(error.value)


def test_other_classes_shapes_and_kinds_are_refused(tmp_path: Path) -> None:
    _, done = preprocess(table("classes"), CLIENTS)
    with pytest.raises(ConfigError, match=r"its classes are not those of 'toy' \(no, yes\)"):
        with_constants(table("classes"), written(tmp_path, done, class_names=["a", "b"]))
    _, done = preprocess(pictures(), CLIENTS, "federated")
    with pytest.raises(ConfigError, match=r"have the shape \[1, 3, 3\]"):
        with_constants(pictures(), written(tmp_path, done, shape=[1, 3, 3]))
    with pytest.raises(ConfigError, match=r"one per channel \(2\)"):
        with_constants(pictures(), written(tmp_path, done, input_scale=[1.0, 1.0, 1.0]))
    ids = pictures()
    texts = replace(ids, splits={name: split._replace(x=split.y[:, None]) for name, split in ids.splits.items()})
    with pytest.raises(ConfigError, match="holds token ids"):
        with_constants(texts, written(tmp_path, done))


def test_holes_are_filled_by_the_files_medians_or_refused(tmp_path: Path) -> None:
    _, done = preprocess(table(), CLIENTS)
    plain = written(tmp_path, done)
    with pytest.raises(DataError, match="column 'age' is missing"):
        with_constants(table(hole=True), plain)
    with pytest.raises(ConfigError, match="needs the median of column 'age'"):
        with_constants(table(hole=True), plain, "median")


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        read_constants(str(tmp_path / "x.json"))


# ---------------------------------------------------------------------- in an experiment


def rows(path: Path, target: str) -> Path:
    words = ("red", "blue")
    lines = [f"{i % 7},{words[i % 2]},{i * 0.5 if target == 'number' else 'ab'[i % 3 == 0]}" for i in range(80)]
    path.write_text("\n".join(["age,colour,label", *lines]) + "\n")
    return path


@pytest.mark.parametrize("target", ["number", "class"])
@pytest.mark.parametrize(
    "mechanism", ["", "central_dp={clip=1.0}", "local_dp={epsilon=8.0, clip=1.0}", "nbafl={epsilon=50.0, clip=1.0}"]
)
def test_noise_wants_constants_that_no_row_settled(mechanism: str, target: str, tmp_path: Path) -> None:
    """Refused with the line that settles it, and with that line the inputs are those of the run without a mechanism."""
    file = rows(tmp_path / "t.csv", target)
    common = [
        "data.name=file",
        f"data.path={file}",
        "data.label=label",
        "partition={name='iid', clients=4}",
        "algorithm.weights=uniform",
    ]
    open_run = set_up(config.read(None, common), 1)
    settled = f"data.constants={written(tmp_path, open_run.held.preprocess)}"
    private = [*common, *([f"privacy.{mechanism}"] if mechanism else [])]
    if mechanism:
        with pytest.raises(ConfigError, match=r'would be computed from clients.* data.constants = "FILE.json"'):
            set_up(config.read(None, private), 1)
    closed = set_up(config.read(None, [*private, settled]), 1)
    assert torch.equal(closed.dataset.train.x, open_run.dataset.train.x)
    assert (closed.dataset.target_mean, closed.dataset.target_sd) == (
        open_run.dataset.target_mean,
        open_run.dataset.target_sd,
    )
    assert (closed.before.bytes_up, closed.before.bytes_down) == (0, 0)
    assert open_run.before.bytes_up > 0


def test_what_noise_finds_settled_from_rows(tmp_path: Path) -> None:
    def said(*overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            set_up(config.read(None, [*common, "privacy.nbafl={epsilon=50.0, clip=1.0}", *overrides]), 1)
        return str(error.value)

    common = [
        "data.name=file",
        f"data.path={rows(tmp_path / 't.csv', 'number')}",
        "data.label=label",
        "partition={name='iid', clients=4}",
    ]
    assert "the categories of" in said()
    assert "the categories of" in said("data.scale=none")
    assert "the scaling of" in said("data.drop=['colour']")
    (tmp_path / "c").mkdir()
    set_up(
        config.read(
            None, [*common, "privacy.nbafl={epsilon=50.0, clip=1.0}", "data.drop=['colour']", "data.scale=none"]
        ),
        1,
    )


def test_the_key_is_absent_by_default() -> None:
    assert "constants" not in config.parse({}).plain()["data"]
    with pytest.raises(ConfigError, match="remove one of the keys"):
        config.parse({"data": {"constants": "c.json", "scale": "federated"}})


def test_a_run_is_continued_with_the_constants_it_began_with(tmp_path: Path) -> None:
    """Scaling of pictures is no part of their rows: the file itself is remembered, by its SHA-256."""
    tables: dict[str, Any] = {"rounds": 1, "model": {"hidden": []}, "partition": {"name": "iid", "clients": 3}}
    first = run(Experiment.of(**tables), out=tmp_path / "first", baselines=False).path
    file = tmp_path / "constants.json"
    shutil.copy(first / "preprocess.json", file)
    path = run(Experiment.of(**tables, data={"constants": str(file)}), out=tmp_path / "run", baselines=False).path
    resume(path, ["rounds=2"], baselines=False)
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "input_scale": [2 * x for x in values["input_scale"]]}))
    with pytest.raises(ConfigError, match=r"this file is missing or has changed .* put the original back"):
        resume(path, ["rounds=3"], baselines=False)
    file.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="put the original back"):  # other text, the same numbers: nobody can tell
        resume(path, ["rounds=3"], baselines=False)
    shutil.copy(first / "preprocess.json", file)
    assert resume(path, ["rounds=3"], baselines=False).summary["rounds"] == 3
