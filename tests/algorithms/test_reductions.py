"""One algorithm in the place where its mathematics says it is another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedatlas.algorithm import UNION, Algorithm, Batch, Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.gradients import mean_gradient, shares_of
from fedatlas.data.batches import Draw, Rows, batches
from fedatlas.engine.optim import Optimizer
from fedatlas.errors import DivergedError
from fedatlas.tree import Tree
from federation import SIZES, Federation, cohorts, everyone, federation, gap, play, rows, same, sgd
from invariants import (
    buffers_are_the_mean_of_the_clients,
    controls_learn,
    first_round_is_fedavg,
    one_client_is_sgd,
    one_seed_one_run,
    server_control_is_the_mean_of_the_clients,
    weights_are_shares_of_the_examples,
)


def fed(name: str, held: dict[int, Rows] | None = None, keys: dict[str, Any] | None = None, **local: Any) -> Federation:
    return federation(ALGORITHMS[name](**(keys or {})), held, **local)


def one() -> dict[int, Rows]:
    """A single client with 23 rows."""
    return rows((23,))


def union(held: dict[int, Rows]) -> Rows:
    return Rows(torch.cat([r.x for r in held.values()]), torch.cat([r.y for r in held.values()]))


def gradient(f: Federation, w: Tree, data: Rows) -> Tree:
    leaves = {name: x.detach().requires_grad_() for name, x in w.items()}
    loss = f.bench.network.loss(leaves, Batch(data.x, data.y))
    return Tree(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_fedavg_with_one_client_is_the_centralised_baseline() -> None:
    """K = 1, C = 1: bit for bit, also with momentum, weight decay and several epochs (H0, H2)."""
    local = {"optimizer": sgd(momentum=0.9), "weight_decay": 1e-3, "budget": Budget(epochs=3)}
    a, _ = play(fed("fedavg", one(), **local), [(0,)] * 3)
    b, _ = play(fed("centralised", one(), **local), [(0,)] * 3)
    assert same(a["model"], b["model"])


def test_centralised_draws_as_many_samples_as_the_cohort() -> None:
    """C < 1: the budget is the cohort's examples (H0)."""
    f = fed("centralised")
    for cohort in cohorts(3):
        _, host = play(f, [cohort])
        assert host.view.work[UNION].examples == 2 * sum(SIZES[k] for k in cohort)


def test_pieces_of_a_client_count_by_their_weights_and_tokens() -> None:
    """F_k is one weighted mean over all rows, whatever pieces it is computed in; what the loss does not touch has no gradient."""

    class Line:
        def loss(self, w: Any, batch: Batch) -> torch.Tensor:
            each = (w["a"] * batch.x[:, 0]).square()
            weight = torch.ones(len(each)) if batch.weight is None else batch.weight
            return (each * weight).sum() / weight.sum()

    x, weight = torch.arange(1.0, 7.0)[:, None], torch.tensor([1.0, 1, 1, 9, 9, 9])
    w = Tree(a=torch.tensor(2.0), idle=torch.tensor(1.0))
    whole = Batch(x, torch.zeros(6), weight)
    parts = [Batch(x[at], torch.zeros(len(at)), weight[at]) for at in (torch.arange(2), torch.arange(2, 6))]
    one, two = (mean_gradient(Line(), batches, w) for batches in ([whole], parts))  # type: ignore[arg-type]
    assert float(one["a"]) == pytest.approx(2 * 2.0 * float((weight * x[:, 0] ** 2).sum()) / 30)
    assert float(two["a"]) == pytest.approx(float(one["a"]))
    assert float(two["idle"]) == 0
    tokens = [Batch(x, torch.tensor([[1, 2], [0, -100]])), Batch(x, torch.tensor([[-100, 1]]))]
    assert shares_of(tokens) == [0.75, 0.25]


