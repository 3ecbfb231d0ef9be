"""Hand-worked numbers, in float64; tolerance half a unit of the last printed digit."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import nn

from fedatlas.algorithm import Algorithm, Budget, Round, Weights, by_samples
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.hwfedavg import raw_weight
from fedatlas.algorithms.moon import contrast
from fedatlas.data.batches import Rows
from fedatlas.tree import Tree
from federation import Federation, cohorts, everyone, federation, play

Build = Callable[..., Algorithm]
ROUND = Round(1, (0, 1), 2, 2, {0: 1, 1: 1})


class Point(nn.Module):
    """One number w: the model of the quadratics."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * torch.ones_like(x[:, :1])


def quadratic(outputs: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Mean over rows of (a/2) (w - b)^2, with y = (a, b)."""
    return (y[:, 0] / 2 * (outputs[:, 0] - y[:, 1]) ** 2).mean()


def quadratics(algorithm: Algorithm, a: list[float], b: list[float], n: list[int], tau: int) -> Federation:
    """Client k has n_k equal rows with curvature a_k and minimum b_k, and takes tau full-batch steps."""
    held = {
        k: Rows(torch.zeros(n_k, 1, dtype=torch.float64), torch.tensor([[a_k, b_k]] * n_k, dtype=torch.float64))
        for k, (a_k, b_k, n_k) in enumerate(zip(a, b, n, strict=True))
    }
    return federation(algorithm, held, Point, quadratic, batch_size=0, budget=Budget(steps=tau))


def two(build: Build, tau: int = 5, **keys: object) -> Federation:
    """f_1 = (x-1)^2 / 2 and f_2 = 3 (x+1)^2 / 2, optimum -1/2."""
    return quadratics(build(**keys), [1.0, 3.0], [1.0, -1.0], [1, 1], tau)


def x_of(server: object) -> float:
    return float(server["model"]["w"])  # type: ignore[index]


def after(fed: Federation, rounds: int, lr: float = 0.1) -> float:
    return x_of(play(fed, everyone(fed, rounds), lr=lr)[0])


def server_steps(build: Build, deltas: list[float], **keys: object) -> list[float]:
    """The server's optimiser alone: w after each mean update Delta, from w = 0."""
    algorithm = build(**keys)
    server = algorithm.server_init({"global": Tree(w=torch.zeros(1, dtype=torch.float64))}, {})
    out = []
    for delta in deltas:
        mean = {"model": server["model"] + Tree(w=torch.tensor([delta], dtype=torch.float64))}
        server = algorithm.server_update(server, mean, ROUND)
        out.append(float(server["model"]["w"]))
    return out


def fedadam_steps(build: Build) -> None:
    # v_0 = .99e-6 + .01 * .25 = .00250099; m_0 = .05; step = .1 * .05 / (sqrt(.00250099) + .001) = .0980201901
    found = server_steps(build, [0.5, 0.2], server_lr=0.1, tau=1e-3)
    assert found == pytest.approx([0.0980201901, 0.2170064306], abs=5e-11)


def test_fedadam() -> None:
    fedadam_steps(ALGORITHMS["fedadam"])


def test_fedyogi() -> None:
    # v_0 = 1e-6 + .01 * .25: Yogi adds the whole (1 - beta2) Delta^2 to tau^2
    found = server_steps(ALGORITHMS["fedyogi"], [0.5, 0.2], server_lr=0.1, tau=1e-3)
    assert found == pytest.approx([0.0980199980, 0.2165013974], abs=5e-11)


def test_fedadagrad() -> None:
    # v_0 = 1e-6 + .25; step = .1 * .5 / (sqrt(.250001) + .001) = .0998002...
    found = server_steps(ALGORITHMS["fedadagrad"], [0.5, 0.2], server_lr=0.1, tau=1e-3)
    assert found == pytest.approx([0.0998002000, 0.1368703662], abs=5e-10)


def bias_correction_starts_at_one(build: Build) -> None:
    # m_0 = .1 * .5, v_0 = .01 * .25 (v_init zero); corrected m / sqrt(v) = 1: step = .1 * .05 * sqrt(.01) / .1 / (.05 + tau)
    found = server_steps(build, [0.5], server_lr=0.1, tau=1e-3, v_init="zero", bias_correction=True)
    assert found == pytest.approx([0.1 * (0.01**0.5 / 0.1) * 0.05 / (0.05 + 1e-3)], abs=1e-15)


def test_bias_correction_uses_exponent_one_in_the_first_round() -> None:
    bias_correction_starts_at_one(ALGORITHMS["fedadam"])


def test_yogi_v_moves_by_the_same_amount_up_and_down() -> None:
    algorithm = ALGORITHMS["fedyogi"](tau=1e-3, beta2=0.9)
    for v_before, sign in ((0.0, 1), (1.0, -1)):
        server = algorithm.server_init({"global": Tree(w=torch.zeros(1, dtype=torch.float64))}, {})
        server = {**server, "v": Tree(w=torch.tensor([v_before], dtype=torch.float64))}
        mean = {"model": Tree(w=torch.tensor([0.5], dtype=torch.float64))}
        v = float(algorithm.server_update(server, mean, ROUND)["v"]["w"])
        assert v == pytest.approx(v_before + sign * 0.1 * 0.25, abs=1e-15)


def test_adam_step_under_a_constant_update_tends_to_its_sign() -> None:
    steps = server_steps(ALGORITHMS["fedadam"], [0.5] * 3000, server_lr=0.1, tau=1e-3)
    assert steps[-1] - steps[-2] == pytest.approx(0.1 * 0.5 / (0.5 + 1e-3), rel=1e-9)


def test_fedavg_stops_beside_the_optimum() -> None:
    # one round maps x to (r1 + r2)/2 with r_k = b_k + (1 - .1 a_k)^5 (x - b_k); the fixed point solves x = that
    c1, c2 = 0.9**5, 0.7**5
    fixed = ((1 - c1) - (1 - c2)) / (2 - c1 - c2)
    assert fixed == pytest.approx(-0.3402661425, abs=5e-11)
    assert after(two(ALGORITHMS["fedavg"]), 200) == pytest.approx(-0.3402661425, abs=5e-11)


def fedprox_stops_where_it_must(build: Build) -> None:
    # exact local solves: w_k = (a_k b_k + mu x) / (a_k + mu): (1+x)/2 and (-3+x)/4; their mean is x at -1/5
    fed = two(build, tau=60, mu=1.0)
    assert after(fed, 1, lr=0.4) == pytest.approx((0.5 - 0.75) / 2, abs=1e-12)
    assert after(fed, 40, lr=0.4) == pytest.approx(-0.2, abs=1e-12)


def test_fedprox_stops_beside_the_optimum() -> None:
    fedprox_stops_where_it_must(ALGORITHMS["fedprox"])


@pytest.mark.parametrize("mu", [0.1, 1.0, 30.0])
def test_fedprox_with_exact_local_solves_is_its_closed_form(mu: float) -> None:
    # the minimum of (a_k/2)(w - b_k)^2 + (mu/2)(w - x)^2 is (a_k b_k + mu x)/(a_k + mu), whatever n_k; their mean is by n_k
    a, b, n = (UNEQUAL[key] for key in "abn")
    lr = 1 / (
        3 + mu
    )  # 3 is the steepest curvature, 1/2 the flattest: a step leaves at most 1 - lr (1/2 + mu) of an error
    fed = quadratics(ALGORITHMS["fedprox"](mu=mu), **UNEQUAL, tau=math.ceil(-36 / math.log(1 - lr * (0.5 + mu))))
    x, server, host = 0.0, fed.begin(), fed.host()
    for number, cohort in enumerate(cohorts(4, 5, 3), start=1):
        total = sum(n[k] for k in cohort)
        x = sum(n[k] / total * (a[k] * b[k] + mu * x) / (a[k] + mu) for k in cohort)
        server, _ = play(fed, [cohort], lr=lr, server=server, host=host, first=number)
        assert x_of(server) == pytest.approx(x, abs=1e-12)


def test_fedprox_holds_the_model_as_mu_grows() -> None:
    # eta mu = 1: a step lands where the penalty pulls; |w_k - w_t| <= max a_k |w_t - b_k| / mu = 3 * 4 / mu (H9)
    for mu in (1e2, 1e4):
        fed = quadratics(ALGORITHMS["fedprox"](mu=mu), **UNEQUAL, tau=3)
        assert abs(after(fed, 1, lr=1 / mu)) < 12 / mu


def scaffold_reaches_the_optimum(build: Build) -> None:
    fed = two(build)
    found = [after(fed, t) for t in (1, 2, 3)]
    assert found == pytest.approx([-0.21121, -0.3733769128, -0.4546854771], abs=5e-11)
    server, host = play(fed, everyone(fed, 1))
    # c_k = (w_t - y_k) / (tau eta): y_1 = 1 - .9^5 = .40951, y_2 = .7^5 - 1 = -.83193
    assert float(server["c"]["w"]) == pytest.approx(0.42242, abs=1e-12)
    controls = [float(host.states.get(k)["c_k"]["w"]) for k in (0, 1)]  # type: ignore[index]
    assert controls == pytest.approx([-0.81902, 1.66386], abs=1e-12)
    assert after(fed, 120) == pytest.approx(-0.5, abs=1e-9)


def test_scaffold_two_quadratics() -> None:
    scaffold_reaches_the_optimum(ALGORITHMS["scaffold"])


UNEQUAL = {"a": [1.0, 2.0, 0.5, 3.0, 1.5], "b": [3.0, -1.0, 2.0, 1.0, -4.0], "n": [10, 20, 30, 40, 200]}


@pytest.mark.parametrize(("m", "rounds"), [(5, 40), (2, 80)])
@pytest.mark.parametrize(("weights", "optimum"), [("uniform", Fraction(-1, 8)), ("samples", Fraction(-212, 97))])
def test_scaffold_solves_the_objective_of_its_weights(weights: str, optimum: Fraction, m: int, rounds: int) -> None:
    # sum a_k b_k / sum a_k = -1/8 uniformly; weighted by n_k: sum n_k a_k b_k / sum n_k a_k = -212/97
    fed = quadratics(ALGORITHMS["scaffold"](weights=weights), **UNEQUAL, tau=3)
    server, _ = play(fed, cohorts(rounds, 5, m), lr=0.1)
    assert x_of(server) == pytest.approx(float(optimum), abs=1e-6)


@pytest.mark.parametrize(("m", "rounds"), [(5, 40), (2, 80)])
def test_scaffold_with_samples_on_the_models_alone_still_solves_the_uniform_objective(m: int, rounds: int) -> None:
    # at the fixed point every c_k is grad F_k(x) and c their plain mean, so that every local step is that mean: -1/8
    made = ALGORITHMS["scaffold"]()

    def weigh(round: Round) -> Weights:
        return {"model": by_samples(round), "c": dict.fromkeys(round.cohort, 1 / round.K)}

    server, _ = play(quadratics(made._replace(weigh=weigh), **UNEQUAL, tau=3), cohorts(rounds, 5, m), lr=0.1)
    assert x_of(server) == pytest.approx(-1 / 8, abs=1e-6)


@pytest.mark.parametrize(("weights", "optimum"), [("uniform", Fraction(-1, 8)), ("samples", Fraction(-212, 97))])
@pytest.mark.parametrize(
    ("name", "keys", "rounds", "tolerance"),
    [
        ("fedsgd", {}, 40, 1e-9),
        ("fedavg", {}, 40, 1e-9),
        ("fedavgm", {"beta": 0.5}, 70, 1e-9),
        ("fedprox", {"mu": 1.0}, 40, 1e-9),
        ("fedadagrad", {"server_lr": 0.5}, 120, 1e-6),
        ("fedadam", {"server_lr": 0.1, "tau": 0.1}, 220, 1e-4),
        ("fedyogi", {"server_lr": 0.1, "tau": 0.1}, 220, 1e-4),
    ],
)
def test_one_local_step_solves_the_objective_of_the_weights(
    name: str, keys: dict[str, float], rounds: int, tolerance: float, weights: str, optimum: Fraction
) -> None:
    # C1: with a single full step the mean update is a gradient of sum p_k F_k, and p_k is 1/5 or n_k/300
    fed = quadratics(ALGORITHMS[name](weights=weights, **keys), **UNEQUAL, tau=1)
    assert after(fed, rounds, lr=0.3) == pytest.approx(float(optimum), abs=tolerance)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_several_local_steps_are_biased_without_a_correction(name: str) -> None:
    # the clients' curvatures differ, so that more steps favour the steep ones: FedAvg and FedProx stop elsewhere (C1)
    fed = quadratics(ALGORITHMS[name](), **UNEQUAL, tau=5)
    assert abs(after(fed, 40) - float(Fraction(-212, 97))) > 0.01


def feddyn_two_quadratics(build: Build) -> None:
    # exact solves, alpha = 1: a (w - b) - g + (w - w_t) = 0. Round 1: 2w = 1 and 4w = -3; g = -(w_k - 0);
    # h = -(.5 - .75)/2 = .125; w = -.125 - .125. Round 2: 2w = 1 - .5 - .25 and 4w = -3 + .75 - .25
    fed = quadratics(build(alpha=1.0), [1.0, 3.0], [1.0, -1.0], [1, 1], tau=80)
    for rounds, w, h, g in ((1, -0.25, 0.125, (-0.5, 0.75)), (2, -0.375, 0.125, (-0.875, 1.125))):
        server, host = play(fed, everyone(fed, rounds), lr=0.2)
        assert (x_of(server), float(server["h"]["w"])) == pytest.approx((w, h), abs=1e-12)
        assert [float(host.states.get(k)["g_k"]["w"]) for k in (0, 1)] == pytest.approx(g, abs=1e-12)  # type: ignore[index]
        assert float(fed.bench.algorithm.models(server)["mean"]["w"]) == pytest.approx(w + h, abs=1e-12)
    server, host = play(fed, everyone(fed, 35), lr=0.2)  # each round halves the error
    assert x_of(server) == pytest.approx(-0.5, abs=1e-9)
    # there every w_k = w, g_k = grad F_k(-1/2), and these add up to nothing
    assert [float(host.states.get(k)["g_k"]["w"]) for k in (0, 1)] == pytest.approx([-1.5, 1.5], abs=1e-8)  # type: ignore[index]


def test_feddyn_vector() -> None:
    feddyn_two_quadratics(ALGORITHMS["feddyn"])


def feddyn_solves(build: Build, by_size: bool, optimum: Fraction, m: int) -> None:
    fed = quadratics(build(alpha=1.0, alpha_by_size=by_size), **UNEQUAL, tau=5)
    server, _ = play(fed, cohorts(90 if m == 5 else 200, 5, m), lr=0.1)
    assert x_of(server) == pytest.approx(float(optimum), abs=1e-6)
    assert float(fed.bench.algorithm.models(server)["mean"]["w"]) == pytest.approx(float(optimum), abs=1e-6)


@pytest.mark.parametrize("m", [5, 2])
@pytest.mark.parametrize(("by_size", "optimum"), [(False, Fraction(-1, 8)), (True, Fraction(-212, 97))])
def test_feddyn_solves_the_objective_of_its_alpha(by_size: bool, optimum: Fraction, m: int) -> None:
    # the same sums as SCAFFOLD's: uniform with one alpha, weighted by n_k with alpha_k = alpha (n/K) / n_k
    feddyn_solves(ALGORITHMS["feddyn"], by_size, optimum, m)


def test_feddyn_with_one_client_is_the_proximal_point_method() -> None:
    # F = (3/2)(x - 2)^2, alpha = 1: prox(v) = (6 + v)/4, from 0: 3/2, 15/8, 63/32; w = w_1 - F'(w_1) = w_1 - 3 (w_1 - 2)
    fed = quadratics(ALGORITHMS["feddyn"](alpha=1.0), [3.0], [2.0], [1], tau=80)
    for rounds, w_1 in ((1, 1.5), (2, 1.875), (3, 1.96875)):
        server, _ = play(fed, everyone(fed, rounds), lr=0.2)
        assert float(fed.bench.algorithm.models(server)["mean"]["w"]) == pytest.approx(w_1, abs=1e-12)
        assert x_of(server) == pytest.approx(w_1 - 3 * (w_1 - 2), abs=1e-12)


def slope(outputs: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
    """A loss whose gradient is the same everywhere: y."""
    return (outputs * y).mean()


@pytest.mark.parametrize(("name", "expected"), [("fednova", -0.30), ("fedavg", -0.35)])
def test_fednova_counts_each_gradient_once(name: str, expected: float) -> None:
    # tau = (1, 3), gradients (1, 2), eta = .1, p = 1/2: w_k = (-.1, -.6), d = (.1, .2), tau_eff = 2: w = -2 * .15
    held = {k: Rows(torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[k + 1.0]]).double()) for k in (0, 1)}
    fed = federation(ALGORITHMS[name](), held, Point, slope, batch_size=0)
    server, _ = play(fed, everyone(fed, 1), budgets={0: Budget(steps=1), 1: Budget(steps=3)})
    assert x_of(server) == pytest.approx(expected, abs=1e-12)


