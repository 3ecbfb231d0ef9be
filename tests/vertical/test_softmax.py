"""SecureBoost with three or more classes: rounds of trees that grow together, one tree for all classes, bytes (V2, V3 (6))."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from boosting_federation import Table, federation_of, parties_of, trained
from fedatlas.errors import PrivacyError
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.start import RoundStart
from fedatlas.vertical import boosting
from fedatlas.vertical.boosting import gains, sealed
from fedatlas.vertical.boosting.settings import secureboost
from fedatlas.vertical.parties import PartyLeft
from fedatlas.vertical.trees import nodes
from fedatlas.wire import codec
from test_secureboost import HALVES, assert_same, oracle

BITS = 512
WAYS = [{}, {"multi_output": True}, {"softmax_hess": "xgboost"}]


def made(n: int = 120, classes: int = 3, columns: int = 6, seed: int = 0, weights: bool = False) -> Table:
    """Columns of which a tenth is missing, and a class that hangs on some of them."""
    stream = np.random.default_rng(seed)
    x = stream.normal(size=(n, columns))
    x[:, -1] = stream.integers(0, 3, n)
    signal = x[:, 0] + x[:, 1] * x[:, -1] + 0.3 * stream.normal(size=n)
    y = np.searchsorted(np.quantile(signal, np.arange(1, classes) / classes), signal).astype(np.float64)
    x[stream.random(x.shape) < 0.1] = np.nan
    return Table(x, y, "classes", stream.integers(0, 4, n) / 2 if weights else None)


# ------------------------------------------------------------------------------------------------ gradients


def test_gradients_by_hand() -> None:
    """Margins (ln 2, 0, 0): p = (1/2, 1/4, 1/4); of class 1 g = (1/2, -3/4, 1/4), h = p (1 - p); XGBoost's h is twice that."""
    y, margin, unit = np.array([1.0]), np.log([[2.0, 1.0, 1.0]]), gains.unit_of(np.zeros(1), None, "classes", 3)
    for keys, twice in (({}, 1), ({"softmax_hess": "xgboost"}, 2)):
        g, h = gains.gradients(y, margin, np.array([4.0]), unit, secureboost(**keys))
        assert g[0] == pytest.approx([2.0, -3.0, 1.0], abs=1e-15)
        assert h[0] == pytest.approx([twice * 1.0, twice * 0.75, twice * 0.75], abs=1e-15)


def test_margins_however_large_have_probabilities() -> None:
    margin = np.array([[1e6, 0.0, -1e6], [0.0, 0.0, 0.0]])
    assert gains.softmax(margin).tolist() == [[1.0, 0.0, 0.0], [1 / 3] * 3]
    assert gains.log_softmax(margin)[0].tolist() == [0.0, -1e6, -2e6]


def test_a_number_under_the_whole_square_has_twice_the_gradients() -> None:
    y, unit = np.array([3.0, 5.0]), gains.MarginUnit("numbers", 4.0, 2.0)
    half, whole = (gains.gradients(y, np.zeros(2), None, unit, secureboost(square_scale=s)) for s in (None, 2))
    assert [one.tolist() for one in half] == [[0.5, -0.5], [1.0, 1.0]]
    assert [one.tolist() for one in whole] == [[1.0, -1.0], [2.0, 2.0]]


# ------------------------------------------------------------------------------------------------ nodes of several trees


@pytest.mark.parametrize("trees", [1, 2, 3, 4, 7, 23])
def test_every_node_of_a_forest_knows_its_tree_and_level(trees: int) -> None:
    level = nodes.roots(trees)
    for depth in range(1, 5):
        assert level == list(range(level[0], level[0] + len(level)))
        assert [nodes.tree_of(v, trees) for v in level] == [t for t in range(trees) for _ in range(2 ** (depth - 1))]
        assert {nodes.level_of(v, trees) for v in level} == {depth}
        level = [child for v in level for child in (2 * v, 2 * v + 1)]
    assert nodes.roots(1) == [1]


# ------------------------------------------------------------------------------------------------ whole rounds


