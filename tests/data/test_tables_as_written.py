"""Random tables in every format: the same texts, targets, owners and ids come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedatlas.data.cells import class_text, missing, texts
from fedatlas.data.config import DataConfig
from fedatlas.data.party_tables import PartyFile, TrainedTable, new_rows, read_party
from fedatlas.data.sources import load_dataset
from fedatlas.data.table_file import read_table
from fedatlas.errors import DataError

pa = pytest.importorskip("pyarrow")
pytest.importorskip("openpyxl")
FORMATS = ("csv", "tsv", "csv.gz", "xlsx", "parquet", "bare.parquet")
ROWS = 60
LARGE = 1 << 53


def column(stream: np.random.Generator, kind: str, holes: bool) -> list[Any]:
    """Cells of one kind; None for a hole, which every format can have."""
    wide = stream.integers(LARGE, LARGE + 40, ROWS)
    cells: dict[str, list[Any]] = {
        "small": stream.integers(-3, 4, ROWS).tolist(),
        "large": wide.tolist(),
        "float": (stream.integers(-40, 40, ROWS) / 8).tolist(),
        "bool": (stream.random(ROWS) < 0.5).tolist(),
        "codes": [f"{i:0{w}d}" for i, w in zip(stream.integers(0, 12, ROWS), stream.integers(1, 4, ROWS), strict=True)],
        "texts": stream.choice(
            ["Köln", "Ko\u0308ln", "a,b", 'say "x"', "1_24", "5E1", "−4", "1,240", "$3", "two\nlines"], ROWS
        ).tolist(),
    }
    chosen = cells[kind]
    return [None if holes and stream.random() < 0.2 else cell for cell in chosen]


def written(table: dict[str, list[Any]], path: Path) -> Path:
    """A file with these columns: a text, a workbook, Parquet by Arrow's own types or as pandas writes it."""
    if path.name.endswith("bare.parquet"):
        import pyarrow.parquet as pq

        pq.write_table(pa.table(table), path)
        return path
    frame = pd.DataFrame({name: pd.Series(cells, dtype=pandas_type(cells)) for name, cells in table.items()})
    if path.suffix == ".parquet":
        frame.index = pd.Index(range(7, 7 + ROWS), name="row")
        frame.to_parquet(path)
    elif path.suffix == ".xlsx":  # whose numbers are floats: larger ones have to be texts
        frame = frame.map(lambda cell: str(cell) if isinstance(cell, int) and cell >= LARGE else cell)
        frame.to_excel(path, index=False)
    else:
        frame.to_csv(path, sep="\t" if path.suffix == ".tsv" else ",", index=False)
    return path


def pandas_type(cells: list[Any]) -> Any:
    kinds = {type(cell) for cell in cells if cell is not None}
    return {int: "Int64", float: "float64", bool: "boolean"}.get(kinds.pop() if len(kinds) == 1 else str, object)


def expected(cells: list[Any]) -> list[str]:
    return ["" if cell is None else str(cell).strip() for cell in cells]


@pytest.mark.parametrize("seed", range(12))
def test_every_format_gives_back_the_same_texts(seed: int, tmp_path: Path) -> None:
    stream = np.random.default_rng(seed)
    kinds = ("small", "large", "float", "bool", "codes", "texts")
    table = {f"{kind}{holes}": column(stream, kind, bool(holes)) for kind in kinds for holes in (0, 1)}
    table |= {"key": list(range(ROWS))}
    for form in FORMATS:
        found = read_table(written(table, tmp_path / f"t.{form}"))
        assert list(found.columns) == list(table), form
        for name, cells in table.items():
            got = texts(found[name])
            due = expected(cells)
            if form == "xlsx" and name.startswith("float"):  # a workbook has one kind of number
                due = [text.removesuffix(".0") for text in due]
            assert np.where(missing(got), "", got).tolist() == due, (form, name)


@pytest.mark.parametrize("label", ["small", "codes", "large", "bool"])
@pytest.mark.parametrize("owner", ["small", "codes", "large", "texts"])
def test_every_format_gives_the_same_classes_and_owners(label: str, owner: str, tmp_path: Path) -> None:
    """Rows without a target or an owner are left out; all others have the class and the owner that stand in the file."""
    stream = np.random.default_rng(len(label) * 100 + len(owner))
    y, who = column(stream, label, True), column(stream, owner, True)
    table = {"x": stream.normal(size=ROWS).tolist(), "kind": column(stream, "large", True), "y": y, "who": who}
    keys = {"label": "y", "client": "who", "task": "classes", "categories": ["kind"], "missing": "median", "test": 0.25}
    seen = []
    for form in FORMATS:
        d = load_dataset(DataConfig(name="file", path=str(written(table, tmp_path / f"t.{form}")), **keys), 1)
        there = [i for i in range(ROWS) if y[i] is not None and who[i] is not None]
        for split in (d.train, d.test):
            rows = split.row.tolist()
            assert {*rows} <= {*there}
            assert [d.class_names[c] for c in split.y] == [class_text(expected(y)[i]) for i in rows], form
            codes = ["" if np.isnan(c) else d.schema[1].categories[int(c)] for c in split.x[:, 1].tolist()]
            assert codes == [expected(table["kind"])[i] for i in rows], form
        assert [d.client_names[c] for c in d.train.client] == [expected(who)[i] for i in d.train.row.tolist()], form
        seen.append((d.class_names, d.client_names, d.train.row.tolist(), d.train.y.tolist(), d.train.client.tolist()))
    assert all(one == seen[0] for one in seen)


@pytest.mark.parametrize("seed", range(6))
def test_every_format_gives_a_party_the_same_ids_and_numbers(seed: int, tmp_path: Path) -> None:
    """Ids above 2^53 with a hole, numbers that 32 bits do not hold, codes with leading zeros; in training and for new rows."""
    stream = np.random.default_rng(seed)
    ids: list[Any] = [LARGE + int(i) for i in stream.permutation(ROWS)]
    ids[int(stream.integers(ROWS))] = None
    table = {
        "id": ids,
        "x": (0.1 + 1e-9 * stream.integers(0, 3, ROWS)).tolist(),
        "n": [100000001 + int(i) for i in stream.integers(0, 2, ROWS)],
        "code": column(stream, "codes", True),
        "y": column(stream, "codes", False),
    }
    table["y"] = ["01" if int(cell) % 2 else "1" for cell in table["y"]]
    for form in FORMATS:
        path = written(table, tmp_path / f"t.{form}")
        found = read_party(PartyFile("p", str(path), "id", label="y", task="classes", categories=("code",)))
        assert found.ids == tuple(expected(ids)), form
        assert found.x[:, :2].tolist() == [list(pair) for pair in zip(table["x"], table["n"], strict=True)], form
        assert [found.class_names[int(c)] for c in found.y] == table["y"], form
        again = new_rows(str(path), TrainedTable("p", "id", found.schema, None, found.reading, found.bits))
        assert np.array_equal(again.x, found.x, equal_nan=True)
        assert again.ids == found.ids


def test_ids_that_a_workbook_rounds_are_refused(tmp_path: Path) -> None:
    for k, large in enumerate((LARGE + 1, 10**17)):
        frame = pd.DataFrame({"id": [1, large, None], "x": [1, 2, 3]}, dtype=object)
        frame.to_excel(tmp_path / f"{k}.xlsx", index=False)
        with pytest.raises(DataError, match=r"ids in 'id' are stored as floating-point numbers of 2\^53 or more"):
            read_party(PartyFile("p", str(tmp_path / f"{k}.xlsx"), "id"))
