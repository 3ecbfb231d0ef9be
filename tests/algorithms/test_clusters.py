"""CFL, FeSEM and IFCA: what the mathematics says of them, and that they find populations that were planted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from configured import run_one, set_up
from fedatlas import api, config
from fedatlas.algorithm import Ask, Budget, Replies, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms import clusters as shared
from fedatlas.algorithms.cfl import SplitRule, bipartition, divided
from fedatlas.algorithms.fesem import nearest, seeds
from fedatlas.course.evaluation import Evaluator
from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.federation.sealing import MEMORY
from fedatlas.federation.start import RoundStart
from fedatlas.grammar import Asks
from fedatlas.metrics.clusters import adjusted_rand, cluster_figures, purity
from fedatlas.rng import numpy_stream
from fedatlas.setup.torch_model import TorchModel
from fedatlas.transforms import TRANSFORMS
from fedatlas.tree import Tree
from federation import Federation, cohorts, everyone, federation, gap, play, rows, same

K = 6
WHOLE: dict[str, Any] = {"batch_size": 0, "budget": Budget(epochs=2)}
SPLIT = {"eps1": 0.08, "eps2": 0.3, "after_round": 8}


def populations(planted: bool = True, clients: int = K) -> dict[int, Rows]:
    """Unequal clients with easy classes; where two populations are planted, odd clients call the classes by other names."""
    held = {}
    for k in range(clients):
        stream, n = numpy_stream(3, "test", k), 30 + 7 * k
        y = stream.integers(0, 3, n)
        x = 0.5 * stream.normal(size=(n, 4))
        x[np.arange(n), y] += 2
        held[k] = Rows(torch.tensor(x), torch.tensor(np.array([1, 2, 0])[y] if planted and k % 2 else y))
    return held


def found(fed: Federation, server: State) -> list[int]:
    """The cluster of each client."""
    names = fed.bench.algorithm.clusters(server)  # type: ignore[misc]
    return [names[k] for k in range(K)]


def plain(server: State) -> dict[str, Any]:
    return {"model": server["model"]}


# ---------------------------------------------------------------------- all three


@pytest.mark.parametrize(
    ("name", "parameters", "rounds", "lr"),
    [("cfl", SPLIT, 12, 0.3), ("fesem", {}, 4, 0.3), ("ifca", {}, 4, 0.3)],
)
def test_two_planted_populations_are_recovered(
    name: str, parameters: Mapping[str, Any], rounds: int, lr: float
) -> None:
    """ARI = 1, and each cluster's model fits its own population."""
    fed = federation(ALGORITHMS[name](**parameters), populations(), **WHOLE)
    server, host = play(fed, everyone(fed, rounds), lr=lr)
    assert adjusted_rand(found(fed, server), [k % 2 for k in range(K)]) == 1
    assert len(server["clusters"]) == 2
    message = fed.bench.algorithm.broadcast(server, 1)
    own = fed.bench.algorithm.personal(message, {})  # type: ignore[misc]
    assert same(own, server["clusters"][str(found(fed, server)[1])]["model"])
    assert host.states.after.clients() == []


@pytest.mark.parametrize("weights", ["samples", "uniform"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cfl", {}),
        ("fesem", {"clusters": 1}),
        ("ifca", {"clusters": 1}),
        ("ifca", {"clusters": 1, "average": "gradient"}),
    ],
)
def test_one_cluster_is_fedavg_bit_for_bit(name: str, parameters: Mapping[str, Any], weights: str) -> None:
    """CFL before any split, FeSEM and IFCA with N = 1, under partial participation."""
    made = ALGORITHMS[name](**parameters, weights=weights)
    one, _ = play(federation(made), 5)
    other, _ = play(federation(ALGORITHMS["fedavg"](weights=weights)), 5)
    assert same(plain(one), plain(other)) or (
        parameters.get("average") == "gradient" and gap(plain(one), plain(other)) < 1e-15
    )


