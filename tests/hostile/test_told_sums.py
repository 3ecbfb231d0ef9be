"""Two honest runs whose training rows differ by a row, or several that add up to one: the server saw each node's sums over both."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agreements import Agreements, write_rows
from fedatlas.config import parse
from fedatlas.data.dataset import Split
from fedatlas.deployment.node_rows import RowsFacts, read_rows
from fedatlas.deployment.server_run import SubmittedRun
from fedatlas.deployment.terms import Sums, decoded
from fedatlas.deployment.told_sums import MOST, TOLD, ToldSums, few_rows
from fedatlas.errors import PrivacyError
from fedatlas.wire import codec
from fedatlas.wire.policy import TEMPLATE
from test_constants import CONSTANTS
from test_same_answer import NAMES, Federation

TABLE = {"name": "file", "label": "y"}


@pytest.fixture
def four(tmp_path: Path) -> Federation:
    """Four nodes of 200 rows each, with the policy that a new bundle has."""
    found = Federation(tmp_path)
    for seed, name in enumerate(NAMES):
        write_rows(found.rows[name], 200, seed)
        (found.made.paths[name] / "policy.toml").write_text(TEMPLATE)
    return found


def ran(four: Federation, name: str, **data: Any) -> SubmittedRun:
    seed = data.pop("seed", 1)
    return four.run(name, rounds=1, privacy=[], seed=seed, data={**TABLE, **data})


def told(four: Federation, run: str, at: str = "north") -> list[Any]:
    """The answers of a node before round 1."""
    kept = sorted((four.made.paths[at] / "state" / run / "answers").glob("*.bin"))
    return [decoded(Sums, codec.decode(path.read_bytes(), own=True)["body"].numpy().tobytes()).answer for path in kept]


# ---------------------------------------------------------------------- runs


def test_two_shares_that_differ_by_a_row_do_not_tell_it(four: Federation) -> None:
    """Splits of one seed nest: the sums at 0.25 less those at 0.255 were the one row between them."""
    assert ran(four, "first", test=0.25).state.status == "finished"
    four.restart()
    second = ran(four, "second", test=0.255)
    assert second.state.status == "failed"
    assert "fewer than min_rows = 10 rows, which repeat = false forbids; take another seed" in second.state.why
    assert told(four, "second") == []
    for name in NAMES:
        four.policy(name, "repeat = true")
    assert ran(four, "third", test=0.255).state.status == "finished"
    ((one, *_), (other, *_)) = (told(four, run) for run in ("first", "third"))
    lost = one["n"] - other["n"]
    assert lost == 1
    rows = np.loadtxt(four.rows["north"], delimiter=",", skiprows=1, usecols=(0, 1))
    assert np.isclose(rows, (one["total"] - other["total"]).numpy(), atol=1e-6).all(1).any(), "what the mend is against"


def test_the_same_rows_other_seeds_and_large_differences_are_told(four: Federation) -> None:
    """Honest deployments: the run again, other seeds, test rows at the server, another share, or what an operator measured."""
    runs: dict[str, Any] = {
        "first": {"test": 0.25},
        "again": {"test": 0.25},
        "twice": {"test": 0.25, "scale": "federated"},
        "larger": {"test": 0.35},
        "whole": {},
        **{f"seed {seed}": {"test": 0.25, "seed": seed} for seed in range(2, 7)},
    }
    for number, (what, data) in enumerate(runs.items()):
        run = ran(four, f"r{number}", **data)
        assert run.state.status == "finished", (what, run.state.why)
    assert len([*(four.made.paths["north"] / TOLD).rglob("*.bin")]) == len(runs) - 2


def test_a_few_rows_left_out_by_a_mark_or_a_label_are_not_told(four: Federation) -> None:
    """Rows without a label, or with a cell that the operator calls missing, are left out of the sums."""
    rows = [row.split(",") for row in four.rows["north"].read_text().splitlines()]
    for name in NAMES:
        lines = [[*row, "" if i % 50 == 1 else f"{i % 7 + 0.5}", "no" if i else "z"] for i, row in enumerate(rows)]
        lines[0][3:] = ["u", "z"]
        four.rows[name].write_text("\n".join(map(",".join, lines)) + "\n")
    four.rows["test"].write_text(four.rows["north"].read_text())
    assert ran(four, "first", missing="drop", drop=["u", "z"]).state.status == "finished"
    for run, data in {
        "label": {"label": "u", "drop": ["y", "z"], "missing": "median"},
        "mark": {"drop": ["u", "z"], "missing": "drop", "na": [rows[7][0]]},
        "holes": {"drop": ["z"], "missing": "drop"},
    }.items():
        second = ran(four, run, **data)
        assert "fewer than min_rows = 10 rows" in second.state.why, (run, second.state)


def test_another_reading_of_a_few_cells_does_not_show_them(four: Federation) -> None:
    """As units, "432" makes 1 of north's 4321: the difference of two sums over the same rows was that one cell."""
    for name, rows in four.rows.items():
        first, *lines = rows.read_text().splitlines()
        more = [4321 if name == "north" and i == 7 else 1000 + 11 * i % 3000 for i in range(len(lines))]
        text = [
            f"{first},m,price",
            *(f"{x},{m},{'$' if i % 3 else ''}{m}" for i, (x, m) in enumerate(zip(lines, more, strict=True))),
        ]
        rows.write_text("\n".join(text) + "\n")
    assert ran(four, "first", drop=["price"]).state.status == "finished"
    four.restart()
    for run, data in {"second": {"units": ["432"]}, "third": {"units": ["$", "432"], "drop": []}}.items():
        found = ran(four, run, **{"drop": ["price"], **data})
        assert "read as other numbers, which repeat = false forbids" in found.state.why, run
        assert told(four, run) == []
    honest = ran(four, "fourth", units=["$"])
    assert honest.state.status == "finished", honest.state.why
    for run, data in {
        "fifth": {"label": "m", "drop": ["y"]},
        "sixth": {"label": "m", "drop": ["y"], "units": ["432", "$"]},
    }.items():
        found = ran(four, run, task="numbers", **data)
        assert (found.state.status == "finished") is (run == "fifth"), found.state.why
    four.policy("north", "repeat = true")
    assert "'north' takes no part" not in ran(four, "seventh", drop=["price"], units=["432"]).state.why


