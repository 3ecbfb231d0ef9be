"""SCAFFOLD: control variates take each client's drift out of its local steps.

===  ==============================  ====  ==============================================  =====  ========================
y    local model                     c     server control variate, 0 at first              eta    ``local.lr``
w_t  model received this round       c_k   client control variate, 0 at first, kept        eta_g  ``server_lr``
===  ==============================  ====  ==============================================  =====  ========================

    y <- y - eta (g_k(y) + c - c_k)                              every local step
    I:  c_k+ = grad F_k(w_t)        II: c_k+ = c_k - c + (w_t - y) / (sum of eta over the steps taken)
    w <- w + eta_g mean(y - w_t);   c <- c + (1/K) sum over the cohort of (c_k+ - c_k)

Source: Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, ICML 2020. H11 (the thesis' signs are wrong,
errata 10-13). The paper's mean is uniform. ``weights="samples"`` weighs the models by n_k over the cohort and c by
n_k/n, which solves the sample-weighted objective. Weight decay is part of F_k: of its steps and of both options'
controls. Momentum and adaptive local optimisers are refused with option II: (w_t - y) / (tau eta) would not be a
gradient then. ``variant="fedseq_code"`` is the thesis' code: c_k+ is the mean of the gradients of this round's batches
at w_t, without weight decay; models are weighted by samples, c by 1/K.

option: how a client updates its control c_k: I = gradient at w_t over all its rows, II = mean gradient of its steps.
server_lr: eta_g, the server's learning rate: share of the mean move applied to the model; 1 = the mean of the models.
variant: the paper's algorithm, or that of the FedSeq thesis' code, which sets option and weights itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from fedatlas.algorithm import (
    Algorithm,
    Card,
    Coefficients,
    Data,
    Facts,
    Finished,
    Message,
    Network,
    Passes,
    Round,
    Sealing,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms.gradients import mean_gradient
from fedatlas.errors import ConfigError
from fedatlas.registry import Rate
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting, weighting

NO_RULE = {
    "root": "public rows have no control variate whose change could be compared",
    "chain": "a chain passes on one model, and without its clients' controls c would no longer be the mean of the c_k",
}
CARD = Card(
    "regularisation",
    keeps="its control variate",
    leaves="the local model and the change of its control variate",
)


def scaffold(
    *,
    option: Literal["I", "II"] = "II",
    server_lr: Rate = 1.0,
    weights: Weighting = "uniform",
    variant: Literal["paper", "fedseq_code"] = "paper",
) -> Algorithm:
    """Removes each client's drift from its steps by control variates: for unlike clients and much local work.

    The variant ``fedseq_code`` sets its own option and weights.
    """
    paper = variant == "paper"
    if not paper and (option, weights) != ("II", "uniform"):
        raise ConfigError("algorithm.variant = 'fedseq_code' sets option and weights itself; remove these keys.")

    def direction(g: Tree, y: Tree, message: Message, client: State, facts: Facts) -> Tree:
        drift: Tree = message["c"] - client["c_k"]
        return g + drift

    def finish(y: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        c_k = client["c_k"]
        if paper and not (work.n_k if option == "I" else work.lr_sum):  # no rows or no rate: nothing to report
            return {"model": y, "c": c_k.zeros()}, client
        if not paper:
            new = facts.survey["gradient"]
        elif option == "I":
            new = facts.survey["gradient"] + facts.weight_decay * message["model"]
        else:
            new = c_k - message["c"] + (message["model"] - y) / work.lr_sum
        return {"model": y, "c": new - c_k}, client

    def settle(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
        return {"c_k": client["c_k"] + seen["c"]}  # by the amount the server adds, so that c stays the mean of the c_k

    def weigh(round: Round) -> dict[str, Coefficients]:
        share = {k: round.sizes[k] / round.n if weights == "samples" else 1 / round.K for k in round.cohort}
        return {"model": weighting(weights if paper else "samples")(round), "c": share}

    def server_update(server: State, mean: Update, round: Round) -> State:
        w = server["model"]
        return {**server, "model": w + server_lr * (mean["model"] - w), "c": server["c"] + mean["c"]}

    train = Task(direction=direction, finish=finish, settle=settle, sealing=Sealing(tracked=("c",)))
    exact = paper and option == "II"
    look = partial(gradient_at_anchor, paper=paper)
    looking = train._replace(survey=look, passes=Passes(survey=3.0))  # one pass over the rows
    if not paper:  # one pass over the batches of its steps
        looking = looking._replace(passes=Passes(step=train.passes.step + 3.0))
    return Algorithm(
        "scaffold",
        tasks={"train": train if exact else looking},
        server_init=lambda models, facts: {"model": models["global"], "c": models["global"].zeros()},
        client_init=lambda params, facts: {"c_k": params.zeros()},
        broadcast=lambda server, client_id: {"model": server["model"], "c": server["c"]},
        weigh=weigh,
        server_update=server_update,
        fixes={"local.optimizer": "sgd", "local.momentum": 0.0, "local.clip": 0.0} if exact else {},
        refuses=NO_RULE,
        card=CARD,
    )


def gradient_at_anchor(model: Network, data: Data, message: Message, client: State, paper: bool) -> Mapping[str, Any]:
    """Return the gradient at the model received: over all rows, or as in the code the mean over the local steps' batches."""
    batches = data.pieces() if paper else data.batches()
    return {"gradient": mean_gradient(model, batches, message["model"], by_rows=paper)}
