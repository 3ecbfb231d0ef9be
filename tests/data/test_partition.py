"""Partitioners: every statement of D1 to D12 that numbers can hold."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.apportion import proportional
from fedatlas.data.partition import PARTITIONS, describe
from fedatlas.data.partition.classes import (
    majority,
    majority_even,
    majority_even_counts,
    pick_two,
    pick_two_counts,
    shards,
)
from fedatlas.data.partition.dirichlet import dirichlet, dirichlet_class, dirichlet_fedseq
from fedatlas.data.partition.figures import distances, histogram
from fedatlas.data.partition.sizes import iid, natural, quantity_skew, random
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream

HAR_ALL = np.array([1722, 1544, 1406, 1777, 1906, 1944])  # windows per activity (Anguita et al. 2013)
HAR_75 = np.array([1292, 1158, 1054, 1333, 1429, 1458])  # 75 % of them, 7,724 rows (section 9, Tests)
MNIST = np.array([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])  # training digits 0..9
CIFAR10 = np.repeat(np.arange(10), 5000)  # class counts of its training set
EQUAL = ("majority_even", "pick_two")  # these leave N mod K rows out


def rows_of(counts):
    """Labels with these class counts, in a scrambled order that no partitioner may rely on."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return numpy_stream(5, "split").permutation(labels)


def table(part, labels):
    return histogram(part, labels, int(labels.max()) + 1)


# --- all of them -----------------------------------------------------------------------------------------------------


@given(
    name=st.sampled_from([n for n in PARTITIONS if n != "natural"]),
    counts=st.lists(st.integers(50, 60), min_size=2, max_size=6),
    more=st.integers(0, 6),
    seed=st.integers(0, 2**40),
)
def test_every_row_has_one_holder(name, counts, more, seed):
    labels = rows_of(counts)
    clients = len(counts) + min(more, len(counts))
    keys = {"majority": 0.5} if "major" in name or "two" in name else {}
    if name in ("dirichlet_class", "quantity_skew"):
        keys = {"min_rows": 1}
    part = PARTITIONS[name](labels, clients, seed, **keys)
    dealt = np.concatenate(part.clients)
    assert len(part.clients) == clients
    assert len(np.unique(dealt)) == len(dealt) == len(labels) - part.left_out
    assert part.left_out == (len(labels) % clients if name in EQUAL else 0)
    assert dealt.min() >= 0
    assert dealt.max() < len(labels)
    assert all(rows.dtype == np.int64 and (np.diff(rows) > 0).all() for rows in part.clients)
    assert name == "dirichlet_fedseq" or min(part.sizes) >= 1
    again = PARTITIONS[name](labels, clients, seed, **keys)
    assert all(np.array_equal(a, b) for a, b in zip(part.clients, again.clients, strict=True))


@pytest.mark.parametrize("name", [n for n in PARTITIONS if n != "natural"])
def test_another_seed_is_another_split(name):
    labels = rows_of([200] * 4)
    one, two = (PARTITIONS[name](labels, 6, seed).clients for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", [n for n in PARTITIONS if not n.startswith("majority")])
def test_one_client_holds_everything(name):
    labels = rows_of([20, 30]) if name != "natural" else np.zeros(50, dtype=np.int64)
    (rows,) = PARTITIONS[name](labels, 1, 3).clients
    assert np.array_equal(rows, np.arange(50))


@pytest.mark.parametrize("name", [n for n in PARTITIONS if n not in ("natural", "dirichlet_fedseq")])
def test_who_would_be_empty_is_named(name):
    with pytest.raises(ConfigError, match=r"client 8 would be empty: 9 clients share 8 rows"):
        PARTITIONS[name](np.arange(8) % 2, 9, 1)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=20), st.integers(0, 1000))
def test_largest_remainder_is_exact_and_near(weights, total):
    whole = proportional(np.array(weights), total)
    assert whole.sum() == total
    assert (np.abs(whole - np.array(weights) / np.sum(weights) * total) < 1 + 1e-9).all()