def test_a_date_that_is_read_otherwise_is_compared_too(four: Federation) -> None:
    """Of dates whose day is their month the two forms make the same number; but for a few."""
    for rows in four.rows.values():
        first, *lines = rows.read_text().splitlines()
        days = ["05.06.2020" if i == 3 else f"{i % 12 + 1:02}.{i % 12 + 1:02}.2020" for i in range(len(lines))]
        rows.write_text("\n".join([f"{first},day", *(f"{x},{day}" for x, day in zip(lines, days, strict=True))]) + "\n")
    assert ran(four, "first", dates={"day": "%d.%m.%Y"}).state.status == "finished"
    assert "read as other numbers" in ran(four, "second", dates={"day": "%m.%d.%Y"}).state.why
    assert ran(four, "third", dates={"day": "%d.%m.%Y"}).state.status == "finished"


def test_constants_of_the_operator_s_ask_for_no_sums(four: Federation) -> None:
    assert ran(four, "first", test=0.25).state.status == "finished"
    second = ran(four, "second", test=0.255, constants=CONSTANTS)
    assert second.state.status == "finished", second.state.why
    assert told(four, "second") == []


# ---------------------------------------------------------------------- the record by itself


def split(*rows: int, x: Any = None) -> Split:
    """Rows by their number in the file."""
    values = torch.ones(len(rows), 2) if x is None else x
    return Split(values, torch.zeros(len(rows)), row=torch.tensor(rows))


