"""SecureBoost between parties: hand-worked gains, the booster on the joined table, ties, limits, draws, prediction (V2, V3)."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boosting_federation import Table, Trained, parties_of, trained
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.start import RoundStart
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.rng import numpy_stream
from fedatlas.vertical import boosting
from fedatlas.vertical.boosting import bins, gains, histogram, sealed
from fedatlas.vertical.boosting.settings import secureboost
from fedatlas.vertical.parties import tensor
from oracles.secureboost import Booster, Settings

HALVES = [[0, 2, 4], [1, 3, 5]]
BITS = 512  # of test keys: two or more sums of a few hundred rows fit


def made(n: int = 240, task: str = "classes", holes: float = 0.1, seed: int = 0, weights: bool = False) -> Table:
    """Six columns: two of few values, one of which is constant in part; a label that hangs on three of them."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(n, 6))
    x[:, 4] = stream.integers(0, 4, n)
    x[:, 5] = x[:, 0] > 1
    signal = x[:, 0] + x[:, 1] * (x[:, 4] - 1) - x[:, 5] + 0.5 * stream.normal(size=n)
    x[stream.random(x.shape) < holes] = np.nan
    y = (signal > 0).astype(np.float64) if task == "classes" else 40 + 7 * signal
    return Table(x, y, task, stream.integers(0, 4, n) / 2 if weights else None)


def oracle(table: Table, owners: Any, how: boosting.SecureBoost, **more: Any) -> Booster:
    """The booster on the joined table with the same keys."""
    keys = {name: getattr(how, name) for name in Settings._fields}
    return Booster(table.x, table.y, table.task, owners, Settings(**keys), weight=table.weight, **more)


def nested(nodes: Any, i: int = 0) -> Any:
    """A tree of ours as the oracle writes it."""
    node = nodes[i]
    if "leaf" in node:
        return node
    split = {"party": int(node["party"][1:]), "column": int(node["column"][1:]), "missing": node["missing"]}
    cut = np.inf if node["threshold"] is None else node["threshold"]
    children = [nested(nodes, node["left"]), nested(nodes, node["right"])]
    return {**split, "cut": cut, "gain": node["gain"], "children": children}


def assert_same(found: Trained, expected: Booster) -> None:
    assert [nested(tree) for tree in found.trees] == expected.trees
    assert found.outputs.tolist() == expected.outputs


# ------------------------------------------------------------------------------------------------ gains


def test_toy_gains_and_leaves() -> None:
    """y = (0, 0, 1, 1), p = 1/2: g = (1, 1, -1, -1)/2, h = 1/4; at the middle 1/2 (1/1.5 + 1/1.5) = 2/3, beside it 6/35."""
    how = secureboost(learning_rate=1.0)
    y = np.array([0.0, 0, 1, 1])
    fixed = gains.fixed(*gains.gradients(y, np.zeros(4), None, gains.MarginUnit("classes"), how), how.precision)
    rows = np.stack([fixed.g, fixed.h, np.ones(4, np.int64)], axis=1)
    left = np.cumsum(rows, axis=0)[:3]
    found = gains.gains(left, rows.sum(axis=0), [fixed], how)
    assert found == pytest.approx([6 / 35, 2 / 3, 6 / 35], abs=1e-15)
    assert gains.leaf(left[1], fixed, how) == pytest.approx(-2 / 3, abs=1e-15)
    assert gains.leaf(rows.sum(axis=0) - left[1], fixed, how) == pytest.approx(2 / 3, abs=1e-15)


def test_l1_pulls_every_sum_once() -> None:
    """alpha = 1/2: the middle gains 1/2 (2 (1 - 1/2)^2 / 1.5) = 1/6; FATE's double shrinking would say 0."""
    how = secureboost(l1=0.5)
    fixed = gains.Fixed(np.array([1, 1, -1, -1]) << 23, np.ones(4, np.int64) << 22, 0, 0)
    left, whole = np.array([[2 << 23, 2 << 22, 2]]), np.array([0, 4 << 22, 4])
    assert gains.gains(left, whole, [fixed], how).tolist() == [pytest.approx(1 / 6, abs=1e-15)]
    assert gains.gains(left, whole, [fixed], how._replace(min_gain=0.1))[0] == pytest.approx(1 / 6 - 0.1, abs=1e-15)
    assert gains.gains(left, whole, [fixed], how._replace(min_leaf=3))[0] == -np.inf


