"""FedSeq: groups of clients that complement each other, chains, and what they become in the limit (ALGORITHMS.md G1 to G9)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.algorithm import SERVER
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fedseq import RULES, Grouping, confidences, fedseq, fedseq_inter, fewest, groups, picker
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
from fedatlas.engine.job import ClientData
from fedatlas.errors import ConfigError
from fedatlas.experiment.config import parse
from fedatlas.experiment.setup import set_up
from fedatlas.rng import numpy_stream
from fedatlas.tree import Tree
from federation import Deep, cohorts, everyone, federation, gap, play, rows, same, sgd
from test_vectors import UNEQUAL, quadratics, x_of

TOY = {1: np.array([0.1, 0.9]), 2: np.array([0.2, 0.8]), 3: np.array([0.9, 0.1]), 4: np.array([0.7, 0.3])}
EVEN = np.array([0.5, 0.5])
ALONE = {"phi": "random", "max_clients": 1}


def greedy(vectors: Mapping[int, np.ndarray], tau: Any, size: int) -> list[list[int]]:
    ones = dict.fromkeys(vectors, 1)
    start = np.full(len(next(iter(vectors.values()))), 1 / len(next(iter(vectors.values()))))
    return form(greedy_pick(vectors, ones, tau, first="best", start=start, seed=1), ones, Limits(size, size))


# ---------------------------------------------------------------------- psi and tau


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


# ---------------------------------------------------------------------- phi


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


# ---------------------------------------------------------------------- chains


def test_chains_of_one_client_are_fedavg() -> None:
    """Bit for bit, under partial participation, drop-outs and ragged batches (G8)."""
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), cohorts(4))
    chains, _ = play(federation(fedseq(**ALONE)), cohorts(4))
    assert same(plain["model"], chains["model"])


@pytest.mark.parametrize("rule", [name for name in RULES if name != "fedavg"])
def test_chains_of_one_client_are_their_rule(rule: str) -> None:
    """Bit for bit: N_S is K then, and nobody has a predecessor."""
    plain, _ = play(federation(ALGORITHMS[rule]()), cohorts(4))
    chains, _ = play(federation(fedseq(**ALONE, rule={"name": rule})), cohorts(4))
    assert same(plain["model"], chains["model"])


@pytest.mark.parametrize("by_size", [False, True])
def test_duals_add_up_over_chains(by_size: bool) -> None:
    """FedDyn's invariant h = mean of the duals, over superclients, whoever takes part; its limit is the federation's optimum."""
    rule = {"name": "feddyn", "alpha": 1.0, "alpha_by_size": by_size}
    made = fedseq(phi="random", group_size=2, max_clients=3, rule=rule)
    fed = quadratics(made, **UNEQUAL, tau=5)
    server, host = play(fed, 4, lr=0.1)
    n, sizes, N_S = sum(UNEQUAL["n"]), UNEQUAL["n"], len(groups(server))
    assert 1 < N_S < 5
    weight = {k: 5 * sizes[k] / n if by_size else 1.0 for k in host.states.clients()}
    duals = sum(float((host.states.get(k) or {})["g_k"]["w"]) * weight[k] for k in weight)
    assert abs(float(server["h"]["w"])) > 0.1
    assert float(server["h"]["w"]) == pytest.approx(duals / N_S, abs=1e-12)
    server, _ = play(fed, everyone(fed, 150), lr=0.1)
    a, b, p = UNEQUAL["a"], UNEQUAL["b"], sizes if by_size else [1] * 5
    best = sum(x * y * z for x, y, z in zip(a, b, p, strict=True)) / sum(x * z for x, z in zip(a, p, strict=True))
    assert x_of(server) == pytest.approx(best, abs=1e-6)


def test_a_single_chain_is_sequential_training() -> None:
    """One superclient with everybody in it: SGD over one client after another, in the round's order."""
    fed = federation(fedseq(phi="random", group_size=5))
    server, host = play(fed, everyone(fed, 1))
    assert len(groups(server)) == 1
    assert {k: w.steps for k, w in host.work.items()} == {0: 4, 1: 6, 2: 6, 3: 12, 4: 4}
    alone = federation(ALGORITHMS["fedavg"]())
    model = alone.params
    for k in numpy_stream(1, "chain", 1, 0, 0).permutation(5):
        model, _ = play(alone, [(int(k),)], server={"model": model})
        model = model["model"]
    assert same(server["model"], model)


