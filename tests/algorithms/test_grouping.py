"""FedSeq's superclients: clients as vectors, how these complement each other, how groups form (G1 to G7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from comparison import problem_of, settings
from fedatlas.algorithms.fedseq import fedseq
from fedatlas.algorithms.grouping import (
    TAU,
    Limits,
    form,
    gini,
    greedy_pick,
    kl,
    kmeans_pick,
    normalised,
    principal_scores,
    random_pick,
    short,
    wasserstein_support,
    wasserstein_values,
)
from fedatlas.algorithms.superclients import Grouping, fewest, groups, picker
from fedatlas.errors import ConfigError
from federation import Deep, federation, rows
from oracles.grouping import superclients

TOY = {1: np.array([0.1, 0.9]), 2: np.array([0.2, 0.8]), 3: np.array([0.9, 0.1]), 4: np.array([0.7, 0.3])}
EVEN = np.array([0.5, 0.5])


def greedy(vectors: Mapping[int, np.ndarray], tau: Any, size: int) -> list[list[int]]:
    ones = dict.fromkeys(vectors, 1)
    start = np.full(len(next(iter(vectors.values()))), 1 / len(next(iter(vectors.values()))))
    return form(greedy_pick(vectors, ones, tau, first="best", start=start, seed=1), ones, Limits(size, size))


WHOLE: list[
    tuple[dict[str, Any], dict[str, Any]]
] = [  # FedSeq's keys, and what else the oracle is told in its own words
    *(({"psi": "conf", "metric": name}, {}) for name in TAU),
    ({"psi": "conf", "metric": "gini", "normalise": "softmax"}, {"softened": True}),
    ({"psi": "conf", "metric": "kl", "max_clients": 3, "min_examples": 28}, {}),
    ({"psi": "clf", "metric": "cosine"}, {"even_start": False}),
    (
        {"psi": "clf", "metric": "wasserstein_values", "layers": "last"},
        {"even_start": False, "layers": ("head.weight",)},
    ),
    ({"psi": "clf", "metric": "cosine", "start": "code"}, {}),
]


@pytest.mark.parametrize(("keys", "told"), WHOLE, ids=lambda keys: ",".join(map(str, keys.values())))
def test_agrees_with_its_oracle(keys: dict[str, Any], told: dict[str, Any]) -> None:
    """From w_0 to the groups: 17 clients train, become vectors, are grouped (tests/support/oracles/grouping.py)."""
    given = {"min_examples": 30, "max_clients": 6, "pretrain_epochs": 3, **keys}
    fed = federation(
        fedseq(**given), rows((5, 12, 9, 21, 7, 16, 8, 11, 14, 6, 10, 13, 15, 9, 18, 4, 8)), weight_decay=0.01
    )
    problem = problem_of(fed, [], settings(fed.bench.algorithm, {}))
    asked = {name: given[name] for name in ("psi", "metric", "min_examples", "max_clients", "pretrain_epochs")}
    formed = superclients(problem, **asked, **told)
    assert [list(group) for group in problem.groups] == formed
    assert len(formed) >= 4
    assert formed != form(random_pick(range(17), 1), problem.n, Limits(given["min_examples"], given["max_clients"]))


def test_the_thesis_toy_example() -> None:
    """Section 15: Gini to the uniform vector, the first client is c4, its partner c2; the thesis' argmin would pair like with like."""
    assert [gini(EVEN, TOY[k]) for k in TOY] == pytest.approx([0.42, 0.455, 0.42, 0.48], abs=1e-12)
    assert [gini(TOY[4], TOY[k]) for k in (1, 2, 3)] == pytest.approx([0.48, 0.495, 0.32], abs=1e-12)
    assert [kl(EVEN, TOY[k]) for k in TOY] == pytest.approx([0.9177, 0.9543, 0.9177, 0.9799], abs=5e-5)
    assert max((TAU["cosine"](TOY[4], TOY[k]), k) for k in (1, 2, 3)) == (pytest.approx(0.5070, abs=5e-5), 1)
    assert greedy(TOY, gini, 2) == [[1, 3], [2, 4]]
    assert greedy(TOY, lambda a, b: -gini(a, b), 2) == [[1, 2], [3, 4]]  # the minimum pairs like with like


