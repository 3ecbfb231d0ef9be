"""Who learns what, by mode: the table of the report, of ``fedatlas show`` and of docs/vertical.md, against the recorded letters of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from boosting_federation import Table, Trained, trained
from fedatlas import catalogue
from fedatlas.federation.link import Observer
from fedatlas.rng import numpy_stream
from fedatlas.runs.columns_labels import LettersHeard
from fedatlas.vertical.boosting import told
from fedatlas.vertical.boosting.settings import MODES, SecureBoost, secureboost
from fedatlas.vertical.boosting.words import learns
from fedatlas.vertical.forest import FEDERATED_FOREST, federated_forest
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.trees.nodes import begun, moved
from test_secureboost import BITS, made
from test_softmax import made as made_classes

PAGE = Path(__file__).parents[2] / "docs" / "vertical.md"
OWNERS, ACTIVE, PASSIVE, DEPTH = [[0, 4], [1, 5], [2, 3]], 1, (0, 2), 3
KEYS: Mapping[str, dict[str, Any]] = {"default": {}, "mix": {"mode": "mix"}, "layered": {"mode": "layered"}}
OWN = "; which way its own splits send rows, and their column and threshold"
ROWS = {
    "default": f"which rows are at every node that can be split, and whose split led there{OWN}",
    "mix": f"which rows are at every node of its own trees that can be split, and whose split led there{OWN}; nothing of the trees "
    "of others",
    "layered": f"which rows are at every node of the first 2 levels that can be split, and whose split led there{OWN}; nothing of the "
    "levels below",
}
"""Mode -> what the table says that a party without the label learns of rows. `sums` says the same as a rule."""


def sums(mode: str, party: int, number: int, level: int) -> bool:
    """Whether a party without the label adds up sums, and so is told rows, at a level of a round's trees."""
    return {"default": True, "mix": (number - 1) % 3 == party, "layered": level <= 2}[mode]


class Crossed(Observer):
    """(party, round, question, topics of the letters that came with it)."""

    def __init__(self) -> None:
        self.asked_for: list[tuple[int, int, str, set[str]]] = []

    def asked(self, request: Any) -> None:
        topics = {one["topic"] for one in request.message.get(LETTERS, ())}
        self.asked_for.append((request.client, request.round - 1, request.what, topics))


class Recorded(NamedTuple):
    """A training, and all that crossed."""

    table: Table
    how: SecureBoost
    found: Trained
    letters: Mapping[int, list[Any]]
    asked: list[tuple[int, int, str, set[str]]]


def recorded(mode: str, table: Table | None = None, **keys: Any) -> Recorded:
    table = made(n=80, seed=1) if table is None else table
    bits = keys.pop("key_bits", 0)
    how = secureboost(trees=4, depth=DEPTH, bins=6, **KEYS[mode], **keys)._replace(key_bits=bits)
    heard, crossed = LettersHeard(), Crossed()
    found = trained(table, OWNERS, how, active=ACTIVE, observers=[heard, crossed])
    return Recorded(table, how, found, heard.letters, crossed.asked_for)


def walked(table: Table, tree: Any) -> list[tuple[int, str | None, np.ndarray, list[np.ndarray]]]:
    """Of every node its level, its owner, its rows and those of its children, by a walk of all rows through the tree."""
    out, todo = [], [(0, 1, np.arange(len(table.y)))]
    while todo:
        i, level, rows = todo.pop()
        node = tree[i]
        if "leaf" in node:
            out.append((level, None, rows, []))
            continue
        values = table.x[rows, int(node["column"][1:])]
        cut = np.inf if node["threshold"] is None else node["threshold"]
        left = np.where(np.isnan(values), node["missing"] == "left", values <= cut)
        sides = [rows[left], rows[~left]]
        out.append((level, node["party"], rows, sides))
        todo += [(node[side], level + 1, some) for side, some in zip(("left", "right"), sides, strict=True)]
    return out