@pytest.mark.parametrize("name", ["cfl", "fesem", "ifca"])
def test_statistics_of_batch_norm_are_the_cluster_s(name: str) -> None:
    """C9: each cluster's buffers are the mean of its members', and the counter takes the maximum."""

    def make() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Tanh(), torch.nn.Linear(6, 3)
        )

    parameters = {"cfl": {"eps1": 9.0, "eps2": 0.0, "after_round": 2}}.get(name, {})
    fed = federation(ALGORITHMS[name](**parameters), populations(), make, **WHOLE)
    server, _ = play(fed, everyone(fed, 3), lr=0.3)
    assert len(set(found(fed, server))) == 2
    for cluster in ("0", "1"):
        own = server["clusters"][cluster]
        assert own["buffers"].keys() == fed.buffers.keys()
        assert own["buffers"]["1.running_mean"].dtype == torch.float64
    first, second = (server["clusters"][c]["buffers"]["1.running_mean"] for c in ("0", "1"))
    assert not torch.equal(first, second)
    whole = fed.bench.algorithm.personal(fed.bench.algorithm.broadcast(server, 0), {})  # type: ignore[misc]
    assert whole.keys() == fed.params.keys() | fed.buffers.keys()


# ---------------------------------------------------------------------- CFL


@pytest.mark.parametrize("seed", [1, 2])
def test_iid_clients_never_split(seed: int) -> None:
    """With the very thresholds that part two populations."""
    fed = federation(ALGORITHMS["cfl"](**SPLIT), populations(planted=False), **WHOLE)
    server, _ = play(fed, everyone(fed, 40), lr=0.3, seed=seed)
    assert len(server["clusters"]) == 1
    assert server["splits"] == []


def test_a_split_waits_for_everybody_and_for_separation() -> None:
    """No test without all members; gamma refuses a split that does not part the clients far enough."""
    fed = federation(ALGORITHMS["cfl"](eps1=9.0, eps2=0.0, after_round=0), populations(), **WHOLE)
    missing, _ = play(fed, [tuple(range(K)), (0, 1, 2, 3)][1:] * 3, server=server_with_all(fed), lr=0.3)
    assert len(missing["clusters"]) == 1
    strict = federation(ALGORITHMS["cfl"](eps1=9.0, eps2=0.0, after_round=0, gamma=0.999), populations(), **WHOLE)
    kept, _ = play(strict, everyone(strict, 2), lr=0.3)
    assert len(kept["clusters"]) == 1


@pytest.mark.parametrize(("gamma", "clusters"), [(0.6, 2), (0.8, 1)])
def test_separation_is_the_root_of_half_of_one_minus_the_similarity(gamma: float, clusters: int) -> None:
    """Halves at a right angle: similarity 0, separation 0.707."""
    ways = {0: [1.0, 0.0], 1: [2.0, 0.0], 2: [0.0, 1.0], 3: [0.0, 2.0]}
    each = {k: {"model": Tree(w=torch.tensor(way, dtype=torch.float64))} for k, way in ways.items()}
    fed = federation(ALGORITHMS["cfl"](), {k: rows()[k] for k in ways})
    server = {**fed.begin(), **shared.first_state([Tree(w=torch.zeros(2, dtype=torch.float64))])}
    server |= {"splits": [], "cluster": dict.fromkeys(map(str, ways), "0")}
    rule = SplitRule(9.0, 0.0, gamma, "complete", "uniform")
    after = divided(server, "0", list(ways), Replies(tuple(ways), None, each), fed.round(1, tuple(ways)), rule)
    assert len(after["clusters"]) == clusters


def server_with_all(fed: Federation) -> State:
    """A server that knows all clients as members of the one cluster."""
    server = fed.begin()
    return {**server, "cluster": dict.fromkeys(map(str, range(K)), "0"), "rows": dict.fromkeys(map(str, range(K)), 1)}


def test_a_new_client_goes_to_the_leaf_whose_updates_are_like_its_own() -> None:
    fed = federation(ALGORITHMS["cfl"](**SPLIT), populations(), **WHOLE)
    server, _ = play(fed, [tuple(range(4))] * 12, lr=0.3)
    assert len(server["clusters"]) == 2
    assert {"4", "5"}.isdisjoint(server["cluster"])
    after, host = play(fed, everyone(fed, 1), server=server, first=13, lr=0.3)
    assert adjusted_rand(found(fed, after), [k % 2 for k in range(K)]) == 1
    assert host.cost.bytes_down > 8 * fed.params.size() * (K + 2)  # the two newcomers trained the split model first


