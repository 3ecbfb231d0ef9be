"""Files as people have them: every separator, decimal mark and encoding reads back to the same cells, or is refused with its readings."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pytest

import fedatlas
from fedatlas import DataError, Experiment
from fedatlas.config import parse
from fedatlas.data.cells import OLDEST, Reading, numbers, read_as
from fedatlas.data.decimals import with_points
from fedatlas.data.files import load_file
from fedatlas.data.loaded import Loaded, LoadRequest
from fedatlas.data.party_tables import PartyFile, read_party
from fedatlas.data.store import Store
from fedatlas.data.table_file import read_table
from fedatlas.data.text_table import form_of
from fedatlas.errors import ConfigError

SEPARATORS = [",", ";", "\t", "|"]
DECIMALS = [".", ","]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp1252"]
LETTERS = "abzäöüßéñÅ"
QUOTED = [*LETTERS, " ", '"', "'", ";", ",", "\t", "|", ".", "-"]


def load(path: Path, **keys: Any) -> Loaded:
    return load_file(LoadRequest(Store.default(), 1), path=str(path), **{"label": "y", **keys})


def quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"'


def drawn(seed: int) -> pd.DataFrame:
    """Texts with marks in them, and numbers: whole ones, and such with up to four decimals, one of them in the first row."""
    rng = np.random.default_rng(seed)
    n, letters = int(rng.integers(2, 30)), [QUOTED[i] for i in range(len(QUOTED))]
    words = ["ä" + "".join(rng.choice(letters, int(rng.integers(0, 6)))) + "z" for _ in range(n)]
    scale, more = 10.0 ** int(rng.integers(0, 6)), [0.5, *rng.choice([0.0, 0.5, 0.25, 0.125, 0.0625], n - 1)]
    values = [float(int(v)) + float(part) for v, part in zip(rng.normal(0, scale, n), more, strict=True)]
    return pd.DataFrame({"wört": words, "whole": rng.integers(-9, 9, n).astype(str), "size": map(repr, values)})


def written(table: pd.DataFrame, separator: str, decimal: str, end: str = "\n") -> str:
    """The table as text; texts are quoted, and numbers where they hold the separator."""
    lines = [separator.join(quoted(name) for name in table.columns)]
    for row in table.itertuples(index=False):
        size = row[2].replace(".", decimal)
        lines.append(separator.join([quoted(row[0]), row[1], quoted(size) if separator in size else size]))
    return end.join([*lines, ""])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("separator", "decimal"), [*itertools.product(SEPARATORS, DECIMALS)])
def test_tables_read_back_to_the_same_text(seed: int, separator: str, decimal: str, tmp_path: Path) -> None:
    table = drawn(seed)
    for encoding in ENCODINGS:
        raw = written(table, separator, decimal, "\r\n" if seed % 2 else "\n").encode(encoding)
        path = tmp_path / ("t.csv.gz" if seed % 3 == 0 else "t.csv")
        path.write_bytes(gzip.compress(raw) if seed % 3 == 0 else raw)
        found = with_points(read_table(path), ["whole", "size"], "it")
        assert [*found.columns] == [*table.columns], encoding
        assert found.to_numpy().tolist() == table.to_numpy().tolist(), encoding
        form = form_of(found)
        assert form.separator == separator
        assert (form.decimal or ".") == decimal
        assert form.encoding.replace("utf-8-sig", "utf-8") in {encoding.replace("-sig", ""), "cp1252"}


@pytest.mark.parametrize("old", [OLDEST, Reading(2)])
def test_older_rules_look_for_nothing(old: Reading, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("size,y\n" + '"1,5",a\n"2,5",b\n' * 30)
    (tmp_path / "l.csv").write_bytes("größe,y\n1,a\n2,b\n".encode("cp1252"))
    (tmp_path / "s.csv").write_text("a,y;z\n1,2;3\n4,5;6\n")
    with read_as(old):
        with pytest.raises(DataError, match="decimal comma, such as '1,5'"):
            load(tmp_path / "t.csv")
        with pytest.raises(DataError, match="not UTF-8"):
            read_table(tmp_path / "l.csv")
        assert [*read_table(tmp_path / "s.csv").columns] == ["a", "y;z"]


def test_two_separators_that_fit_all_lines_are_refused_with_both_readings(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y;z\n1,2;3\n4,5;6\n")
    with pytest.raises(DataError) as refused:
        read_table(path)
    for said in ("',' (2 columns: 'a', 'y;z')", "';' (2 columns: 'a,y', 'z')", "say which with data.separator"):
        assert said in str(refused.value)
    assert load(path, label="z", separator=";", categories=("a,y",)).schema[0].categories == ("1,2", "4,5")
    with pytest.raises(ConfigError, match="name one character"):
        load(path, separator=";;")


def test_the_separator_of_most_marks_need_not_be_the_one_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("net, gross, or both;y\n" + "1;a\n2;b\n" * 3)
    assert [*read_table(path).columns] == ["net, gross, or both", "y"]


def test_wrong_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1\n1,2\n1,2,3\n1\n")
    with pytest.raises(DataError, match="line 2 has 1 cells, but the header has 2; 2 more lines are as wrong"):
        read_table(tmp_path / "t.csv")


def test_an_encoding_that_may_be_another_is_refused_with_both_readings(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("name,y\nKärnten,1\nTirol,2\n".encode("cp850"))
    with pytest.raises(DataError, match=r"a word in line 2 may be 'K„rnten' or 'Kärnten'.* data.encoding"):
        read_table(path)
    assert load(path, encoding="cp850").schema[0].categories == ("Kärnten", "Tirol")
    path.write_bytes("name,y\nMüller,1\nMaier,2\n".encode("cp850"))
    with pytest.raises(DataError, match=r"neither UTF-8 nor cp1252 text \(byte 0x81 in line 2\)"):
        read_table(path)
    with pytest.raises(DataError, match=r"it is not utf-8 text, as data.encoding says"):
        load(path, encoding="utf-8")
    with pytest.raises(ConfigError, match="Python knows no encoding of texts"):
        load(path, encoding="hex")


def column(path: Path, *cells: str, other: str = "1") -> Path:
    lines = [f"{cell};{other};{'ab'[i % 2]}" for i, cell in enumerate(cells * 30)]
    path.write_text("\n".join(["size;other;y", *lines, ""]))
    return path


def values(loaded: Loaded) -> set[float]:
    return {*loaded.train.x[:, 0].tolist()}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (("1,5", "20", "-0,25"), {1.5, 20.0, -0.25}),
        (("1.234,5", "3,0e2", "\N{MINUS SIGN}1,5"), {1234.5, 300.0, -1.5}),
        (("1,5", "1.240"), {1.5, 1240.0}),
        (("1,5", "1,240"), {1.5, float(np.float32(1.24))}),
        ((",5", "NA", "?", ""), {0.5}),
    ],
)
def test_decimal_commas_are_found(cells: tuple[str, ...], expected: set[float], tmp_path: Path) -> None:
    loaded = load(column(tmp_path / "t.csv", *cells))
    assert {v for v in values(loaded) if not np.isnan(v)} == expected
    assert loaded.facts["read"].endswith("read with ; between columns and a decimal comma")


def test_marks_that_do_not_fit_all_columns_are_refused(tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", "1,5", "2,5", other="2.5")
    with pytest.raises(
        DataError, match=r"'other' holds numbers with a decimal point, such as '2.5', but 'size' with a comma"
    ):
        load(path)
    assert values(load(path, categories=("other",))) == {1.5, 2.5}
    assert load(path, decimal=".", drop=("size",)).train.x[0, 0] == 2.5
    with pytest.raises(DataError, match=r"such as '2.5', but data.decimal = ','"):
        load(path, decimal=",")


def test_commas_before_three_digits_are_one_of_two_readings(tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", "1,240", "3,500")
    with pytest.raises(DataError, match=r"may mean 1240 or 1.240; .*data.thousands = ',' .* data.decimal = ','"):
        load(path)
    assert values(load(path, decimal=",")) == {float(np.float32(1.24)), 3.5}
    assert values(load(path, thousands=",")) == {1240.0, 3500.0}
    assert values(load(column(path, "1.240", "3.500"), decimal=",")) == {1240.0, 3500.0}
    assert values(load(path)) == {float(np.float32(1.24)), 3.5}  # as ever: nothing in the file speaks of commas
    with pytest.raises(ConfigError, match="are both ','"):
        load(path, thousands=",", decimal=",")


def test_a_mark_among_decimal_commas_is_named(tmp_path: Path) -> None:
    path = column(tmp_path / "t.csv", *["1,5", "2,5"] * 8, "k.A.")
    with pytest.raises(DataError, match=r"they can be read without 'k.A.', which data.na would name"):
        load(path)
    assert {v for v in values(load(path, na=("k.A.",))) if not np.isnan(v)} == {1.5, 2.5}


def test_na_is_a_missing_cell_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("age,city,y,who\n" + "30,Graz,a,n\n-9,unknown,b,n\n-9.0,Linz,-9,n\n40,Unknown,b,-9\n" * 2)
    request = LoadRequest(Store.default(), 1, drop_unusable=True)
    loaded = load_file(request, path=str(path), label="y", client="who", na=("-9", "unknown"))
    assert loaded.facts["rows_unusable"] == 4
    assert np.isnan(loaded.train.x.numpy()).sum(0).tolist() == [2, 2]
    assert loaded.schema[1].categories == ("Graz",) or loaded.schema[1].categories == ("Graz", "Unknown")
    assert loaded.facts["reading"]["na"] == ["-9", "unknown"]
    frame = pd.DataFrame({"age": pd.array([1, -9], "Int64"), "y": ["a", "b"]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert np.isnan(load(tmp_path / "t.parquet", na=("-9",)).train.x.numpy()).sum() == 1


def test_dates_are_days(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("d,y\n01.02.1970,a\n31.12.1969,b\n,a\n")
    loaded = load(path, dates={"d": "%d.%m.%Y"})
    assert loaded.train.x[:2, 0].tolist() == [31.0, -1.0]
    path.write_text("d,y\n1970-01-01 12:00,a\n1970-01-02 00:00,b\n")
    assert load(path, dates={"d": "%Y-%m-%d %H:%M"}).train.x[:, 0].tolist() == [0.5, 1.0]
    with pytest.raises(
        DataError, match=r"'d' holds '1970-01-01 12:00' in line 2, and 1 more, which is no date of the form '%d.%m.%Y'"
    ):
        load(path, dates={"d": "%d.%m.%Y"})
    with pytest.raises(ConfigError, match=r"data.dates = 'day': 't.csv' has no such column"):
        load(path, dates={"day": "%d"})
    pd.DataFrame({"d": pd.to_datetime(["1970-01-03", None, "1970-01-01"]), "y": ["a", "b", "a"]}).to_parquet(
        tmp_path / "t.parquet"
    )
    assert load(tmp_path / "t.parquet", dates={"d": "%Y-%m-%d"}).train.x[[0, 2], 0].tolist() == [2.0, 0.0]


def test_a_party_has_its_own_form(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_bytes("id;größe;tag\n1;1,5;02.01.1970\n2;-9;03.01.1970\n".encode("latin-1"))
    file = PartyFile("p", str(path), "id", na=("-9",), dates={"tag": "%d.%m.%Y"})
    assert read_party(file).x.tolist()[0] == [1.5, 1.0]
    path.write_text("id;größe\n1;1,500\n2;2,500\n")
    with pytest.raises(DataError, match=r"the party's decimal = ',' to read 1.500"):
        read_party(file._replace(dates={}))
    assert read_party(file._replace(dates={}, decimal=",")).x.ravel().tolist() == [1.5, 2.5]


# ------------------------------------------------------------------------------------------------ workbooks


def workbook(path: Path, *sheets: list[list[Any]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for k, rows in enumerate(sheets):
        sheet = book.create_sheet(f"year {k}")
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


ROWS: list[list[Any]] = [
    ["code", "size", "day", "note", None, "y"],
    [1, 1.5, pd.Timestamp("1970-01-02").to_pydatetime(), "a", None, True],
    [None] * 6,
    [2.0, None, pd.Timestamp("1970-01-03").to_pydatetime(), "01", None, False],
    [3, 1e-7, None, None, None, True],
]


def test_a_workbook_is_read_by_its_own_types(tmp_path: Path) -> None:
    table = read_table(workbook(tmp_path / "t.xlsx", ROWS))
    assert [*table.columns] == ["code", "size", "day", "note", "y"]
    assert table["code"].tolist() == [1, 2, 3]
    assert [*map(str, table["code"])] == ["1", "2", "3"]
    assert table["day"].tolist()[:2] == ["1970-01-02", "1970-01-03"]
    assert table["note"].tolist()[1] == "01"
    found = numbers(table["size"])
    assert found is not None
    assert found[[0, 2]].tolist() == [1.5, 1e-7]
    assert np.isnan(found[1])
    assert [*table.index] == [2, 4, 5]
    loaded = load(tmp_path / "t.xlsx", dates={"day": "%Y-%m-%d"}, drop=("note",))
    assert loaded.class_names == ("False", "True")
    assert loaded.train.x[:2, 2].tolist() == [1.0, 2.0]


def test_several_sheets_are_refused_with_their_names(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", ROWS, [["a", "y"], [1, "u"], [2, "v"]], [])
    with pytest.raises(DataError, match=r"2 sheets, 'year 0', 'year 1': name one with data.sheet"):
        read_table(path)
    loaded = load(path, sheet="year 1")
    assert loaded.train.x.ravel().tolist() == [1.0, 2.0]
    assert "read with the sheet 'year 1'" in loaded.facts["read"]
    with pytest.raises(ConfigError, match=r"unknown sheet of 't.xlsx' 'year 7'"):
        load(path, sheet="year 7")


def test_formulas_are_read_by_their_stored_values(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", [["a", "b", "y"], [1, "=A2+1", "u"], [2, "=A3+1", "v"]])
    with pytest.raises(DataError, match="2 formulas have no stored value, first in B2: open the file"):
        read_table(path)
    stored(path, b"<f>A2+1</f><v></v>", b"<f>A2+1</f><v>2</v>")
    stored(path, b"<f>A3+1</f><v></v>", b"<f>A3+1</f><v>3.5</v>")
    assert read_table(path)["b"].tolist() == [2, 3.5]


def stored(path: Path, before: bytes, after: bytes) -> None:
    """Replace bytes of the first sheet, as a spreadsheet program writes them."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    content = parts[name].replace(b"<v />", b"<v></v>").replace(b"<v/>", b"<v></v>")
    assert before in content
    parts[name] = content.replace(before, after)
    with zipfile.ZipFile(path, "w") as archive:
        for each, held in parts.items():
            archive.writestr(each, held)