def test_nothing_to_divide_by_gains_nothing() -> None:
    fixed = gains.Fixed(np.zeros(2, np.int64), np.zeros(2, np.int64), 0, 0)
    zero = np.array([[0, 0, 1]])
    assert gains.gains(zero, np.array([0, 0, 2]), [fixed], secureboost(l2=0.0)).tolist() == [0.0]
    assert gains.leaf(zero[0], fixed, secureboost(l2=0.0)) == 0.0


def test_sums_too_long_for_63_bits_are_refused() -> None:
    many = np.zeros(1 << 22)
    with pytest.raises(Exception, match="4,194,304 rows at 40 bits"):
        gains.fixed(many, many, 40)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(8, 40))
def test_fixed_point_is_within_half_a_step(values: list[float], precision: int) -> None:
    g = np.array(values)
    found = gains.fixed(g, np.abs(g), precision)
    step = 2.0 ** (found.g_power - precision)
    assert np.abs(found.g).max() <= 1 << precision
    assert np.abs(found.g * step - g).max() <= step / 2


# ------------------------------------------------------------------------------------------------ bins


@given(st.lists(st.one_of(st.integers(-3, 3).map(float), st.floats(-9, 9), st.just(float("nan"))), max_size=60))
def test_bins_divide_as_their_cuts(values: list[float]) -> None:
    """bin <= b exactly where the value is at most cut b; no bin of the training rows is empty; missing values stand behind."""
    x = np.array(values, np.float64)
    cuts = bins.cuts_of(x, 8)
    found = bins.numbered(x[:, None], [cuts])[:, 0]
    there = ~np.isnan(x)
    assert len(cuts) <= 7
    assert (np.diff(cuts) > 0).all()
    for b, cut in enumerate(cuts):
        assert ((found[there] <= b) == (x[there] <= cut)).all()
    if there.any():
        assert set(found[there]) == set(range(len(cuts) + 1))
    assert (found[~there] == len(cuts) + 1).all()


def test_candidates_in_order_of_column_bin_and_direction() -> None:
    found = bins.grid([0, 1], [np.array([1.0, 2.0]), np.array([5.0])], np.array([False, True]))
    assert found.column.tolist() == [0, 0, 1, 1, 1]
    assert found.cut.tolist() == [1.0, 2.0, 5.0, 5.0, np.inf]
    assert found.left.tolist() == [True, True, True, False, False]


@given(st.integers(0, 2**32 - 1))
def test_left_sums_are_those_of_the_rows_sent_left(seed: int) -> None:
    stream = np.random.default_rng(seed)
    x = stream.integers(0, 5, (30, 3)).astype(np.float64)
    x[stream.random(x.shape) < 0.2] = np.nan
    cuts = [bins.cuts_of(column, 4) for column in x.T]
    found = bins.grid([0, 2], cuts, np.isnan(x).any(axis=0))
    g, h = stream.integers(-(2**50), 2**50, 30), stream.integers(0, 2**20, 30)  # too long for float64 sums
    sums = histogram.left_sums(histogram.summed(bins.spots(bins.numbered(x, cuts), found), g, h, found.width), found)
    for i, one in enumerate(sums):
        values = x[:, found.column[i]]
        left = np.where(np.isnan(values), found.left[i], values <= found.cut[i])
        assert one.tolist() == [g[left].sum(), h[left].sum(), left.sum()]


@pytest.mark.timing
def test_a_parents_histogram_is_that_of_both_children() -> None:
    """In the clear and on ciphertexts; a sister is what the parent has more."""
    how, stream = secureboost()._replace(key_bits=256), np.random.default_rng(0)
    keys = paillier.holder(paillier.generate(256, testing=True))
    g, h, spots = (
        stream.integers(-(1 << 24), 1 << 24, 20),
        stream.integers(0, 1 << 24, 20),
        stream.integers(0, 4, (20, 1)),
    )
    grid, form = bins.grid([0], [np.array([0.0, 1, 2])], np.array([False])), sealed.fields(20, how)
    clear = histogram.Clear(g, h)
    cipher = sealed.Cipher(keys.public, sealed.sealed([gains.Fixed(g, h, 0, 0)], form, keys, 1), form)
    opened = []
    for sums in (clear, cipher):
        left, right, both = (
            sums.histogram(rows, spots[rows], grid.width) for rows in (np.arange(7), np.arange(7, 20), np.arange(20))
        )
        answers = [sums.returned(one, grid, np.arange(3)) for one in (sums.sister(both, left), right)]
        opened += answers if sums is clear else [tensor(sealed.opened(keys, one, form, 3, 1)) for one in answers]
    assert all((one == opened[0]).all() for one in opened)


