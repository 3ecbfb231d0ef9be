"""FedNova: each client's change is divided by its effective number of steps, so that longer work does not shift the optimum.

===  =================================  =======  =====================================================================
w_k  local model after its work         w_t      model received this round;  p_k  weight of client k, sum 1
a_k  weight of each gradient in w_k     |a_k|    their sum: tau_k for plain SGD, ``a_norm`` below for others
tau  local steps really taken           tau_eff  sum p_k |a_k|
rho  ``local.momentum``                 mu       ``mu``, weight of (mu/2) ||w - w_t||^2 in local work; eta ``local.lr``
===  =================================  =======  =====================================================================

    d_k = (w_t - w_k) / |a_k|;   w <- w - tau_eff sum p_k d_k

Source: Wang, Liu, Liang, Joshi, Poor, NeurIPS 2020. B13, whose sum of the a_k is the paper's |a_k| up to
eta mu = 1; above it their signs alternate, and their absolute values are added up here, as in the paper. tau_eff is the
paper's also with ``mu``, where the authors' code takes the plain number of steps. Momentum or clipping together with mu,
Nesterov's momentum and Adam are refused: their |a_k| is not given. Weight decay is part of the gradient and leaves |a_k|
as it is.
"""

from __future__ import annotations

from fedatlas.algorithm import Algorithm, Card, Facts, Finished, Message, Round, State, Task, Update, Work
from fedatlas.algorithms.penalty import penalty_check
from fedatlas.registry import Rate
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting, weighting


def a_norm(tau: int, rho: float, eta_mu: float) -> float:
    """Return |a| of tau steps of SGD, SGD with momentum rho, or SGD with a proximal term (0 < eta_mu = eta mu < 2)."""
    if eta_mu:
        kept = abs(1 - eta_mu)  # share of a gradient kept by each later step; above eta mu = 1 its sign alternates
        return (1 - kept**tau) / (1 - kept)
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def fednova(*, mu: Rate = 0.0, weights: Weighting = "samples") -> Algorithm:
    """Divides each client's move by its steps before averaging: for clients that do unequal amounts of work.

    w <- w - tau_eff sum p_k (w_t - w_k) / |a_k|.

    mu: weight of a proximal term (mu/2) ||w - w_t||^2 in local training; 0 = none.
    """

    def direction(g: Tree, w: Tree, message: Message, client: State, facts: Facts) -> Tree:
        pull: Tree = message["mu"] * (w - message["model"])
        return g + pull

    def finish(w_k: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        a = a_norm(work.steps, facts.momentum, facts.lr * mu)
        return {"d": (message["model"] - w_k) / (a or 1.0), "a": a}, client

    def server_update(server: State, mean: Update, round: Round) -> State:
        return {**server, "model": server["model"] - mean["a"] * mean["d"]}

    plain = {"local.momentum": 0.0, "local.clip": 0.0} if mu else {}  # a clipped step shortens the pull as well
    return Algorithm(
        "fednova",
        tasks={"train": Task(direction=direction if mu else None, finish=finish)},
        broadcast=lambda server, client_id: {"model": server["model"], **({"mu": mu} if mu else {})},
        weigh=weighting(weights),
        server_update=server_update,
        fixes={"local.optimizer": "sgd", "local.nesterov": False, **plain},
        check=penalty_check(mu),
        refuses={
            "compression.clip": "the change would be clipped after division by its steps, and the server multiplies by them again",
            "model.bn.local": "it adds up the clients' moves, and layers that stay with the clients have no sum",
            "root": "its clients send a change and its divisor, which public rows do not give",
            "chain": "its clients send a change and its divisor, but a chain passes on a model",
            "dp": "its clients' divisors, which count their steps, are not part of the model and would leave without noise",
        },
        card=Card("averaging", leaves="the normalised change of the model and its divisor"),
    )