# --- D1, D2: IID and random ------------------------------------------------------------------------------------------


def test_iid_is_mcmahans_100_times_600():
    assert iid(np.zeros(60_000, dtype=np.int64), 100, 1).sizes == [600] * 100
    sizes = iid(np.zeros(1347, dtype=np.int64), 12, 1).sizes
    assert set(sizes) == {112, 113}


def test_stratified_iid_deals_each_class_evenly():
    labels = rows_of(MNIST)
    part = iid(labels, 70, 1, stratified=True)
    assert np.ptp(part.sizes) <= 1
    assert (np.ptp(table(part, labels), axis=0) <= 1).all()


def test_multinomial_sizes_vary_by_chance():
    # sum (n_k - n/K)^2 / (n/K) is chi-squared with K - 1 = 199 degrees: mean 199, sd sqrt(398) = 20.
    sizes = np.array(random(np.zeros(20_000, dtype=np.int64), 200, 1, multinomial=True).sizes)
    assert 139 < ((sizes - 100) ** 2 / 100).sum() < 259


# --- D3 to D5: the ISTAT splits --------------------------------------------------------------------------------------


def test_majority_even_worked_by_hand():
    # N = 18, q = 6, own 3 each, left (2, 3, 4). Fill in turn, most left first, never the own class, ties by index:
    # c0 takes 2, c1 2, c2 1 -> (2, 2, 2); c0 1, c1 0, c2 0 -> (0, 1, 2); c0 2, c1 2, c2 1 -> (0, 0, 0).
    assert majority_even_counts(np.array([5, 6, 7]), 3, 0.5).tolist() == [[3, 1, 2], [1, 3, 2], [1, 2, 3]]
    # N = 12, q = 4, own 3, the balanced client 2 + 2, left (2, 0): client 0 finds only its own class.
    assert majority_even_counts(np.array([7, 5]), 3, 0.75).tolist() == [[4, 0], [1, 3], [2, 2]]


@pytest.mark.parametrize("rows", [7724, 1600])
@pytest.mark.parametrize("share", [0.7, 0.75])
def test_majority_even_on_har(rows, share):
    labels = rows_of(proportional(HAR_ALL, rows))
    part = majority_even(labels, 8, 1, majority=share)
    quota = rows // 8  # 965 or 200
    counts = table(part, labels)
    assert part.sizes == [quota] * 8
    assert part.left_out == rows % 8
    assert all(abs(counts[i, i] - share * quota) <= 1 for i in range(6))
    assert part.info["majority"] == pytest.approx([share] * 6, abs=1 / quota)
    assert (np.ptp(counts[6:], axis=1) <= 1).all()


def test_majority_even_says_what_is_impossible():
    with pytest.raises(ConfigError, match=r"at least 6, one for each majority"):
        majority_even(rows_of(HAR_75), 5, 1)
    with pytest.raises(ConfigError, match=r"client 6 needs 160 rows of class 2, but only 89 are left"):
        majority_even(rows_of(HAR_75), 8, 1, majority=1.0)  # 1054 - 965 = 89 remain of class 2
    with pytest.raises(ConfigError, match=r"majority = 1\.2: it must be above 0 and at most 1"):
        majority_even(rows_of(HAR_75), 8, 1, majority=1.2)


def test_majority_on_har_as_the_specification_found_it():
    # 300 draws: none refused, every row used, mean realised majority 0.67; uncapped, 0.7 would not fit in 86 % of them.
    labels = rows_of(HAR_75)
    realised, capped = [], 0
    for seed in range(300):
        part = majority(labels, 8, seed)
        counts = table(part, labels)
        assert np.array_equal(counts.sum(axis=0), HAR_75)
        assert part.info["majority"] == pytest.approx([counts[i, i] / counts[i].sum() for i in range(6)])
        realised += part.info["majority"]
        capped += any(counts[i, i] < round(0.7 * part.sizes[i]) for i in range(6))
    assert np.mean(realised) == pytest.approx(0.67, abs=0.01)
    assert capped / 300 == pytest.approx(0.86, abs=0.06)  # 3 standard errors