def test_contrast_of_moon() -> None:
    # cos(z, z_g) = 1, cos(z, z_p) = 0, tau = 1/2: log(1 + e^-2); cosines .6 and .8, tau = 1/2: log(1 + e^.4)
    z = torch.tensor([[0.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
    z_g = torch.tensor([[0.0, 2.0], [0.6, 0.8]], dtype=torch.float64)
    z_p = torch.tensor([[5.0, 0.0], [8.0, -6.0]], dtype=torch.float64)
    expected = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(0.4))]
    assert contrast(z, z_g, z_p, 0.5).tolist() == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx([0.1269280110, 0.9130152524], abs=5e-11)


def test_homogeneity_weights() -> None:
    # counts as in the spec; P = (32, 32, 11)/75, s = sum_j P_j p_j^2; W_k ~ 1/s_k (equal sizes)
    counts = torch.tensor([[90, 5, 5], [5, 90, 5], [33, 33, 34]], dtype=torch.float64)
    P = counts.sum(0) / counts.sum()
    p = counts / counts.sum(1, keepdim=True)
    omega = torch.stack([raw_weight(row, P, "homogeneity") for row in p])
    s = [float(1 / w) for w in omega]
    assert s == pytest.approx([10411 / 30000, 10411 / 30000, 20603 / 187500], abs=1e-12)
    W = (omega / omega.sum()).tolist()
    assert pytest.approx([82412 / 425099, 82412 / 425099, 260275 / 425099], abs=1e-12) == W
    inverse = 1 / omega
    W_NW = (inverse / inverse.sum()).tolist()
    assert pytest.approx([260275 / 602962, 260275 / 602962, 82412 / 602962], abs=1e-12) == W_NW


def test_homogeneity_weights_through_a_round() -> None:
    # clients with label shares (1, 0) and (1/2, 1/2), equal sizes: P = (3/4, 1/4), s = (3/4, 1/4), W_HW = (1/4, 3/4)
    held = {
        0: Rows(torch.zeros(4, 4, dtype=torch.float64), torch.tensor([0, 0, 0, 0])),
        1: Rows(torch.zeros(4, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1])),
    }
    for name, expected in (("hwfedavg", [0.25, 0.75]), ("nwfedavg", [0.75, 0.25])):
        fed = federation(ALGORITHMS[name](), held)
        _, host = play(fed, everyone(fed, 1))
        assert [host.cost.weights[k] for k in (0, 1)] == pytest.approx(expected, abs=1e-12)


def test_scores_of_homogeneity() -> None:
    p = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    P = torch.tensor([0.4, 0.3, 0.3], dtype=torch.float64)
    assert float(raw_weight(p, P, "entropy")) == pytest.approx(math.log(2) / math.log(3), abs=1e-12)
    assert float(raw_weight(p, P, "entropy")) == pytest.approx(0.6309297536, abs=5e-11)
    assert float(raw_weight(p, P, "gini")) == pytest.approx(0.75, abs=1e-12)
    # chi2: (.1^2/.4 + .2^2/.3 + .3^2/.3) = .025 + .1333 + .3
    assert float(raw_weight(p, P, "chi2")) == pytest.approx(1 / (1 + 0.025 + 0.04 / 0.3 + 0.3), abs=1e-12)
