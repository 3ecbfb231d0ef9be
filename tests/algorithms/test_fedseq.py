"""FedSeq: chains, what they become in the limit, the set-up, FedSeqInter (G1, G2, G8, G9)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configured import set_up
from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Facts,
    Message,
    Round,
    State,
    Task,
    Update,
    Weights,
    Work,
    by_samples,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import local_norms
from fedatlas.algorithms.fedseq import fedseq, fedseq_inter, rules
from fedatlas.algorithms.grouping import (
    normalised,
)
from fedatlas.algorithms.superclients import confidences, groups
from fedatlas.config import parse
from fedatlas.engine.client_data import ClientData
from fedatlas.engine.step import contiguous
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.registry import PLUGINS
from fedatlas.rng import numpy_stream
from fedatlas.rounds import chain_of
from fedatlas.tree import Tree
from federation import Normed, cohorts, everyone, federation, gap, play, rows, same, sgd
from test_vectors import UNEQUAL, quadratics, x_of

ALONE = {"phi": "random", "max_clients": 1}


# ---------------------------------------------------------------------- chains


def test_chains_of_one_client_are_fedavg() -> None:
    """Bit for bit, under partial participation, drop-outs and ragged batches (G8)."""
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), cohorts(4))
    chains, _ = play(federation(fedseq(**ALONE)), cohorts(4))
    assert same(plain["model"], chains["model"])


@pytest.mark.parametrize("rule", [name for name in rules() if name != "fedavg"])
def test_chains_of_one_client_are_their_rule(rule: str) -> None:
    """Bit for bit: N_S is K then, and nobody has a predecessor."""
    plain, _ = play(federation(ALGORITHMS[rule]()), cohorts(4))
    chains, _ = play(federation(fedseq(**ALONE, rule={"name": rule})), cohorts(4))
    assert same(plain["model"], chains["model"])


def test_every_algorithm_whose_clients_send_a_model_is_a_rule() -> None:
    """No list: what asks each client once a round, to train, for its model. FedSeqInter's server only averages."""
    assert rules() == [
        *("fedsgd", "fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "feddyn", "moon", "fedbn"),
    ]
    assert rules(banked=True) == ["fedsgd", "fedavg", "fedprox", "moon", "fedbn"]


@pytest.mark.parametrize("anchor", ["predecessor", "server"])
def test_fedbn_in_a_chain_is_a_chain_under_its_policy(anchor: str) -> None:
    """Bit for bit: each client's own batch-norm layers pass neither to the next one nor to the server's model."""
    made = [
        fedseq(phi="random", anchor=anchor, rule={"name": "fedbn"}),  # type: ignore[arg-type]
        local_norms(fedseq(phi="random", anchor=anchor)),  # type: ignore[arg-type]
    ]
    feds = [federation(each, make=Normed) for each in made]
    (by_rule, host), (by_policy, other) = (play(fed, cohorts(4)) for fed in feds)
    assert same(by_rule["model"], by_policy["model"])
    own = [(h.states.get(0) or {})["own"] for h in (host, other)]
    assert own[0]
    assert same(*own)
    plain = federation(fedseq(phi="random"), make=Normed)
    assert not same(by_rule["model"], play(plain, cohorts(4))[0]["model"])


def counting(hand_on: Any = None) -> Algorithm:
    """FedAvg whose clients also send how many rows they hold; the server adds up what it is sent."""

    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        return {"model": params, "rows": torch.tensor([facts.n_k])}, client

    def weigh(round: Round) -> Weights:
        return {"model": by_samples(round), "rows": dict.fromkeys(round.cohort, 1.0)}

    return Algorithm(
        "counting",
        tasks={"train": Task(finish=finish)},
        weigh=weigh,
        server_update=lambda server, mean, _: {**server, "model": mean["model"], "rows": mean["rows"]},
        hand_on=hand_on,
    )


def test_a_plug_in_is_a_rule_and_says_what_a_chain_does_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients' counts add up along each chain; without a word about them the chain cannot go on."""
    builders = {
        "plain": lambda: Algorithm("plain"),
        "adding": lambda: counting(lambda before, own: {"rows": before["rows"] + own["rows"]}),
        "silent": counting,
        "settling": lambda: with_settle(counting(lambda before, own: dict(own))),
        "odd": lambda: 3,
    }
    monkeypatch.setitem(PLUGINS, "algorithms", builders)
    chained, plain = (federation(fedseq(phi="random", rule={"name": name})) for name in ("plain", "fedavg"))
    assert same(play(chained, cohorts(3))[0]["model"], play(plain, cohorts(3))[0]["model"])
    fed = federation(fedseq(phi="random", rule={"name": "adding"}))
    server, _ = play(fed, everyone(fed, 2))
    assert max(len(group) for group in groups(server)) > 1
    assert float(server["rows"]) == sum(held.n for held in fed.held.values())
    assert same(server["model"], play(plain, everyone(plain, 2))[0]["model"])
    silent = federation(fedseq(phi="random", rule={"name": "silent"}))
    with pytest.raises(
        ProtocolError, match=r"send 'model', 'rows', but a chain passes on one model: define in `hand_on`"
    ):
        play(silent, everyone(silent, 1))
    for name, words in {
        "settling": "updates a client's state from its message",
        "odd": "returned int, not an Algorithm",
    }.items():
        with pytest.raises(ConfigError, match=words):
            fedseq(rule={"name": name})
    with pytest.raises(ConfigError, match="'counting' needs a server step in every round"):
        fedseq_inter(rule={"name": "adding"})


def with_settle(made: Algorithm) -> Algorithm:
    train = made.tasks["train"]._replace(settle=lambda seen, work, message, client, facts: client)
    return made._replace(tasks={"train": train})


@pytest.mark.parametrize("by_size", [False, True])
def test_duals_add_up_over_chains(by_size: bool) -> None:
    """FedDyn's invariant h = mean of the duals, over superclients, whoever takes part; its limit is the federation's optimum."""
    rule = {"name": "feddyn", "alpha": 1.0, "alpha_by_size": by_size}
    made = fedseq(phi="random", group_size=2, max_clients=3, rule=rule)
    fed = quadratics(made, **UNEQUAL, tau=5)
    server, host = play(fed, 4, lr=0.1)
    n, sizes, N_S = sum(UNEQUAL["n"]), UNEQUAL["n"], len(groups(server))
    assert 1 < N_S < 5
    weight = {k: 5 * sizes[k] / n if by_size else 1.0 for k in host.states.after.clients()}
    duals = sum(float((host.states.get(k) or {})["g_k"]["w"]) * weight[k] for k in weight)
    assert abs(float(server["h"]["w"])) > 0.1
    assert float(server["h"]["w"]) == pytest.approx(duals / N_S, abs=1e-12)
    server, _ = play(fed, everyone(fed, 100), lr=0.1)
    a, b, p = UNEQUAL["a"], UNEQUAL["b"], sizes if by_size else [1] * 5
    best = sum(x * y * z for x, y, z in zip(a, b, p, strict=True)) / sum(x * z for x, z in zip(a, p, strict=True))
    assert x_of(server) == pytest.approx(best, abs=1e-6)


def test_a_single_chain_is_sequential_training() -> None:
    """One superclient with everybody in it: SGD over one client after another, in the round's order."""
    fed = federation(fedseq(phi="random", group_size=5))
    server, host = play(fed, everyone(fed, 1))
    assert len(groups(server)) == 1
    assert {k: w.steps for k, w in host.view.work.items()} == {0: 4, 1: 6, 2: 6, 3: 12, 4: 4}
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


def test_the_objective_that_chains_solve() -> None:
    """One small step each: sum_S D_S sum_{k in S} a_k (x - b_k) = 0; a member counts with its steps, its superclient with its examples."""
    fed = quadratics(fedseq(phi="random", max_clients=2), **UNEQUAL, tau=1)
    server, _ = play(fed, everyone(fed, 500), lr=5e-3)
    a, b, n = (UNEQUAL[key] for key in "abn")
    held = {group: sum(n[k] for k in group) for group in groups(server)}
    assert len(set(held.values())) > 1
    slope = sum(D * a[k] for group, D in held.items() for k in group)
    optimum = sum(D * a[k] * b[k] for group, D in held.items() for k in group) / slope
    assert x_of(server) == pytest.approx(optimum, abs=0.02)
    plain = sum(n[k] * a[k] * b[k] for k in range(5)) / sum(n[k] * a[k] for k in range(5))
    assert abs(optimum - plain) > 0.05, "another objective than FedAvg's"


def test_who_leaves_on_the_way_does_not_count() -> None:
    """D_S is of those who took part (C3): chains (0, 1, 2) and (3, 4) without client 1 weigh 5 + 9 and 21 + 7."""
    fed = federation(fedseq(phi="random"))
    host = fed.host()
    server = {**fed.begin(host), "groups": [[0, 1, 2], [3, 4]]}
    answer = host.server.answer
    host.server.answer = lambda ask, *more: answer(ask._replace(to=tuple(k for k in ask.to if k != 1)), *more)  # type: ignore[method-assign]
    number = next(t for t in range(1, 20) if chain_of(fed.round(t, (0, 1, 2)), 0, (0, 1, 2), 1).order[-1] != 1)
    play(fed, everyone(fed, 1), server=server, host=host, first=number)
    assert sorted(host.cost.weights.values()) == pytest.approx([14 / 42, 28 / 42])


def test_several_passes_visit_every_member_again_with_other_batches() -> None:
    fed = federation(fedseq(phi="random", passes=2), optimizer=sgd())
    once = federation(fedseq(phi="random"), optimizer=sgd())
    twice, host = play(fed, everyone(fed, 1))
    single, other = play(once, everyone(once, 1))
    assert not same(twice["model"], single["model"])
    assert host.view.examples == 2 * other.view.examples


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
    answer = host.server.answer

    def watch(ask: Any) -> Any:
        replies = answer(ask)
        if ask.what == "confidence":
            seen.append(int(next(iter(replies.each.values()))["p"].argmax()))
        return replies

    host.server.answer = watch  # type: ignore[method-assign]
    fed.begin(host, 0.1)
    assert seen == [0, 1, 2]


def test_confidences_sum_to_one_in_any_order_of_the_exemplars() -> None:
    """G2, up to rounding: another order adds up in another order."""
    fed = federation(fedseq())
    public = fed.bench.rows(SERVER)

    def found(order: np.ndarray) -> np.ndarray:
        data = ClientData(public.take(torch.tensor(order)), 3, Tree(), tuple, contiguous)
        p = confidences(fed.bench.network, data, {"model": fed.params}, {}, None)[0]["p"].numpy()
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
            "not 'scaffold': a chain passes on one model, and without its clients' controls c would .*; use one of 'fedsgd', 'fedavg'",
        ),
        ({"rule": {"name": "fednova"}}, "not 'fednova': its clients send a change and its divisor"),
        ({"rule": {"name": "hwfedavg"}}, "not 'hwfedavg': it weighs clients by counts and scores of their labels"),
        ({"rule": {"name": "fedprox", "adaptive": True}}, "not 'fedprox': mu follows the loss of a whole cohort"),
        (
            {"rule": {"name": "ditto"}},
            "a chain asks each client once per round, to train, but 'ditto' has its own rounds",
        ),
        ({"rule": {"name": "fedprxo"}}, r"algorithm.rule.name: unknown algorithm 'fedprxo': did you mean 'fedprox'\?"),
        ({"rule": {"name": "fedprox", "mo": 1}}, "mu"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fedseq(**keys)


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


def test_a_federation_of_one_is_one_group() -> None:
    """Twice what an average client holds is more than there is."""
    server, _ = play(federation(fedseq(), {0: rows()[0]}), [(0,)])
    assert groups(server) == ((0,),)


def test_a_rule_that_would_be_ignored_is_refused() -> None:
    """Slots are averaged by the examples they saw, every period; FedDyn's duals need the predecessor's model."""
    with pytest.raises(ConfigError, match="weights"):
        fedseq_inter(rule={"name": "fedavg", "weights": "uniform"})
    with pytest.raises(
        ConfigError, match="'feddyn' needs a server step in every round, but FedSeqInter's server only averages"
    ):
        fedseq_inter(rule={"name": "feddyn"})
    with pytest.raises(ConfigError, match="duals of 'feddyn' need anchor = 'predecessor'"):
        fedseq(anchor="server", rule={"name": "feddyn"})
    assert fedseq(anchor="server", rule={"name": "feddyn", "variant": "fedseq_code"}).name == "fedseq"


def test_public_rows_are_drawn_from_those_without_holes(tmp_path: Path) -> None:
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
    assert public.n == 40
    assert torch.isfinite(public.x).all()
    assert len(setup.dataset.test.y) + public.n == len(without.dataset.test.y)
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
    data_of = ClientData(there, 3, Tree(), tuple, contiguous)
    p = confidences(setup.first.network, data_of, {"model": setup.first.params}, {}, None)[0]["p"]
    assert p[2] == 0 < p[:2].min()
    with pytest.raises(ConfigError, match="remove it if you give rows"):
        parse({"public": {"from": "test", "rows": 5, "fewer": True}})
