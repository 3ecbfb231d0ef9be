"""Mondrian, l-diversity, t-closeness, loss and risk, each against a checker written apart from the code (`oracles.anonymity`)."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.anonymity.cells import generalised
from fedatlas.privacy.anonymity.hierarchy import Hierarchy, hierarchy
from fedatlas.privacy.anonymity.measures import alike, discernibility, losses, risk, sizes
from fedatlas.privacy.anonymity.mondrian import MISSING, Grouped, Quasi, mondrian
from fedatlas.privacy.anonymity.rules import Conditions, Sensitive
from oracles import anonymity as oracle

JOBS = hierarchy({"manual": ["farmer", "smith"], "office": {"desk": ["clerk", "typist"], "lead": ["boss"]}}, "job")
CODES = np.arange(5)


def quasi(rows: Any) -> list[Quasi]:
    return [Quasi(f"q{j}", np.array(column, float)) for j, column in enumerate(zip(*rows, strict=True))]


def sensitive(codes: Any, **how: Any) -> Sensitive:
    codes = np.unique(codes, return_inverse=True)[1]
    return Sensitive.of("s", codes, int(codes.max()) + 1, **how)


def groups(found: Grouped) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(found.of == c).tolist()) for c in set(found.of.tolist()) - {-1}}


def cells(columns: list[Quasi], found: Grouped) -> list[tuple[str, ...]]:
    written = [generalised(one, [f"{x:g}" for x in one.values], found.of) for one in columns]
    return list(zip(*written, strict=True))


TABLES = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(-3, 4)] * width, st.integers(0, 3)), min_size=1, max_size=40)
)


# ------------------------------------------------------------------------------------------------ k


@settings(max_examples=150, deadline=None)
@given(TABLES, st.integers(1, 6))
def test_the_cuts_are_those_of_the_paper(table: list[tuple[int, ...]], k: int) -> None:
    """The same classes as a plain recursion finds; in the published cells every row looks like at least k - 1 others."""
    rows = [row[:-1] for row in table]
    columns = quasi(rows)
    if len(rows) < k:
        with pytest.raises(PrivacyError, match=f"k = {k}, but there are only {len(rows)} rows"):
            mondrian(columns, Conditions(k))
        return
    found = mondrian(columns, Conditions(k))
    assert groups(found) == {frozenset(part) for part in oracle.mondrian(rows, k)}
    published = oracle.classes(cells(columns, found))
    assert min(map(len, published)) >= k
    assert {frozenset(part) for part in published} == groups(found), "classes can be told apart by their cells"


@settings(max_examples=60, deadline=None)
@given(TABLES)
def test_with_k_1_nothing_changes(table: list[tuple[int, ...]]) -> None:
    columns = quasi(table)
    assert cells(columns, mondrian(columns, Conditions(1))) == [tuple(f"{x:g}" for x in row) for row in table]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60, unique=True), st.integers(1, 6))
def test_a_class_of_distinct_values_has_less_than_2k_rows(values: list[int], k: int) -> None:
    if len(values) >= k:
        found = mondrian(quasi([(x,) for x in values]), Conditions(k))
        assert max(map(len, groups(found))) <= 2 * k - 1


@settings(max_examples=60, deadline=None)
@given(TABLES, st.integers(1, 5))
def test_the_cuts_find_every_row_again(table: list[tuple[int, ...]], k: int) -> None:
    """Also a row whose cells are the mean of its class: to apply the cuts again changes nothing."""
    columns = quasi(table)
    x = np.stack([one.values for one in columns], axis=1)
    if len(x) < k:
        return
    found = mondrian(columns, Conditions(k))
    assert (found.tree.classes_of(x) == found.of).all()
    means = np.stack([x[found.of == c].mean(axis=0) for c in found.of])
    assert (found.tree.classes_of(means) == found.of).all()
    assert json.loads(json.dumps(found.tree)) == [list(part) for part in found.tree]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), st.integers(1, 3))
def test_no_cut_is_a_value_that_it_separates(values: list[float], k: int) -> None:
    if len(values) >= k:
        found = mondrian(quasi([(x,) for x in values]), Conditions(k))
        cuts = [at for column, at in zip(found.tree.column, found.tree.at, strict=True) if column >= 0]
        assert not {at for at in cuts if np.nextafter(at, -np.inf) not in values} & set(values)


def test_a_missing_number_is_apart_or_its_class_says_so() -> None:
    column = Quasi("age", np.array([MISSING, MISSING, 30, 31, 32]))
    texts = ["", "", "30", "31", "32"]
    apart, together = (mondrian([column], Conditions(k)) for k in (2, 3))
    assert generalised(column, texts, apart.of) == ["", "", "[30-32]", "[30-32]", "[30-32]"]
    assert (apart.tree.classes_of(column.values[:, None]) == apart.of).all()
    json.dumps(apart.tree, allow_nan=False)
    assert set(generalised(column, texts, together.of)) == {"{[30-32], missing}"}
    assert losses([column], together.of) == [1.0]


def test_ranges_and_sets_are_written_so_that_they_can_be_read() -> None:
    of = np.array([0, 0, 1, 1])
    assert generalised(Quasi("x", np.array([-5.0, 3, 7, 7])), ["-5", "3", "7.0", "7.0"], of) == [
        "[-5 to 3]",
        "[-5 to 3]",
        "7.0",
        "7.0",
    ]
    town = Quasi("town", np.array([0.0, 1, 2, 3]), ("", "Bonn, Rhine", "Oslo", "Rome"))
    assert generalised(town, [], of) == ['{missing, "Bonn, Rhine"}'] * 2 + ["{Oslo, Rome}"] * 2
    assert set(generalised(town, [], of * 0)) == {"*"}
    assert generalised(town, [], np.array([0, 0, -1, -1]))[2:] == ["", ""]


# ------------------------------------------------------------------------------------------------ l and t


@settings(max_examples=150, deadline=None)
@given(
    TABLES,
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["distinct", "entropy", "recursive"]),
    st.sampled_from([0.1, 0.4, 1.0]),
)
def test_every_class_keeps_l_and_t(table: list[tuple[int, ...]], k: int, l: int, kind: Any, t: float) -> None:  # noqa: E741
    rows, codes = [row[:-1] for row in table], [row[-1] for row in table]
    secret, rules = sensitive(codes), Conditions(k, l, t, kind, 2.0)

    def fine(part: list[int]) -> bool:
        own = [codes[i] for i in part]
        ways = {
            "distinct": lambda: oracle.distinct(own) >= l,
            "entropy": lambda: oracle.entropy(own) >= l - 1e-6,
            "recursive": lambda: l == 1 or oracle.recursive(own, 2.0, l),
        }
        return ways[kind]() and (t == 1 or oracle.closeness(own, codes, lambda a, b: float(a != b)) <= t + 1e-6)

    if len(rows) < k or not fine(list(range(len(rows)))):
        with pytest.raises(PrivacyError):
            mondrian(quasi(rows), rules, [secret])
        return
    found = mondrian(quasi(rows), rules, [secret])
    assert all(fine(part) for part in oracle.classes(cells(quasi(rows), found)))
    assert groups(found) == {frozenset(part) for part in oracle.mondrian(rows, k, fine)}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=25), st.data())
def test_the_three_distances_are_earth_movers(codes: list[int], data: st.DataObject) -> None:
    part = data.draw(st.lists(st.sampled_from(codes), min_size=1, max_size=10))
    names = sorted(set(codes))
    places = {code: i for i, code in enumerate(names)}
    own, counts = np.unique([places[x] for x in part], return_counts=True)
    ordered = sensitive(codes, ordered=True).distance(own, counts)
    step = max(len(names) - 1, 1)
    assert ordered == pytest.approx(oracle.closeness(part, codes, lambda a, b: abs(places[a] - places[b]) / step))
    assert sensitive(codes).distance(own, counts) == pytest.approx(
        oracle.closeness(part, codes, lambda a, b: float(a != b))
    )
    by_tree = Sensitive.of("job", np.array(codes), 5, tree=JOBS)
    values, counts = np.unique(part, return_counts=True)
    assert by_tree.distance(values, counts) == pytest.approx(oracle.closeness(part, codes, height))


def height(a: Any, b: Any) -> float:
    """Of the smallest common group in `JOBS`, as a share of the tree's, read from its text."""
    paths = ("manual/", "manual/", "office/desk/", "office/desk/", "office/lead/")
    same = [x for x in ("manual/", "office/", "office/desk/") if paths[a].startswith(x) and paths[b].startswith(x)]
    return (
        0.0
        if a == b
        else {None: 3, "manual/": 2, "office/": 2, "office/desk/": 1}[max(same, key=len, default=None)] / 3
    )


