"""Rounds without a server: graphs, mixing, gossip (D-PSGD) and push-sum (B19, B20)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from configured import set_up
from fedatlas import Experiment, config
from fedatlas.algorithm import Batch, Budget, State
from fedatlas.algorithms import ALGORITHMS, graphs
from fedatlas.algorithms.graphs import Graph
from fedatlas.api import dry_run, run
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.federation.in_process import InProcess
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import SIZES, Federation, Normed, cohorts, everyone, federation, gap, play, rows, same, sgd
from test_vectors import UNEQUAL, quadratics, x_of

STAR = [[0, 1], [0, 2], [0, 3], [3, 4]]
GOSSIPS: list[dict[str, Any]] = [
    {},
    {"order": "combine_first"},
    {"graph": "complete"},
    {"graph": "random", "probability": 0.5},
    {"graph": "given", "edges": STAR},
    {"mixing": "pairwise"},
]
PUSHES: list[dict[str, Any]] = [
    {},
    {"graph": "random"},
    {"graph": "given", "arcs": [[0, 1], [1, 0], [1, 2], [2, 3], [3, 4], [4, 0]]},
]
STILL = Budget(epochs=0)  # no local work: a round is its mixing alone
EVERY = [("gossip", keys) for keys in GOSSIPS] + [("push_sum", keys) for keys in PUSHES]


def fed(name: str, keys: Mapping[str, Any] | None = None, K: int = 5, **local: Any) -> Federation:
    held = rows(SIZES if len(SIZES) == K else (4,) * K)
    return federation(ALGORITHMS[name](**(keys or {})), held, **local)


def scattered(f: Federation) -> State:
    """A server whose nodes hold models of their own."""
    server = dict(f.begin())
    nodes = {}
    for k, held in server["nodes"].items():
        stream = torch.Generator().manual_seed(int(k))
        own = Tree({name: torch.randn(x.shape, generator=stream, dtype=x.dtype) for name, x in f.params.items()})
        nodes[k] = {**held, ("z" if "z" in held else "model"): own}
    return {**server, "nodes": nodes}


def models(f: Federation, server: State) -> list[Tree]:
    """What each node would use."""
    made = f.bench.algorithm
    assert made.personal is not None
    return [made.personal(made.broadcast(server, int(k)), {}) for k in server["nodes"]]


def mean(trees: list[Tree]) -> Tree:
    return Tree({name: torch.stack([tree[name] for tree in trees]).mean(0) for name in trees[0]})


def spread(trees: list[Tree]) -> float:
    """Squared consensus error: sum over the nodes of the squared distance to their mean."""
    middle = mean(trees)
    return float(sum((tree - middle).norm() ** 2 for tree in trees))


def gradient(f: Federation, w: Tree, data: Rows) -> Tree:
    leaves = {name: x.detach().requires_grad_() for name, x in w.items()}
    loss = f.bench.network.loss(leaves, Batch(data.x, data.y))
    return Tree(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def numbers_of(server: State) -> list[float]:
    return [float(held["model"]["w"]) for held in server["nodes"].values()]


# Numbers worked by hand


def test_adapt_first_on_two_quadratics() -> None:
    # W = 1/2 everywhere; x_i - .1 g_i = .1 and -.3 from 0: mean -.1; from -.1: -.1 + .11 = .01 and -.1 - .27 = -.37: mean -.18
    f = quadratics(ALGORITHMS["gossip"](), [1.0, 3.0], [1.0, -1.0], [1, 1], 1)
    for rounds, expected in ((1, [-0.1, -0.1]), (2, [-0.18, -0.18])):
        assert numbers_of(play(f, everyone(f, rounds), lr=0.1)[0]) == pytest.approx(expected, abs=1e-12)


def test_combine_first_on_two_quadratics() -> None:
    # from 0: .1 and -.3; their mean is -.1; gradients there: .1 - 1 = -.9 and 3 (.7) = 2.1: -.1 + .09 and -.1 - .21
    f = quadratics(ALGORITHMS["gossip"](order="combine_first"), [1.0, 3.0], [1.0, -1.0], [1, 1], 1)
    for rounds, expected in ((1, [0.1, -0.3]), (2, [-0.01, -0.31])):
        assert numbers_of(play(f, everyone(f, rounds), lr=0.1)[0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["gossip", "push_sum"])
def test_solves_the_objective_in_which_clients_count_alike(name: str) -> None:
    # (1/K) sum F_k: sum a_k b_k / sum a_k = -1/8, whatever the n_k; weighted by n_k it would be -212/97
    f = quadratics(ALGORITHMS[name](graph="complete"), **UNEQUAL, tau=1)
    assert x_of(play(f, everyone(f, 150), lr=0.1)[0]) == pytest.approx(-1 / 8, abs=1e-9)


# Reductions


def test_complete_graph_is_the_mean_of_the_gradient_steps() -> None:
    """W = 11^T / n and an equal start: x <- x - eta mean of g_k(x), every node alike (adapt first)."""
    f = fed("gossip", {"graph": "complete"}, batch_size=0, budget=Budget(steps=1))
    server, _ = play(f, everyone(f, 5), lr=0.3)
    w = f.params
    for _ in range(5):
        w = mean([w - 0.3 * gradient(f, w, f.held[k]) for k in range(5)])
    assert max(gap(x, w) for x in models(f, server)) < 1e-12
    other = fed("gossip", {"graph": "complete", "order": "combine_first"}, batch_size=0, budget=Budget(steps=1))
    assert (
        gap(models(other, play(other, everyone(other, 5), lr=0.3)[0])[0], w) > 1e-3
    )  # there the equality does not hold


@pytest.mark.parametrize("name", ["gossip", "push_sum"])
def test_complete_graph_is_fedavg_with_uniform_weights(name: str) -> None:
    """Longer local work, momentum, ragged batches: everybody hears everybody, so there might as well be a server."""
    local = {"optimizer": sgd(momentum=0.9), "weight_decay": 1e-3}
    a = fed("fedavg", {"weights": "uniform"}, **local)
    b = fed(name, {"graph": "complete"}, **local)
    expected, _ = play(a, everyone(a, 4))
    server, _ = play(b, everyone(b, 4))
    assert max(gap(x, expected["model"]) for x in [*models(b, server), server["model"]]) < 1e-12


def test_symmetric_shares_are_gossip() -> None:
    """On a ring equal out-shares are Metropolis weights: u stays 1 and z / u is gossip, also with nodes away (adapt first)."""
    a, b = fed("gossip"), fed("push_sum", {"graph": "ring"})
    plan = [*everyone(a, 2), *cohorts(4)]
    expected, _ = play(a, plan)
    server, _ = play(b, plan)
    assert max(abs(held["u"] - 1) for held in server["nodes"].values()) < 1e-12
    assert max(gap(x, y) for x, y in zip(models(a, expected), models(b, server), strict=True)) < 1e-12


# Invariants


@pytest.mark.parametrize("keys", GOSSIPS, ids=str)
def test_mixing_keeps_the_mean(keys: Mapping[str, Any]) -> None:
    """Whoever is away."""
    f = fed("gossip", keys, budget=STILL)
    begun = scattered(f)
    server, _ = play(f, 6, server=begun)
    assert gap(mean(models(f, server)), mean(models(f, begun))) < 1e-14
    assert gap(server["model"], mean(models(f, server))) < 1e-15
    assert spread(models(f, server)) < spread(models(f, begun))


@pytest.mark.parametrize("order", ["adapt_first", "combine_first"])
@pytest.mark.parametrize(
    ("graph", "K"), [("ring", 5), ("ring", 8), ("torus", 6), ("torus", 12), ("random", 9), ("complete", 4)]
)
def test_consensus_contracts_by_the_second_eigenvalue(graph: str, K: int, order: str) -> None:
    """At eta = 0 the squared consensus error shrinks at least by max(|lambda_2|, |lambda_n|)^2 a round."""
    f = fed("gossip", {"graph": graph, "order": order}, K, budget=STILL)
    rate = 1 - f.bench.algorithm.card.describe(K, 1)["spectral_gap"]  # type: ignore[misc]
    server = scattered(f)
    for number in range(1, 7):
        before = spread(models(f, server))
        server, _ = play(f, everyone(f, 1), server=server, first=number)
        assert spread(models(f, server)) <= rate**2 * before * (1 + 1e-9) + 1e-24


@pytest.mark.parametrize("keys", PUSHES, ids=str)
def test_push_sum_keeps_both_sums(keys: Mapping[str, Any]) -> None:
    """Sum of z and of u, whoever is away (eta = 0)."""
    f = fed("push_sum", keys, budget=STILL)
    begun = scattered(f)
    server, _ = play(f, 8, server=begun)
    z = [[held["z"] for held in s["nodes"].values()] for s in (begun, server)]
    assert gap(mean(z[0]), mean(z[1])) < 1e-14
    u = [held["u"] for held in server["nodes"].values()]
    assert sum(u) == pytest.approx(len(SIZES), abs=1e-12)
    assert all(x > 0 for x in u)


@pytest.mark.parametrize("arcs", [None, [[k, (k + 1) % 5] for k in range(5)]], ids=["short cut", "bare ring"])
def test_push_sum_reaches_the_exact_mean_on_a_directed_ring(arcs: list[list[int]] | None) -> None:
    """Also where the shares are not doubly stochastic: plain averaging with them ends beside the mean."""
    f = fed("push_sum", {} if arcs is None else {"graph": "given", "arcs": arcs}, budget=STILL)
    begun = scattered(f)
    server, _ = play(f, everyone(f, 250), server=begun)
    middle = mean(models(f, begun))
    assert max(gap(x, middle) for x in models(f, server)) < 1e-12
    uneven = max(abs(held["u"] - 1) for held in server["nodes"].values())
    assert uneven > 0.1 if arcs is None else uneven < 1e-12


def test_push_sum_reaches_the_mean_with_nodes_away() -> None:
    f = fed("push_sum", budget=STILL)
    begun = scattered(f)
    server, _ = play(f, 800, server=begun)
    assert max(gap(x, mean(models(f, begun))) for x in models(f, server)) < 1e-9


def test_pairs_are_drawn_anew_every_round() -> None:
    """Without local work all nodes come to the mean: pairs that stayed together never would."""
    f = fed("gossip", {"mixing": "pairwise"}, budget=STILL)
    begun = scattered(f)
    server, _ = play(f, everyone(f, 200), server=begun)
    assert max(gap(x, mean(models(f, begun))) for x in models(f, server)) < 1e-9


@pytest.mark.parametrize(("name", "keys"), EVERY, ids=str)
def test_an_absent_node_keeps_its_model(name: str, keys: Mapping[str, Any]) -> None:
    """Bit for bit; the others move."""
    f = fed(name, keys)
    server, host = play(f, everyone(f, 1))
    after, _ = play(f, [(0, 1, 3)], server=server, host=host, first=2)
    for k in (2, 4):
        assert same(after["nodes"][str(k)], server["nodes"][str(k)])
    assert all(not same(after["nodes"][str(k)], server["nodes"][str(k)]) for k in (0, 1, 3))


# Mixing matrices


# Bytes


class Sizes:
    """Notes the length of what each node's work returned, through the executor the host drives."""

    def __init__(self, host: InProcess) -> None:
        self.inner, self.seen = host.party.executor, list[tuple[int, int]]()
        host.party.executor = self

    def run(self, jobs: Any) -> Any:
        for result in self.inner.run(jobs):
            self.seen.append((result.client, len(codec.encode(dict(result.update)))))
            yield result

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(
    "keys", [{}, {"order": "combine_first"}, {"graph": "complete"}, {"graph": "given", "edges": STAR}], ids=str
)
def test_a_node_sends_its_model_to_each_neighbour(keys: Mapping[str, Any]) -> None:
    """deg(i) M between clients in a round, nothing through a server; nothing to who is away."""
    f = fed("gossip", keys)
    degree = graphs.hears(Graph("given", pairs=tuple(map(tuple, STAR))), 5, 1).sum(0) if "edges" in keys else None
    degrees = [int(d) for d in degree] if degree is not None else [4 if "graph" in keys else 2] * 5
    _, host = play(f, everyone(f, 1))
    M = len(codec.encode({("mixed" if "order" in keys else "model"): f.params}))
    assert (host.cost.bytes_peer, host.cost.bytes_up, host.cost.bytes_down) == (sum(degrees) * M, 0, 0)
    _, host = play(f, [(0, 1, 3)])
    heard = {"ring": 2, "complete": 6, "given": 4}[keys.get("graph", "ring")]
    assert host.cost.bytes_peer == heard * M


