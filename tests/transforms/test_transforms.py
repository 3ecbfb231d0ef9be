"""Compression and clipping: every algorithm with every transform under the laws, and what a transform touches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Facts,
    Message,
    Round,
    RoundGenerator,
    Route,
    Sealing,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fedseq import fedseq
from fedatlas.algorithms.superclients import groups
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor, run_job
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.federation.client_states import ClientStates, PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.sealing import MEMORY
from fedatlas.rng import torch_stream
from fedatlas.rounds import messages
from fedatlas.transforms import TRANSFORMS
from fedatlas.transforms.change import seal, unseal
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import SIZES, Federation, cohorts, everyone, fast, federation, gap, play, same, stacked, states
from sealing import KEYS, compressed, made, using
from test_vectors import UNEQUAL, quadratics, x_of
from wire import Wire, spied

# Nothing goes up that could be compressed: no update, or none that is a change of what the server told; pinned below.
REFUSING = {"centralised", "local_only", "gossip", "push_sum", "fedma", "fedmd"}
EVERY = [(name, kind) for name in sorted(ALGORITHMS.keys() - REFUSING) for kind in sorted(KEYS)]
QUICK = [("fedavg", "topk"), ("scaffold", "topk"), ("cfl", "topk"), ("scaffold", "qsgd")]


def under(*kinds: str) -> pytest.MarkDecorator:
    """Algorithms under these transforms. Quick is topk, which keeps memories, under each, and each transform under two."""
    quick = lambda name, kind: kind == "topk" or name in {"fedavg", "scaffold"}  # noqa: E731
    pairs = [pytest.param(*one, marks=() if quick(*one) else pytest.mark.slow) for one in EVERY if one[1] in kinds]
    return pytest.mark.parametrize(("name", "kind"), pairs)


every = under(*KEYS)
every_stateful = under("topk", "qsgd")
"""With workers and after a resume those that remember or draw can go wrong; the others are pure functions of one update."""


def test_every_transform_is_under_the_laws() -> None:
    assert KEYS.keys() == TRANSFORMS.keys()


def test_refusals_are_pinned() -> None:
    """An algorithm may only refuse compression where nothing of it could be compressed, and says why."""
    found = {name: ALGORITHMS[name]() for name in ALGORITHMS}
    refusing = {n for n, a in found.items() if "compression" in a.refuses or a.serverless}
    assert refusing == REFUSING


# ------------------------------------------------------------------------------------------------ laws


@every
def test_deterministic_and_acting(name: str, kind: str) -> None:
    """The same seed gives the same bits (C16), and they are not those of the run without the transform."""
    fed = compressed(name, kind)
    first, host = play(fed)
    again, again_host = play(fed)
    plain, _ = play(fed._replace(bench=fed.bench._replace(transform=None)))
    assert same(first, again)
    assert same(states(host), states(again_host))
    assert not same(first, plain)


@every
def test_pure(name: str, kind: str) -> None:
    """A round changes no state that it is given, memories included, and can be run again from it."""
    fed = compressed(name, kind)
    server, host = play(fed)
    held = {k: codec.encode(dict(host.states.get(k) or {})) for k in host.states.after.clients()}
    kept = {k: host.states.get(k) for k in host.states.after.clients()}
    once, _ = play(fed, cohorts(1), server=server, host=host, first=4)
    assert all(codec.encode(dict(state or {})) == held[k] for k, state in kept.items())
    fresh = fed.host()
    for k, data in held.items():
        fresh.states.after.restore(k, codec.decode(data))
    again, _ = play(fed, cohorts(1), server=server, host=fresh, first=4)
    assert same(once, again)


@every
def test_bytes_counted_are_bytes_encoded(name: str, kind: str) -> None:
    """What the row says is the length of what was really encoded, and encoding changes no bit."""
    fed = compressed(name, kind)
    plain, host = play(fed)
    sent, sent_host = play(fed, make=Wire)
    assert same(plain, sent)
    assert same(states(host), states(sent_host))
    server, host, wire = spied(fed)
    play(fed, cohorts(1), server=server, host=host)
    assert host.cost.bytes_up == wire.up
    assert host.cost.bytes_down + host.cost.bytes_peer == wire.down


@pytest.mark.parametrize(
    ("name", "kind", "make"),
    [
        *((name, kind, fast) for name, kind in EVERY if kind == "topk" or name == "scaffold"),  # after the local work
        ("scaffold", "topk", stacked),
        ("fedavg", "qsgd", stacked),
    ],
)
def test_engines_agree(name: str, kind: str, make: Callable[[Bench], Executor]) -> None:
    """Loop and fast engine, in float64: there no coordinate is chosen or rounded otherwise for a last bit."""
    fed = compressed(name, kind)
    oracle, host = play(fed, lr=0.05)
    quick, quick_host = play(fed, make=make, lr=0.05)
    assert gap(oracle, quick) < 1e-11
    assert gap(states(host), states(quick_host)) < 1e-10


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow)
        for pair in [*(pair for pair in EVERY if pair[1] == "topk"), ("scaffold", "qsgd")]
    ],
)
def test_workers(name: str, kind: str) -> None:
    """Any number of workers and any chunk size give the bits of one process; memories cross as states do."""
    fed = compressed(name, kind)
    alone, host = play(fed)
    together, pool_host = play(fed, make=partial(PoolExecutor, run_job=run_job, workers=2, chunk=2))
    pool_host.executor.close()
    assert same(alone, together)
    assert same(states(host), states(pool_host))


@every_stateful
def test_resume(name: str, kind: str) -> None:
    """A run continued from its saved state, memories included, ends with the bits of one never stopped."""
    fed = compressed(name, kind)
    plan = cohorts(4)
    whole, host = play(fed, plan)
    server, first = play(fed, plan[:2])
    second = fed.host()
    for k in first.states.after.clients():
        second.states.after.restore(k, codec.decode(codec.encode(dict(first.states.get(k) or {}))))
    resumed, _ = play(fed, plan[2:], server=codec.decode(codec.encode(dict(server))), host=second, first=3)
    assert same(whole, resumed)
    assert same(states(host), states(second))


def test_memories_survive_a_small_memory() -> None:
    fed = compressed("scaffold", "topk")
    plain, host = play(fed, 4)
    tight = InProcess(
        fed.bench,
        SerialExecutor(fed.bench),
        PartyState(ClientStates(budget=1)),
        {k: r.n for k, r in fed.held.items()},
        1,
    )
    spilled, _ = play(fed, 4, host=tight)
    assert same(plain, spilled)
    assert same(states(host), states(tight))
    tight.states.close()


# ------------------------------------------------------------------------------------------------ invariants of stateful methods


@pytest.mark.parametrize("kind", ["topk", "qsgd", "float16", "clip"])
@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_control_is_the_mean_of_the_clients(weights: str, option: str, kind: str) -> None:
    """c = (1/K) sum c_k, or sum (n_k/n) c_k, after every round, although c_k's change is compressed too (H11)."""
    fed = using(ALGORITHMS["scaffold"](weights=weights, option=option), made(kind))
    server, host = fed.begin(), fed.host()
    for number, cohort in enumerate(cohorts(8), start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        mean = fed.params.zeros()
        for k, n in enumerate(SIZES):
            state = host.states.get(k)
            if state is not None:
                mean = mean + (n / sum(SIZES) if weights == "samples" else 1 / len(SIZES)) * state["c_k"]
        assert gap(server["c"], mean) < 1e-14
        assert server["c"].norm() > 0


@pytest.mark.parametrize("kind", ["topk", "qsgd", "float16", "clip"])
@pytest.mark.parametrize("by_size", [False, True])
def test_feddyns_h_is_the_mean_of_the_duals(by_size: bool, kind: str) -> None:
    """h = (1/K) sum g_k, or h/alpha = (1/K) sum g_k/alpha_k, after every round: both follow the decoded models (H10)."""
    alpha, K = 0.1, len(SIZES)
    fed = using(ALGORITHMS["feddyn"](alpha=alpha, alpha_by_size=by_size), made(kind))
    server, host = fed.begin(), fed.host()
    for number, cohort in enumerate(cohorts(8), start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        mean = fed.params.zeros()
        for k, n in enumerate(SIZES):
            state, alpha_k = host.states.get(k), alpha * sum(SIZES) / K / n if by_size else alpha
            if state is not None:
                mean = mean + alpha / alpha_k / K * state["g_k"]
        assert gap(server["h"], mean) < 1e-14
        assert server["h"].norm() > 0


@pytest.mark.parametrize("kind", ["topk", "qsgd", "float16", "clip"])
def test_feddyns_duals_add_up_over_chains_too(kind: str) -> None:
    """h = (1/N_S) sum g_k where chains hand over their last model compressed: the last client's dual follows what the server saw."""
    fed = using(fedseq(phi="random", group_size=2, rule={"name": "feddyn", "alpha": 0.1}), made(kind))
    server, host = fed.begin(), fed.host()
    for number, cohort in enumerate(cohorts(4), start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
    duals = [(host.states.get(k) or {})["g_k"] for k in host.states.after.clients()]
    assert 1 < len(groups(server)) < len(SIZES)
    assert gap(server["h"], sum(duals[1:], duals[0]) / len(groups(server))) < 1e-14
    assert server["h"].norm() > 0


def test_a_chain_whose_end_is_clipped_ends_at_the_optimum() -> None:
    """FedDyn in chains over unequal quadratics, each chain's change bounded: -1/8, as without a bound."""
    chains = fedseq(phi="random", group_size=2, max_clients=3, rule={"name": "feddyn", "alpha": 1.0})
    fed = quadratics(chains, **UNEQUAL, tau=5)
    fed = fed._replace(bench=fed.bench._replace(transform=made("clip", norm=0.3)))
    server, _ = play(fed, everyone(fed, 120), lr=0.1)
    assert x_of(server) == pytest.approx(-0.125, abs=1e-5)


def test_a_tracked_part_has_no_memory() -> None:
    """c_k moves by what was sent of its change, so the next change holds the rest: a memory would count it twice."""
    _, host = play(compressed("scaffold", "topk"))
    memory = (host.states.get(host.states.after.clients()[0]) or {})[MEMORY]
    assert memory["train"].keys() == {"model"}


def seen_by_client() -> Algorithm:
    """FedAvg whose clients note what the server sees of them."""

    def settle(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
        return {"seen": seen["model"]}

    return Algorithm(
        "noting", tasks={"train": Task(settle=settle)}, client_init=lambda params, facts: {"seen": params.zeros()}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [None, *sorted(KEYS)])
def test_a_client_settles_on_what_the_server_sees(kind: str | None, dtype: torch.dtype) -> None:
    """With one client the server's mean is that client's update as decoded, bit for bit."""
    fed = using(seen_by_client(), made(kind) if kind else None, dtype=dtype)
    server, host = play(fed, [(2,), (2,)])
    state = host.states.get(2)
    assert state is not None
    assert same(server["model"], state["seen"])


# ------------------------------------------------------------------------------------------------ what is touched, and what not


def message_of(fed: Federation) -> Message:
    return {"model": fed.params, "mu": 1.0}


def test_only_float_trees_are_touched() -> None:
    fed = federation(ALGORITHMS["fedavg"]())
    update = {
        "model": fed.params + 1.0 * fed.params.map(torch.sin),
        "buffers": Tree(mean=torch.rand(3), count=torch.tensor(4)),
        "counts": torch.tensor([1.0, 2.0]),
        "whole": Tree(a=torch.tensor([1, 2])),
        "number": 3,
        "none": Tree(),
    }
    task, message = Task(), message_of(fed)
    for kind in KEYS:
        transform = made(kind)
        sent, _ = seal(transform, task, message, update, {}, torch_stream(1, "compression"))
        seen = unseal(transform, task, message, codec.decode(codec.encode(dict(sent))))
        assert seen.keys() == update.keys()
        assert not same(seen["model"], update["model"])
        assert same({k: x for k, x in seen.items() if k != "model"}, {k: x for k, x in update.items() if k != "model"})


def test_sums_are_not_compressed() -> None:
    """HWFedAvg's class counts are a sum, its scores plain numbers: the weights are those of the run without compression."""
    fed = compressed("hwfedavg", "topk")
    _, host = play(fed, cohorts(1))
    _, plain = play(fed._replace(bench=fed.bench._replace(transform=None)), cohorts(1))
    assert host.cost.weights == plain.cost.weights


def relay(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Two hops a round: the first client hands its model to the second, which sends to the server."""
    first, last = round.cohort
    asked = Ask((first,), "train", messages(algorithm, server, (first,)), "each", route=Route(via="peer"))
    handed = (yield asked).each[first]
    known, by = {last: server["model"]}, {last: first}
    replies = yield Ask((last,), "train", {last: handed}, "each", route=Route(sender=by, anchors=known))
    return {**server, "model": replies.each[last]["model"]}


def test_in_a_chain_the_last_hop_is_compressed() -> None:
    """As a change of the model that the server knows, which is told to the last client and counted."""
    relaying = Algorithm("relay", tasks={"train": Task(shows=("model",))}, rounds=relay)
    fed = using(relaying, made("topk", share=0.1))
    server, host = play(fed, [(0, 1)])
    _, plain = play(fed._replace(bench=fed.bench._replace(transform=None)), [(0, 1)])
    assert host.cost.bytes_peer == plain.cost.bytes_peer
    assert host.cost.bytes_up < plain.cost.bytes_up
    assert host.cost.bytes_down - plain.cost.bytes_down >= 8 * fed.params.size()
    moved = (server["model"] - fed.params).flatten()
    assert int((moved != 0).sum()) == math.ceil(0.1 * len(moved))  # exactly those that were sent
    assert host.states.after.clients() == [1]  # a memory where something was left out, nowhere else


def test_an_algorithm_says_what_its_parts_are_changes_of() -> None:
    """`Sealing.base`: what moves is k coordinates of the change, not of the whole."""
    task = Task(
        finish=lambda params, work, message, client, facts: ({"theta": params}, client),
        sealing=Sealing(base=lambda message, update: {"theta": message["model"]}),
    )
    own = Algorithm("own", tasks={"train": task}, server_update=lambda server, mean, done: {"model": mean["theta"]})
    fed = using(own, made("topk", share=0.1))
    server, _ = play(fed, [(1,)])
    assert int(((server["model"] - fed.params).flatten() != 0).sum()) == math.ceil(0.1 * fed.params.size())


def test_a_set_up_is_not_compressed() -> None:
    """What is left out of a model that is sent once would never come: FedSeq's groups are those of the run without."""
    fed = compressed("fedseq", "topk")
    assert fed.begin()["groups"] == fed._replace(bench=fed.bench._replace(transform=None)).begin()["groups"]
    host = fed.host()
    fed.begin(host)
    assert host.states.after.clients() == []


def test_a_model_of_unknown_origin_is_refused() -> None:
    """A whole model, no change of one the client was told, cannot be thinned out."""
    wrong = Task(finish=lambda params, work, message, client, facts: ({"model": Tree(other=torch.ones(3))}, client))
    fed = using(Algorithm("strange", tasks={"train": wrong}), made("topk"))
    with pytest.raises(ProtocolError, match=r"remove \[compression\]"):
        play(fed, cohorts(1))


def test_an_infinite_update_ends_the_run() -> None:
    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        return {"model": params * math.inf}, client

    fed = using(Algorithm("hot", tasks={"train": Task(finish=finish)}), made("qsgd"))
    with pytest.raises(DivergedError):
        play(fed, cohorts(1))


def test_another_size_in_memory_is_refused() -> None:
    topk = made("topk")
    memory = topk.memory_init({"model": Tree(a=torch.ones(4))}) if topk.memory_init else {}
    with pytest.raises(ProtocolError, match="another size"):
        topk.encode({"model": Tree(a=torch.ones(5))}, memory, torch_stream(1, "compression"))
