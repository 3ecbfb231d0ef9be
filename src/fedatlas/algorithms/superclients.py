"""The set-up of FedSeq: superclients are formed before round 1 (G1 to G7).

Every client trains w_0 once; its confidences or its weights become a vector (psi), and `grouping.py` makes groups of vectors.

Source: as `fedseq.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.algorithm import (
    SERVER,
    Algorithm,
    Answered,
    Ask,
    Card,
    Data,
    Facts,
    Finished,
    Groups,
    Local,
    Message,
    Network,
    Question,
    Round,
    RoundGenerator,
    ServerFacts,
    State,
    Task,
    Work,
)
from fedatlas.algorithms.distillation import both
from fedatlas.algorithms.grouping import (
    OF_DISTRIBUTIONS,
    TAU,
    Limits,
    Pick,
    Vector,
    form,
    greedy_pick,
    kmeans_pick,
    normalised,
    principal_scores,
    random_pick,
    short,
)
from fedatlas.errors import ConfigError
from fedatlas.rounds import messages
from fedatlas.tree import Tree

AT_ONCE = 32  # pre-trained models held at the same time


class Grouping(NamedTuple):
    """The parameters of G1 to G7, by which superclients are formed."""

    psi: str
    phi: str
    metric: str
    group_size: int
    min_examples: int
    max_clients: int
    pretrain_epochs: int
    layers: str
    normalise: str
    first: str
    start: str


def groups(server: State) -> Groups:
    """Return the superclients."""
    return tuple(tuple(group) for group in server["groups"])


def metric_of(how: Grouping) -> str:
    """Return tau, with ``auto`` resolved; ConfigError if the vectors do not allow it (G1)."""
    usual = {"random": "cosine", "kmeans": "euclidean", "greedy": "kl" if how.psi == "conf" else "cosine"}[how.phi]
    if how.metric == "auto" or how.phi == "random":
        return usual
    if (how.phi == "kmeans") != (how.metric == "euclidean"):
        raise ConfigError(
            f"algorithm.metric = '{how.metric}': 'euclidean' and k-means can only be used together; "
            f"with algorithm.phi = '{how.phi}' use '{usual}'."
        )
    if how.metric in OF_DISTRIBUTIONS and how.psi == "clf":
        raise ConfigError(
            f"algorithm.metric = '{how.metric}' compares distributions, which psi = 'clf' does not give; use 'cosine' "
            "or 'wasserstein_values', or psi = 'conf'."
        )
    return how.metric


def pretrain(how: Grouping) -> Task:
    """Return local training of w_0; with psi = ``clf`` only the weights of linear layers leave."""

    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        names = message.get("linear", params)
        return {"model": Tree({name: params[name] for name in names})}, client

    return Task(finish=finish, options=Local(epochs=how.pretrain_epochs), stateful=False, shows=("model",))


def confidences(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Return p_c, the mean over class c's exemplars of the probability that the model gives class c (G2)."""
    total, count = torch.zeros(data.classes, dtype=torch.float64), torch.zeros(data.classes, dtype=torch.float64)
    with torch.no_grad():
        for piece in data.pieces():
            p = torch.softmax(both(model.logits(message["model"], piece).double()), dim=1)
            total.index_add_(0, piece.y, p[torch.arange(len(p)), piece.y])
            count.index_add_(0, piece.y, torch.ones(len(p), dtype=torch.float64))
    return {"p": total / count.clamp(min=1)}, client, session


CONFIDENCE = Question(confidences, passes=1.0)


def set_up(how: Grouping, algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Form superclients before round 1: every client trains w_0, its model becomes a vector, the vectors become groups.

    A client that does not answer counts as the mean of those that do.
    """
    vectors: dict[int, Vector] = {}
    told = {"linear": server["linear"]} if how.psi == "clf" else {}
    for at in range(0, 0 if how.phi == "random" else len(round.cohort), AT_ONCE):
        some = round.cohort[at : at + AT_ONCE]
        sent = {k: {**m, **told} for k, m in messages(algorithm, server, some).items()}
        replies = yield Ask(some, "pretrain", sent, "each")
        for k in replies.clients:
            if how.psi == "clf":
                vectors[k] = replies.each[k]["model"].flatten().numpy()
            else:
                scored = yield Ask((SERVER,), "confidence", {SERVER: replies.each[k]}, "each")
                vectors[k] = normalised(scored.each[SERVER]["p"].numpy(), how.normalise)
    if how.psi == "clf" and vectors:
        scores = principal_scores(np.stack(list(vectors.values())))
        vectors = dict(zip(vectors, scores, strict=True))
    sizes = {k: round.sizes[k] for k in round.cohort}
    lost = [k for k in sizes if k not in vectors] if vectors else []
    if lost:
        vectors.update(dict.fromkeys(lost, np.stack(list(vectors.values())).mean(axis=0)))
    pick = picker(how, vectors, sizes, server["classes"], round.seed)
    return {**server, "groups": form(pick, sizes, limits_of(how, sizes))}


def limits_of(how: Grouping, sizes: Mapping[int, int]) -> Limits:
    """Return the size at which a superclient of these clients is full."""
    return Limits(how.min_examples or fewest(how.group_size, sizes), how.max_clients)


def notices(how: Grouping, rule: Card, server: State, facts: ServerFacts) -> list[str]:
    """Return the notices of the rule inside the chains, and of superclients with too few examples."""
    sizes = {k: n for k, n in facts["sizes"].items() if n}  # clients without rows are in no group
    said = rule.notices(server, facts) if rule.notices else ()
    return [*said, *short(server["groups"], sizes, limits_of(how, sizes))]


def fewest(group_size: int, sizes: Mapping[int, int]) -> int:
    """Return D_min of G1 if it is not given: the rows of ``group_size`` clients of mean size, rounded down."""
    total = sum(sizes.values())
    return min(group_size * max(total // len(sizes), 1), total)


def picker(how: Grouping, vectors: Mapping[int, Vector], sizes: Mapping[int, int], classes: int, seed: int) -> Pick:
    """Return phi by name. Vectors that do not differ carry no information, like missing ones, and make groups random."""
    points = list(vectors.values())
    if how.phi == "random" or all(np.array_equal(points[0], p) for p in points):
        return random_pick(list(sizes), seed)
    if how.phi == "kmeans":
        return kmeans_pick(vectors, classes or len(points[0]), seed)
    even = np.full(len(points[0]), 1 / len(points[0]))
    start = even if how.psi == "conf" or how.start == "code" else None
    return greedy_pick(vectors, sizes, TAU[how.metric], first=how.first, start=start, seed=seed)