def test_divergences_of_zeros_are_finite() -> None:
    """C15: 0 log 0 = 0."""
    assert kl(np.array([1.0, 0, 0]), np.array([1.0, 0, 0])) == pytest.approx(1 - np.log(3))


def test_the_two_wasserstein_distances_differ() -> None:
    """By values a permutation is no distance at all; by support it is how far the mass moved."""
    a, b = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
    assert wasserstein_values(a, b) == 0
    assert wasserstein_support(a, b) == pytest.approx(2)
    assert wasserstein_values(np.array([0.0, 4]), np.array([1.0, 1])) == pytest.approx(2)


def test_confidences_are_divided_by_their_sum() -> None:
    """The second softmax of the thesis blurs a one-hot vector of ten classes to 0.23 against 0.085 (G2)."""
    sure = np.eye(10)[3]
    assert normalised(sure, "sum").tolist() == sure.tolist()
    blurred = normalised(sure, "softmax")
    assert (round(blurred[3], 2), round(blurred[0], 3)) == (0.23, 0.085)


def test_scores_hold_nine_tenths_of_the_variance() -> None:
    """The fewest components that do, and two families of clients part on the first of them (G3)."""
    stream = np.random.default_rng(1)
    family = np.repeat([[6.0], [-6.0]], 5, axis=0) * stream.normal(size=(1, 40)) + stream.normal(size=(10, 40))
    scores = principal_scores(family)
    total = np.square(family - family.mean(0)).sum()
    held = np.square(scores).sum(0)
    assert held.sum() / total >= 0.9 > held[:-1].sum() / total
    assert len({np.sign(x) for x in scores[:5, 0]}) == 1
    assert np.sign(scores[0, 0]) == -np.sign(scores[9, 0])
    centred = family - family.mean(0)
    _, _, loadings = np.linalg.svd(centred, full_matrices=False)
    assert np.abs(scores) == pytest.approx(np.abs(centred @ loadings[: scores.shape[1]].T))
    largest = [row[np.abs(row).argmax()] for row in np.linalg.lstsq(scores, centred, rcond=None)[0]]
    assert min(largest) > 0
    assert principal_scores(np.ones((4, 7))).tolist() == [[0.0]] * 4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clients_that_differ_by_rounding_alone_have_no_scores(dtype: Any) -> None:
    """Twelve rows of one model, one unit in the last place apart; a thousandth apart they are told from each other."""
    stream = np.random.default_rng(1)
    equal = np.repeat(stream.normal(size=(1, 500)).astype(dtype), 12, axis=0)
    assert principal_scores(equal).tolist() == [[0.0]] * 12
    last = equal * (1 + np.finfo(dtype).eps * stream.integers(-1, 2, equal.shape).astype(dtype))
    assert principal_scores(last).tolist() == [[0.0]] * 12
    apart = equal * (1 + dtype(1e-3) * stream.normal(size=equal.shape).astype(dtype))
    assert principal_scores(apart).shape[1] > 1


def test_clients_whose_models_are_equal_are_grouped_at_random() -> None:
    """In float32, as runs are: a rate of 0 leaves everybody at w_0."""
    fed = federation(fedseq(psi="clf"), rows((5,) * 12, torch.float32), dtype=torch.float32)
    ones = dict.fromkeys(range(12), 5)
    assert groups(fed.begin(lr=0.0)) == tuple(map(tuple, form(random_pick(list(ones), 1), ones, Limits(10, 11))))


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    examples=st.integers(1, 60),
    clients=st.integers(1, 6),
    seed=st.integers(0, 5),
)
def test_groups_are_a_partition_within_their_limits(sizes: list[int], examples: int, clients: int, seed: int) -> None:
    """Every client once; no group above K_max; below D_min only one that closed on K_max, and then a sentence says so (G5)."""
    held, limits = dict(enumerate(sizes)), Limits(examples, clients)
    if sum(sizes) < examples and len(sizes) < clients:
        with pytest.raises(ConfigError, match="left over"):
            form(random_pick(list(held), seed), held, limits)
        return
    try:
        formed = form(random_pick(list(held), seed), held, limits)
    except ConfigError:  # those left over find no room
        assert len(sizes) > clients
        return
    assert sorted(k for group in formed for k in group) == sorted(held)
    assert max(map(len, formed)) <= clients
    small = [group for group in formed if sum(held[k] for k in group) < examples]
    assert all(len(group) == clients for group in small)
    assert len(short(formed, held, limits)) == len(small)
    assert formed == form(random_pick(list(held), seed), held, limits)