@pytest.mark.parametrize("answers", ["nothing", "its place alone"])
def test_a_new_client_that_leaves_before_it_has_trained_stays_new(answers: str) -> None:
    """It is placed when it comes again, and is no member that a later split would wait for."""
    fed = federation(ALGORITHMS["cfl"](**SPLIT), populations(), **WHOLE)
    server, _ = play(fed, [tuple(range(4))] * 12, lr=0.3)
    host = fed.host()
    answer = host.server.answer

    def losing(ask: Ask) -> Replies:
        lost = 5 if host.server.now.start.round == 13 and (ask.what == "train" or answers == "nothing") else None
        return answer(ask._replace(to=tuple(k for k in ask.to if k != lost)))

    host.server.answer = losing  # type: ignore[method-assign]
    after, _ = play(fed, everyone(fed, 1), server=server, first=13, lr=0.3, host=host)
    assert "4" in after["cluster"]
    assert "5" not in after["cluster"]
    again, _ = play(fed, everyone(fed, 1), server=after, first=14, lr=0.3, host=host)
    assert adjusted_rand(found(fed, again), [k % 2 for k in range(K)]) == 1


def test_finding_its_place_leaves_a_new_clients_memory_alone() -> None:
    """Under top-k the question is answered with a sealed update, but what it left out is no part of a later one."""
    fed = federation(ALGORITHMS["cfl"](**SPLIT), populations(), **WHOLE)
    server, _ = play(fed, [tuple(range(4))] * 12, lr=0.3)
    fed = fed._replace(bench=fed.bench._replace(transform=TRANSFORMS["topk"](share=0.3)))
    host = fed.host()
    after, _ = play(fed, everyone(fed, 1), server=server, first=13, lr=0.3, host=host)
    memory = {k: (host.states.get(k) or {})[MEMORY] for k in host.states.after.clients()}
    assert sorted(memory) == list(range(K))
    assert all(found.keys() == {"train"} for found in memory.values())
    again = fed.host()  # the same round with the two at their places: nothing else differs
    known = {**server, "cluster": {**server["cluster"], **{str(k): after["cluster"][str(k)] for k in (4, 5)}}}
    play(fed, everyone(fed, 1), server=known, first=13, lr=0.3, host=again)
    assert all(same(memory[k], (again.states.get(k) or {})[MEMORY]) for k in memory)


def test_halves_have_the_smallest_largest_similarity_across() -> None:
    """Single linkage is the exact minimiser; complete linkage is another split on a chain of clients."""
    stream = numpy_stream(5, "test")
    for _ in range(20):
        v = stream.normal(size=(6, 3))
        v /= np.linalg.norm(v, axis=1, keepdims=True)
        alpha = torch.tensor(v @ v.T)
        best = min(
            float(alpha[[i for i in range(6) if bits >> i & 1]][:, [i for i in range(6) if not bits >> i & 1]].max())
            for bits in range(1, 2**6 - 1)
        )
        left, right = bipartition(alpha, "single")
        assert sorted(left + right) == list(range(6))
        assert float(alpha[left][:, right].max()) == pytest.approx(best, abs=0)
    angles = torch.tensor([0.0, 30.0, 60.0, 90.0, 125.0]).deg2rad()
    chain = torch.cos(angles[:, None] - angles[None, :]).double()
    assert bipartition(chain, "single") == ([0, 1, 2, 3], [4])
    assert bipartition(chain, "complete") != ([0, 1, 2, 3], [4])


# ---------------------------------------------------------------------- FeSEM


def test_as_many_centres_as_clients_is_local_training() -> None:
    local = ALGORITHMS["local_only"]()
    local = local._replace(asks=Asks(local.asks.round, local.asks.round))
    fed, alone = (
        federation(made, populations(), **WHOLE) for made in (ALGORITHMS["fesem"](clusters=K, pretrain_epochs=2), local)
    )
    server, _ = play(fed, everyone(fed, 3))
    _, host = play(alone, everyone(alone, 4), first=0)  # the set-up is a pass of its own, round 0
    assert sorted(found(fed, server)) == list(range(K))
    for k in range(K):
        own = fed.bench.algorithm.broadcast(server, k)["model"]
        assert same(own, host.states.get(k)["model"])  # type: ignore[index]


def test_neither_step_raises_the_objective() -> None:
    """(1/K) sum |W_k - C_{r_k}|^2 at fixed W, from any centres, one of them empty."""
    stream = numpy_stream(6, "test")

    def tree() -> Tree:
        return Tree({"a": torch.tensor(stream.normal(size=(2, 3))), "b": torch.tensor(stream.normal(size=4))})

    def objective(models: Mapping[int, Tree], server: State, names: Mapping[int, str]) -> float:
        return sum(((w - server["clusters"][names[k]]["model"]).norm()) ** 2 for k, w in models.items())

    for turn in range(10):
        models = {k: tree() for k in range(8)}
        centres = [tree(), tree(), tree() + Tree({"a": torch.full((2, 3), 50.0), "b": torch.full((4,), 50.0)})]
        server = {**shared.first_state(centres), "cluster": {str(k): str(k % 2) for k in models}}
        replies = Replies(
            tuple(models),
            None,
            {k: {"model": w} for k, w in models.items()},
        )
        start = objective(models, server, {k: str(k % 2) for k in models})
        names = nearest(server, replies)
        assert set(names.values()) == {"0", "1", "2"}, "an empty centre takes the farthest client"
        after = shared.renewed(server, replies, names, dict.fromkeys(models, 1), "uniform")
        assert objective(models, after, names) <= start + 1e-12, turn
        again = nearest(after, replies)
        assert objective(models, after, again) <= objective(models, after, names) + 1e-12, turn


