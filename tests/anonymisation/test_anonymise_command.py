"""``fedatlas anonymise`` and `fedatlas.anonymise`: files in, table and page out, and one sentence for each wrong input."""

from __future__ import annotations

import csv
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Browser

import fedatlas
from command_line import Done
from fedatlas import cli
from fedatlas.errors import ConfigError, FedatlasError
from oracles import anonymity as oracle

ROWS = 120


def people() -> pd.DataFrame:
    """Names, three quasi-identifiers of which one has gaps, an income, and a column that stays."""
    rng = np.random.default_rng(3)
    income = rng.choice(["low", "middle", "high"], ROWS, p=[0.5, 0.3, 0.2])
    return pd.DataFrame(
        {
            "name": [f"person {i}" for i in range(ROWS)],
            "age": rng.integers(18, 90, ROWS),
            "zip": rng.choice(["0101", "0102", "2200", "2300"], ROWS),
            "height": np.where(rng.random(ROWS) < 0.1, np.nan, rng.normal(170, 10, ROWS).round(1)),
            "income": income,
            "visits": rng.integers(0, 3, ROWS),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """With semicolons, decimal commas and cp1252, as a spreadsheet saves it."""
    path = tmp_path / "people.csv"
    frame = people().assign(height=people()["height"].map(lambda x: "" if np.isnan(x) else str(x).replace(".", ",")))
    frame = frame.rename(columns={"height": "größe"})
    path.write_bytes(frame.to_csv(index=False, sep=";").encode("cp1252"))
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """``command(IN, OUT, ...)`` as the shell would call it, in this process."""

    def call(*words: Any) -> Done:
        monkeypatch.setattr(sys, "argv", ["fedatlas", "anonymise", *map(str, words)])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        return Done(int(end.value.code or 0), said.out, said.err)

    return call


def test_a_table_becomes_one_whose_rows_look_alike(table: Path, tmp_path: Path, command: Callable[..., Done]) -> None:
    """Read by the project's reader, written as UTF-8 with commas. k, l and t are counted in the file that was written."""
    out = tmp_path / "out.csv"
    roles = ["--quasi", "age,zip", "--quasi", "größe", "--sensitive", "income", "--drop", "name", "--categories", "zip"]
    done = command(table, out, *roles, "--k", 5, "--l", 2, "--t", 0.3)
    assert done.code == 0, done.stderr
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert list(rows[0]) == ["age", "zip", "größe", "income", "visits"]
    assert len(rows) == ROWS
    secret = [row["income"] for row in rows]
    assert sorted(secret) == sorted(people()["income"])
    parts = oracle.classes([(row["age"], row["zip"], row["größe"]) for row in rows])
    assert min(map(len, parts)) >= 5
    assert len(parts) > 1
    for part in parts:
        own = [secret[i] for i in part]
        assert oracle.distinct(own) >= 2
        assert oracle.closeness(own, secret, lambda a, b: float(a != b)) <= 0.3 + 1e-9
    assert f"120 rows in {len(parts)} classes; the smallest has {min(map(len, parts))} rows." in done.stdout
    assert "Re-identification risk before: highest 100%" in done.stdout
    assert f"{out} written; the page: {tmp_path / 'out.html'}" in done.stdout
    assert "person 1" not in out.read_text() + (tmp_path / "out.html").read_text()


def test_the_figures_are_one_json_object(table: Path, tmp_path: Path, command: Callable[..., Done]) -> None:
    out, page = tmp_path / "out.csv", tmp_path / "pages" / "page.html"
    words = ["--quasi", "age,zip", "--drop", "name", "--k", 4, "--suppress", 0.05, "--report", page, "--json"]
    found = json.loads(command(table, out, *words).stdout)
    assert page.exists()
    assert found["rows"] == ROWS
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == ROWS - found["left_out"]
    assert found["left_out"] <= 0.05 * ROWS
    parts = oracle.classes([(row["age"], row["zip"]) for row in rows])
    assert found["classes"] == len(parts)
    assert found["smallest_class"] == min(map(len, parts)) >= 4
    assert found["risk"]["after"]["highest"] == 1 / min(map(len, parts))
    assert found["risk"]["after"]["mean"] == pytest.approx(len(parts) / len(rows))
    assert found["discernibility"]["after"] == sum(len(p) ** 2 for p in parts) + found["left_out"] * ROWS
    assert "No column is named as sensitive" in " ".join(found["notices"])


def test_a_sheet_of_a_workbook_is_read(tmp_path: Path, command: Callable[..., Done]) -> None:
    book, out = tmp_path / "people.xlsx", tmp_path / "out.csv"
    with pd.ExcelWriter(book) as writer:
        people().to_excel(writer, sheet_name="people", index=False)
        people().head(3).to_excel(writer, sheet_name="few", index=False)
    done = command(book, out, "--quasi", "age,zip", "--drop", "name", "--k", 6, "--sheet", "people")
    assert done.code == 0, done.stderr
    rows = [(row["age"], row["zip"]) for row in csv.DictReader(out.read_text().splitlines())]
    assert len(rows) == ROWS
    assert min(map(len, oracle.classes(rows))) >= 6
    assert "sheet" in command(book, tmp_path / "b.csv", "--quasi", "age", "--sheet", "none").stderr


def test_the_order_of_rows_tells_nothing() -> None:
    frame = people()
    found, turned = (
        fedatlas.anonymise(each, quasi=["age", "zip"], drop=["name"], k=5).table for each in (frame, frame.iloc[::-1])
    )
    pd.testing.assert_frame_equal(found, turned)
    assert "visits" in found
    assert found["visits"].dtype == frame["visits"].dtype


def test_hierarchies_replace_cells_by_groups(tmp_path: Path) -> None:
    file = tmp_path / "groups.toml"
    file.write_text('[zip]\nnorth = ["0101", "0102"]\n[zip.south]\ncoast = ["2200"]\nhills = ["2300"]\n')
    found = fedatlas.anonymise(people(), quasi=["zip"], drop=["name"], k=32, hierarchies=file)
    assert set(found.table["zip"]) <= {"north", "south", "*", "2200", "2300", "0101", "0102", "coast", "hills"}
    assert {"north", "south"} & {*found.table["zip"]}
    by_income = {"income": {"poor": ["low"], "not poor": ["middle", "high"]}}
    rated = fedatlas.anonymise(
        people(), quasi=["age"], sensitive=["income"], drop=["name"], t=0.2, hierarchies=by_income
    )
    assert rated.sensitive["income"].how == "by hierarchy"
    assert rated.sensitive["income"].distance <= 0.2 + 1e-9
    with pytest.raises(ConfigError, match="the hierarchy of 'zip' lacks '2300', which the table holds: add it"):
        fedatlas.anonymise(people(), quasi=["zip"], hierarchies={"zip": {"a": ["0101", "0102", "2200"]}})


def test_doubts_are_named() -> None:
    frame = people().assign(area=people()["zip"].map({"0101": "N1", "0102": "N2", "2200": "S1", "2300": "S2"}))
    said = " ".join(fedatlas.anonymise(frame, quasi=["zip"], k=5).doubts)
    assert "Column 'name' stays as it is, but most of its cells occur once" in said
    assert "Column 'area' stays as it is and tells 'zip', which is generalised" in said
    quiet = fedatlas.anonymise(people(), quasi=["age", "zip", "height"], sensitive=["income"], drop=["name"], l=2)
    assert quiet.doubts == ()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"quasi": ["agge"]}, "unknown column in quasi 'agge': did you mean 'age'?"),
    ({"quasi": []}, "quasi names no column"),
    ({"sensitive": ["age"]}, "column 'age' is in quasi and in sensitive: give it one role."),
    ({"k": 121}, "k = 121, but there are only 120 rows: choose a smaller k."),
    ({"k": 0}, "k and l are at least 1"),
    ({"l": 2}, "l and t are about sensitive columns: name them with sensitive."),
    ({"t": 0.5}, "l and t are about sensitive columns"),
    ({"t": 1.5, "sensitive": ["income"]}, "t lies between 0 and 1"),
    ({"l": 4, "sensitive": ["income"]}, "l = 4, but 'income' has only 3 different values: choose a smaller l."),
    ({"l": 2.5, "sensitive": ["income"]}, "l = 2.5: a whole number, unless"),
    ({"l": 3, "sensitive": ["income"], "diversity": "entropy"}, "entropy diversity in 'income'; 2."),
    ({"diversity": "much"}, "diversity = 'much': take distinct, entropy or recursive."),
    ({"suppress": 0.1, "t": 0.2, "sensitive": ["income"]}, "suppress does not go with t"),
    ({"hierarchies": {"visits": {"a": ["1"]}}}, "hierarchy of 'visits', but it is no column of quasi or sensitive"),
    ({"hierarchies": "nowhere.toml"}, "there is no file 'nowhere.toml'"),
    ({"report": "page.html"}, "report is written together with the table: give out, too."),
    ({"out": "out.xlsx"}, "'out.xlsx': the anonymised table is written as CSV"),
    ({"quasi": "age"}, "quasi is a list of columns: quasi=['age']."),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_a_wrong_input_is_one_sentence(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(FedatlasError) as error:
        fedatlas.anonymise(people(), **{"quasi": ["age", "zip"], "drop": ["name"], **keys})
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_answers_wrong_files_in_one_line(table: Path, tmp_path: Path, command: Callable[..., Done]) -> None:
    (tmp_path / "there.csv").write_text("kept")
    (tmp_path / "page.html").write_text("kept")
    (tmp_path / "bad.toml").write_text("zip = [")
    tries = {
        (table, table, "--quasi", "age"): f"'{table}' is the table to read: give another name, or remove it.",
        (table, tmp_path / "there.csv", "--quasi", "age"): "there.csv' exists already",
        (table, tmp_path / "page.csv", "--quasi", "age"): "page.html' exists already",
        (tmp_path / "none.csv", tmp_path / "a.csv", "--quasi", "age"): "there is no file",
        (table, tmp_path / "a.csv", "--quasi", "agge"): "unknown column in --quasi 'agge': did you mean 'age'?",
        (table, tmp_path / "a.csv", "--quasi", "age", "--k", "0"): "invalid value for '--k'",
        (table, tmp_path / "a.csv"): "missing option '--quasi'",
        (table, tmp_path / "a.csv", "--quasi", "age", "--hierarchies", tmp_path / "bad.toml"): "is not TOML",
        (table, tmp_path / "a.csv", "--quasi", "age", "--entropy", "--recursive", "2"): "give one of them",
    }
    for words, said in tries.items():
        done = command(*words)
        assert done.code == 2, words
        assert said in done.stderr, words
        assert done.stderr.startswith("fedatlas: ")
        assert done.stderr.count("\n") == 1
        assert not done.stdout
    assert (tmp_path / "there.csv").read_text() == (tmp_path / "page.html").read_text() == "kept"
    assert not (tmp_path / "a.csv").exists()


def test_an_infinite_number_is_refused() -> None:
    frame = people().assign(height=np.inf)
    with pytest.raises(FedatlasError, match="column 'height' holds an infinite number"):
        fedatlas.anonymise(frame, quasi=["height"])


def test_the_page_is_whole_on_a_screen_and_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    roles: dict[str, Any] = {"quasi": ["age", "zip", "height"], "sensitive": ["income"], "drop": ["name"]}
    found = fedatlas.anonymise(people(), tmp_path / "out.csv", **roles, k=5, l=2, t=0.4)
    for width in (1280, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.goto((tmp_path / "out.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        text = page.inner_text("body")
        assert "Each of the 120 rows looks like at least" in text
        for said in ("Other releases", "Skew and similarity", "quasi-identifier", "left out", "before: 100%"):
            assert said in text
        assert page.locator("figure:visible").count() == 2
        page.close()
    written = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert (written == found.table.astype(str)).all(axis=None)