def test_greedy_groups_cover_the_classes() -> None:
    """With one class a client and N_c clients a group, every group covers N_c classes (G6)."""
    vectors = {k: np.eye(4)[k % 4] for k in range(12)}
    for tau in (gini, kl, TAU["cosine"]):
        for group in greedy(vectors, tau, 4):
            assert {k % 4 for k in group} == {0, 1, 2, 3}


def test_kmeans_spreads_each_cluster() -> None:
    """With well-separated clusters a group holds at most ceil(size / H) members of one (G7)."""
    stream = np.random.default_rng(0)
    vectors = {k: 10 * np.eye(3)[k % 3] + 0.1 * stream.normal(size=3) for k in range(18)}
    ones = dict.fromkeys(vectors, 1)
    formed = form(kmeans_pick(vectors, 3, 5), ones, Limits(6, 6))
    for group in formed:
        assert max(np.bincount([k % 3 for k in group])) <= 2
    assert formed == form(kmeans_pick(vectors, 3, 5), ones, Limits(6, 6))


def test_vectors_without_differences_are_grouped_at_random() -> None:
    how = Grouping("clf", "greedy", "cosine", 2, 0, 11, 1, "all", "sum", "best", "norm")
    alike = {k: np.zeros(1) for k in range(6)}
    ones = dict.fromkeys(alike, 1)
    found = form(picker(how, alike, ones, 3, 1), ones, Limits(2, 11))
    assert found == form(random_pick(list(ones), 1), ones, Limits(2, 11))


def test_groups_have_the_size_asked_for_where_clients_hold_alike_but_for_a_row() -> None:
    """112 or 113 rows each: two clients hold 224 at least, not twice the mean of 112.4 (G1: keep the intended size)."""
    sizes = {k: 112 + (k < 5) for k in range(12)}
    assert fewest(2, sizes) == 224
    assert {len(group) for group in form(random_pick(list(sizes), 1), sizes, Limits(fewest(2, sizes), 11))} == {2}
    assert (fewest(3, {0: 1, 1: 0}), fewest(9, sizes)) == (1, 9 * 112)


def test_a_groups_vector_counts_its_members_examples() -> None:
    """Client 0 with 9 of 10 examples decides what complements the group: by the plain mean client 2 would."""
    vectors = {0: np.array([0.8, 0.2]), 1: np.array([0.0, 1.0]), 2: np.array([0.6, 0.4]), 3: np.array([0.1, 0.9])}
    pick = greedy_pick(vectors, {0: 9, 1: 1, 2: 1, 3: 1}, gini, first="best", start=EVEN, seed=1)
    assert pick([0, 1], [2, 3]) == 3
    plain = greedy_pick(vectors, dict.fromkeys(vectors, 1), gini, first="best", start=EVEN, seed=1)
    assert plain([0, 1], [2, 3]) == 2


def test_which_weights_make_a_vector() -> None:
    """Of linear layers the weights, never the biases; all of them, the last two, or the last (G3)."""

    def told(layers: Any) -> list[str]:
        return list(federation(fedseq(psi="clf", layers=layers), make=Deep).begin()["linear"])

    assert told("all") == ["hidden.weight", "second.weight", "head.weight"]
    assert told("last2") == ["second.weight", "head.weight"]
    assert told("last") == ["head.weight"]


def test_where_greedy_groups_start() -> None:
    """psi = "clf": the vector of largest norm, or with ``start = "code"`` the one that complements the even vector best."""
    vectors = {0: np.array([3.0, 3.0]), 1: np.array([-1.0, -1.0]), 2: np.array([1.0, -1.0])}
    sizes = dict.fromkeys(vectors, 1)

    def first(start: str) -> int:
        how = Grouping("clf", "greedy", "cosine", 2, 0, 3, 1, "all", "sum", "best", start)
        return picker(how, vectors, sizes, 2, 1)([], [0, 1, 2])

    assert (first("norm"), first("code")) == (0, 1)
