"""Cells that could mean two things: thousands, units, codes, alike owners and classes, lists. Said, refused, or read by a key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedatlas
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.data.cells import Reading, read_as
from fedatlas.data.config import DataConfig
from fedatlas.data.dataset import Dataset
from fedatlas.data.party_tables import PartyFile, read_party
from fedatlas.data.sources import load_dataset
from fedatlas.errors import ConfigError, DataError

PARTED, COMPOSED = "Mu\N{COMBINING DIAERESIS}nchen", "M\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen"


def load(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(name="file", path=str(path), **{"label": "y", **keys}), 1)


def column(path: Path, *cells: str, rows: int = 60, sep: str = ";") -> Path:
    """A table of a column ``a`` of these cells in turn, an owner and a target."""
    lines = (f"{cells[i % len(cells)]}{sep}{'NS'[i % 2]}{sep}{i % 2}" for i in range(rows))
    path.write_text("\n".join([f"a{sep}who{sep}y", *lines]) + "\n", encoding="utf-8")
    return path


def values(dataset: Dataset) -> set[float]:
    return {*dataset.train.x[:, 0].tolist(), *dataset.test.x[:, 0].tolist()}


def told(dataset: Dataset) -> list[str]:
    """What is told but that the owner, or a target of these few rows, repeats another column."""
    return [doubt for doubt in dataset.facts["doubts"] if "says the same as" not in doubt]


# ------------------------------------------------------------------------------------------------ numbers


def test_a_separator_that_a_spreadsheet_names_is_obeyed(tmp_path: Path) -> None:
    text = "sep=|\r\na,b|y\r\n1|0\r\n2|1\r\nx|1\r\n"
    (tmp_path / "t.csv").write_bytes(text.encode())
    found = load(tmp_path / "t.csv", test=0.5)
    assert [one.name for one in found.schema] == ["a,b"]
    (tmp_path / "t.csv").write_bytes(text.replace("x|1", "x|1|2").encode())
    with pytest.raises(DataError, match="line 5 has 3 cells, but the header has 2"):
        load(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["1,240", "2,500", "12"], "such as '1,240' in 20 rows, first in line 2: this may mean 1240 or 1.240; set"),
        (["1,240,000", "1,240"], "such as '1,240' in 30 rows, first in line 3: this may mean 1240 or 1.240; set"),
        (["-1,240,000", "7"], "such as '-1,240,000' in 30 rows, first in line 2: this means -1240000; set"),
    ],
)
def test_commas_before_three_digits_are_refused_with_both_readings(cells: list[str], said: str, tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", *cells)
    with pytest.raises(DataError) as refused:
        load(path)
    assert said in str(refused.value)
    assert "set data.thousands = ',' to read" in str(refused.value)
    expected = {float(cell.replace(",", "")) for cell in cells}
    assert values(load(path, thousands=",", drop=["who"])) == expected
    with pytest.raises(DataError, match="set the party's thousands = ',' to read") as refused:
        read_party(PartyFile("p", str(with_ids(path)), "id", label="y"))
    assert said in str(refused.value)
    with read_as(Reading(2)), pytest.raises(DataError, match="holds numbers with a decimal comma, such as '1,5'"):
        load(column(tmp_path / "t.csv", "1,5", "1,240"))


@pytest.mark.parametrize(
    ("cells", "keys", "said"),
    [
        (["$5", "$7.5", "-$2"], {"units": ["$"]}, "data.units = ['$'] would read such cells as numbers"),
        (["5%", "7 %", "2"], {"units": ["%"]}, "data.units = ['%'] would read such cells as numbers"),
        (
            ["$1,240.50", "$12"],
            {"units": ["$"], "thousands": ","},
            "data.units = ['$'] and data.thousands = \",\" would",
        ),
        (["1 240", "12 000"], {"thousands": " "}, 'data.thousands = " " would read'),
        (["1'240.5", "12"], {"thousands": "'"}, 'data.thousands = "\'" would read'),
    ],
)
def test_marks_of_numbers_are_said_and_read_by_their_keys(
    cells: list[str], keys: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """Without the key they are categories, with a notice that names it; as the target and with too many texts as well."""
    path = column(tmp_path / "t.csv", *cells)
    found = load(path)
    assert len(found.schema[0].categories) == len(cells)
    assert sum(said in doubt and "Column 'a'" in doubt for doubt in found.facts["doubts"]) == 1
    asked = load(path, **keys)
    plain = [float(cell.translate(str.maketrans("", "", "$%,' "))) for cell in cells]
    assert values(asked) == {*plain}
    assert told(asked) == []
    target = load(path, label="a")
    assert target.task == "classes"
    assert any(said in doubt and "The target 'a'" in doubt for doubt in target.facts["doubts"])
    many = column(
        tmp_path / "m.csv", *(cells[0].replace("5", f"{i}5").replace("240", f"{i:03d}") for i in range(300)), rows=300
    )
    with pytest.raises(DataError, match="too many for categories; data"):
        load(many)


def test_a_minus_sign_is_a_minus_and_an_underscore_no_digit(tmp_path: Path) -> None:
    assert values(load(column(tmp_path / "t.csv", "−4", "4"))) == {-4, 4}
    assert load(column(tmp_path / "t.csv", "1_24", "4")).schema[0].categories == ("1_24", "4")
    for role in ({"weight": "a"}, {"task": "numbers", "label": "a"}):
        with pytest.raises(DataError, match=r"must hold numbers .* found '1_24'|holds texts, so it cannot be a number"):
            load(column(tmp_path / "t.csv", "1_24", "4"), **role)


def test_keys_of_reading_are_recorded_and_used_by_predict(tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", "$1,240", "$-3", "$12,000.5")
    experiment = Experiment.of(
        rounds=1,
        data={"name": "file", "path": str(path), "label": "y", "thousands": ",", "units": ["$"], "drop": ["who"]},
        partition={"name": "iid", "clients": 2},
    )
    done = run(experiment, out=tmp_path / "run", baselines=False)
    loaded = fedatlas.load(done.path)
    assert loaded.preprocess.reading == Reading(thousands=",", units=("$",))
    (tmp_path / "new.csv").write_text("a\n1240\n-3\n12000.5\n")
    (tmp_path / "same.csv").write_text('a\n"$1,240"\n−$3\n"12,000.5"\n', encoding="utf-8")
    assert loaded.predict(tmp_path / "new.csv").equals(loaded.predict(tmp_path / "same.csv"))


def test_a_column_of_lists_is_refused_by_name_unless_it_is_left_out(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0] * 10, "tags": [[1, 2], [3]] * 10, "y": [0, 1] * 10})
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column 'tags' holds lists, not one value in each row"):
        load(tmp_path / "t.parquet")
    assert len(load(tmp_path / "t.parquet", drop=["tags"]).schema) == 1


def test_predict_from_csv_finds_the_categories_of_parquet(tmp_path: Path) -> None:
    """Whole numbers with a hole, by Arrow alone: pandas makes 1.0 of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = [None if i % 7 == 0 else 1 + i % 3 for i in range(60)]
    pq.write_table(pa.table({"kind": kinds, "y": [int(k == 2) for k in kinds]}), tmp_path / "t.parquet")
    data = {
        "name": "file",
        "path": str(tmp_path / "t.parquet"),
        "label": "y",
        "categories": ["kind"],
        "missing": "median",
    }
    done = run(
        Experiment.of(rounds=1, data=data, partition={"name": "iid", "clients": 2}),
        out=tmp_path / "run",
        baselines=False,
    )
    loaded = fedatlas.load(done.path)
    assert loaded.preprocess.rules[0].categories == ("1", "2", "3")
    (tmp_path / "new.csv").write_text("kind\n1\n2\n3\n")
    assert loaded.predict(tmp_path / "new.csv").equals(
        loaded.predict(pd.DataFrame({"kind": [1, 2, 3]}))
    )  # and no warning