def test_majority_keeps_balanced_clients_balanced():
    labels = rows_of(HAR_75)
    for seed in range(20):
        part = majority(labels, 8, seed)
        assert (np.ptp(table(part, labels)[6:], axis=1) <= 1).all()
        assert np.std(part.sizes) > 100  # quotas are lognormal(0, 0.5): their sd is about half their mean of 965


def test_majority_gives_up_with_a_reason():
    with pytest.raises(ConfigError, match=r"class 1 has only 3 rows, too few for the 38 balanced clients \(2 to 39\)"):
        majority(rows_of([2000, 3]), 40, 1)


def test_pick_two_on_har():
    labels = rows_of(HAR_75)
    part = pick_two(labels, 8, 1)
    counts = table(part, labels)
    assert part.sizes == [965] * 8
    assert part.left_out == 4
    assert [counts[i, [2 * i, 2 * i + 1]].tolist() for i in range(3)] == [[338, 338]] * 3  # round(0.35 * 965)
    others = counts[3:]
    # 1054 - 338 = 716 rows of class 2 for five clients: 143 each, and one over.
    assert sorted(others[:, 2]) == [143, 143, 143, 143, 144]
    assert set(np.delete(others, 2, axis=1).ravel()) == {164, 165}
    assert distances(others, HAR_75) == pytest.approx(0.035, abs=0.001)


def test_pick_two_worked_by_hand():
    # N = 20, q = 5, one pair: client 0 takes round(0.3 * 5) = 2 of classes 0 and 1, then one of class 2.
    # Left (4, 4, 7), dealt on and on to three clients: 0 1 2 0 | 1 2 0 1 | 2 0 1 2 0 1 2.
    assert pick_two_counts(np.array([6, 6, 8]), 4, 0.6).tolist() == [[2, 2, 1], [2, 1, 2], [1, 2, 2], [1, 1, 3]]


# --- D6: shards ------------------------------------------------------------------------------------------------------


def test_shards_are_mcmahans_200_of_300():
    labels = rows_of(MNIST)
    part = shards(labels, 100, 1)
    kinds = (table(part, labels) > 0).sum(axis=1)
    assert part.sizes == [600] * 100
    assert kinds.max() <= 4  # a shard straddles one class border at most
    assert np.median(kinds) == 2


def test_shards_on_the_real_digits(shared_data):
    labels = np.load(shared_data("mnist.npz"))["y_train"].astype(np.int64)
    assert np.array_equal(np.bincount(labels), MNIST)
    assert (table(shards(labels, 100, 7), labels) > 0).sum(axis=1).max() <= 4


# --- D7 to D10: Dirichlet --------------------------------------------------------------------------------------------