@pytest.mark.parametrize("keys", WAYS, ids=str)
@pytest.mark.parametrize("weights", [False, True], ids=["", "weights"])
@pytest.mark.parametrize("owners", [HALVES, [[0], [3, 4], [1], [2, 5]]], ids=["2", "4"])
def test_rounds_are_those_of_the_joined_table(owners: Any, weights: bool, keys: dict[str, Any]) -> None:
    table, how = made(weights=weights), secureboost(trees=3, bins=8, **keys)
    train = np.arange(0, 120, 2)
    found = trained(table, owners, how, train=train)
    assert_same(found, oracle(table, owners, how, train=train))
    assert len(found.trees) == (3 if how.multi_output else 9)
    assert sum(one[name] for one in found.server["boost"]["nodes"] for name in ("p1",)) > 0


def test_eight_parties_and_five_classes() -> None:
    table, owners = made(classes=5, columns=8, seed=2), [[k] for k in range(8)]
    how = secureboost(trees=2, bins=8, subsample=1.0, min_leaf=4, l1=0.1, complete_secure=1)
    assert_same(trained(table, owners, how, active=3), oracle(table, owners, how, active=3))


def test_a_square_of_numbers_is_that_of_the_booster() -> None:
    table = made()
    table = table._replace(y=40 + 7 * table.y + table.x[:, 0] ** 2, task="numbers")
    table = table._replace(y=np.nan_to_num(table.y))
    how = secureboost(trees=3, bins=8, square_scale=2)
    found = trained(table, HALVES, how)
    assert_same(found, oracle(table, HALVES, how))
    assert found.trees != trained(table, HALVES, how._replace(square_scale=None)).trees


@pytest.mark.timing
@pytest.mark.parametrize(
    "keys",
    [*WAYS, {"pack": False}, {"compress": False, "subtract": False}, {"pack": False, "multi_output": True}],
    ids=str,
)
def test_encrypted_rounds_are_the_plain_ones(keys: dict[str, Any]) -> None:
    table, how = made(n=60, weights=True), secureboost(trees=2, bins=6, subsample=0.8, columns=0.7, **keys)
    plain = trained(table, [[0, 1], [2, 3], [4, 5]], how, active=1)
    under = trained(table, [[0, 1], [2, 3], [4, 5]], how._replace(key_bits=BITS), active=1)
    assert under.trees == plain.trees
    assert under.outputs.tobytes() == plain.outputs.tobytes()


@pytest.mark.timing
def test_eight_parties_encrypted_grow_the_rounds_of_the_joined_table() -> None:
    table, owners = made(n=40, columns=8, seed=4, weights=True), [[k] for k in range(8)]
    how = secureboost(trees=1, bins=4, depth=2)
    under = trained(table, owners, how._replace(key_bits=BITS), active=2)
    assert_same(under, oracle(table, owners, how, active=2))


# ------------------------------------------------------------------------------------------------ bytes


@pytest.mark.timing
def test_a_row_is_one_ciphertext_a_round_however_many_classes() -> None:
    """Of a round with depth 1: a row's ciphertext, and once the sums of the root that all trees have in common."""
    for classes in (2, 3, 5):
        table, how = made(n=60, classes=classes), secureboost(trees=1, depth=1, bins=4)._replace(key_bits=1024)
        found = trained(table, HALVES, how)
        counts, candidates = found.server["boost"]["total"], int(found.state(0)["boost"]["announced"]["1"])
        (sums,) = sealed.fields(60, how, classes if classes > 2 else 1).batches(candidates)
        assert counts["ciphertexts"] == 60 + sums
        assert counts["decryptions"] == sums


def test_sums_of_all_classes_single_out_rows_where_those_of_one_do_not() -> None:
    """What docs/vertical.md says of the active party: how many sets of 14 rows have a bin's sums, at 3 bits."""
    stream, how = np.random.default_rng(3), secureboost()._replace(precision=3)
    y, margin = stream.integers(0, 5, 14).astype(np.float64), stream.normal(size=(14, 5))
    g, h = gains.gradients(y, margin, None, gains.MarginUnit("classes", outputs=5), how)
    fixed = gains.by_class(g, h, how.precision)
    sets = (np.arange(1 << 14)[:, None] >> np.arange(14)) & 1
    sums = sets @ np.stack([each for one in fixed for each in (one.g, one.h)], axis=1)
    count, true = sets.sum(axis=1), 0b01011001110010
    alike = [((sums[:, : 2 * k] == sums[true, : 2 * k]).all(axis=1) & (count == count[true])).sum() for k in (1, 5)]
    assert alike[0] > 1
    assert alike[1] == 1


class Asked(Observer):
    """The questions asked."""

    def __init__(self) -> None:
        self.whats: list[str] = []

    def asked(self, request: Request) -> None:
        self.whats.append(request.what)