# ------------------------------------------------------------------------------------------------ classes, owners


@pytest.mark.parametrize(
    ("cells", "names", "pair"),
    [
        (["01", "1", "02"], ("01", "1", "02"), "'01' and '1' are two classes of the target 'a' and differ by how the same number is"),
        (["5E1", "50", "7"], ("7", "50", "5E1"), "'50' and '5E1' are two classes"),
        (["1.1", "1.10"], ("1.1", "1.10"), "'1.1' and '1.10' are two classes"),
        (["9007199254740993", "9007199254740992"], ("9007199254740992", "9007199254740993"), "are two classes"),
        ([PARTED, COMPOSED], (PARTED, COMPOSED), "by the form of their Unicode (NFC and NFD)"),
        (["1.0", "1", "2"], ("1", "2"), ""),
    ],
)  # fmt: skip
def test_of_classes_the_text_is_the_class(cells: list[str], names: tuple[str, ...], pair: str, tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", *cells)
    found = load(path, label="a", task="classes")
    assert found.class_names == names
    assert [pair in doubt for doubt in told(found)] == [True] * bool(pair)
    if len(names) == 2:
        with_id = pd.read_csv(path, sep=";", dtype=str).assign(id=range(60))
        with_id.to_csv(tmp_path / "p.csv", index=False)
        party = read_party(PartyFile("p", str(tmp_path / "p.csv"), "id", label="a", task="classes"))
        assert party.class_names == names
    else:
        of_party = PartyFile("p", str(with_ids(path)), "id", label="a", task="classes")
        assert read_party(of_party).class_names == names


def with_ids(path: Path) -> Path:
    pd.read_csv(path, sep=";", dtype=str).assign(id=lambda t: range(len(t))).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("names", "how"),
    [
        ((COMPOSED, PARTED), "by the form of their Unicode (NFC and NFD)"),
        (("KIEL", "Kiel"), "by upper and lower case"),
        (("1", "1.0"), "by how the same number is written"),
    ],
)
@pytest.mark.parametrize("form", ["csv", "npz"])
def test_owners_that_are_alike_stay_apart_or_are_joined_by_a_key(
    names: tuple[str, str], how: str, form: str, tmp_path: Path
) -> None:
    who = [(*names, "Ulm")[i % 3] for i in range(60)]
    path = tmp_path / f"t.{form}"
    keys: dict[str, Any] = {"client": "who"}
    if form == "csv":
        pd.DataFrame({"a": range(60), "who": who, "y": [i % 2 for i in range(60)]}).to_csv(path, index=False)
    else:
        np.savez(path, x_train=np.ones((60, 2), np.float32), y_train=np.arange(60) % 2, client_train=np.array(who))
        keys = {"label": ""}
    found = load(path, **keys)
    first, second = sorted(names)
    said = f"'{first}' and '{second}' are two owners of "
    assert [d for d in found.facts["doubts"] if said in d and how in d and "data.same_owner = true" in d]
    assert {*found.client_names} == {*names, "Ulm"}
    joined = load(path, same_owner=True, **keys)
    assert joined.client_names == (first, "Ulm")
    assert not any("two owners" in doubt for doubt in joined.facts.get("doubts", ()))
    owned = [joined.client_names[c] for c in joined.train.client.tolist()]
    assert owned == [first if who[i] in names else "Ulm" for i in joined.train.row.tolist()]