def test_centralised_takes_every_client_s_steps() -> None:
    """Where the work is given in steps: as many examples as all clients draw, not one client's steps."""
    f = fed("centralised", budget=Budget(steps=2))
    _, host = play(f, [tuple(range(len(SIZES)))])
    _, of_all = play(fed("fedavg", budget=Budget(steps=2)), [tuple(range(len(SIZES)))])
    assert host.view.work[UNION].examples == sum(work.examples for work in of_all.view.work.values())


def test_fedsgd_is_one_full_gradient_step_on_the_union() -> None:
    """With everybody: w - eta grad F(w) on all rows at once (H1)."""
    f = fed("fedsgd", batch_size=0, budget=Budget(epochs=1))
    server, _ = play(f, everyone(f, 1), lr=0.3)
    expected = f.params - 0.3 * gradient(f, f.params, union(rows()))
    assert gap(server["model"], expected) < 1e-14


def test_fedavg_with_full_batches_is_gradient_descent() -> None:
    """E = 1, B = inf, C = 1 over several rounds (H2)."""
    f = fed("fedavg", batch_size=0, budget=Budget(epochs=1))
    server, _ = play(f, everyone(f, 5), lr=0.3)
    w = f.params
    for _ in range(5):
        w = w - 0.3 * gradient(f, w, union(rows()))
    assert gap(server["model"], w) < 1e-13


@pytest.mark.parametrize(
    ("name", "keys", "exact"),
    [
        ("fedprox", {"mu": 0.0}, True),
        ("fedavgm", {"beta": 0.0, "server_lr": 1.0}, False),  # w + (mean - w) is not bitwise the mean
    ],
)
def test_reduces_to_fedavg(name: str, keys: dict[str, Any], exact: bool) -> None:
    a, _ = play(fed("fedavg"), 5)
    b, _ = play(fed(name, keys=keys), 5)
    assert same(a["model"], b["model"]) if exact else gap(a["model"], b["model"]) < 1e-14


def test_scaffold_starts_as_fedavg_with_uniform_weights() -> None:
    first_round_is_fedavg(ALGORITHMS["scaffold"])


def test_scaffold_with_one_client_is_sgd() -> None:
    one_client_is_sgd(ALGORITHMS["scaffold"])


def test_scaffold_leaves_fedavg_once_its_controls_learnt() -> None:
    controls_learn(ALGORITHMS["scaffold"])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_server_control_is_the_mean_of_the_clients(weights: str, option: str) -> None:
    server_control_is_the_mean_of_the_clients(ALGORITHMS["scaffold"], weights, option)


def test_scaffold_option_two_is_option_one_for_a_single_full_step() -> None:
    """tau = 1 on the whole batch: (w_t - y) / eta is the gradient at w_t, weight decay included."""
    local = {"batch_size": 0, "budget": Budget(epochs=1), "weight_decay": 0.1}
    a, ha = play(fed("scaffold", keys={"option": "I"}, **local), 3)
    b, hb = play(fed("scaffold", keys={"option": "II"}, **local), 3)
    assert gap(a["model"], b["model"]) < 1e-13
    assert gap(ha.states.get(0) or {}, hb.states.get(0) or {}) < 1e-12


def test_scaffold_starts_as_fedavg_with_the_same_weights() -> None:
    """The same by samples: all controls are zero in the first round (H11)."""
    a, _ = play(fed("fedavg"), cohorts(1))
    b, _ = play(fed("scaffold", keys={"weights": "samples"}), cohorts(1))
    assert gap(a["model"], b["model"]) < 1e-15


def test_centralised_is_fedsgds_step_on_everything() -> None:
    """FedSGD with C = 1 is the centralised baseline with B = inf (H0)."""
    local = {"batch_size": 0, "budget": Budget(epochs=1), "weight_decay": 1e-2}
    f = fed("fedsgd", **local)
    a, _ = play(f, everyone(f, 4), lr=0.3)
    b, _ = play(fed("centralised", **local), everyone(f, 4), lr=0.3)
    assert gap(a["model"], b["model"]) < 1e-13