def test_superclients_are_weighed_by_their_examples_and_hops_are_counted() -> None:
    """Weights D_S / sum; sum of (|S| - 1) hops go between clients, one model a chain goes down and up (section 2)."""
    fed = federation(fedseq(phi="random"))
    server, host = play(fed, everyone(fed, 1))
    formed = groups(server)
    held = [sum(fed.held[k].n for k in group) for group in formed]
    assert list(host.cost.weights.values()) == pytest.approx([n / sum(held) for n in held])
    one = host.cost.bytes_up / len(formed)
    hops = sum(len(group) - 1 for group in formed)
    assert host.cost.bytes_peer == pytest.approx(hops * one)
    assert host.cost.bytes_down == pytest.approx(len(formed) * one)


def test_several_passes_visit_every_member_again_with_other_batches() -> None:
    fed = federation(fedseq(phi="random", passes=2), optimizer=sgd())
    once = federation(fedseq(phi="random"), optimizer=sgd())
    twice, host = play(fed, everyone(fed, 1))
    single, other = play(once, everyone(once, 1))
    assert not same(twice["model"], single["model"])
    assert host.cost.examples == 2 * other.cost.examples


def test_fedprox_in_a_chain_is_anchored_at_the_predecessor_or_at_the_server() -> None:
    """mu = 0 is FedAvg inside a chain; with a large mu the server's anchor holds a chain nearer to w_t."""
    for anchor in ("predecessor", "server"):
        free = federation(fedseq(phi="random", group_size=5, anchor=anchor))  # type: ignore[arg-type]
        none = federation(
            fedseq(phi="random", group_size=5, anchor=anchor, rule={"name": "fedprox", "mu": 0.0})  # type: ignore[arg-type]
        )
        assert same(play(free, everyone(free, 2))[0]["model"], play(none, everyone(none, 2))[0]["model"])
    ways = []
    for anchor in ("predecessor", "server"):
        fed = federation(fedseq(phi="random", group_size=5, anchor=anchor, rule={"name": "fedprox", "mu": 5.0}))  # type: ignore[arg-type]
        after, _ = play(fed, everyone(fed, 1))
        ways.append((after["model"] - fed.params).norm())
    assert ways[1] < 0.7 * ways[0]


def test_inter_with_period_one_is_fedseq() -> None:
    """Bit for bit (G9)."""
    for rounds in (cohorts(5), [(0, 1, 2, 3, 4)] * 3):
        chains, _ = play(federation(fedseq(phi="random")), rounds)
        inter, _ = play(federation(fedseq_inter(phi="random", period=1)), rounds)
        assert same(chains["model"], inter["model"])


def test_inter_with_one_slot_trains_through_the_superclients_drawn() -> None:
    """M = 1, never averaged: the model goes from superclient to superclient as in one long chain."""
    fed = federation(fedseq_inter(phi="random", period="never"))
    begun = fed.begin(fed.host(), 0.1)
    first, second = groups(begun)
    inter, _ = play(fed, [first, second])
    other = federation(fedseq(phi="random"))
    one, _ = play(other, [first])
    two, _ = play(other, [second], server=one, first=2)
    assert same(inter["model"], two["model"])