# ------------------------------------------------------------------------------------------------ whole trees


@pytest.mark.parametrize("task", ["classes", "numbers"])
@pytest.mark.parametrize("weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("owners", [[[0, 1, 2, 3, 4, 5]], HALVES, [[0], [3, 4], [1], [2, 5]]], ids=["1", "2", "4"])
def test_trees_are_those_of_the_joined_table(owners: Any, task: str, weights: bool) -> None:
    table, how = made(task=task, weights=weights), secureboost(trees=4, bins=16)
    train = np.arange(0, 240, 2)
    found = trained(table, owners, how, train=train)
    assert_same(found, oracle(table, owners, how, train=train))
    if len(owners) > 1:
        owned = found.server["boost"]["nodes"][0]
        assert sum(owned[one.name] for one in found.parties[1:]) > 0


@pytest.mark.parametrize(
    "keys",
    [
        {"l1": 0.7, "l2": 0.0},
        {"min_leaf": 25},
        {"min_gain": 3.0},
        {"depth": 5, "min_leaf": 9},
        {"bins": 2},
        {"precision": 8},
        {"complete_secure": 2},
        {"subtract": False},
        {"depth": 1, "learning_rate": 1.0},
    ],
    ids=str,
)
def test_every_key_is_that_of_the_booster(keys: dict[str, Any]) -> None:
    table, how = made(seed=3), secureboost(**{"trees": 3, **keys})
    found = trained(table, HALVES, how, active=1)
    assert_same(found, oracle(table, HALVES, how, active=1))


def test_first_trees_of_the_active_party_alone() -> None:
    found = trained(made(), HALVES, secureboost(trees=2, complete_secure=1))
    first, second = found.server["boost"]["nodes"]
    assert first["p1"] == 0
    assert second["p1"] > 0


def test_a_tree_is_grown_on_drawn_rows_and_columns() -> None:
    """Rows are drawn by the active party, columns by each party for itself, anew for every tree."""
    table, how = made(seed=5), secureboost(trees=3, subsample=0.6, columns=0.5)
    train = np.arange(200)

    def drawn(tree: int) -> Any:
        return np.sort(numpy_stream(0, "boosting", tree).choice(train, 120, replace=False)).tolist()

    def offered(tree: int, party: int) -> Any:
        some = numpy_stream(0, "boosting", tree, party).choice(3, 2, replace=False)  # half of three: 1.5 rounds to 2
        return [HALVES[party][i] for i in sorted(some)]

    assert_same(
        trained(table, HALVES, how, train=train), oracle(table, HALVES, how, train=train, drawn=drawn, offered=offered)
    )


def test_of_equal_gains_the_first_party_and_its_first_column_win() -> None:
    """All parties hold the same column twice: every split belongs to the first column of the first party."""
    table = made(holes=0.3)
    table = table._replace(x=table.x[:, [0, 0, 0, 0]])
    found = trained(table, [[0, 1], [2, 3]], secureboost(trees=2), active=1)
    splits = [node for tree in found.trees for node in tree if "leaf" not in node]
    assert splits
    assert {(node["party"], node["column"]) for node in splits} == {("p0", "x0")}


def test_what_is_there_can_be_parted_from_what_is_missing() -> None:
    x = np.array([[1.0], [1.0], [np.nan], [np.nan]])
    found = trained(Table(x, np.array([0.0, 0, 1, 1]), "classes"), [[0]], secureboost(trees=1, depth=2))
    root = found.trees[0][0]
    assert (root["threshold"], root["missing"]) == (None, "right")


def test_nothing_to_split_is_one_leaf() -> None:
    found = trained(Table(np.ones((6, 2)), np.array([0.0, 1] * 3), "classes"), [[0], [1]], secureboost(trees=1))
    assert found.trees == [[{"leaf": 0.0, "rows": 6}]]


# ------------------------------------------------------------------------------------------------ encrypted


@pytest.mark.timing
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"pack": False},
        {"compress": False},
        {"subtract": False},
        {"pack": False, "compress": False, "subtract": False},
    ],
    ids=lambda keys: ",".join(keys) or "all",
)
def test_encrypted_trees_are_the_plain_ones(keys: dict[str, Any]) -> None:
    table, how = made(n=90), secureboost(trees=2, bins=8, **keys)
    plain = trained(table, HALVES, how)
    under = trained(table, HALVES, how._replace(key_bits=BITS))
    assert under.trees == plain.trees
    assert under.outputs.tolist() == plain.outputs.tolist()
    counts = under.server["boost"]["total"]
    assert counts["decryptions"] > 0
    assert counts["encryptions"] == counts["ciphertexts"] > counts["decryptions"]


