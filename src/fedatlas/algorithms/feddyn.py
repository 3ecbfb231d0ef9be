"""FedDyn: a linear and a quadratic term, updated every round, make the clients' optima agree with the federation's.

===  ==============================  ====  ==========================================  =====  =======================
w    local model                     w_t   model received this round                   alpha  ``alpha``
w_k  local model after its work      g_k   client dual, 0 at first, kept               h      server state, 0 at first
===  ==============================  ====  ==========================================  =====  =======================

    w <- w - eta (g - g_k + alpha (w - w_t))     every local step
    g_k <- g_k - alpha (w_k - w_t)               once, behind the last step
    h <- h - (alpha/K) sum over the cohort of (w_k - w_t);   w <- mean(w_k) - h/alpha

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama, ICLR 2021. H10 (errata of the thesis: K,
not the cohort's size, in h; parentheses in its sum). The mean is uniform: the method minimises (1/K) sum F_k.
``alpha_by_size``: alpha_k = alpha (n/K) / n_k in a client's steps and in its dual, as in the authors' code, the scalar at
the server; it then minimises sum (n_k/n) F_k. ``variant="fedseq_code"`` is what the thesis ran: no linear term, no dual.
"""

from __future__ import annotations

from typing import Any, Literal

from fedatlas.algorithm import Algorithm, Card, Facts, Message, Models, Round, ServerFacts, State, Task, Update, Work
from fedatlas.algorithms.penalty import penalty_check
from fedatlas.errors import ConfigError
from fedatlas.registry import Positive
from fedatlas.tree import Tree
from fedatlas.weighting import uniform


def feddyn(
    *, alpha: Positive = 0.01, alpha_by_size: bool = False, variant: Literal["paper", "fedseq_code"] = "paper"
) -> Algorithm:
    """Adds terms to each client's loss so that all agree on the common optimum: for unlike clients and much local work.

    w <- w - eta (g - g_k + alpha (w - w_t)); the server moves the mean by -h/alpha.

    alpha: weight of the pull (alpha/2) ||w - w_t||^2, and the factor of a move in g_k and h.
    alpha_by_size: use alpha (n/K) / n_k for client k, so that clients count by their rows; else all count equally.
    variant: the paper's algorithm, or that of the FedSeq thesis' code: no linear term and no g_k.
    """
    paper = variant == "paper"
    if alpha_by_size and not paper:
        raise ConfigError("algorithm.alpha_by_size: the variant 'fedseq_code' has one alpha for all; remove the key.")

    def alpha_k(message: Message, facts: Facts) -> Any:
        return message["alpha"] * facts.n / (facts.K * facts.n_k) if alpha_by_size else message["alpha"]

    def direction(g: Tree, w: Tree, message: Message, client: State, facts: Facts) -> Tree:
        pull: Tree = alpha_k(message, facts) * (w - message["model"])
        return g + (pull - client["g_k"]) if paper else g + pull

    def settle(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
        if not work.steps:  # a client without rows has no alpha_k, and has not moved
            return client
        return {"g_k": client["g_k"] - alpha_k(message, facts) * (seen["model"] - message["model"])}

    def server_init(models: Models, facts: ServerFacts) -> State:
        return {"model": models["global"], "h": models["global"].zeros()}

    def server_update(server: State, mean: Update, round: Round) -> State:
        drift = mean["model"] - server["model"]
        h = server["h"] - alpha * round.m / round.K * drift
        return {**server, "model": mean["model"] - h / alpha, "h": h}

    return Algorithm(
        "feddyn",
        tasks={"train": Task(direction=direction, settle=settle if paper else None)},
        server_init=server_init,
        client_init=(lambda params, facts: {"g_k": params.zeros()}) if paper else None,
        broadcast=lambda server, client_id: {"model": server["model"], "alpha": alpha},
        weigh=uniform,
        server_update=server_update,
        models=lambda server: {"global": server["model"], "mean": server["model"] + server["h"] / alpha},
        check=penalty_check(alpha, by_size=alpha_by_size),
        refuses={"dp": "its server step depends on the number of clients that returned"},
        card=Card("regularisation", keeps="its dual" if paper else "nothing"),
    )