def test_the_papers_salary_example() -> None:
    """Li, Li and Venkatasubramanian, section 4: salaries 3k to 11k; {3, 4, 5}k is 0.375 away, {6, 8, 11}k 0.167."""
    salary = sensitive(np.arange(3, 12), ordered=True)
    one = np.ones(3)
    assert salary.distance(np.array([0, 1, 2]), one) == pytest.approx(0.375)
    assert salary.distance(np.array([3, 5, 8]), one) == pytest.approx(1 / 6)
    assert salary.distance(np.arange(9), np.ones(9)) == pytest.approx(0.0)


def test_entropy_is_stricter_than_distinct_and_what_cannot_be_is_refused() -> None:
    secret = sensitive([0, 0, 0, 0, 0, 1])
    columns = quasi([(x,) for x in range(6)])
    assert not Conditions(1, 2, diversity="entropy").diverse(np.array([5, 1]))
    assert Conditions(1, 2).diverse(np.array([5, 1]))
    with pytest.raises(PrivacyError, match="l = 3, but 's' has only 2 different values: choose a smaller l"):
        mondrian(columns, Conditions(1, 3), [secret])
    with pytest.raises(PrivacyError, match=r"entropy diversity in 's'; 1\.57 is possible"):
        mondrian(columns, Conditions(1, 2, diversity="entropy"), [secret])
    with pytest.raises(PrivacyError, match=r"recursive \(c = 3\) diversity in 's'; choose a smaller l"):
        mondrian(columns, Conditions(1, 2, diversity="recursive"), [secret])