@pytest.mark.timing
def test_ciphertexts_fall_by_what_packing_saves() -> None:
    """2 a row become 1; of a node the sums of c candidates become c / slots, where a key of 512 bits has room for so many."""
    table, how = made(n=90, holes=0.0), secureboost(trees=1, depth=1, bins=8)._replace(key_bits=BITS)
    offers = sum(len(bins.cuts_of(table.x[:, c], 8)) for c in HALVES[1])
    plain = trained(table, HALVES, how._replace(pack=False, compress=False)).server["boost"]["total"]
    packed = trained(table, HALVES, how).server["boost"]["total"]
    assert plain["ciphertexts"] == 2 * 90 + 2 * offers
    assert packed["ciphertexts"] == 90 + -(-offers // sealed.fields(90, how).each[0])


@pytest.mark.timing
def test_four_parties_with_weights_and_numbers_encrypted() -> None:
    table, owners = made(n=80, task="numbers", weights=True), [[0], [3, 4], [1], [2, 5]]
    how = secureboost(trees=2, bins=6, subsample=0.8, columns=0.7)
    plain, under = (trained(table, owners, one, active=2) for one in (how, how._replace(key_bits=BITS)))
    assert under.trees == plain.trees


def test_a_key_too_short_for_one_sum_is_refused() -> None:
    with pytest.raises(Exception, match=r"sums of 1,000,000,000 rows need \d+ bits, but a key of 128"):
        sealed.fields(1_000_000_000, secureboost()._replace(key_bits=128))


@pytest.mark.timing
def test_sums_at_the_ends_of_their_fields_open_exactly() -> None:
    """n rows of the largest and of the smallest gradient, all in one bin: no field runs over into its neighbour."""
    how = secureboost(precision=24)._replace(key_bits=256)
    keys = paillier.holder(paillier.generate(256, testing=True))
    top, form = 1 << 24, sealed.fields(16, how)
    for g in (top, -top):
        fixed = gains.Fixed(np.full(16, g), np.full(16, top), 0, 0)
        cipher = sealed.Cipher(keys.public, sealed.sealed([fixed], form, keys, 1), form)
        grid = bins.grid([0], [np.array([0.5])], np.array([False]))
        spots = np.array([[0]] * 15 + [[1]])
        plain = cipher.returned(cipher.histogram(np.arange(16), spots, grid.width), grid, np.arange(1))
        assert sealed.opened(keys, plain, form, 1, 1).tolist() == [[15 * g, 15 * top, 15]]


# ------------------------------------------------------------------------------------------------ prediction, files


def restored(found: Trained, table: Table) -> np.ndarray:
    """Predictions for a table of new rows by what the parties wrote, by the protocol."""
    owners = [[int(name[1:]) for name in one.names] for one in found.parties]
    new, n = parties_of(table, owners, found.parties[0].active), len(table.y)
    states = PartyState()
    states.begin(0, 0)
    for one in new:
        exported = boosting.export(found.parties[one.party], found.state(one.party))
        rows = np.arange(n)
        states.put(one.party, {**boosting.loaded(one, exported), "align": {"order": tensor(rows)}})
    states.commit(0, range(len(new)))
    how = secureboost()
    held = columns_federation(new, boosting.questions(how), states)
    server = {"names": [one.name for one in new], "active": new[0].active}
    held.drive(boosting.infer(how, server), RoundStart(1, 0.0))
    return boosting.outputs(held.states.get(new[0].active))


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_prediction_between_parties_is_that_of_training(task: str) -> None:
    """The rows that walked the trees as they were grown have the margins that the inference protocol gives them."""
    table = made(task=task)
    found = trained(table, [[0, 1], [4, 3], [2, 5]], secureboost(trees=4), active=1, train=np.arange(150))
    assert restored(found, table).tolist() == found.outputs.tolist()


def test_a_files_table_names_no_other_partys_columns() -> None:
    found = trained(made(), HALVES, secureboost(trees=2))
    for one in found.parties:
        exported = boosting.export(one, found.state(one.party))
        assert {each["column"] for each in exported["table"]["records"]} <= {*one.names}
        assert "threshold" not in str(exported["model"])


def test_importance_is_the_gain_of_each_column() -> None:
    table, how = made(), secureboost(trees=3)
    found = trained(table, HALVES, how)
    server = found.federation.drive(boosting.importance(how, found.server), RoundStart(9, 0.0))
    expected = {name: [0.0] * 3 for name in ("p0", "p1")}
    for node in (node for tree in found.trees for node in tree if "leaf" not in node):
        of = [f"x{c}" for c in HALVES[int(node["party"][1:])]]
        expected[node["party"]][of.index(node["column"])] += node["gain"]
    for name, by_column in server["boost"]["importance"].items():
        assert by_column == pytest.approx(expected[name], rel=1e-12)


# ------------------------------------------------------------------------------------------------ the tables


def read(path: Path, label: str, drop: tuple[str, ...] = ()) -> Table:
    """A table of numbers; texts become numbers in the order of the alphabet."""
    import pandas as pd

    with gzip.open(path, "rt") as file:
        frame = pd.read_csv(file)
    frame = frame.drop(columns=list(drop))
    for name in frame:
        if frame[name].dtype.kind not in "if":
            frame[name] = frame[name].astype("category").cat.codes
    y = frame.pop(label).to_numpy(np.float64)
    return Table(frame.to_numpy(np.float64), y, "classes" if len(np.unique(y)) == 2 else "numbers")


TABLES = {
    "breast_cancer_wdbc": ("diagnosis", ("id",)),
    "diabetes_pima": ("outcome", ()),
    "auto_mpg": ("mpg", ()),  # six horsepowers are missing
    "concrete_strength": ("strength_mpa", ()),
}


@pytest.mark.timing
@pytest.mark.parametrize("parties", [2, 4])
@pytest.mark.parametrize("name", TABLES)
def test_encrypted_equals_plain_equals_joined_on_tables(
    name: str, parties: int, shared_data: Callable[[str], Path]
) -> None:
    table = read(shared_data(f"tables/{name}.csv.gz"), *TABLES[name])
    some = np.random.default_rng(1).permutation(len(table.y))[:120]
    holes = np.random.default_rng(2).random((120, table.x.shape[1])) < 0.05
    table = Table(np.where(holes, np.nan, table.x[some]), table.y[some], table.task)
    owners = [list(range(k, table.x.shape[1], parties)) for k in range(parties)]
    how = secureboost(trees=2, bins=8)
    train = np.arange(90)
    plain = trained(table, owners, how, train=train)
    assert_same(plain, oracle(table, owners, how, train=train))
    under = trained(table, owners, how._replace(key_bits=BITS), train=train)
    assert under.trees == plain.trees
    assert under.outputs.tolist() == plain.outputs.tolist()


@pytest.mark.timing
@pytest.mark.parametrize("key_bits", [0, BITS], ids=["clear", "encrypted"])
@pytest.mark.parametrize(
    ("owners", "changed"),
    [
        (HALVES, {"precision": 40}),
        (HALVES, {"learning_rate": 1e6}),  # margins whose exponential is infinite
        ([[], [0, 1, 2, 3, 4, 5]], {}),  # the active party brings the label alone
        ([[0, 1, 2], [3, 4, 5]], {"x": np.nan}),  # nothing is there
    ],
    ids=["long", "steep", "label alone", "holes alone"],
)
def test_what_is_at_the_edge_is_that_of_the_booster(owners: Any, changed: dict[str, Any], key_bits: int) -> None:
    table, keys = made(n=60), {name: value for name, value in changed.items() if name != "x"}
    if "x" in changed:
        table = table._replace(x=np.full_like(table.x, changed["x"]))
    table.x[:2, 0] = np.inf, -np.inf
    how = secureboost(**{"trees": 2, "bins": 4, **keys})
    with np.errstate(over="ignore"):
        expected = oracle(table, owners, how)
    assert_same(trained(table, owners, how._replace(key_bits=key_bits)), expected)