def test_a_centre_whose_members_stayed_away_keeps_its_value() -> None:
    fed = federation(ALGORITHMS["fesem"](), populations(), **WHOLE)
    before, host = play(fed, everyone(fed, 2), lr=0.3)
    away = str(before["cluster"]["1"])
    after, _ = play(fed, [(0, 2)], server=before, host=host, first=3, lr=0.3)
    assert same(before["clusters"][away], after["clusters"][away])
    assert not same(before["clusters"], after["clusters"])


def test_seeds_are_different_models() -> None:
    far = [Tree({"a": torch.tensor([x, 0.0])}) for x in (0.0, 0.1, 10.0, 10.1)]
    for seed in range(5):
        pair = sorted(seeds(far, 2, numpy_stream(seed, "test")))
        assert (pair[0] < 2) != (pair[1] < 2), "one of each side, but for odds of 1 in 10,000"
    assert sorted(seeds([Tree({"a": torch.ones(2)})] * 3, 3, numpy_stream(1, "test"))) == [0, 1, 2]


def test_more_centres_than_clients_are_refused() -> None:
    fed = federation(ALGORITHMS["fesem"](clusters=9), populations(), **WHOLE)
    with pytest.raises(ConfigError, match="only 6 clients"):
        fed.begin()


# ---------------------------------------------------------------------- IFCA


def test_the_set_up_keeps_the_models_with_the_lowest_training_loss() -> None:
    """Each start is tried; what is kept is no worse than the first alone, and the others are forgotten."""
    fed = federation(ALGORITHMS["ifca"](starts=4, start_rounds=2), populations(), **WHOLE)
    kept = fed.begin()
    single = federation(ALGORITHMS["ifca"](starts=1), populations(), **WHOLE)
    alone = single.begin()
    for _ in range(2):
        rounds = single.bench.algorithm.rounds(single.bench.algorithm, alone, single.round(0, tuple(range(K))))  # type: ignore[misc]
        alone = single.host().drive(rounds, RoundStart(0, 0.1))
    assert kept["starts"] == []
    assert score(fed, kept) <= score(single, alone) + 1e-12


def score(fed: Federation, server: State) -> float:
    """Training loss where every client uses the model that fits it best."""
    made, host, clients = fed.bench.algorithm, fed.host(), tuple(range(K))
    host.server.begin(RoundStart(0, 0.1))
    replies = host.server.answer(Ask(clients, "score", {k: made.broadcast(server, k) for k in clients}, "each"))
    sizes = {k: fed.held[k].n for k in clients}
    return sum(sizes[k] * replies.each[k]["loss"] for k in clients) / sum(sizes.values())


def test_a_cluster_that_nobody_picks_keeps_its_model() -> None:
    fed = federation(ALGORITHMS["ifca"](starts=1), populations(planted=False), **WHOLE)
    server = fed.begin()
    worse = {
        **server["clusters"],
        "1": {"model": server["model"] + Tree({n: 100 * torch.ones_like(x) for n, x in server["model"].items()})},
    }
    before = {**server, "clusters": worse}
    after, _ = play(fed, everyone(fed, 1), server=before)
    assert set(found(fed, after)) == {0}
    assert same(after["clusters"]["1"], worse["1"])
    assert not same(after["clusters"]["0"], worse["0"])


