"""What a reader is told of a file is true of it: notices, refusals, and the sentences of docs/data.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedatlas.data.cells import Reading, read_as, texts, value_of, values_of
from fedatlas.data.dataset import Column
from fedatlas.data.files import load_file
from fedatlas.data.frame import raw_rows
from fedatlas.data.handed import hand_over
from fedatlas.data.kept import located
from fedatlas.data.loaded import LoadRequest
from fedatlas.data.pictures import load_pictures
from fedatlas.data.store import Store
from fedatlas.data.suspicions import of_code
from fedatlas.data.table_file import read_table
from fedatlas.errors import ConfigError, DataError
from readings import load, workbook, written

INCOME = (Column("income"), Column("rate"))


# ------------------------------------------------------------------------------------------------ what is said


def kept(frame: pd.DataFrame, **keys: Any) -> Path:
    """A data frame as it lies in a run's folder."""
    held = hand_over(frame, {"label": "y", **keys})
    HELD.append(held)
    return located(held.keys["path"])


HELD: list[Any] = []  # keeps the folders of data frames


DAYS = pd.to_datetime(["1970-01-02", None, "1970-01-03"])


@pytest.mark.parametrize(
    "column",
    [pd.Series(DAYS), pd.Series(DAYS).dt.tz_localize("UTC"), pd.Series([*DAYS.date[:1], None, *DAYS.date[2:]])],
)
def test_dates_by_their_own_type_need_any_form(column: pd.Series, tmp_path: Path) -> None:
    frame = pd.DataFrame({"d": column, "y": list("aba")})
    frame.to_parquet(tmp_path / "t.parquet")
    with read_as(Reading(dates=(("d", "%d.%m.%Y"),))):
        for path in (kept(frame, dates={"d": "%d.%m.%Y"}), tmp_path / "t.parquet"):
            assert read_table(path)["d"].iloc[[0, 2]].tolist() == [1.0, 2.0]
        with pytest.raises(DataError, match="'data frame': column 'd' holds 'x'"):
            read_table(kept(frame.assign(d=["1.2.2001", "x", ""]), dates={"d": "%d.%m.%Y"}))
    assert texts(read_table(kept(frame))["d"])[0].startswith("1970-01-02")


def test_dates_of_a_workbook_have_one_form(tmp_path: Path) -> None:
    day = pd.Timestamp("2026-02-01").to_pydatetime()
    rows = [["d", "e", "y"], [day, day, 1], [day, day.replace(hour=12), 2]]
    table = read_table(workbook(tmp_path / "t.xlsx", rows, bytes))
    assert table["d"].tolist() == ["2026-02-01"] * 2
    assert table["e"].tolist() == ["2026-02-01 00:00:00", "2026-02-01 12:00:00"]


def test_notices_name_numbers_and_cells_as_they_stand(tmp_path: Path) -> None:
    assert 'data.na = ["9999999"]' in of_code("income", np.r_[np.arange(100) * 1000.0, np.full(20, 9999999.0)])
    cells = ["-", *[f"{i % 40}%" for i in range(80)]]
    said = load(
        written(tmp_path / "t.csv", "\n".join(["a,y", *[f"{c},{'ab'[i % 2]}" for i, c in enumerate(cells)], ""]))
    )
    assert any("holds '0%', so it is read" in one for one in said.facts["doubts"])


@pytest.mark.parametrize("keys", [{}, {"units": ("$",)}, {"thousands": ","}])
def test_the_grammar_is_one_for_a_cell_and_for_a_column(keys: dict[str, Any]) -> None:
    cells = [
        "- 1",
        "-1",
        "+ 1",
        "+.5",
        "1e\N{MINUS SIGN}3",
        "\N{MINUS SIGN}2",
        "inf",
        "-Infinity",
        "- $5",
        "$-5",
        "$ 5",
        "1,240",
        "0,240",
    ]
    with read_as(Reading(**keys)):
        for cell in cells:
            for beside in ((), ("\N{MINUS SIGN}2",)):
                found = values_of(np.array([cell, *beside]))
                assert (found is None) == (value_of(cell) is None), cell
                assert found is None or found[0] == value_of(cell)
        assert value_of("- 1") is None
    with read_as(Reading(2)):
        assert value_of("- 1") == -1


def test_one_cell_with_a_blank_behind_its_sign_is_named(tmp_path: Path) -> None:
    lines = [f"{'- 5' if i == 9 else i},{'ab'[i % 2]}" for i in range(300)]
    with pytest.raises(DataError, match="most are numbers, but '- 5' in line 11 is not"):
        load(written(tmp_path / "t.csv", "\n".join(["a,y", *lines, ""])))


