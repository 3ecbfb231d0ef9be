"""What rows at nodes tell of labels: the rules on cases whose answer is known, and the measurement of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedatlas
from boosting_federation import Table, trained
from fedatlas import api
from fedatlas.runs.columns_labels import LettersHeard
from fedatlas.vertical.boosting.guesses import (
    ATTACK,
    by_both,
    by_draws,
    by_rows,
    cases,
    first_tree,
    measured,
    told_labels,
)
from fedatlas.vertical.boosting.settings import MODES, secureboost
from fedatlas.vertical.boosting.told import RoundTold
from fedatlas.vertical.scheme import KnownRows
from test_vertical_run import experiment, tables

Y = np.array([True, True, True, False, True, False, False, False])
ALL = np.arange(8)
PURE, MIXED, EVEN = [2, 2, 2, 3, 2, 3, 3, 3], [2, 2, 2, 2, 3, 3, 3, 3], [2, 2, 3, 2, 3, 2, 3, 3]
TWO = np.array([0, 3])  # one known row of the class, and one of the others


def told(*trees: list[int], rows: list[int] | None = None) -> RoundTold:
    """A round of one tree; trees of several classes begin at other roots (`nodes`)."""
    assert len(trees) == 1
    return RoundTold(1, None if rows is None else np.array(rows), np.array(trees))


# ------------------------------------------------------------------------------------------------ the rules


@pytest.mark.parametrize(
    ("at", "known"),
    [
        (PURE, 1.0),
        (MIXED, 0.75),  # 3 of 4 against 1 of 4: 9/16 of the pairs are right, and of the 6/16 that tie half
        (EVEN, 0.5),
        ([1] * 8, 0.5),  # nothing told
    ],
    ids=["pure", "mixed", "even", "nothing"],
)
def test_the_first_tree_by_hand(at: list[int], known: float) -> None:
    assert first_tree([told([1] * 8), told(at), told(PURE)] if at != [1] * 8 else [told(at)], Y, ALL) == known


def test_the_first_tree_tells_what_its_draws_tell() -> None:
    """Nodes with as many rows of the class as others, of which only those of the class are drawn: the bound is 1."""
    assert first_tree([told(EVEN)], Y, ALL) == 0.5
    assert first_tree([told(EVEN, rows=np.flatnonzero(Y).tolist())], Y, ALL) == 1.0
    assert first_tree([told([1] * 8, rows=np.flatnonzero(Y).tolist()), told(EVEN)], Y, ALL) == 1.0, "a root is told too"


def test_rows_with_known_ones_by_hand() -> None:
    """Row 0 is known to be of the class and row 3 not to be: +1 at a node with the former, -1 with the latter, in each tree."""
    score = by_rows([told(PURE), told([2, 3, 3, 3, 2, 2, 3, 3])], Y, ALL, TWO)
    assert score.tolist() == [2, 0, 0, -2, 2, 0, -2, -2]
    assert measured(by_rows([told(PURE)], Y, ALL, TWO), Y) == 1.0
    assert by_rows([told([1] * 8)], Y, ALL, TWO).tolist() == [0] * 8


def test_levels_add_up_from_the_root_down() -> None:
    """Nodes 4 and 5 share their parent 2: half as much in common as within one of them. Node 3 is a leaf, and stays one."""
    score = by_rows([told([4, 4, 5, 5, 3, 3, 3, 3])], Y, ALL, np.array([0]))
    assert score.tolist() == [2, 2, 1, 1, 0, 0, 0, 0]


def test_draws_by_hand() -> None:
    """Rows of the class are drawn in both trees, others in none; the known rows give the sign either way."""
    assert by_draws([told([1] * 8, rows=[0, 1, 2, 4])] * 2, Y, ALL, TWO).tolist() == (2 * Y).tolist()
    assert by_draws([told([1] * 8, rows=[3, 5, 6, 7])] * 2, Y, ALL, TWO).tolist() == (-2 * ~Y).tolist()


def test_both_find_what_neither_finds_by_itself() -> None:
    """Where most rows are of the class the drawn ones are the others, elsewhere those of it: at no node, nor by draws, do labels show."""
    y = np.array([True] * 3 + [False] + [True] + [False] * 3)
    at, rows = [2] * 4 + [3] * 4, [3, 4]
    four = np.array([0, 3, 4, 7])
    apart = [rule([told(at, rows=rows)], y, ALL, four) for rule in (by_rows, by_draws)]
    assert max(measured(one, y) for one in apart) <= 0.5
    assert measured(by_both([told(at, rows=rows)], y, ALL, four), y) == 1.0


# ------------------------------------------------------------------------------------------------ whole trainings


def of(table: Table, how: Any, party: int = 1) -> dict[str, float]:
    heard, train = LettersHeard(), np.arange(len(table.y))
    trained(table, [[0], [1]], how, observers=[heard])
    return told_labels(how, party, heard.letters.get(party, []), KnownRows(len(train), train, table.y, table.task, 0))


def test_a_party_whose_column_is_the_label_is_told_all_and_one_without_messages_nothing() -> None:
    """200 rows; the passive party's column decides the label. While it takes no part it is at chance, exactly."""
    stream = np.random.default_rng(0)
    x = stream.normal(size=(200, 2)).round()
    table = Table(x, (x[:, 1] > 0).astype(float), "classes")
    assert of(table, secureboost(trees=3)) == {"first tree": 1.0, "rows": 1.0}
    assert of(table, secureboost(trees=3, complete_secure=3)) == {"first tree": 0.5, "rows": 0.5}