@pytest.mark.parametrize(
    ("weights", "shares"), [("samples", (1,)), ("uniform", (1 / 2, 1 / 2)), ("samples", (30 / 67, 37 / 67))]
)
def test_gradients_are_averaged_over_the_whole_cohort(weights: Any, shares: tuple[float, ...]) -> None:
    """theta_j moves by the share of the cohort that picked it: half of the model average's way where half did, all of it where all did."""
    step: dict[str, Any] = {"batch_size": 0, "budget": Budget(epochs=1)}
    held = {k: populations(clients=2)[k % len(shares)] for k in range(4)}
    feds = [federation(ALGORITHMS["ifca"](average=a, weights=weights), held, **step) for a in ("model", "gradient")]
    begin, _ = play(feds[0], everyone(feds[0], 4), lr=0.3)
    after = [play(fed, everyone(fed, 1), server=begin)[0] for fed in feds]
    names = [str(begin["cluster"][str(k)]) for k in range(len(shares))]
    assert len(set(names)) == len(shares)
    assert all(server["cluster"] == begin["cluster"] for server in after), "nobody changes sides"
    for name, share in zip(names, shares, strict=True):
        way = [Tree(server["clusters"][name]["model"]) - begin["clusters"][name]["model"] for server in after]
        assert way[0].norm() > 1e-3
        assert gap(way[1], share * way[0]) < 1e-15


# ---------------------------------------------------------------------- figures, and whole runs


def test_agreement_of_groupings() -> None:
    """The adjusted Rand index is scikit-learn's, purity by hand."""
    stream = numpy_stream(7, "test")
    for _ in range(50):
        a, b = stream.integers(0, 3, 12).tolist(), stream.integers(0, 4, 12).tolist()
        assert adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    assert adjusted_rand([0, 0, 1, 1], ["x", "x", "y", "y"]) == 1
    assert purity([0, 0, 0, 1, 1], ["x", "x", "y", "y", "y"]) == 4 / 5
    assert cluster_figures({0: 1, 1: 0}, {}) == {"assignment": {"0": 1, "1": 0}, "number": 2}


RUN = [
    "rounds=2",
    "partition={name='feature_skew', clients=4, rotate=[0, 180], noise=0}",
    "evaluation.clients=0.2",
]


@pytest.mark.parametrize("name", ["cfl", "fesem", "ifca"])
def test_a_run_reports_its_clusters(name: str, tmp_path: Any) -> None:
    run = run_one(config.read(None, [f"algorithm.name={name}", *RUN]), tmp_path / "run")
    figures = run.summary["clusters"]
    assert sorted(figures["assignment"]) == ["0", "1", "2", "3"]
    assert -1 <= figures["adjusted_rand"] <= 1
    assert 0.5 <= figures["purity"] <= 1
    assert set(run.summary["final"]["client_accuracy"]) == {"mean", "p10", "min"}
    assert len(run.summary["per_client"]) == 4
    loaded = api.load(run.path)
    assert ("models" in loaded.rows.iloc[-1]) == (name != "cfl")


@pytest.mark.parametrize("angle", [90, 180])
def test_ifca_recovers_two_rotated_populations(angle: int, tmp_path: Any) -> None:
    """B11, exactly, from the pictures alone. After one epoch instead of five some seeds still have everybody at one model."""
    turned = f"partition={{name='feature_skew', clients=4, rotate=[0, {angle}], noise=0}}"
    run = run_one(config.read(None, ["algorithm.name=ifca", "rounds=2", "local.epochs=5", turned]), tmp_path / "run")
    figures = run.summary["clusters"]
    assert (figures["adjusted_rand"], figures["purity"], figures["number"]) == (1, 1, 2)


def test_a_model_that_several_clients_use_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one whose tensors are equal, but others, is not taken for it."""
    setup = set_up(config.read(None, ["partition={name='iid', clients=4}"]), 1)
    evaluator, models = Evaluator(setup), setup.models()
    passes, scores = [], TorchModel.scores
    monkeypatch.setattr(TorchModel, "scores", lambda model, x, y: passes.append(model) or scores(model, x, y))
    first, again = (models(setup.first.params, {}) for _ in range(2))
    other = models(setup.first.params.clone(), {})
    row = evaluator.personal_row(lambda k: other if k == 2 else again if k == 3 else first)
    evaluator.plain_row(other)
    assert len(passes) == 2
    assert row["accuracy"] == pytest.approx(evaluator.figures(first)["accuracy"])


def test_one_initial_model_is_not_several(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="begins with 10 different models"):
        set_up(config.read(None, ["algorithm.name=ifca", "model.init=x.safetensors"]), 1)


def test_partial_participation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'cfl' works only with 1\.0"):
        set_up(config.read(None, ["algorithm.name=cfl", "cohort.fraction=0.5"]), 1)


def test_cohorts_of_the_laws_are_partial() -> None:
    """CFL's laws run where it never splits: stated here, so that nobody takes them for more."""
    fed = federation(ALGORITHMS["cfl"]())
    server, _ = play(fed, cohorts(4))
    assert len(server["clusters"]) == 1