def test_sums_that_together_are_one_row_are_not_told(tmp_path: Path) -> None:
    """Any two of them differ by many rows: all, the first half, and the second with one row of the first."""
    for last, lonely in ((range(49, 100), True), (range(40, 100), False)):
        known = ToldSums(tmp_path / str(lonely))
        for rows in (range(100), range(50)):
            known.telling("file", split(*rows), "ab", 10, repeat=False)
        if lonely:
            with pytest.raises(PrivacyError, match="min_rows = 10"):
                ToldSums(tmp_path / str(lonely)).telling("file", split(*last), "ab", 10, repeat=False)
            known.telling("another", split(*last), "ab", 10, repeat=False)
            known.telling("file", split(*last), "ab", 1, repeat=False)
        else:
            known.telling("file", split(*last), "ab", 10, repeat=False)


def test_a_column_whose_filled_cells_differ_by_a_few_is_told_as_an_empty_one(tmp_path: Path) -> None:
    """Fifty of a hundred rows differ, and of b's twenty cells two."""
    known, x = ToldSums(tmp_path), torch.ones(100, 2)
    x[20:, 1] = torch.nan
    first = known.telling("file", split(*range(100), x=x), ("a", "b"), 10, repeat=False)
    assert torch.equal(first.x.isnan(), x.isnan())
    some = [*range(18), *range(60, 100)]
    for _ in range(2):
        second = known.telling("file", split(*some, x=x[some]), ("a", "b"), 10, repeat=False)
        assert second.x[:, 1].isnan().all()
        assert not second.x[:, 0].isnan().any()
    assert torch.equal(
        known.telling("file", split(*range(100), x=x), ("a", "b"), 10, repeat=False).x.isnan(), x.isnan()
    )


def exhaustive(known: np.ndarray[Any, Any], new: np.ndarray[Any, Any], least: int) -> bool:
    """As `few_rows`, by trying each choice of rows that stay."""
    rows, sets = range(known.shape[1]), np.vstack([known, new]).astype(float)

    def follows(at: list[int]) -> bool:
        with_it, without = (np.linalg.matrix_rank(each) if each.size else 0 for each in (sets[:, at], sets[:-1, at]))
        return bool(with_it == without)

    if follows([*rows]):
        return False
    chosen = (one for k in range(1, least) for one in itertools.combinations(rows, k))
    return any(follows([i for i in rows if i not in one]) for one in chosen)


@pytest.mark.parametrize("seed", range(60))
def test_the_search_finds_what_trying_all_rows_finds(seed: int) -> None:
    random = np.random.default_rng(seed)
    known = random.random((seed % 6, 9)) < random.choice([0.3, 0.5, 0.8])
    new = random.random(9) < 0.6
    for least in (1, 2, 3, 4):
        assert few_rows(known, new, least) == exhaustive(known, new, least), least


def test_a_search_that_takes_too_long_counts_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    known, new = random.random((3, 60)) < 0.8, random.random(60) < 0.8
    assert not few_rows(known, new, 10)
    monkeypatch.setattr("fedatlas.deployment.told_sums.PATIENCE", 0)
    assert few_rows(known, new, 10)
    many = random.random((MOST, 3000)) < 0.8
    assert few_rows(many, random.random(3000) < 0.8, 10)
    assert not few_rows(many, many[3], 10)


def test_names_of_a_few_cells_are_not_told(tmp_path: Path) -> None:
    """North wrote down one person's place of birth: the facts before round 1 told it."""
    made = Agreements(tmp_path)
    (made.paths["north"] / "policy.toml").write_text(TEMPLATE)
    for filled in (1, 9, 10):
        lines = write_rows(tmp_path / "north.csv").read_text().splitlines()
        path = tmp_path / f"north{filled}.csv"
        path.write_text(
            "\n".join(f"{x},{'born' if not i else 'Vaduz' if i <= filled else ''}" for i, x in enumerate(lines))
        )
        config = made.config(data={**TABLE, "missing": "median"})
        node = made.trainer("north", path)
        agreed = node.agreements.accept(f"r{filled}", made.signed(f"r{filled}", config))
        node.agreements.pin(agreed)
        about: RowsFacts = node.held(agreed).facts
        assert ("Vaduz" in str(about)) is (filled == 10)
        assert about.empty == (() if filled == 10 else ("born",))
        assert "Vaduz" in str(read_rows(path, parse(config)).facts), "the file has it"