def test_labels_that_hang_on_nothing_are_at_chance_by_rows() -> None:
    """A label of coins: nodes of later trees hold rows of both classes alike, but for what trees learn by heart."""
    stream = np.random.default_rng(1)
    x, coins = stream.normal(size=(2000, 2)), stream.integers(0, 2, 2000).astype(float)
    found = of(Table(x, coins, "classes"), secureboost(trees=1, depth=2))
    assert found["rows"] == pytest.approx(0.5, abs=0.03)


def test_draws_tell_the_rarer_class() -> None:
    """A fifth of the rows is of the class, and nothing predicts it: these have the largest gradients from the second tree on."""
    stream = np.random.default_rng(2)
    table = Table(stream.normal(size=(400, 2)), (np.arange(400) % 5 == 0).astype(float), "classes")
    found = of(table, secureboost(trees=8, depth=1, min_leaf=100, goss=(0.2, 0.1)))
    assert found["draws"] > 0.99
    assert found["rows"] < 0.65


def test_classes_and_numbers() -> None:
    """Three classes each against the others; a number against its median."""
    stream = np.random.default_rng(3)
    x = stream.normal(size=(150, 2))
    number = Table(x, (x[:, 1] > np.median(x[:, 1])) * 5.0 + 40 + stream.random(150), "numbers")
    assert of(number, secureboost(trees=1, bins=2))["first tree"] == 1.0
    three = Table(x, np.searchsorted([-0.5, 0.5], x[:, 1]).astype(float), "classes")
    assert of(three, secureboost(trees=2, depth=3))["rows"] > 0.8


def test_the_settings_that_are_compared() -> None:
    how = secureboost(mode="layered", passive_depth=1, complete_secure=4, goss=(0.2, 0.1))
    found = cases(how)
    assert next(iter(found.values())) == how
    assert {(one.mode, one.complete_secure) for one in found.values()} == {(m, k) for m in MODES for k in (0, 1)} | {
        ("layered", 4)
    }
    assert all(one.goss == (0.2, 0.1) for one in found.values())
    assert len(cases(secureboost())) == 6


# ------------------------------------------------------------------------------------------------ a run


def test_a_report_has_the_measured_attack_and_a_run_with_goss_warns_before(tmp_path: Path) -> None:
    tables(tmp_path)
    made = experiment(
        tmp_path, algorithm={"name": "secureboost", "trees": 3, "bins": 16, "mode": "mix", "goss": [0.2, 0.1]}
    )
    assert any("these tell them labels" in line for line in fedatlas.dry_run(made)["notices"])
    done = api.run(made, out=tmp_path / "run")
    found = done.summary["labels_told"]
    assert found["rounds"] == 3
    assert found["cases"][0]["case"] == "mix, goss = [0.2, 0.1]"
    assert len(found["cases"]) == 6
    for one in found["cases"]:
        assert list(one["auc"]) == ["shop"]
        assert set(one["auc"]["shop"]) == set(ATTACK.rules)
    page, other = ((tmp_path / "run" / name).read_text() for name in ("report.html", "report-shop.html"))
    assert "Measured in this simulation, where the labels are known" in page
    assert f"{found['cases'][0]['auc']['shop']['rows']:.3f}" in page
    assert "Measured in this simulation" not in other
    assert "these tell them labels" in page
    assert "nothing of the trees of others" in page
    assert "nothing of the trees of others" in other