def test_fedsgd_is_fedavg_with_one_full_batch() -> None:
    """E = 1, B = inf, three of five clients (H1)."""
    local = {"batch_size": 0, "budget": Budget(epochs=1)}
    a, _ = play(fed("fedsgd", **local), 4)
    b, _ = play(fed("fedavg", **local), 4)
    assert same(a["model"], b["model"])


def test_weights_are_shares_of_the_examples() -> None:
    weights_are_shares_of_the_examples(ALGORITHMS["fedavg"])


@pytest.mark.parametrize("name", ["fedavg", "fedavgm", "fedadam", "fedprox", "scaffold"])
def test_buffers_are_the_mean_of_the_clients(name: str) -> None:
    """Whatever the server does to the model, running statistics are averaged and skip it (C9)."""
    buffers_are_the_mean_of_the_clients(ALGORITHMS[name])


def test_one_seed_one_run() -> None:
    one_seed_one_run(ALGORITHMS["fedavg"])


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_adaptive_servers_rest_without_an_update(name: str) -> None:
    """Delta = 0 and m = 0: w stays, bit for bit (H5)."""
    f = fed(name)
    server = f.begin()
    after = f.bench.algorithm.server_update(server, {"model": f.params}, f.round(1, (0, 1)))
    assert same(after["model"], server["model"])


def test_adagrads_second_moment_never_shrinks() -> None:
    """v grows, so that the effective rate falls (H6)."""
    f = fed("fedadagrad")
    server, host, before = f.begin(), f.host(), f.begin()["v"]
    for number, cohort in enumerate(cohorts(5), start=1):
        server, _ = play(f, [cohort], server=server, host=host, first=number)
        assert all(bool((server["v"][name] >= x).all()) for name, x in before.items())
        assert gap(server["v"], before) > 0
        before = server["v"]


def test_yogis_second_moment_stays_above_zero() -> None:
    """v >= 0 whenever it began so: what is taken off is (1 - beta2) Delta^2 < v (H8)."""
    f = fed("fedyogi", keys={"beta2": 0.0, "v_init": "zero"})
    server, _ = play(f, 12)
    assert all(bool((v >= 0).all()) for v in server["v"].values())


def test_server_momentum_is_sgd_with_momentum_on_the_mean_update() -> None:
    """FedAvgM is torch's SGD on the gradient -Delta (H5)."""
    algorithm = ALGORITHMS["fedavgm"](server_lr=0.7, beta=0.9)
    f = fed("fedavgm", keys={"server_lr": 0.7, "beta": 0.9})
    server, leaves = f.begin(), {name: x.clone().requires_grad_() for name, x in f.params.items()}
    reference = torch.optim.SGD(list(leaves.values()), lr=0.7, momentum=0.9)
    for number in range(1, 5):
        delta = f.params.map(lambda x, number=number: torch.sin(x * number))
        server = algorithm.server_update(server, {"model": server["model"] + delta}, f.round(number, (0, 1)))
        for name, leaf in leaves.items():
            leaf.grad = -delta[name]
        reference.step()
        assert gap(server["model"], {name: x.detach() for name, x in leaves.items()}) < 1e-14


def test_homogeneity_weights_are_fedavgs_where_labels_are_spread_alike() -> None:
    """Identical class distributions: W_k = N_k / N (H3, H4)."""
    held = {
        k: Rows(
            torch.randn(3 * n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(k)),
            torch.arange(3).repeat(n),
        )
        for k, n in enumerate((2, 5, 3))
    }
    for name in ("hwfedavg", "nwfedavg"):
        a, _ = play(fed("fedavg", held), everyone(fed("fedavg", held), 2))
        b, host = play(fed(name, held), everyone(fed(name, held), 2))
        assert gap(a["model"], b["model"]) < 1e-14
        assert [host.cost.weights[k] for k in range(3)] == pytest.approx([0.2, 0.5, 0.3])