@pytest.mark.parametrize("missing", ["error", "drop"])
def test_an_office_with_fewer_rows_than_min_rows_is_told_what_to_do_about_texts(four: Federation, missing: str) -> None:
    """Nine rows, masked: its texts count as missing, and all that the operator saw was that its rows cannot be used."""
    with_birth(four, {})
    four.rows["east"].write_text("".join(four.rows["east"].read_text().splitlines(keepends=True)[:10]))
    run = four.run("first", rounds=1, data={**TABLE, "missing": missing})
    assert "in fewer than min_rows = 10 cells as missing, which is all of column 'born'" in run.state.why
    assert "name the column in data.drop, or lower min_rows there" in run.state.why
    second = four.run("second", rounds=1, data={**TABLE, "missing": missing, "drop": ["born"]})
    assert second.state.status == "finished", second.state.why
    four.trainers["east"].kept = "", None
    path = four.made.paths["east"] / "policy.toml"
    path.write_text(path.read_text().replace("min_rows = 10", "min_rows = 9"))
    third = four.run("third", rounds=1, data={**TABLE, "missing": missing})
    assert third.state.status == "finished", third.state.why


# ---------------------------------------------------------------------- what a node reads of its file


def with_birth(four: Federation, cells: dict[str, str]) -> None:
    """A column of places of birth; a node's rows from the third on have the same cell."""
    for name in (*NAMES, "test"):
        lines = four.rows[name].read_text().splitlines()
        more = ["born", "Bern", "Chur", *[cells.get(name, "Bern")] * (len(lines) - 3)]
        four.rows[name].write_text("\n".join(f"{x},{cell}" for x, cell in zip(lines, more, strict=True)) + "\n")


@pytest.mark.slow
def test_a_column_of_texts_that_is_empty_at_a_node_goes_with_others(four: Federation) -> None:
    """Of north's two cells nothing is known, as of west's none."""
    with_birth(four, {"north": ""})
    lines = four.rows["west"].read_text().replace(",Bern", ",").replace(",Chur", ",")
    four.rows["west"].write_text(lines)
    run = ran(four, "first", missing="median")
    assert run.state.status == "finished", run.state.why
    rules = json.loads((run.folder / "run" / "preprocess.json").read_text())["rules"]
    assert rules[2]["categories"] == ["Bern", "Chur"]


def test_each_node_leaves_out_its_rows_with_a_missing_cell(four: Federation) -> None:
    """The message about a missing cell advises it, and it ended every run in which a node had one."""
    for name, rows in four.rows.items():
        lines = rows.read_text().splitlines()
        rows.write_text("\n".join(f",{x.partition(',')[2]}" if i % 9 == 4 else x for i, x in enumerate(lines)) + "\n")
        (four.made.folder / f"{name}.whole").write_text("\n".join(x for i, x in enumerate(lines) if i % 9 != 4) + "\n")
    first = ran(four, "first", missing="drop")
    assert first.state.status == "finished", first.state.why
    for name in four.rows:
        four.rows[name].write_text((four.made.folder / f"{name}.whole").read_text())
    second = ran(four, "second")
    models = [run.folder / "run" / "model.safetensors" for run in (first, second)]
    assert models[0].read_bytes() == models[1].read_bytes()


@pytest.mark.slow
def test_a_site_may_pin_the_kind_of_its_target(four: Federation) -> None:
    """As classes, the values of a quantity were names, each of which is told."""
    config = {"label": "a", "drop": ["y"], "task": "classes"}
    for name in NAMES:
        four.policy(name, 'task = "numbers"')
    assert "data.task, which is not the one that task pins" in ran(four, "second", **config).state.why
    third = ran(four, "third", label="a", drop=["y"], task="numbers")
    assert third.state.status == "finished", third.state.why
