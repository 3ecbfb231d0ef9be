"""How your own table is read, and the warnings about it: docs/data.md's example, doubtful columns, rows left out."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

import fedatlas
from configured import set_up
from fedatlas import Experiment, config, dry_run, run
from fedatlas.data.cells import Reading, read_as
from fedatlas.errors import ConfigError, DataError

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
HEAD = ["id", "region", "size", "age", "tenure", "nace", "poor", "weight"]


def households(path: Path, rows: int = 240, **changed: Any) -> Path:
    """A table with the columns of docs/data.md; ``changed``: column -> cell of the i-th row."""
    draw = random.Random(1)  # noqa: S311  (made-up rows)
    lines = [",".join(HEAD)]
    for i in range(rows):
        cells = {
            "id": str(i + 1),
            "region": draw.choice(["North", "South", "East"]),
            "size": str(draw.randint(1, 6)),
            "age": str(draw.randint(18, 90)),
            "tenure": draw.choice(["own", "rent", "free"]),
            "nace": draw.choice(["01.1", "10.5"]),
            "poor": draw.choice(["yes", "no"]),
            "weight": f"{draw.uniform(50, 250):.1f}",
        }
        lines.append(",".join({**cells, **{name: cell(i) for name, cell in changed.items()}}[name] for name in HEAD))
    path.write_text("\n".join(lines) + "\n")
    return path


def experiment(path: Path, **data: Any) -> Experiment:
    """The page's experiment on that file."""
    (path.parent / "page.toml").write_text(PAGE.read_text().split("```toml")[1].split("```")[0])
    tables = config.read(path.parent / "page.toml").plain()
    tables["data"] |= {"path": str(path), **data}
    return Experiment.of(**{**tables, "rounds": 2})


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    chosen = experiment(households(tmp_path / "h.csv"))
    found = dry_run(chosen)
    said = (
        "target poor (2 classes: no, yes); inputs size, age (numbers); tenure (3 categories), nace (2 categories); owner region; "
        "weight weight; left out id"
    )
    assert (found["read"], found["notices"]) == (said, [])
    done = run(chosen, out=tmp_path / "run", baselines=False)
    assert [row["name"] for row in done.summary["per_client"]] == ["East", "North", "South"]
    page = (done.path / "report.html").read_text()
    assert "count a row by its survey weight" in page
    assert "the sum of their survey weights" in page
    assert said in page
    for words in ("sums of each column", "the categories it holds", "counts of cells below thresholds"):
        assert words in page


