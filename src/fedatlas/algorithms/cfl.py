"""CFL: a cluster of clients is split in two when it has converged and its clients' updates still disagree.

=======  =============================================  ==========  =========================================================
theta_c  model of cluster c                             Delta_k     update of client k: its local model minus theta_c
n_k      examples of client k, n_c those of cluster c   alpha_ij    cosine of Delta_i and Delta_j, over trainable tensors
eps1     ``eps1``: the mean update is short             eps2        ``eps2``: some client's update is long
gamma    ``gamma``: least separation of a split         ``linkage``  how the two halves are found
=======  =============================================  ==========  =========================================================

    every cluster: theta_c <- theta_c + sum over c of (n_k / n_c) Delta_k
    split first if |sum (n_k / n_c) Delta_k| < eps1 and max |Delta_k| > eps2, round > ``after_round`` and |c| > 2: into the two halves
    with the smallest largest alpha_ij across; with ``gamma`` only if sqrt((1 - that alpha) / 2) > gamma

Source: Sattler, Mueller, Samek, IEEE TNNLS 2021. G10. Two halves with the smallest largest similarity across are what single
linkage ends with (the weakest edge of the maximum spanning tree is dropped); the authors' code takes ``complete`` linkage and plain means.
A cluster is tested only in rounds from which all of its clients return. A client that is new after a split descends the
tree of splits: at each split it trains the model that was split, and joins the side whose updates are more like its own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Card,
    Models,
    Replies,
    Round,
    RoundGenerator,
    Sealing,
    ServerFacts,
    State,
    Task,
)
from fedatlas.algorithms import clusters as shared
from fedatlas.algorithms.whole_models import whole_model
from fedatlas.grammar import Asks, Form
from fedatlas.registry import Count, Rate
from fedatlas.rounds import cast_like
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting

Linkage = Literal["single", "complete"]
TWO = 2
PLACE = Task(shows=("model",), sealing=Sealing(remembered=False))  # the same work as training, whose result is dropped
# A new client goes down the tree, whose splits are fewer than the clients.
ASKS = Asks((Form("place", "each", most="clients"), Form("train", "each")))
NEVER = "No cluster can be split: algorithm.after_round = {} and the run has {} rounds."


class SplitRule(NamedTuple):
    """The rule by which a cluster is split."""

    eps1: float
    eps2: float
    gamma: float
    linkage: Linkage
    weights: Weighting


def cfl(
    *,
    eps1: Rate = 0.4,
    eps2: Rate = 1.6,
    gamma: Rate = 0.0,
    after_round: Count = 20,
    linkage: Linkage = "single",
    weights: Weighting = "samples",
) -> Algorithm:
    """Splits clients in two where their updates disagree at rest: for groups that are not known in advance.

    theta_c <- mean of the cluster's local models; clusters that disagree at rest are split in two.

    eps1: a cluster is at rest if its mean update is shorter than this (Euclidean norm, in units of weights).
    eps2: a cluster at rest disagrees if some client's update is longer than this (same norm).
    gamma: least sqrt((1 - largest cosine across) / 2) between two halves, from 0 to 1; 0 = any split is accepted.
    after_round: last round without a split.
    linkage: how the halves are found: single as in the paper, complete as in the authors' code.
    """
    how = SplitRule(eps1, eps2, gamma, linkage, weights)

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        names = yield from places(algorithm, server, round)
        known = {**server["cluster"], **{str(k): name for k, name in names.items()}}
        who = tuple(k for k in round.cohort if str(k) in known)
        sent = {k: algorithm.broadcast({**server, "cluster": known}, k) for k in who}
        replies = yield Ask(who, "train", sent, "each", budgets=round.budgets)
        if not replies.clients:
            return server
        server = {**server, "cluster": {**server["cluster"], **{str(k): known[str(k)] for k in replies.clients}}}
        for name, held in shared.members({int(k): c for k, c in server["cluster"].items()}).items():
            if round.number > after_round and len(held) > TWO and set(held) <= set(replies.clients):
                server = divided(server, name, held, replies, round, how)
        names = {k: server["cluster"][str(k)] for k in replies.clients}
        return shared.whole_mean(shared.renewed(server, replies, names, round.sizes, weights))

    def server_init(models: Models, facts: ServerFacts) -> State:
        return {**shared.first_state([models["global"]]), "splits": []}

    def notices(server: State, facts: ServerFacts) -> list[str]:
        return [NEVER.format(after_round, facts["rounds"])] if facts["rounds"] <= after_round else []

    return Algorithm(
        "cfl",
        rounds=rounds,
        asks=ASKS,
        tasks={"train": Task(shows=("model",)), "place": PLACE},
        server_init=server_init,
        broadcast=shared.of_client,
        models=shared.models,
        clusters=shared.assignment,
        personal=lambda message, client: whole_model(message),
        fixes={"cohort.fraction": 1.0, "cohort.size": None},
        ruled=True,
        card=Card(
            "clustering: multitask", leaves="the local model, which the server sees client by client", notices=notices
        ),
    )


def divided(server: State, name: str, held: list[int], replies: Replies, round: Round, how: SplitRule) -> State:
    """Return the server with cluster ``name`` split, or unchanged if the test fails."""
    old = server["clusters"][name]
    updates = [replies.each[k]["model"] - old["model"] for k in held]
    inner = shared.products(updates, updates)
    rows = torch.tensor([float(round.sizes[k]) if how.weights == "samples" else 1.0 for k in held], dtype=torch.float64)
    p, norms = rows / rows.sum(), inner.diagonal().clamp(min=0).sqrt()
    if not (float((p @ inner @ p).clamp(min=0).sqrt()) < how.eps1 and float(norms.max()) > how.eps2):
        return server
    alpha = inner / (norms[:, None] * norms[None, :]).clamp(min=1e-12)
    left, right = bipartition(alpha, how.linkage)
    across = float(alpha[left][:, right].max())
    if how.gamma and max((1 - across) / 2, 0.0) ** 0.5 <= how.gamma:
        return server
    fresh = str(len(server["clusters"]))
    moved = {str(held[i]): fresh for i in right}
    sides = [direction([updates[i] for i in side], norms[side]) for side in (left, right)]
    split = {"from": name, "to": fresh, "old": {**shared.of_all(server), **old}, "stay": sides[0], "go": sides[1]}
    return {
        **server,
        "clusters": {**server["clusters"], fresh: old},
        "cluster": {**server["cluster"], **moved},
        "splits": [*server["splits"], split],
    }


def places(algorithm: Algorithm, server: State, round: Round) -> Generator[Ask, Replies, dict[int, str]]:
    """Return the clusters of new clients: the first, or the one to which the splits lead. Clients that leave have none."""
    names = {k: "0" for k in round.cohort if str(k) not in server["cluster"]}
    for split in server["splits"]:
        asked = tuple(k for k, name in names.items() if name == split["from"])
        if not asked:
            continue
        replies = yield Ask(asked, "place", dict.fromkeys(asked, split["old"]), "each", budgets=round.budgets)
        names = {k: name for k, name in names.items() if k not in asked or k in replies.clients}
        for k in replies.clients:
            update = replies.each[k]["model"] - split["old"]["model"]
            if update.dot(split["go"]) > update.dot(split["stay"]):
                names[k] = split["to"]
    return names


def bipartition(alpha: Tensor, linkage: Linkage) -> tuple[list[int], list[int]]:
    """Split the clients in two; the first half holds client 0. The most similar groups are joined until two are left.

    Similarity of two groups: ``single``, the largest alpha across; ``complete``, the smallest. Ties: the first pair.
    """
    groups: dict[int, list[int]] = {i: [i] for i in range(len(alpha))}
    near = alpha.clone()
    near.fill_diagonal_(-torch.inf)
    while len(groups) > TWO:
        i, j = sorted(divmod(int(near.argmax()), len(near)))
        joined = torch.maximum(near[i], near[j]) if linkage == "single" else torch.minimum(near[i], near[j])
        near[i, :] = near[:, i] = joined
        near[j, :] = near[:, j] = near[i, i] = -torch.inf
        groups[i] += groups.pop(j)
    left, right = sorted(sorted(group) for group in groups.values())
    return left, right


def direction(updates: list[Tree], norms: Tensor) -> Any:
    """Return the mean of the updates scaled to length 1: its product with an update is its mean cosine times its length."""
    total = updates[0].zeros().to(torch.float64)
    for update, norm in zip(updates, norms.tolist(), strict=True):
        total = total + update.to(torch.float64) / (max(norm, 1e-12) * len(updates))
    return cast_like(total, updates[0])
