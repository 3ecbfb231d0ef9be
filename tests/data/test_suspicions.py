"""All problems of a file in one message, and notices about what is probably meant otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment, dry_run
from fedatlas.data.cells import Reading, read_as
from fedatlas.data.files import load_file
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.party_tables import PartyFile, read_party
from fedatlas.data.store import Store
from fedatlas.data.suspicions import of_code
from fedatlas.errors import ConfigError, DataError

Cell = Callable[[int], object]


def table(path: Path, rows: int = 120, **columns: Cell) -> Path:
    """A table with a size that says nothing, an owner, a target of two classes, and these columns."""
    given: dict[str, Cell] = {"size": lambda i: i % 7, "who": lambda i: "NSE"[i % 3], "y": lambda i: "ab"[i % 5 > 2]}
    given |= columns
    lines = [",".join(str(cell(i)) for cell in given.values()) for i in range(rows)]
    path.write_text("\n".join([",".join(given), *lines, ""]))
    return path


def load(path: Path, **keys: Any) -> Loaded:
    return load_file(LoadRequest(Store.default(), 1), path=str(path), **{"label": "y", "client": "who", **keys})


def notices(path: Path, **keys: Any) -> str:
    return " ".join(load(path, **keys).facts["doubts"])


def test_a_plain_table_has_no_notice(tmp_path: Path) -> None:
    assert notices(table(tmp_path / "t.csv")) == ""


@pytest.mark.parametrize(
    ("columns", "keys", "said"),
    [
        ({"id": lambda i: f"p{i}"}, {}, "Column 'id' has a different text in every row, like a key: data.drop"),
        ({"id": lambda i: 7 * i}, {}, "Column 'id' has a different whole number in every row, like a key"),
        ({"id": lambda i: f"p{i}"}, {"client": "id"}, "Column 'id' names another owner in every row, like a key"),
        ({"who": lambda i: "N"}, {}, "Column 'who' names one owner only, 'N'"),
        ({"copy": lambda i: "ja nein".split()[i % 5 > 2]}, {}, "Column 'copy' says the same as the target 'y'"),
        ({"copy": lambda i: int(i % 5 > 2)}, {}, "Column 'copy' says the same as the target 'y'"),
        ({"y": lambda i: i / 8, "copy": lambda i: i / 8}, {}, "Column 'copy' says the same as the target 'y'"),
        ({"y": lambda i: i % 18}, {}, "'y' has 18 whole numbers, read as classes; data.task = \"numbers\" makes it"),
        ({"age": lambda i: -9 if i % 10 == 3 else 20 + i % 60}, {}, "holds -9 in 12 rows, far from its other numbers"),
        (
            {"q": lambda i: 9 if i % 10 == 3 else 1 + i % 5},
            {},
            'if it is a code of a missing cell, data.na = ["9"] says so',
        ),
        ({"age": lambda i: 999 if i % 10 == 3 else 20 + i % 60}, {}, 'data.na = ["999"]'),
        (
            {"d": lambda i: f"{1 + i % 28:02d}.0{1 + i % 9}.2020"},
            {},
            "'d' looks like dates: data.dates = {d = '%d.%m.%Y'}",
        ),
        ({"d": lambda i: 20200101 + i % 28}, {}, "data.dates = {d = '%Y%m%d'}"),
        (
            {"a d": lambda i: f"0{1 + i % 9}/0{1 + i % 8}/2020"},
            {},
            "{\"a d\" = '%d/%m/%Y'} (or '%m/%d/%Y', if the month",
        ),
    ],
)
def test_what_is_probably_meant_otherwise_is_told(
    columns: dict[str, Cell], keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = table(tmp_path / "t.csv", **columns)
    assert said in notices(path, **keys)
    with read_as(Reading(2)):
        assert said not in notices(path, **keys) or "whole number" in said


@pytest.mark.parametrize(
    "columns",
    [
        {"age": lambda i: -9 if i == 3 else 20 + i % 60},  # once
        {"age": lambda i: 20 + i % 80},  # 99 is one of many
        {"age": lambda i: 150 if i % 10 == 3 else 20 + i % 60},  # no code
        {"near": lambda i: "ab"[i % 5 > 2] if i != 53 else "a"},  # not in every row
        {"y": lambda i: i % 10},  # ten digits are classes
        {"code": lambda i: f"{i % 9}.{i % 8}.2"},
    ],
)
def test_what_is_meant_so_is_not_told(columns: dict[str, Cell], tmp_path: Path) -> None:
    assert notices(table(tmp_path / "t.csv", **columns)) == ""


def test_dates_that_are_too_many_for_categories_are_advised(tmp_path: Path) -> None:
    days: Cell = lambda i: f"{1 + i % 28:02d}.{1 + i // 28 % 12:02d}.{2000 + i // 336}"  # noqa: E731
    path = table(tmp_path / "t.csv", rows=400, d=days)
    with pytest.raises(
        DataError, match=r"look like dates: data\.dates = \{d = '%d\.%m\.%Y'\} reads them as days, or leave"
    ):
        load(path)
    assert load(path, dates={"d": "%d.%m.%Y"}).facts["doubts"] == []


def test_an_extreme_far_away_among_few_values_is_no_code() -> None:
    assert of_code("a", np.array([0.0, 1.0, 99.0] * 40)) == ""


def test_all_problems_of_a_file_stand_in_one_message(tmp_path: Path) -> None:
    path = table(
        tmp_path / "t.csv",
        rows=300,
        name=lambda i: f"p{i}",
        big=lambda i: "1e39" if i == 7 else i % 4,
        gap=lambda i: "" if i == 9 else "NSE"[i % 3],
        w=lambda i: -1 if i == 5 else 1,
        y=lambda i: "a",
    )
    with pytest.raises(ConfigError) as refused:
        load(path, client="gap", weight="w", drop=("nmae", "sizes"))
    said = str(refused.value).split("\n")
    assert said[0] == "'t.csv': 7 problems."
    wanted = [
        "'nmae': 't.csv' has no such",
        "'sizes'",
        "the client column 'gap' is missing in line 11",
        "only one class",
    ]
    wanted += ["weight column 'w'", "'name' has 2", "column 'big' is infinite"]
    for i, (line, part) in enumerate(zip(said[1:], wanted, strict=True), 1):
        assert line.startswith(f"  {i}. ")
        assert part in line


def test_all_problems_of_a_party_stand_in_one_message(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,a,b,y\n1,1e999,2,0\n1,2,1e999,1\n2,2,1,1\n")
    with pytest.raises(ConfigError) as refused:
        read_party(PartyFile("p", str(tmp_path / "p.csv"), "id", label="z"))
    for part in ("party 'p': 4 problems", "label = 'z'", "same id occurs twice", "column 'a'", "column 'b'"):
        assert part in str(refused.value)


def test_every_column_is_named_on_demand(tmp_path: Path) -> None:
    columns: dict[str, Cell] = {f"c{k}": lambda i, k=k: (i * k + i // 7) % 11 for k in range(20)}  # type: ignore[misc]
    path = table(tmp_path / "t.csv", **columns)
    data = {"name": "file", "path": str(path), "label": "y", "client": "who", "test": 0.2}
    experiment = Experiment.of(data=data, partition={"name": "natural"}, rounds=1)
    assert "and 13 more (numbers)" in dry_run(experiment)["read"]
    assert ", ".join(f"c{k}" for k in range(20)) in dry_run(experiment, all_columns=True)["read"]