@pytest.mark.parametrize(
    "who", [np.array([1.0, np.nan, 2.0] * 20), np.array(["N", "", "S"] * 20), np.array(["N", "nan", "S"] * 20)]
)
def test_a_missing_owner_of_an_array_is_a_missing_owner(who: np.ndarray, tmp_path: Path) -> None:
    """As in a table: refused, or its rows are left out, of training and test rows alike."""
    y = np.arange(60) % 2
    x = np.arange(120, dtype=np.float32).reshape(60, 2)
    np.savez(tmp_path / "t.npz", x_train=x, y_train=y, client_train=who, x_test=x, y_test=y, client_test=who)
    with pytest.raises(
        DataError, match=r"the owner is missing in 40 rows, first in client_train: data.missing = 'drop'"
    ):
        load(tmp_path / "t.npz", label="")
    found = load(tmp_path / "t.npz", label="", missing="drop")
    kept = [i for i in range(60) if i % 3 != 1]
    assert found.client_names in {("1.0", "2.0"), ("N", "S")}
    assert found.train.row.tolist() == found.test.row.tolist() == kept
    assert found.train.x.tolist() == x[kept].tolist()
    assert found.facts["rows_unusable"] == 40
    assert "owners_absent" not in found.facts
    np.savez(tmp_path / "n.npz", x_train=x, y_train=y, client_train=np.full(60, np.nan))
    with pytest.raises(DataError, match="the owner is missing in 60 rows"):
        load(tmp_path / "n.npz", label="", missing="drop")