def test_a_round_has_as_many_messages_as_a_tree() -> None:
    """Grown to depth 3, of any number of classes: a sum, a choice and at most one split of the passive party a level."""
    for classes in (2, 3, 5):
        wire = Asked()
        found = trained(made(n=200, classes=classes), HALVES, secureboost(trees=1, bins=8), observers=[wire])
        assert len(found.trees) == (classes if classes > 2 else 1)
        asked = [what for what in wire.whats if what != "split"]
        assert asked == ["bins", "start", "gradients", *["histogram", "open"] * 3, "leaves"]
        assert 1 <= wire.whats.count("split") <= 3


def test_23_classes_fit_into_2048_bits_and_no_more() -> None:
    """20,000 rows at 24 bits: h 40 bits, g 41, the count 16: (2046 - 16) / 81 = 25; a million rows: (2046 - 21) / 91 = 22."""
    how = secureboost()._replace(key_bits=2048)
    for rows, most in ((20_000, 25), (100_000, 23), (1_000_000, 22)):
        form = sealed.fields(rows, how, most)
        assert len(form.widths[0]) == 2 * most + 1
        with pytest.raises(
            PrivacyError, match=f"{rows:,} rows and {most + 1} classes need .* use at most {most} classes"
        ):
            sealed.fields(rows, how, most + 1)


@pytest.mark.timing
def test_too_many_classes_for_the_key_are_refused_before_the_first_round() -> None:
    held, server = federation_of(
        parties_of(made(classes=9), HALVES), secureboost()._replace(key_bits=BITS), np.arange(90)
    )
    with pytest.raises(
        PrivacyError, match="sums of 90 rows and 9 classes need 593 bits, but a key of 512 has room for 510"
    ):
        held.drive(boosting.begin(secureboost()._replace(key_bits=BITS), server), RoundStart(1, 0.0))


@pytest.mark.timing
def test_sums_of_many_classes_at_the_ends_of_their_fields_open_exactly() -> None:
    from fedatlas.privacy.paillier import cryptosystem as paillier
    from fedatlas.vertical.boosting import bins

    how = secureboost(precision=24)._replace(key_bits=512)
    keys = paillier.holder(paillier.generate(512, testing=True))
    top, form = 1 << 24, sealed.fields(16, how, 3)
    g = [top, -top, top]
    fixed = [gains.Fixed(np.full(16, one), np.full(16, top if one > 0 else 0), 0, 0) for one in g]
    cipher = sealed.Cipher(keys.public, sealed.sealed(fixed, form, keys, 1), form)
    grid = bins.grid([0], [np.array([0.5])], np.array([False]))
    spots = np.array([[0]] * 15 + [[1]])
    plain = cipher.returned(cipher.histogram(np.arange(16), spots, grid.width), grid, np.arange(1))
    expected = [15 * top, 15 * top, -15 * top, 0, 15 * top, 15 * top, 15]
    assert sealed.opened(keys, plain, form, 1, 1).tolist() == [expected]


# ------------------------------------------------------------------------------------------------ leaving


@pytest.mark.parametrize("what", ["histogram", "split"])
@pytest.mark.parametrize("keys", [{}, {"multi_output": True}], ids=str)
def test_who_leaves_ends_the_round_and_the_next_attempt_grows_the_same(keys: dict[str, Any], what: str) -> None:
    """The second round breaks off: no tree of it is kept, and grown again it is that of an undisturbed run."""
    table, how, train = made(), secureboost(trees=2, bins=8, **keys), np.arange(120)
    held, server = federation_of(parties_of(table, HALVES), how, train)
    server = held.drive(boosting.begin(how, server), RoundStart(1, 0.0))
    server = held.drive(boosting.grow(how, server, 1), RoundStart(2, 0.0))
    before = [codec.encode(dict(held.states.get(k))) for k in (0, 1)]
    with pytest.raises(PartyLeft, match=f"party 'p1' left when it was asked for '{what}'"):
        held.drive(boosting.grow(how, server, 2), RoundStart(3, 0.0, leaving={1: what}))
    held.server.commit(3, ())
    assert [codec.encode(dict(held.states.get(k))) for k in (0, 1)] == before
    held.drive(boosting.grow(how, server, 2), RoundStart(3, 0.0))
    expected = trained(table, HALVES, how, train=train)
    states = [[codec.encode(dict(states(k))) for k in (0, 1)] for states in (held.states.get, expected.state)]
    assert states[0] == states[1]
