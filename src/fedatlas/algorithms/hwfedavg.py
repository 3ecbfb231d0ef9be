"""HWFedAvg and NWFedAvg: weights that favour clients with evenly, or with unevenly, spread labels.

=======  ==========================================  ======  ===================================================
p_kj     share of class j among client k's labels    P_j     share of class j among the labels of the cohort
s_k      sum_j P_j p_kj^2                            omega   raw weight: 1/s_k for HW, s_k for NW (up to a factor)
alpha_k  N_k / N                                     W_k     alpha_k omega_k / sum_i alpha_i omega_i
=======  ==========================================  ======  ===================================================

A round asks three times: the class counts, as a SUM (not yet masked); the score s_k and N_k of each client, from the
broadcast P; then training. The two numbers narrow a client's histogram; with two classes they mostly determine it.
Source: Santos, Templeton, Chemli, Cerasti, Pugliese, Bruno, De Cubellis, Jug, IFC - Bank of Italy workshop 2023.
H3, H4. The paper's normalisations of s_k and omega_k cancel in W_k. Scores ``entropy``, ``gini`` and ``chi2``,
exclusion and local balancing are this project's options (H3), not the paper's.

score: the raw weight omega_k, which NWFedAvg inverts: 1 / s_k ("homogeneity"), the entropy or the Gini index of p_k, both 1
    for even labels, or 1 / (1 + chi-square distance of p_k from P).
size_scaling: include N_k in the weights (the factor alpha_k); without it HWFedAvg is the slides' WFedAvg.
exclude_above: clients whose s_k (other scores: 1 / omega_k) is larger skip the round, unless all would; left out = none.
balance_local: train on as many rows of each class held as of the client's rarest, redrawn every round; N_k and
    the counts are then those of these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Card,
    Data,
    Demands,
    Local,
    Message,
    Network,
    Question,
    Round,
    RoundGenerator,
    RoundMaker,
    State,
    Task,
    Weights,
)
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Rate
from fedatlas.rounds import federated

Score = Literal["homogeneity", "entropy", "gini", "chi2"]


def raw_weight(p: Tensor, P: Tensor, score: Score) -> Tensor:
    """Return omega_k (up to a common factor) of label shares ``p`` (k,) under the cohort's ``P`` (k,)."""
    k = len(p)
    if score == "entropy":
        entropy: Tensor = -torch.special.xlogy(p, p).sum()
        return (entropy / math.log(k)).clamp(min=1e-3)
    if score == "gini":
        gini: Tensor = (1 - (p * p).sum()) * k / (k - 1)
        return gini.clamp(min=1e-3)
    if score == "chi2":
        held = P > 0
        distance: Tensor = (((p - P)[held] ** 2) / P[held]).sum()
        return 1 / (1 + distance)
    s: Tensor = (P * p * p).sum()
    return 1 / s


def counted(data: Data) -> Tensor:
    """Count the labels of the rows that the client would train on, float64 (classes,)."""
    counts = torch.zeros(data.classes, dtype=torch.float64)
    for piece in data.pieces():
        counts += torch.bincount(piece.y.reshape(-1), minlength=data.classes).double()
    return counts


def label_spread(
    score: Score, inverse: str, scaled: bool, balanced: bool
) -> tuple[Mapping[str, Task | Question], Callable[[Round], Weights]]:
    """Return the two tasks before training, and the weights that follow from them."""

    def counts(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
        return {"counts": counted(data)}, client, session

    def spread(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
        held = counted(data)
        n_k = held.sum()
        return {"omega": raw_weight(held / n_k, message["P"], score), "n_k": n_k}, client, session

    tasks: dict[str, Task | Question] = {
        "counts": Question(counts, balanced=balanced, tells_labels=True),
        # The server tells P, and by one P after another it would learn each p_kj.
        "score": Question(spread, balanced=balanced, shows=("omega", "n_k"), tells_labels=True),
        "train": Task(options=Local(balanced=balanced)),
    }

    def weigh(round: Round) -> Weights:
        omega = {k: round.facts[k]["omega"] for k in round.cohort}
        size = {k: round.facts[k]["n_k"] if scaled else 1.0 for k in round.cohort}
        if inverse == "none":
            W = {k: size[k] * omega[k] for k in round.cohort}
        elif inverse == "omega":
            W = {k: size[k] / omega[k] for k in round.cohort}
        else:
            W = {k: 1 / (size[k] * omega[k]) for k in round.cohort}
        total = sum(W.values())
        return {k: W_k / total for k, W_k in W.items()}

    return tasks, weigh


def spread_rounds(exclude_above: float | None) -> RoundMaker:
    """Return a RoundMaker that asks for the summed counts, then the scores, and trains with the resulting weights."""

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        nothing: Message = {}
        counts = yield Ask(round.cohort, "counts", dict.fromkeys(round.cohort, nothing), "sum")
        if counts.value is None:
            return server
        total = counts.value["counts"]
        told: Message = {"P": total / total.sum()}
        scores = yield Ask(counts.clients, "score", dict.fromkeys(counts.clients, told), "each")
        omega = {k: float(update["omega"]) for k, update in scores.each.items()}
        kept = [k for k in omega if exclude_above is None or 1 / omega[k] <= exclude_above] or list(omega)
        facts = {k: {"omega": omega[k], "n_k": float(scores.each[k]["n_k"])} for k in kept}
        return (yield from federated(algorithm, server, round._replace(cohort=tuple(kept), facts=facts)))

    return rounds


def spread(
    name: str, score: Score, inverse: str, scaled: bool, balanced: bool, exclude_above: float | None
) -> Algorithm:
    """Return HWFedAvg or NWFedAvg, which differ only in ``inverse``."""
    tasks, weigh = label_spread(score, inverse, scaled, balanced)
    leaves = (
        "the local model, the label counts in a sum (summed, not yet masked), one score and the number of rows it trains on"
        + (", which reveals how many it has of its rarest class" if balanced else "")
    )
    return Algorithm(
        name,
        rounds=spread_rounds(exclude_above),
        asks=Asks((Form("counts", "sum"), Form("score", "each"), Form("train", broadcast=True))),
        tasks=tasks,
        weigh=weigh,
        demands=Demands(classes=True),
        refuses={"chain": "it weighs clients by counts and scores of their labels, which a chain does not collect"},
        card=Card("client weighting", leaves=leaves),
    )


def hwfedavg(
    *,
    score: Score = "homogeneity",
    size_scaling: bool = True,
    exclude_above: Rate | None = None,
    balance_local: bool = False,
) -> Algorithm:
    """FedAvg in which clients with evenly spread labels weigh more: W_k ~ alpha_k / s_k."""
    return spread("hwfedavg", score, "none", size_scaling, balance_local, exclude_above)


def nwfedavg(
    *,
    score: Score = "homogeneity",
    size_scaling: bool = True,
    inverse: Literal["omega", "literal"] = "omega",
    exclude_above: Rate | None = None,
    balance_local: bool = False,
) -> Algorithm:
    """FedAvg in which clients with concentrated labels weigh more: W_k ~ alpha_k s_k.

    inverse: the part inverted: only omega_k ("omega"), or the whole weight of HWFedAvg ("literal"): few rows then weigh more.
    """
    return spread("nwfedavg", score, inverse, size_scaling, balance_local, exclude_above)