def alike(groups: Any) -> list[int]:
    """Which rows are told apart: the number of the first row that is like each."""
    seen: dict[Any, int] = {}
    return [seen.setdefault(one, i) for i, one in enumerate(groups)]


def by_the_table(one: Recorded, mode: str, party: int, number: int, tree: Any) -> list[int]:
    """Which rows a party tells apart, by what the table says: open nodes where it adds up sums, and its own splits."""
    sets = []
    for level, owner, rows, children in walked(one.table, tree):
        if sums(mode, party, number, level) and level <= DEPTH and len(rows) >= 2 * one.how.min_leaf:
            sets.append(rows)
        if owner == f"p{party}":
            sets += children
    return alike(tuple(i in some for some in map(set, map(np.ndarray.tolist, sets))) for i in range(len(one.table.y)))


# ------------------------------------------------------------------------------------------------ rows of nodes


@pytest.mark.parametrize("way", ["two classes", "three classes", "one tree of three classes"])
@pytest.mark.parametrize("mode", MODES)
def test_the_rows_that_a_party_is_told_are_those_of_the_table(mode: str, way: str) -> None:
    """No node more and no node less: the rows that it can tell apart, put together from its letters alone."""
    table = made(n=80, seed=1) if way == "two classes" else made_classes(80)
    one = recorded(mode, table, min_leaf=9, **({"multi_output": True} if way.startswith("one") else {}))
    a_round = 3 if way == "three classes" else 1
    for party in PASSIVE:
        rounds = {each.number: each for each in told.rounds_told(one.how, party, one.letters[party], len(table.y))}
        assert set(rounds) == {n for n in range(1, 5) if sums(mode, party, n, 1)}
        for t, tree in enumerate(one.found.trees):
            number = t // a_round + 1
            known = rounds[number].trees[t % a_round].tolist() if number in rounds else [1] * len(table.y)
            assert alike(known) == by_the_table(one, mode, party, number, tree)
            assert len(set(alike(known))) > 1 or number not in rounds


@pytest.mark.parametrize("mode", MODES)
def test_nobody_is_asked_or_written_to_where_it_takes_no_part(mode: str) -> None:
    """By party and round the questions, and by letter the levels."""
    one = recorded(mode)
    for party in PASSIVE:
        for number in range(1, 5):
            asked = [what for k, at, what, _ in one.asked if (k, at) == (party, number)]
            levels = [level for level in range(1, DEPTH + 1) if sums(mode, party, number, level)]
            assert asked.count("histogram") == len(levels)
            assert bool(asked) == bool(levels)
        levels = {each["step"] for each in one.letters[party] if each["topic"] == "level"}
        assert levels == ({1} if mode == "layered" else {1, 2})
        came = {each["topic"] for each in one.letters[party] if each["from"] != party}
        beside = set() if mode == "mix" else {"split"}
        assert came - beside == {"gradients", "level", "wanted"}, (
            "which rows of a node go left it hears of other owners"
        )
        assert mode != "mix" or "split" not in came
    sums_of = {(each["from"], each["step"]) for each in one.letters[ACTIVE] if each["topic"] == "sums"}
    assert sums_of == {(party, level) for party in PASSIVE for level in (1, 2, 3) if mode != "layered" or level <= 2}


def test_a_letter_about_rows_goes_only_to_who_needs_them() -> None:
    """Also of what the coordinator carries: a division without an open child is told to nobody but the party with the label."""
    one = recorded("default", min_leaf=12)
    splits = [
        each for party in PASSIVE for each in one.letters[party] if each["topic"] == "split" and each["from"] == party
    ]
    passed = {
        (each["from"], each["step"]): len(each["content"]["told"]["nodes"])
        for each in splits
        if "records" not in each["content"]
    }
    assert not [step for _, step in passed if step == DEPTH]
    everything = [each for each in splits if "records" in each["content"]]
    assert all(each["to"] == [ACTIVE] for each in everything)
    assert any(
        len(each["content"]["told"]["nodes"]) > passed.get((each["from"], each["step"]), 0) for each in everything
    )