def test_inter_averages_when_all_superclients_could_have_been_drawn() -> None:
    """period = "fraction": every ceil(N_S / M) rounds; where the number drawn varies, when as many were drawn as there are."""
    alone = [(k,) for k in (0, 3, 1, 4, 2, 0, 1)]
    pairs = [(0, 1), (2, 3), (1, 4), (0, 2), (3, 4), (1, 2), (0, 4)]
    for rounds, every in ((alone, 5), (pairs, 3)):
        by_number, _ = play(federation(fedseq_inter(phi="random", min_examples=1, period=every)), rounds)
        by_share, _ = play(federation(fedseq_inter(phi="random", min_examples=1, period="fraction")), rounds)
        assert same(by_number["model"], by_share["model"])
        assert by_number["omega"] == by_share["omega"]
    fed = federation(fedseq_inter(phi="random", min_examples=1, period="fraction"))
    host, server, seen = fed.host(), None, []
    for number, cohort in enumerate([(0, 1), (2,), (), (3, 4)], start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        seen.append((server["drawn"], dict(server["omega"])))
    sizes = {k: r.n for k, r in fed.held.items()}
    assert [drawn for drawn, _ in seen] == [2, 3, 3, 0]
    assert seen[1][1] == {"0": sizes[0] + sizes[2], "1": sizes[1]}
    assert seen[3][1] == {"0": sizes[3], "1": sizes[4]}  # what was there before was averaged


def test_confidence_finds_the_class_a_client_holds() -> None:
    """A client with a single class: its model is surest of that class (G2)."""
    held = rows((30, 30, 30))
    held = {k: r._replace(y=torch.full_like(r.y, k), x=r.x - r.y[:, None] + 3 * k) for k, r in held.items()}
    seen: list[int] = []
    fed = federation(fedseq(), held=held)
    host = fed.host()
    answer = host.answer

    def watch(ask: Any, number: int, lr: float) -> Any:
        replies = answer(ask, number, lr)
        if ask.what == "confidence":
            seen.append(int(next(iter(replies.each.values()))["p"].argmax()))
        return replies

    host.answer = watch  # type: ignore[method-assign]
    fed.begin(host, 0.1)
    assert seen == [0, 1, 2]


def test_confidences_sum_to_one_in_any_order_of_the_exemplars() -> None:
    """G2, up to rounding: another order adds up in another order."""
    fed = federation(fedseq())
    public = fed.bench.rows(SERVER)

    def found(order: np.ndarray) -> np.ndarray:
        data = ClientData(public.take(torch.tensor(order)), 3, Tree(), tuple)
        p = confidences(fed.bench.network, data, {"model": fed.params}, {})["p"].numpy()
        assert abs(p.sum() - 1) > 0.01, "before it is divided"
        return normalised(p, "sum")

    plain = found(np.arange(public.n))
    assert plain.sum() == pytest.approx(1, abs=1e-12)
    for seed in range(5):
        assert found(np.random.default_rng(seed).permutation(public.n)) == pytest.approx(plain, abs=1e-12)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"psi": "clf", "metric": "kl"}, "cosine"),
        ({"metric": "euclidean"}, "k-means"),
        ({"phi": "kmeans", "metric": "gini"}, "euclidean"),
        (
            {"rule": {"name": "scaffold"}},
            "hands on one model and nothing else, and 'scaffold' .*; take one of 'fedavg'",
        ),
        ({"rule": {"name": "fedprox", "mo": 1}}, "mu"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedseq(**keys)


def test_groups_have_the_size_asked_for_where_clients_hold_alike_but_for_a_row() -> None:
    """112 or 113 rows each: two clients hold 224 at least, not twice the mean of 112.4 (G1: keep the intended size)."""
    sizes = {k: 112 + (k < 5) for k in range(12)}
    assert fewest(2, sizes) == 224
    assert {len(group) for group in form(random_pick(list(sizes), 1), sizes, Limits(fewest(2, sizes), 11))} == {2}
    assert (fewest(3, {0: 1, 1: 0}), fewest(9, sizes)) == (1, 9 * 112)


def test_every_way_to_group_runs() -> None:
    """psi by confidence or weights, phi greedy or k-means, over an unequal federation."""
    for keys in (
        {"psi": "clf"},
        {"psi": "clf", "layers": "last"},
        {"phi": "kmeans"},
        {"metric": "wasserstein_support"},
    ):
        fed = federation(fedseq(**keys))  # type: ignore[arg-type]
        server, _ = play(fed, 2)
        assert sorted(k for g in groups(server) for k in g) == [0, 1, 2, 3, 4]
        assert gap(server["model"], fed.params) > 1e-3


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


def test_a_federation_of_one_is_one_group() -> None:
    """Twice what an average client holds is more than there is."""
    server, _ = play(federation(fedseq(), {0: rows()[0]}), [(0,)])
    assert groups(server) == ((0,),)


def test_a_rule_that_would_be_ignored_is_refused() -> None:
    """A chain has no cohort whose loss mu could follow, and slots are averaged by the examples they saw."""
    with pytest.raises(ConfigError, match="adaptive"):
        fedseq(rule={"name": "fedprox", "adaptive": True})
    with pytest.raises(ConfigError, match="weights"):
        fedseq_inter(rule={"name": "fedavg", "weights": "uniform"})
    with pytest.raises(
        ConfigError, match="'feddyn' takes a step of the server every round, and FedSeqInter's only averages"
    ):
        fedseq_inter(rule={"name": "feddyn"})
    with pytest.raises(ConfigError, match="duals of 'feddyn' add up"):
        fedseq(anchor="server", rule={"name": "feddyn"})
    assert fedseq(anchor="server", rule={"name": "feddyn", "variant": "fedseq_code"}).name == "fedseq"


def test_public_rows_with_holes_are_dropped_and_no_test_row_takes_their_place(tmp_path: Path) -> None:
    stream = np.random.default_rng(0)
    x = stream.normal(size=(400, 3)).round(3).astype(str)
    x[stream.random((400, 3)) < 0.1] = ""
    lines = [",".join([*row, "ab"[i % 2]]) for i, row in enumerate(x)]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,r,label", *lines]) + "\n")
    data = {"name": "file", "path": str(tmp_path / "t.csv"), "label": "label", "missing": "drop", "test": 0.5}
    tables = {"data": data, "partition": {"name": "iid", "clients": 4}, "public": {"from": "test", "per_class": 20}}
    without = set_up(parse({**tables, "public": None}), 1)
    setup = set_up(parse(tables), 1)
    public = setup.bench.rows(SERVER)
    assert 20 < public.n < 40
    assert len(setup.dataset.y_test) + public.n == len(without.dataset.y_test)
    with pytest.raises(ConfigError, match="per_class"):
        set_up(parse({"algorithm": {"name": "fedseq"}, "public": {"from": "test", "rows": 5}}), 1)


def test_a_class_without_exemplars_counts_nothing(tmp_path: Path) -> None:
    """Rare classes give the rows they have, where that is allowed; a class without any has confidence 0."""
    labels = ["a"] * 60 + ["b"] * 60 + ["c"] * 6
    lines = [f"{i % 7},{i % 5},{label}" for i, label in enumerate(labels)]
    (tmp_path / "t.csv").write_text("\n".join(["p,q,label", *lines]) + "\n")
    head = ["p,q,label", *(f"{i % 7},{i % 5},{'ab'[i % 2]}" for i in range(40)), "1,1,c", "2,1,c"]
    (tmp_path / "test.csv").write_text("\n".join(head) + "\n")
    data = {"name": "file", "path": str(tmp_path / "t.csv"), "label": "label", "test": str(tmp_path / "test.csv")}
    tables = {"data": data, "partition": {"name": "iid", "clients": 4}, "algorithm": {"name": "fedseq"}, "rounds": 1}
    with pytest.raises(ConfigError, match=r"public.fewer = true"):
        set_up(parse({**tables, "public": {"from": "test", "per_class": 5}}), 1)
    setup = set_up(parse({**tables, "public": {"from": "test", "per_class": 5, "fewer": True}}), 1)
    public = setup.bench.rows(SERVER)
    assert np.bincount(public.y.numpy()).tolist() == [5, 5, 2]
    there = public.take(torch.nonzero(public.y != 2).flatten())
    data_of = ClientData(there, 3, Tree(), tuple)
    p = confidences(setup.network, data_of, {"model": setup.params}, {})["p"]
    assert p[2] == 0 < p[:2].min()
    with pytest.raises(ConfigError, match="remove it beside rows"):
        parse({"public": {"from": "test", "rows": 5, "fewer": True}})