def test_the_table_of_the_page_teaches_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own script and experiment: 900 households, three owners, far better than guessing."""
    monkeypatch.chdir(tmp_path)
    exec(PAGE.read_text().split("```python\n")[1].split("```")[0], {})  # noqa: S102  (the page of this repository)
    done = run(experiment(tmp_path / "households.csv"), out=tmp_path / "run", baselines=False)
    assert [row["train_rows"] for row in done.summary["per_client"]] == [103, 334, 238]
    assert done.summary["final"]["accuracy"] > 0.65


@pytest.mark.parametrize(
    ("changed", "data", "said"),
    [
        ({"age": lambda i: "n.d." if i % 20 == 0 else str(20 + i % 60)}, {}, "Column 'age' holds numbers except for 'n.d.' (12 cells)"),
        ({}, {"drop": []}, "Column 'id' has a different whole number in every row, like a key"),
        (
            {"age": lambda i: "" if i % 20 == 0 else str(20 + i % 60)},
            {"missing": "drop"},
            "12 training rows with missing values were left out",
        ),
        (
            {"poor": lambda i: "" if i % 80 == 0 else "yes" if i % 3 else "no"},
            {"missing": "drop"},
            "3 rows without a target, an owner or a weight were left out.",
        ),
    ],
)  # fmt: skip
def test_what_looks_odd_is_said(changed: dict[str, Any], data: dict[str, Any], said: str, tmp_path: Path) -> None:
    chosen = experiment(households(tmp_path / "h.csv", **changed), **data)
    notices = set_up(chosen.config, 1).notices
    assert [said in notice for notice in notices] == [True]


def test_a_column_of_numbers_with_a_mark_is_not_advised_away(tmp_path: Path) -> None:
    """An income with more values than categories may have, and one 'n.d.'."""
    path = households(tmp_path / "h.csv", rows=400, age=lambda i: "n.d." if i == 7 else str(1000 + i))
    with pytest.raises(DataError, match=r"most are numbers, but 'n.d.' in line 9 is not: leave such cells empty"):
        set_up(experiment(path).config, 1)
    path = households(tmp_path / "h.csv", rows=400, age=lambda i: f'"{i},5"')
    with pytest.raises(DataError, match=r"'weight' holds numbers with a decimal point, .* but 'age' with a comma"):
        set_up(experiment(path).config, 1)
    said = r"column 'age' holds numbers with a decimal comma, such as '0,5' in 400 rows, first in line 2: write"
    with read_as(Reading(2)), pytest.raises(DataError, match=said):
        set_up(experiment(path).config, 1)


def with_commas(path: Path, *cells: str) -> Path:
    """A table with semicolons: a measure ``size`` of these cells in turn, a target."""
    rows = (f"{i};{cells[i % len(cells)]};{'yes' if i % 3 else 'no'}" for i in range(60))
    path.write_text("\n".join(["id;size;poor", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    "cells",
    [("1,5", "20", "-0,25"), ("1.234,5", "3,0e2"), ("1,5", "2,5", "", "NA", "?"), ("1,5", *["2,5"] * 8, "k.A.")],
)
def test_numbers_with_a_decimal_comma_were_refused_by_older_rules(cells: tuple[str, ...], tmp_path: Path) -> None:
    """By name, with a cell and a line; a few marks among them, or missing cells, change nothing."""
    given = {"name": "file", "path": str(with_commas(tmp_path / "c.csv", *cells)), "missing": "drop"}
    few: dict[str, Any] = {"partition": {"name": "iid", "clients": 2}}
    said = (
        "holds numbers with a decimal comma, such as '{}' in {} rows, first in line 2: write them with a decimal point"
    )
    count = [sum("," in cells[i % len(cells)] for i in range(60)), cells[0]]
    wanted = re.escape(f"column 'size' {said.format(*reversed(count))}; if the column holds codes")
    with read_as(Reading(2)), pytest.raises(DataError, match=wanted):
        set_up(Experiment.of(data=given | {"label": "poor", "drop": ["id"]}, **few).config, 1)
    wanted = re.escape(f"the target 'size' {said.format(*reversed(count))}; data.task")
    with read_as(Reading(2)), pytest.raises(DataError, match=wanted):
        set_up(Experiment.of(data=given | {"label": "size", "drop": ["id"]}, **few).config, 1)


def test_codes_with_commas_stay_codes_where_they_are_named_so(tmp_path: Path) -> None:
    given = {"name": "file", "path": str(with_commas(tmp_path / "c.csv", "1,5", "2,5")), "drop": ["id"]}
    few: dict[str, Any] = {"partition": {"name": "iid", "clients": 2}}
    named = set_up(Experiment.of(data=given | {"label": "poor", "categories": ["size"]}, **few).config, 1)
    assert named.held.preprocess.schema[0].categories == ("1,5", "2,5")
    classes = set_up(Experiment.of(data=given | {"label": "size", "task": "classes"}, **few).config, 1)
    assert classes.dataset.class_names == ("1,5", "2,5")
    words = set_up(
        Experiment.of(
            data=given | {"path": str(with_commas(tmp_path / "w.csv", "1,5", "a", "b")), "label": "poor"}, **few
        ).config,
        1,
    )
    assert words.held.preprocess.schema[0].categories == ("1,5", "a", "b")  # mostly texts


def test_rows_without_weight_have_no_gain(tmp_path: Path) -> None:
    """A client whose own rows all weigh nothing: no figure, and no numbers that are none in the record."""
    path = households(
        tmp_path / "h.csv",
        region=lambda i: "Far" if i % 10 == 0 else "Near",
        weight=lambda i: "0" if i % 10 == 0 else "1",
    )
    tables = experiment(path).config.plain() | {"rounds": 1, "evaluation": {"clients": 0.3}}
    done = run(Experiment.of(**tables), out=tmp_path / "run", baselines=True)
    assert ["gain" in row for row in done.summary["gain"]["clients"]] == [False, True]


def test_owners_with_test_rows_alone_are_named(tmp_path: Path) -> None:
    path = households(tmp_path / "h.csv")
    other = households(tmp_path / "t.csv", region=lambda i: ("Island", "West", "East")[i % 3])
    setup = set_up(experiment(path, test=str(other)).config, 1)
    assert setup.partition.info["names"] == ["East", "North", "South"]
    assert (
        "Owners Island, West have no training row and are not clients: all rows there are test rows, or left out."
        in setup.notices
    )
    assert not any("no training row" in notice for notice in set_up(experiment(path).config, 1).notices)


def test_the_training_rows_are_no_test_rows(tmp_path: Path) -> None:
    path = households(tmp_path / "h.csv")
    with pytest.raises(DataError, match="there is no file"):
        set_up(experiment(path, test=str(tmp_path / "absent.csv")).config, 1)
    with pytest.raises(ConfigError, match="holds the training rows"):
        set_up(experiment(path, test=str(path)).config, 1)


def test_runs_on_different_rows_are_not_compared_without_a_word(tmp_path: Path) -> None:
    """Another label, another share of the rows: neither name nor place of the data tells them apart."""
    path = households(tmp_path / "h.csv")
    for name, data in (("one", {}), ("same", {}), ("other", {"label": "tenure"})):
        run(experiment(path, **data), out=tmp_path / name, baselines=False)
    said = "These runs were judged on different rows"
    assert said not in fedatlas.report([tmp_path / "one", tmp_path / "same"]).read_text()
    assert said in fedatlas.report([tmp_path / "one", tmp_path / "other"]).read_text()


def test_owners_without_the_partition_for_them_are_told_of_it(tmp_path: Path) -> None:
    path = households(tmp_path / "h.csv", rows=60, poor=lambda i: "yes" if i < 8 else "no")
    chosen = experiment(path).config.plain() | {"partition": {"name": "majority_even", "clients": 12}}
    with pytest.raises(ConfigError, match=r"partition.name = 'natural' makes each a client"):
        set_up(config.parse(chosen), 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.path=h.csv"], "data.path: this key applies only to your own files; add data.name=file, or give"),
        (["data.name=h.csv"], "to load your own file, set data.name = 'file' and data.path = 'h.csv'."),
        (["algorithm.mu=0.1"], "algorithm.mu: 'fedavg' has no such key; algorithms with it: fedprox"),
        (["local.learning_rate=0.1"], "unknown key 'local.learning_rate': here it is called 'local.lr'."),
        (["algorithm=fedavg"], "'algorithm=fedavg': write algorithm.name=fedavg."),
    ],
)
def test_common_mistakes_are_answered_with_what_was_meant(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        set_up(config.read(None, words), 1)
    assert said in str(refused.value)


def test_a_file_of_data_is_no_experiment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds data, not an experiment; to use it, set data.name=file data.path="):
        config.read(households(tmp_path / "h.csv"))
    with pytest.raises(ConfigError, match="write key=value without spaces"):
        config.read(tmp_path / "rounds", ["=", "5"])
    with pytest.raises(ConfigError, match=r"ends with .svg"):
        fedatlas.partition(Experiment.of(), out=tmp_path / "p.png")
    assert json.loads(json.dumps(dry_run(Experiment.of(rounds=1))))["read"] == ""