@pytest.mark.timing
@pytest.mark.parametrize("mode", MODES)
def test_encrypted_letters_tell_the_same_rows_and_no_gradient(mode: str) -> None:
    plain, under = (recorded(mode, made(n=40, seed=1), key_bits=bits) for bits in (0, BITS))
    for party in PASSIVE:
        one, other = (told.rounds_told(each.how, party, each.letters[party], 40) for each in (plain, under))
        assert [each.at.tolist() for each in one] == [each.at.tolist() for each in other]
        sent = [each["content"] for each in under.letters[party] if each["topic"] == "gradients"]
        assert sent
        assert all(set(each) == {"tree", "rows", "public", "ciphertexts"} and each["rows"] is None for each in sent)


def test_a_node_is_open_if_another_split_of_the_same_gain_would_give_it_enough_rows() -> None:
    """Eight rows count; the twelve of weight 0 go right by column 1 and left by column 2, and both gain as much."""
    sides = np.repeat([0.0, 1.0], 4)
    x = np.column_stack([np.zeros(20), np.r_[sides, np.ones(12)], np.r_[sides, np.zeros(12)]])
    table = Table(x, np.r_[sides, np.zeros(12)], "classes", np.r_[np.ones(8), np.zeros(12)])
    how, heard = secureboost(trees=1, min_leaf=4), LettersHeard()
    (tree,) = trained(table, [[0], [1, 2]], how, observers=[heard]).trees
    assert [node["rows"] for node in tree if "leaf" in node] == [4, 16]
    (level,) = [each["content"] for each in heard.letters[1] if each["topic"] == "level"]
    assert level["open"] == [2, 3], "node 2 has 4 rows, and would have 16"


@pytest.mark.parametrize("mode", MODES)
def test_drawn_rows_are_told_and_nothing_of_the_first_trees(mode: str) -> None:
    one = recorded(mode, goss=(0.2, 0.1), complete_secure=2)
    for party in PASSIVE:
        rounds = told.rounds_told(one.how, party, one.letters[party], 80)
        assert [each.number for each in rounds] == [n for n in (3, 4) if sums(mode, party, n, 1)]
        assert all(each.rows is not None and len(each.rows) == 24 for each in rounds)


# ------------------------------------------------------------------------------------------------ a forest

FOREST = federated_forest(trees=4, depth=DEPTH, features=1.0, min_samples=6)


class Answers(Observer):
    """What each party answers the coordinator, besides letters: (question, part)."""

    def __init__(self) -> None:
        self.parts: set[tuple[str, str]] = set()

    def replied(self, request: Any, update: Any) -> None:
        self.parts |= {(request.what, part) for part in update if part != LETTERS}


def drawn_of(tree: int, train: np.ndarray) -> np.ndarray:
    """The drawn rows of a tree, from 1, each as often as it was drawn; every party knows the seed."""
    return train[np.sort(numpy_stream(0, "forest", "rows", tree).integers(0, len(train), len(train)))]


@pytest.mark.parametrize("kind", ["two classes", "three classes", "a number"])
def test_the_drawn_rows_that_a_party_is_told_of_a_forest_are_those_of_the_table(kind: str) -> None:
    """Put together from its letters alone: rows of nodes that can be split, and the sides of its own splits; no node more or less."""
    table = {
        "two classes": made(n=80, seed=1),
        "three classes": made_classes(80),
        "a number": made(n=80, task="numbers"),
    }[kind]
    train = np.setdiff1d(np.arange(80), np.arange(0, 80, 5))
    heard, answers = LettersHeard(), Answers()
    keys = {"active": ACTIVE, "train": train, "scheme": FEDERATED_FOREST, "observers": [heard, answers]}
    found = trained(table, OWNERS, FOREST, **keys)
    for party in PASSIVE:
        known = told_of_forest(party, heard.letters[party], train)
        assert {*known} == {1, 2, 3, 4}
        for number, tree in enumerate(found.trees, start=1):
            expected = by_the_forest_s_table(table, party, number, tree, train)
            assert alike(known[number]) == expected
            assert len({*expected}) > 2
    assert answers.parts == {
        ("code labels", "started"), ("plant", "open"), ("choose", "open"), ("choose", "owners"), ("ripen", "nodes"), ("vote", "voted"),
    }, "of a tree the coordinator is told how many nodes are open, and who owns how many"  # fmt: skip