def test_errors_and_values_outside_the_columns_of_a_workbook_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cell B2 holds the error '#DIV/0!'"):
        read_table(workbook(tmp_path / "t.xlsx", [["a", "b"], [1, "#DIV/0!"]]))
    assert read_table(workbook(tmp_path / "t.xlsx", [["a", "b"], [1, "#N/A"]]))["b"].isna().all()
    with pytest.raises(DataError, match="cell C2 holds a value, but its column has no name"):
        read_table(workbook(tmp_path / "t.xlsx", [["a", "b"], [1, 2, 3]]))
    (tmp_path / "t.xlsx").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="it is no Excel workbook"):
        read_table(tmp_path / "t.xlsx")


def test_texts_of_numbers_in_a_workbook_keep_away_from_its_numbers(tmp_path: Path) -> None:
    rows = [["a", "b", "y"], *[["1,5", 1.234, "u"], ["2,5", 2.5, "v"]] * 20]
    loaded = load(workbook(tmp_path / "t.xlsx", rows))
    assert loaded.train.x[:2].tolist() == [[1.5, float(np.float32(1.234))], [2.5, 2.5]]


# ------------------------------------------------------------------------------------------------ a whole run


def test_a_run_on_such_a_file_predicts_on_such_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = [
        f"{'k.A.' if i == 7 else f'{i % 40},{i % 7}5'};{1 + i % 28:02d}.03.2021;{'ja' if i % 40 > 20 else 'nein'}"
        for i in range(80)
    ]
    path.write_bytes("\n".join(["größe;tag;y", *lines, ""]).encode("cp1252"))
    data = {"name": "file", "path": str(path), "label": "y", "test": 0.25, "dates": {"tag": "%d.%m.%Y"}, "na": ["k.A."]}
    experiment = Experiment.of(data={**data, "missing": "median"}, partition={"name": "iid", "clients": 2}, rounds=1)
    done = fedatlas.run(experiment, out=tmp_path / "run", baselines=False)
    kept = json.loads((done.path / "preprocess.json").read_text())["reading"]
    assert kept["dates"] == {"tag": "%d.%m.%Y"}
    assert kept["na"] == ["k.A."]
    assert kept["rules"] == 3
    plain = tmp_path / "plain.csv"
    text = path.read_bytes().decode("cp1252").replace(",", ".").replace("k.A.", "")
    plain.write_text(text.replace(";", ","))
    first = fedatlas.predict(done.path, path)
    pd.testing.assert_frame_equal(first, fedatlas.predict(done.path, plain))
    frame = pd.read_csv(plain, dtype=str)
    pd.testing.assert_frame_equal(first, fedatlas.predict(done.path, frame))
    odd = tmp_path / "odd.csv"
    odd.write_text('größe,tag\n"1,240",02.03.2021\n')
    assert kept["commas"] is True
    with pytest.raises(DataError, match=r"'größe' holds '1,240', which may mean 1240 or 1.24: .* --decimal \",\" or"):
        fedatlas.predict(done.path, odd)
    fedatlas.load(done.path).of_files(decimal=",").predict(odd)


def test_keys_that_say_nothing_are_refused(tmp_path: Path) -> None:
    path = workbook(tmp_path / "t.xlsx", ROWS)
    with pytest.raises(ConfigError, match=r"data.separator says nothing about 't.xlsx'"):
        load(path, separator=";")
    (tmp_path / "t.csv").write_text("a,y\n1,a\n2,b\n")
    with pytest.raises(ConfigError, match=r"data.sheet says nothing about 't.csv'"):
        load(tmp_path / "t.csv", sheet="1")


def test_the_keys_leave_hashes_as_they_are() -> None:
    base = {"data": {"name": "file", "path": "t.csv", "label": "y"}}
    assert parse(base).hash() != parse({"data": {**base["data"], "na": ["-9"]}}).hash()
    assert "decimal" not in json.dumps(parse(base).plain())