# ------------------------------------------------------------------------------------------------ what is said


ROW = "Zarathustra"


@pytest.mark.parametrize(
    "given",
    [
        {"data": {"name": "file", "path": pd.DataFrame({"a": [ROW] * 3})}},
        {"data": {"name": "file", "path": np.array([ROW])}},
        {"data": pd.DataFrame({"a": [ROW]})},
        {"data": {"name": "file", "path": "t.csv", "drop": [pd.Series([ROW])]}},
        {"parties": [{"name": "p", "path": pd.DataFrame({"a": [ROW]}), "id": "a"}]},
        {"model": pd.DataFrame({"a": [ROW]})},
        {"rounds": pd.Series([ROW])},
    ],
)
def test_an_error_never_prints_rows(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(given)
    assert ROW not in str(refused.value)
    assert ROW not in repr(refused.value.__cause__)


@pytest.mark.parametrize("role", ["label", "drop", "categories"])
def test_a_party_is_told_of_its_own_keys(role: str, tmp_path: Path) -> None:
    pd.DataFrame({"id": range(300), "a": [f"t{i}" for i in range(300)], "y": ["1,5", "2,5"] * 150}).to_csv(
        tmp_path / "p.csv", index=False
    )
    said = {
        "drop": r"column 'a' has 300 different texts, .* leave it out with the party's drop",
        "label": r"the label 'y' holds numbers with a decimal comma, .* the party's task = 'classes' reads them as texts",
        "categories": r"column 'y' holds numbers with a decimal comma, .* list it in the party's categories",
    }
    given = {"drop": ("y",)} if role == "drop" else {"drop": ("a",)} | ({"label": "y"} if role == "label" else {})
    with read_as(Reading(2)), pytest.raises(DataError, match=said[role]) as refused:
        read_party(PartyFile("p", str(tmp_path / "p.csv"), "id", **given))
    assert "data." not in str(refused.value)
    with pytest.raises(ConfigError, match=r"data.drop: .* or give it to one of \[\[parties\]\]"):
        parse({"data": {"drop": ["a"]}})


def test_ids_never_pass_a_float(tmp_path: Path) -> None:
    """Parquet by its own types; a column that holds floats from 2^53 up names nobody."""
    pd.DataFrame({"id": [2.0**53, 2.0**53 + 2], "x": [1, 2], "y": [0, 1]}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(DataError, match=r"the ids in 'id' are stored as floating-point numbers of 2\^53 or more"):
        read_party(PartyFile("p", str(tmp_path / "p.parquet"), "id", label="y"))
    pd.DataFrame({"id": [2.0**53 - 1, None, 7.0], "x": [1, 2, 3]}).to_parquet(tmp_path / "p.parquet")
    assert read_party(PartyFile("p", str(tmp_path / "p.parquet"), "id")).ids == (str(2**53 - 1), "", "7")


def test_a_partys_numbers_have_64_bits(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,a,b,c,y\n1,100000001,0.1,1e300,0.3\n2,100000002,0.100000001,-1e300,0.1\n")
    found = read_party(PartyFile("p", str(tmp_path / "p.csv"), "id", label="y"))
    assert found.x.tolist() == [[100000001, 0.1, 1e300], [100000002, 0.100000001, -1e300]]
    assert (found.y.tolist(), found.bits, found.doubts) == ([0.3, 0.1], 64, ())