def told_of_forest(party: int, letters: Any, train: np.ndarray) -> dict[int, list[int]]:
    """By tree the deepest node of each drawn row that a party knows of."""
    known, tree, at = dict[int, list[int]](), 0, begun(1, 0)
    for one in letters:
        if one["topic"] == "tree":
            tree = one["content"]["tree"]
            at = begun(1, len(np.unique(drawn_of(tree, train))))
        own = one["from"] == party
        if one["topic"] == "level" or (one["topic"] == "split" and (not own or one["to"] == [ACTIVE])):
            at = moved(at, [one["content"]["told"]])
        known |= {tree: at[0].tolist()} if tree else {}
    return known


def by_the_forest_s_table(table: Table, party: int, number: int, tree: Any, train: np.ndarray) -> list[int]:
    drawn = drawn_of(number, train)
    rows, times = np.unique(drawn, return_counts=True)
    often = dict(zip(rows.tolist(), times.tolist(), strict=True))
    sets = []
    for level, owner, own, children in walked(table, tree):
        here = [i for i in own.tolist() if i in often]
        pure = table.task == "classes" and len({*table.y[here].tolist()}) == 1
        if level <= DEPTH and sum(often[i] for i in here) >= FOREST.min_samples and not pure:
            sets.append({*here})
        if owner == f"p{party}":
            sets += [{*side.tolist()} & {*often} for side in children]
    return alike(tuple(i in some for some in sets) for i in rows.tolist())


def test_the_list_of_algorithms_has_the_table_of_the_forest() -> None:
    (row,) = [one for one in catalogue.rows("algorithms") if one["name"] == "federated_forest"]
    for each in FEDERATED_FOREST.words.learns(FOREST, False):
        for who in ("passive", "active", "coordinator"):
            assert f"{each.step}: {getattr(each, who)}" in row[f"learns_{who}"]
    assert "count the labels as known to all parties" in row["caution"]


# ------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("mode", MODES)
def test_the_table_says_what_the_letters_say(mode: str) -> None:
    how = secureboost(**KEYS[mode])
    by_step = {row.step: row for row in learns(how, True)}
    assert by_step["splits"].passive == ROWS[mode]
    assert by_step["histograms"].passive == "nothing of g and h, which are encrypted"
    assert "drawn rows" not in by_step
    secure = learns(how._replace(complete_secure=2, goss=(0.2, 0.1)), True)
    by_step = {row.step: row for row in secure}
    assert by_step["splits"].passive == f"{ROWS[mode]}; nothing of the first 2 rounds"
    assert "this tells labels" in by_step["drawn rows"].passive


@pytest.mark.parametrize("mode", MODES)
def test_the_page_and_the_list_of_algorithms_have_the_table(mode: str) -> None:
    page = PAGE.read_text()
    (row,) = [one for one in catalogue.rows("algorithms") if one["name"] == "secureboost"]
    for each in learns(secureboost(**KEYS[mode]), True):
        for who in ("passive", "active", "coordinator"):
            assert f"{each.step}: {getattr(each, who)}" in row[f"learns_{mode}_{who}"]
        assert f"| {each.step} | {each.passive} | {each.active} | {each.coordinator} |" in page