def test_push_sum_sends_along_its_arcs() -> None:
    """Counted is what was encoded, in every round; node 0 pushes to two others."""
    f = fed("push_sum")
    host = f.host()
    spy = Sizes(host)
    server = f.begin()
    for number, cohort in enumerate([*everyone(f, 3), (0, 2, 4)], start=1):
        spy.seen.clear()
        server, _ = play(f, [cohort], server=server, host=host, first=number)
        out = {0: 2, 1: 1, 2: 1, 3: 1, 4: 1} if len(cohort) == 5 else {0: 1, 2: 0, 4: 1}  # 0 -> 2 and 4 -> 0 are left
        assert host.cost.bytes_peer == sum(out[k] * size for k, size in spy.seen)
        assert host.cost.bytes_up == host.cost.bytes_down == 0


# Batch norm


def normed(name: str, keys: Mapping[str, Any]) -> Federation:
    return federation(ALGORITHMS[name](**keys), rows((6, 12, 10, 22, 7)), Normed)


@pytest.mark.parametrize("name", ["gossip", "push_sum"])
def test_buffers_are_mixed_like_models(name: str) -> None:
    """On the complete graph they are FedAvg's with uniform weights: running statistics averaged, counters the maximum (C9)."""
    a, b = normed("fedavg", {"weights": "uniform"}), normed(name, {"graph": "complete"})
    expected, _ = play(a, everyone(a, 3))
    server, _ = play(b, everyone(b, 3))
    assert gap(server["model"], expected["model"]) < 1e-12
    for held in [server, *server["nodes"].values()]:
        assert gap(held["buffers"], expected["buffers"]) < 1e-12
        assert all(
            x.dtype == y.dtype for x, y in zip(held["buffers"].values(), expected["buffers"].values(), strict=True)
        )