# ------------------------------------------------------------------------------------------------ hierarchies


def test_a_hierarchy_cuts_by_its_groups_and_names_them() -> None:
    jobs = Quasi("job", np.repeat(CODES, 2).astype(float), JOBS.members, JOBS)
    assert generalised(jobs, [], mondrian([jobs], Conditions(2)).of) == [JOBS.members[i] for i in np.repeat(CODES, 2)]
    by_4 = mondrian([jobs], Conditions(4))
    assert generalised(jobs, [], by_4.of) == ["manual"] * 4 + ["office"] * 6
    assert losses([jobs], by_4.of) == pytest.approx([(4 * 2 / 5 + 6 * 3 / 5) / 10])
    assert set(generalised(jobs, [], mondrian([jobs], Conditions(5)).of)) == {"*"}
    only_desk = Quasi("job", np.array([2.0, 3, 2, 3]), JOBS.members, JOBS)
    assert set(generalised(only_desk, [], mondrian([only_desk], Conditions(3)).of)) == {"desk"}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 4))
def test_classes_by_a_hierarchy_keep_k(codes: list[int], k: int) -> None:
    jobs = Quasi("job", np.array(codes, float), JOBS.members, JOBS)
    if len(codes) >= k:
        found = mondrian([jobs], Conditions(k))
        assert min(map(len, oracle.classes([(x,) for x in generalised(jobs, [], found.of)]))) >= k
        assert (found.tree.classes_of(jobs.values[:, None]) == found.of).all()


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"a": ["x", "x"]}, "the hierarchy of 'job' holds 'x' twice"),
        ({"a": "x"}, "'a' is neither"),
        ({}, "'\\*' is neither"),
        ({"a": {"b": []}}, "'b' is neither"),
    ],
)
def test_a_wrong_hierarchy_is_refused(tree: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        hierarchy(tree, "job")


def test_codes_without_a_place_hang_below_the_root() -> None:
    found: Hierarchy = hierarchy({"a": ["x", "y"]}, "job", ("",))
    assert found.members == ("x", "y", "")
    assert found.label(0, 1) == "a"
    assert found.label(0, 2) == "*"


# ------------------------------------------------------------------------------------------------ suppression, loss, risk


@settings(max_examples=100, deadline=None)
@given(TABLES, st.integers(2, 5), st.integers(0, 4))
def test_at_most_so_many_rows_are_left_out(table: list[tuple[int, ...]], k: int, most: int) -> None:
    columns = quasi(table)
    if len(table) < k:
        return
    found = mondrian(columns, Conditions(k), suppress=most)
    assert (found.of < 0).sum() <= most
    assert min(map(len, groups(found))) >= k
    if not most:
        assert (found.of >= 0).all()


def test_an_outlier_is_left_out_so_that_its_class_stays_narrow() -> None:
    gains = [(0.0,)] * 20 + [(99999.0,)] * 2
    assert cells(quasi(gains), mondrian(quasi(gains), Conditions(5)))[0] == ("[0-99999]",)
    found = mondrian(quasi(gains), Conditions(5), suppress=2)
    assert found.of.tolist() == [0] * 20 + [-1] * 2
    assert cells(quasi(gains), found)[0] == ("0",)
    assert losses(quasi(gains), found.of) == pytest.approx([2 / 22])
    assert discernibility(found.of) == 20**2 + 2 * 22


def test_loss_and_risk_of_a_table_computed_by_hand() -> None:
    ages, towns = Quasi("age", np.array([20.0, 30, 40, 60])), Quasi("town", np.array([0.0, 1, 2, 2]), ("A", "B", "C"))
    of = np.array([0, 0, 1, 1])
    assert losses([ages, towns], of) == pytest.approx([(2 * 10 / 40 + 2 * 20 / 40) / 4, (2 * 2 / 3 + 0) / 4])
    assert discernibility(of) == 8
    assert risk(sizes(of)) == (0.5, 0.5, 0.0)
    assert risk(sizes(alike([towns]))) == (1.0, 0.75, 0.5)


def test_a_large_table_takes_seconds() -> None:
    """As large as bank marketing: processor time, which other programs of the machine do not stretch."""
    rng = np.random.default_rng(0)
    columns = [Quasi(f"q{j}", rng.integers(0, 10 ** (1 + j % 4), 45211).astype(float)) for j in range(16)]
    began = os.times().user
    found = mondrian(columns, Conditions(5, 2, 0.5), [sensitive(rng.integers(0, 2, 45211))])
    assert os.times().user - began < 20, "1.5 s on a quiet core"
    assert sizes(found.of).min() >= 5