def test_a_column_without_a_name_is_told(tmp_path: Path) -> None:
    loaded = load(written(tmp_path / "t.csv", ",a,w,y\n7,1,1,u\n8,2,1,v\n"), weight="w")
    assert [column.name for column in loaded.schema] == ["a"]
    assert any("column without a name" in one for one in loaded.facts["doubts"])
    loaded = load(written(tmp_path / "t.csv", "a,y,\n1,u,\n2,v,\n"))
    assert not any("column without a name" in one for one in loaded.facts["doubts"])


def test_arrays_without_a_target_or_a_weight_lose_these_rows(tmp_path: Path) -> None:
    x, weight = np.arange(5.0)[:, None], np.array([1, 1, np.nan, 1, 1])
    for y in (np.array([0.5, np.nan, 1.5, 2.5, 3.25]), np.array(["a ", "", "b", "a", " b"])):
        np.savez(
            tmp_path / "t.npz",
            x_train=x,
            y_train=y,
            weight_train=weight,
            client_train=np.array(["u", "u ", "v", "v", ""]),
        )
        request = LoadRequest(Store.default(), 1, drop_unusable=True)
        loaded = load_file(request, path=str(tmp_path / "t.npz"))
        assert loaded.train.row is not None
        assert loaded.train.row.tolist() == [0, 3]
        assert loaded.train.x.ravel().tolist() == [0, 3]
        assert loaded.client_names == ("u", "v")
        assert loaded.facts["rows_unusable"] == 3
        with pytest.raises(DataError, match=r"target is missing .empty or NaN. in 1 rows of y_train"):
            load(tmp_path / "t.npz", label="")
    np.savez(tmp_path / "t.npz", x_train=x, y_train=np.array([[0], [1], [0], [1], [0]]))
    with pytest.raises(DataError, match="give it one dimension"):
        load(tmp_path / "t.npz", label="")


def test_both_files_are_described_and_unseen_categories_told(tmp_path: Path) -> None:
    train = written(tmp_path / "a.csv", "a,b,y\n1,u,p\n2,v,q\n")
    test = written(tmp_path / "b.csv", "a;b;y\n1;w;p\n2;x;q\n3;u;q\n")
    facts = load(train, test).facts
    assert facts["read"].endswith("the test file read with ; between columns")
    assert any("2 of 3 test rows hold a category of column 'b'" in one for one in facts["doubts"])
    assert not any(
        "test rows hold" in one for one in load(train, written(tmp_path / "c.csv", "a,b,y\n3,u,p\n")).facts["doubts"]
    )


def test_options_of_predict_are_named_as_options(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="with --separator"):
        read_table(written(tmp_path / "t.csv", "a,y;z\n1,2;3\n4,5;6\n"), "--")
    with pytest.raises(DataError, match=r"found '1,240'.* --decimal .,. reads decimal commas"):
        raw_rows({"income": ["1,240"], "rate": ["1"]}, INCOME, keys="--")
    with pytest.raises(DataError, match="two columns called 'income'"):
        raw_rows(pd.DataFrame([[1, 2, 3]], columns=["income", "income", "rate"]), INCOME)
    assert raw_rows(pd.DataFrame([[1.0, 2.0]], columns=[0, 1]), (Column("1"), Column("0"))).tolist() == [[2, 1]]


def test_pictures_are_told_as_they_are(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name, alpha in (("a", 255), ("b", 255), ("c", 254)):
        (tmp_path / name).mkdir()
        image.new("RGBA", (4, 4), (9, 9, 9, alpha)).save(tmp_path / name / "1.png")
    (tmp_path / "a" / "2.heic").write_bytes(b"")
    facts = load_pictures(tmp_path, 4).facts
    assert facts["transparent"] == 1
    assert any("1 pictures (.heic) are of a kind that is not read" in one for one in facts["doubts"])


def test_values_in_place_of_a_column_name_are_refused() -> None:
    frame = pd.DataFrame({"a": [1, 2], "y": ["u", "v"]})
    with pytest.raises(ConfigError, match="label names a column of the table"):
        hand_over(frame, {"label": frame["y"]})


@pytest.mark.parametrize(
    ("text", "keys", "also"),
    [
        ("d,y\n1.2.2001,u\nx,v\n", {"dates": {"d": "%d.%m.%Y"}}, "holds 'x' in line 3"),
        ("a;b;y\n1,5;2.5;u\n2,5;3.5;v\n", {}, "write all numbers of a file with one mark"),
    ],
)
def test_a_wrong_cell_does_not_hide_a_wrong_label(text: str, keys: dict[str, Any], also: str, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", text)
    with pytest.raises((ConfigError, DataError)) as refused:
        load(path, label="z", **keys)
    assert "2 problems" in str(refused.value)
    assert "data.label = 'z'" in str(refused.value)
    assert also in str(refused.value)
    with pytest.raises(DataError, match=also):
        load(path, **keys)