def dirichlet_as_written(labels, clients, alpha, seed):
    """The pseudo-code of D7, row by row."""
    rng = numpy_stream(seed, "partition")
    ids, left = np.unique(labels, return_counts=True)
    pools = [list(rng.permutation(np.flatnonzero(labels == c))) for c in ids]
    n, p, out = len(labels), left / len(labels), []
    for k in range(clients):
        q, rows = rng.dirichlet(alpha * p), []
        for _ in range(n // clients + (1 if k < n % clients else 0)):
            v = q * (left > 0)
            if v.sum() == 0:
                v = left
            c = int(np.searchsorted(np.cumsum(v) / v.sum(), rng.random(), side="right"))
            rows.append(pools[c].pop())
            left[c] -= 1
        out.append(np.sort(rows))
    return out


@pytest.mark.parametrize("alpha", [0.01, 0.2, 5.0, 1000.0])
@pytest.mark.parametrize("counts", [[300, 20, 7, 100, 1], [50, 0, 50]])
def test_dirichlet_is_the_pseudo_code(alpha, counts):
    labels = rows_of(counts)
    part = dirichlet(labels, 13, 4, alpha=alpha)
    assert all(
        np.array_equal(a, b) for a, b in zip(part.clients, dirichlet_as_written(labels, 13, alpha, 4), strict=True)
    )


def test_dirichlet_of_one_seed_never_changes():
    # Stored from the run that agreed with the pseudo-code; NumPy may change a law's stream, and then this must say so.
    digest = hashlib.sha256()
    for rows in dirichlet(np.arange(1000) % 7, 9, 42, alpha=0.5).clients:
        digest.update(rows.astype("<i8").tobytes() + b"|")
    assert digest.hexdigest()[:32] == "0741bc54931890f4dae3abe497a78be5"


def test_dirichlet_mixtures_average_to_the_overall_one():
    # 40 x 50 draws of Dir(2 p): sd of a share sqrt(p (1 - p) / 3), of its mean below 0.29 / sqrt(2000) = 0.0065.
    # Few of many rows are asked for, so that no class runs out: clients 0..49 of 300, 100 rows each.
    labels = rows_of([18_000, 9_000, 3_000])
    mixtures = [table(dirichlet(labels, 300, seed, alpha=2.0), labels)[:50] / 100 for seed in range(40)]
    assert np.mean(np.concatenate(mixtures), axis=0) == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


@pytest.mark.parametrize(("alpha", "per_client", "fedseq"), [(0.2, 0.84, 0.66), (0.5, 0.80, 0.50), (100.0, 0.14, 0.04)])
def test_alpha_means_different_distances(alpha, per_client, fedseq):
    for builder, expected in ((dirichlet, per_client), (dirichlet_fedseq, fedseq)):  # D10, CIFAR-10, K = 100
        tv = np.mean([describe(builder(CIFAR10, 100, seed, alpha=alpha), CIFAR10, 10)["tv_mean"] for seed in range(4)])
        assert tv == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("builder", [dirichlet, dirichlet_class, dirichlet_fedseq])
def test_alpha_zero_is_one_class_each_and_infinity_is_iid(builder):
    for clients in (100, 500):
        part = builder(CIFAR10, clients, 1, alpha=0.0)
        assert ((table(part, CIFAR10) > 0).sum(axis=1) == 1).all()
        assert part.sizes == [50_000 // clients] * clients
    even, plain = builder(CIFAR10, 100, 1, alpha=float("inf")), iid(CIFAR10, 100, 1)
    assert all(np.array_equal(a, b) for a, b in zip(even.clients, plain.clients, strict=True))


@pytest.mark.parametrize("builder", [dirichlet, dirichlet_class, dirichlet_fedseq])
def test_distance_falls_with_alpha(builder):
    labels = rows_of(HAR_75)
    tv = [
        np.mean([describe(builder(labels, 8, s, alpha=a), labels, 6)["tv_mean"] for s in range(5)])
        for a in (0.1, 1, 10)
    ]
    assert tv[0] > tv[1] > tv[2]


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), 1e-320])
def test_alpha_out_of_range(alpha):
    with pytest.raises(ConfigError, match=r"alpha = .*: it must lie between 1e-09 and 1e\+09 or 0 or inf"):
        dirichlet(CIFAR10, 10, 1, alpha=alpha)


def test_dirichlet_class_keeps_its_rules():
    labels = rows_of(HAR_75)
    for seed in range(20):
        part = dirichlet_class(labels, 8, seed, alpha=0.3)
        counts = table(part, labels)
        assert min(part.sizes) >= 10
        before = np.cumsum(counts, axis=1) - counts  # rows of the classes dealt earlier
        assert (counts[before >= len(labels) / 8] == 0).all()


def test_dirichlet_class_gives_up_and_names_the_client():
    with pytest.raises(ConfigError, match=r"client \d+ would (be empty|hold \d rows, fewer than the 10 asked for)"):
        dirichlet_class(rows_of([60, 60]), 12, 1, alpha=0.1)