def test_homogeneity_ranks_clients_opposite_ways() -> None:
    """Equal sizes: HW and NW order the clients in opposite ways, and both inversions of NW agree (H4)."""
    held = rows((12, 12, 12))
    _, hw = play(fed("hwfedavg", held), [(0, 1, 2)])
    _, nw = play(fed("nwfedavg", held), [(0, 1, 2)])
    _, literal = play(fed("nwfedavg", held, {"inverse": "literal"}), [(0, 1, 2)])
    order: Callable[[Any], list[int]] = lambda host: sorted(range(3), key=lambda k: host.cost.weights[k])  # noqa: E731
    assert order(hw) == order(nw)[::-1]
    assert nw.cost.weights == pytest.approx(literal.cost.weights)


@pytest.mark.parametrize("name", ["hwfedavg", "nwfedavg"])
def test_homogeneity_weights_follow_the_client_not_its_number(name: str) -> None:
    """Clients renumbered: each keeps its weight (H3)."""
    held = rows()
    renumbered = {4 - k: r for k, r in held.items()}
    _, host = play(fed(name, held), [(0, 1, 2, 3, 4)])
    _, other = play(fed(name, renumbered), [(0, 1, 2, 3, 4)])
    assert {4 - k: w for k, w in other.cost.weights.items()} == pytest.approx(dict(host.cost.weights), abs=1e-15)


def test_identical_clients_with_identical_shuffles_average_to_each_model() -> None:
    """The mean of equal models is that model, bit for bit in float32 (C8)."""
    held = rows((8,), torch.float32)
    f = fed("fedavg", {0: held[0], 1: held[0]}, batch_size=0, dtype=torch.float32)
    alone = fed("fedavg", {0: held[0]}, batch_size=0, dtype=torch.float32)
    a, _ = play(f, [(0, 1)] * 2)
    b, _ = play(alone, [(0,)] * 2)
    assert same(a["model"], b["model"])


def test_training_zero_epochs_gives_the_model_back() -> None:
    """T(theta, D, 0) = theta (H2, the thesis' operator)."""
    f = fed("fedavg", budget=Budget(epochs=0))
    server, _ = play(f, 1)
    assert gap(server["model"], f.params) < 1e-15  # a mean of three equal models is not bitwise in float64


def test_training_twice_is_training_longer() -> None:
    """T(T(theta, D, E), D, E) = T(theta, D, 2E): the second call continues the stream of shuffles (C7)."""
    data = rows()[3]
    draw = Draw(seed=1, round=1, client=3, batch_size=4)
    longer = list(batches(data, Budget(epochs=4), draw))
    twice = [*batches(data, Budget(epochs=2), draw), *batches(data, Budget(epochs=2), draw._replace(first_epoch=2))]
    assert len(longer) == len(twice) == 4 * 6
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(longer, twice, strict=True))


def test_sequential_training_does_not_commute() -> None:
    """T(T(theta, A), B) is not T(T(theta, B), A) in general (H2)."""
    held = rows()
    f = fed("fedavg", {0: held[1], 1: held[3]})
    ab, _ = play(f, [(0,), (1,)])
    ba, _ = play(f, [(1,), (0,)])
    assert gap(ab["model"], ba["model"]) > 1e-3


def test_a_client_without_rows_changes_nothing() -> None:
    """n_k = 0 has weight 0 (H2)."""
    held = rows((6, 9))
    empty = Rows(torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64))
    a, _ = play(fed("fedavg", held), [(0, 1)] * 2)
    b, _ = play(fed("fedavg", {**held, 2: empty}), [(0, 1, 2)] * 2)
    assert same(a["model"], b["model"])


