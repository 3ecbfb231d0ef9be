"""FedNova where its mathematics says what must hold (B13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithm import Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fednova import a_norm
from fedatlas.config import parse
from fedatlas.data.batches import Rows
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import ConfigError
from fedatlas.setup.resolution import apply_fixes, make_algorithm
from federation import SIZES, everyone, federation, gap, play, rows, same, sgd
from test_vectors import UNEQUAL, quadratics, x_of


@pytest.mark.parametrize("tau", [1, 2, 7])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_the_norm_with_momentum_is_the_sum_of_the_coefficients(tau: int, rho: float) -> None:
    """Gradient i is in every buffer from step i on: a_i = 1 + rho + ... + rho^(tau - i)."""
    a = [sum(rho**j for j in range(tau - i)) for i in range(tau)]
    assert a_norm(tau, rho, 0.0) == pytest.approx(sum(a), rel=1e-13)


@pytest.mark.parametrize("tau", [1, 2, 7])
@pytest.mark.parametrize("eta_mu", [1e-3, 0.1, 1.0, 1.5, 1.98])
def test_the_norm_with_a_proximal_term_is_the_sum_of_the_coefficients(tau: int, eta_mu: float) -> None:
    """Gradient i is shrunk by every later step, and turned where eta mu is above 1: a_i = (1 - eta mu)^(tau - i)."""
    assert a_norm(tau, 0.0, eta_mu) == pytest.approx(sum(abs(1 - eta_mu) ** i for i in range(tau)), rel=1e-11)


@pytest.mark.parametrize(
    ("keys", "like", "local"),
    [
        ({}, ("fedavg", {}), {}),
        ({}, ("fedavg", {}), {"optimizer": sgd(momentum=0.9), "weight_decay": 1e-2}),
        ({"mu": 0.5}, ("fedprox", {"mu": 0.5}), {}),
        ({"weights": "uniform"}, ("fedavg", {"weights": "uniform"}), {}),
    ],
)
def test_is_fedavg_where_all_take_as_many_steps(keys: Any, like: tuple[str, Any], local: Any) -> None:
    local = {"budget": Budget(steps=5), **local}
    a, _ = play(federation(ALGORITHMS["fednova"](**keys), **local), 4, lr=0.05)
    b, _ = play(federation(ALGORITHMS[like[0]](**like[1]), **local), 4, lr=0.05)
    assert gap(a["model"], b["model"]) < 1e-14


def test_longer_work_does_not_shift_the_optimum() -> None:
    """Two quadratics, steps (1, 9): with a small rate FedAvg ends near -26/28, weighted by steps, FedNova near -1/2."""
    # stationary in the limit: sum p_k s_k a_k (x - b_k) = 0 with s_k = tau_k (FedAvg) or 1 (FedNova)
    for name, limit in (("fedavg", -26 / 28), ("fednova", -0.5)):
        fed = quadratics(ALGORITHMS[name](), [1.0, 3.0], [1.0, -1.0], [1, 1], tau=1)
        server, _ = play(fed, everyone(fed, 200), lr=5e-3, budgets={0: Budget(steps=1), 1: Budget(steps=9)})
        assert x_of(server) == pytest.approx(limit, abs=0.03)


@pytest.mark.parametrize(("weights", "optimum"), [("uniform", -1 / 8), ("samples", -212 / 97)])
def test_solves_the_objective_of_its_weights_whatever_the_steps(weights: str, optimum: float) -> None:
    """Five unequal quadratics that take 1 to 5 steps: sum p_k a_k (x - b_k) = 0 in the limit of small rates (C1)."""
    steps = {k: Budget(steps=k + 1) for k in range(5)}
    fed = quadratics(ALGORITHMS["fednova"](weights=weights), **UNEQUAL, tau=5)
    server, _ = play(fed, everyone(fed, 200), lr=8e-3, budgets=steps)
    assert x_of(server) == pytest.approx(optimum, abs=0.01)


def test_unequal_steps_with_momentum_move_by_the_mean_gradient() -> None:
    """Constant gradients g_k: w_t - w_k = eta |a_k| g_k, so d_k = eta g_k whatever the number of steps and the momentum."""

    def slope(outputs: torch.Tensor, y: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        return (outputs * y).mean()

    f = federation(ALGORITHMS["fednova"]())
    held = {k: r._replace(y=torch.full((r.n, 3), k + 1.0, dtype=torch.float64)) for k, r in f.held.items()}
    rho, cohort = 0.9, (0, 1, 3)
    fed = federation(ALGORITHMS["fednova"](), held, loss=slope, optimizer=sgd(momentum=rho))
    head = {k: (k + 1.0) / 3 for k in cohort}  # gradient of the last layer's bias
    p = {k: SIZES[k] / sum(SIZES[j] for j in cohort) for k in cohort}
    server, host = play(fed, [cohort], lr=0.01)
    tau = {k: host.view.work[k].steps for k in cohort}
    assert len(set(tau.values())) == 3
    tau_eff = sum(p[k] * a_norm(tau[k], rho, 0.0) for k in cohort)
    expected = fed.params["head.bias"] - tau_eff * sum(p[k] * 0.01 * head[k] for k in cohort)
    assert gap(server["model"]["head.bias"], expected) < 1e-14


def test_engines_agree_with_momentum_and_with_a_proximal_term() -> None:
    """The momentum reaches the divisor in the fast engine, too."""
    for keys, optimizer in (({}, sgd(momentum=0.9)), ({"mu": 0.3}, sgd())):
        fed = federation(ALGORITHMS["fednova"](**keys), optimizer=optimizer, weight_decay=1e-2)
        oracle, _ = play(fed, lr=0.05)
        quick, _ = play(
            fed, lr=0.05, make=lambda bench: SerialExecutor(bench, FastRunner(bench, SIZES, "program", "float64"))
        )
        assert gap(oracle, quick) < 1e-11


def test_a_client_without_rows_changes_nothing() -> None:
    held = rows((6, 9))
    empty = Rows(held[0].x[:0], held[0].y[:0])
    a, _ = play(federation(ALGORITHMS["fednova"](), held), [(0, 1)] * 2)
    b, _ = play(federation(ALGORITHMS["fednova"](), {**held, 2: empty}), [(0, 1, 2)] * 2)
    assert same(a["model"], b["model"])


@pytest.mark.parametrize(
    ("keys", "local", "message"),
    [
        ({"mu": 0.1}, {"momentum": 0.9}, r"local\.momentum = 0\.9"),
        ({"mu": 0.1}, {"clip": 1.0}, r"local\.clip = 1\.0"),
        ({}, {"optimizer": "adam"}, r"local\.optimizer = 'adam'"),
        ({}, {"momentum": 0.9, "nesterov": True}, r"local\.nesterov = true"),
    ],
)
def test_solvers_without_a_known_norm_are_refused(
    keys: Mapping[str, Any], local: Mapping[str, Any], message: str
) -> None:
    config = parse({"algorithm": {"name": "fednova", **keys}, "local": dict(local)})
    with pytest.raises(ConfigError, match=message):
        apply_fixes(config, make_algorithm(config))


def test_momentum_alone_is_allowed() -> None:
    config = parse({"algorithm": {"name": "fednova"}, "local": {"momentum": 0.9, "weight_decay": 1e-3}})
    assert apply_fixes(config, make_algorithm(config)) == (config, [])