def test_fedseq_variant_has_the_sizes_of_its_code():
    # K = 500, alpha = 0.2: from 1-3 (or none) to about 300 rows, a quarter of the clients below one batch of 64 (D9).
    sizes = np.array(dirichlet_fedseq(CIFAR10, 500, 1, alpha=0.2).sizes)
    assert sizes.min() <= 5
    assert 250 < sizes.max() < 400
    assert 0.2 < (sizes < 64).mean() < 0.3


def test_fedseq_variant_picks_even_sizes_and_can_rebalance():
    labels = rows_of(HAR_75)
    single = [np.std(dirichlet_class(labels, 8, seed, min_rows=0).sizes) for seed in range(40)]
    assert np.std(dirichlet_fedseq(labels, 8, 1).sizes) < np.quantile(single, 0.1)
    assert set(dirichlet_fedseq(labels, 9, 1, rebalance=True).sizes) == {858, 859}


# --- D11, D12: owners and sizes --------------------------------------------------------------------------------------

OWNERS = np.array([7, 3, 3, 9, 7, 3, 9, 3])  # owner 3: rows 1 2 5 7; 7: rows 0 4; 9: rows 3 6


def test_natural_takes_owners_in_ascending_order():
    part = natural(OWNERS, 0, 1)
    assert [rows.tolist() for rows in part.clients] == [[1, 2, 5, 7], [0, 4], [3, 6]]
    assert part.info["owners"] == [3, 7, 9]
    assert part.left_out == 0


def test_natural_can_take_some_owners_and_some_rows():
    first = natural(OWNERS, 2, 1, choose="first", cap=3)
    assert first.info["owners"] == [3, 7]
    assert first.sizes == [3, 2]
    assert first.left_out == 3
    assert set(first.clients[0]) < {1, 2, 5, 7}
    assert natural(OWNERS, 0, 1, min_rows=3).info["owners"] == [3]
    drawn = {tuple(natural(OWNERS, 2, seed).info["owners"]) for seed in range(30)}
    assert drawn == {(3, 7), (3, 9), (7, 9)}
    with pytest.raises(ConfigError, match=r"clients = 4, but the data have 3 owners with at least 1 rows"):
        natural(OWNERS, 4, 1)


def test_har_by_person(shared_data):
    owners = np.load(shared_data("har_smartphones_561.npz"))["subject_train"].astype(np.int64)
    part = natural(owners, 0, 1)
    assert len(part.clients) == 21
    assert min(part.sizes) == 281
    assert max(part.sizes) == 409


def test_quantity_skew_changes_sizes_only():
    labels = rows_of(MNIST)
    ginis = []
    for beta in (0.5, 2.0, 50.0):
        facts = describe(quantity_skew(labels, 10, 1, beta=beta), labels, 10)
        assert min(facts["sizes"]) >= 10
        assert facts["left_out"] == 0
        ginis.append(facts["gini"])
        big = [tv for tv, size in zip(facts["tv"], facts["sizes"], strict=True) if size > 2000]
        assert max(big) < 0.05  # sampling error of ten shares from 2,000 rows
    assert ginis[0] > ginis[1] > ginis[2]
    assert quantity_skew(labels, 10, 1, law="lognormal", sigma=0.0).sizes == [6000] * 10


def test_quantity_skew_that_cannot_keep_its_minimum():
    with pytest.raises(ConfigError, match=r"client \d+ would .*(be empty|fewer than the 10 asked for)"):
        quantity_skew(np.zeros(1000), 90, 1, beta=0.1)


@pytest.mark.parametrize("name", [n for n in PARTITIONS if n != "natural"])
def test_targets_that_are_numbers(name):
    labels = np.linspace(0.0, 1.0, 400)
    if name in ("iid", "random", "quantity_skew", "feature_skew"):
        assert sum(PARTITIONS[name](labels, 4, 1).sizes) == 400
    else:
        with pytest.raises(
            ConfigError, match=r"the targets are numbers: use iid, random, quantity_skew, feature_skew or"
        ):
            PARTITIONS[name](labels, 4, 1)