def test_adaptive_mu_follows_the_training_loss() -> None:
    """Up by 0.1 when the loss rises, down by 0.1 after five falls (H9)."""
    algorithm: Algorithm = ALGORITHMS["fedprox"](mu=0.5, adaptive=True)
    f = fed("fedprox", keys={"mu": 0.5, "adaptive": True})
    server, round_ = f.begin(), f.round(1, (0, 1))
    seen = []
    losses = (9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 4.5, 4.5, 4.0, 3.0, 3.0, 2.0, 1.0, 0.9, 0.8, 0.7)
    for loss in losses:
        server = algorithm.server_update(server, {"model": f.params, "losses": 4 * loss, "examples": 4.0}, round_)
        seen.append(round(server["mu"], 3))
    assert seen == [*[0.5] * 5, 0.4, *[0.5] * 9, 0.4]  # nothing to compare the first with; an equal loss is neither


def test_an_adaptive_mu_that_overshoots_ends_the_run() -> None:
    """eta mu >= 2 is refused at the start; mu may get there later."""
    f = fed("fedprox", keys={"mu": 0.5, "adaptive": True})
    begun = f.begin()
    play(f, [(0, 1)], server={**begun, "mu": 19.9}, lr=0.1)
    with pytest.raises(DivergedError, match=r"mu has risen to 20\.0"):
        play(f, [(0, 1)], server={**begun, "mu": 20.0}, lr=0.1)
    for optimizer in (sgd(momentum=0.9), Optimizer("adam")):  # neither multiplies w - w_t by 1 - eta mu
        f = fed("fedprox", keys={"mu": 0.5, "adaptive": True}, optimizer=optimizer)
        play(f, [(0, 1)], server={**f.begin(), "mu": 20.0}, lr=0.1)


@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), sgd(momentum=0.9, nesterov=True), Optimizer("adam")])
def test_local_optimisers_are_torchs(optimizer: Optimizer) -> None:
    """Same result as torch.optim on one client over two epochs, with weight decay."""
    f = fed("fedavg", one(), optimizer=optimizer, weight_decay=1e-2, budget=Budget(epochs=2))
    server, _ = play(f, [(0,)], lr=0.05)
    module = f.bench.network.module
    module.load_state_dict(dict(f.params))
    kind = torch.optim.Adam if optimizer.name == "adam" else torch.optim.SGD
    keys = {} if optimizer.name == "adam" else {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
    reference = kind(module.parameters(), lr=0.05, **keys)
    for batch in batches(one()[0], Budget(epochs=2), Draw(1, 1, 0, 4)):
        reference.zero_grad()
        f.bench.network.mean_loss(module(batch.x), batch.y, None).backward()
        with torch.no_grad():
            for p in module.parameters():
                assert p.grad is not None
                p.grad += 1e-2 * p
        reference.step()
    assert gap(server["model"], {name: p.detach() for name, p in module.named_parameters()}) < 1e-13


def test_clipping_bounds_the_step() -> None:
    """A step is eta min(1, C / ||g||) g: exactly eta C long where the gradient is longer."""
    for limit in (1e-3, 1e3):
        f = fed("fedavg", one(), clip=limit, batch_size=0, budget=Budget(epochs=1))
        server, _ = play(f, [(0,)], lr=0.1)
        g = gradient(f, f.params, one()[0])
        expected = 0.1 * min(limit, g.norm())
        assert (server["model"] - f.params).norm() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("option", ["I", "II"])
def test_a_client_without_rows_leaves_scaffolds_controls_alone(option: str) -> None:
    """It took no step: there is no mean gradient to divide out."""
    held = rows()
    empty = {**held, 1: held[1].take(torch.empty(0, dtype=torch.long))}
    fed = federation(ALGORITHMS["scaffold"](option=option), held=empty, weight_decay=0.1)
    server, host = play(fed, [(0, 1)])
    assert all(bool(torch.isfinite(x).all()) for part in ("model", "c") for x in server[part].values())
    kept = host.states.get(1)
    assert kept is not None
    assert all(not x.any() for x in kept["c_k"].values())