def test_push_sum_weighs_buffers_as_it_weighs_models() -> None:
    """Equal running statistics stay as they are, whatever u has become: their weights A_ij u_j / u_i sum to one."""
    f = normed("push_sum", {})
    server, _host = play(f, everyone(f, 4))
    assert max(abs(held["u"] - 1) for held in server["nodes"].values()) > 0.1
    mix = f.bench.algorithm.rounds(f.bench.algorithm, server, f.round(5, (0, 1, 2, 3, 4)))  # type: ignore[misc]
    ask = next(mix)
    assert ask.mixing is not None
    for row in ask.mixing(ask.to).values():
        assert sum(part["model"] for part in row.values()) == pytest.approx(1, abs=1e-12)  # type: ignore[index]


def test_combine_first_goes_on_from_mixed_buffers() -> None:
    """An absent node's running statistics stay; those of others differ between nodes and stay positive."""
    f = normed("gossip", {"order": "combine_first"})
    server, host = play(f, everyone(f, 2))
    variances = [held["buffers"]["norm.running_var"] for held in server["nodes"].values()]
    assert all(bool((v > 0).all()) for v in variances)
    assert gap(variances[0], variances[1]) > 1e-6
    after, _ = play(f, [(0, 1)], server=server, host=host, first=3)
    assert same(after["nodes"]["2"], server["nodes"]["2"])


# The record


def small(*overrides: str) -> list[str]:
    return ["rounds=2", "data.limit=300", *overrides]


@pytest.mark.parametrize(("name", "messages"), [("gossip", 24), ("push_sum", 13)])
def test_a_run_shows_graph_and_gap(name: str, messages: int, tmp_path: Path) -> None:
    done = run(
        Experiment.of(rounds=2, data={"limit": 300}, algorithm={"name": name}), out=tmp_path / "run", baselines=False
    )
    facts = done.summary["algorithm_facts"]
    expected = ALGORITHMS[name]().card.describe(12, 1)  # type: ignore[misc]
    assert facts == expected
    assert facts["messages"] == messages
    assert 0 < facts["spectral_gap"] < 1
    row = json.loads((done.path / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["bytes_up"] == row["bytes_down"] == 0 < row["bytes_peer"]
    dry = dry_run(config.read(None, small(f"algorithm.name={name}")))
    assert dry["algorithm_facts"] == expected
    assert dry["bytes_peer_per_round"] == pytest.approx(row["bytes_peer"], rel=0.01)


@pytest.mark.parametrize(("overrides", "says"), [
    (["algorithm.graph=torus", "partition.clients=11"], "a x b nodes"),
    (["algorithm.graph=given"], "needs its edges"),
    (["algorithm.graph=given", "algorithm.edges=[[0, 1], [2, 12]]"], "names node 12, but the nodes are 0 to 11"),
    (["algorithm.graph=given", "algorithm.edges=[[0, 1], [1, 1]]"], "with itself"),
    (["algorithm.graph=given", "algorithm.edges=[[0, 1]]"], "not connected"),
    (["algorithm.edges=[[0, 1]]"], "set graph = 'given'"),
    (["algorithm.probability=0.5"], "only graph = 'random' uses it"),
    (["algorithm.graph=random", "algorithm.probability=0.01"], "raise it"),
    (["algorithm.graph=star"], "'ring'"),
])  # fmt: skip
def test_a_graph_that_cannot_be_is_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        set_up(config.read(None, small("algorithm.name=gossip", *overrides)), 1)


def test_arcs_that_do_not_lead_back_are_refused() -> None:
    line = [(k, k + 1) for k in range(4)]
    with pytest.raises(ConfigError, match="not connected"):
        ALGORITHMS["push_sum"](graph="given", arcs=line).card.describe(5, 1)  # type: ignore[misc]
    assert ALGORITHMS["gossip"](graph="given", edges=line).card.describe(5, 1)["messages"] == 8  # type: ignore[misc]
