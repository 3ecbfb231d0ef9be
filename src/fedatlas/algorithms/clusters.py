"""Common parts of CFL, FeSEM and IFCA: a model for each cluster of clients, and the clients' clusters.

The server holds ``clusters`` (name -> ``{"model": ..., "buffers": ...}``), ``cluster`` (client -> name of its cluster) and ``rows``
(client -> its examples). ``model`` and ``buffers`` are those of the whole federation, for clients without a cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedatlas.aggregation.reducers import WeightedSum, averaged
from fedatlas.algorithm import Message, Models, Replies, State, Update
from fedatlas.algorithms.whole_models import model_part, whole_model
from fedatlas.rounds import cast_like
from fedatlas.tree import Tree
from fedatlas.weighting import Weighting

Belonging = Mapping[int, str]
"""client -> name of its cluster."""


def first_state(models: Iterable[Tree]) -> State:
    """Return one cluster per model, numbered in order and without members."""
    clusters = {str(i): {"model": model} for i, model in enumerate(models)}
    return {"model": clusters["0"]["model"], "clusters": clusters, "cluster": {}, "rows": {}}


def of_client(server: State, client: int) -> Message:
    """Return the model of a client's cluster, or the federation's if it has none, with its buffers."""
    name = server["cluster"].get(str(client))
    own = server["clusters"][name] if name is not None else {"model": server["model"]}
    return {**of_all(server), **own}


def of_all(server: State) -> Message:
    """Return the federation's buffers, used for a cluster without its own."""
    return {"buffers": server["buffers"]} if server.get("buffers") else {}


def models(server: State) -> Models:
    """Return the federation's model, then the clusters' if there are several."""
    everybody = {"global": server["model"]}
    if len(server["clusters"]) == 1:
        return everybody
    return {**everybody, **{f"cluster-{name}": whole_model(own) for name, own in server["clusters"].items()}}


def assignment(server: State) -> Mapping[int, int]:
    """Map each client to the number of its cluster."""
    return {int(k): int(name) for k, name in server["cluster"].items()}


def members(names: Belonging) -> dict[str, list[int]]:
    """Map each cluster to its clients, ascending."""
    out: dict[str, list[int]] = {}
    for k in sorted(names):
        out.setdefault(names[k], []).append(k)
    return out


def mean(parts: Mapping[str, Update], weight: Mapping[str, float], like: Update) -> Update:
    """Return the mean of models and buffers by ``weight``, in float64, in order, cast to the precision of ``like`` (C8, C9)."""
    total, added = sum(weight.values()), WeightedSum()
    for key, part in parts.items():
        added.add(model_part(part), weight[key] / total)
    out: Update = cast_like(added.total, like)
    return out


def renewed(server: State, replies: Replies, names: Belonging, sizes: Mapping[int, int], weights: Weighting) -> State:
    """Return the server after a round: each cluster is the mean of its members' models, or what the run's rule makes of them.

    It is unchanged if no member returned, or too few for the rule.
    """
    weight = {k: float(sizes[k]) if weights == "samples" else 1.0 for k in replies.clients}
    after = {**server, "rows": {**server["rows"], **{str(k): sizes[k] for k in replies.clients}}}
    after["cluster"] = {**server["cluster"], **{str(k): names[k] for k in replies.clients}}
    clusters = dict(server["clusters"])
    for name, held in members({k: names[k] for k in replies.clients}).items():
        total, old = sum(weight[k] for k in held), {**of_all(server), **clusters[name]}
        got, share = {k: model_part(replies.each[k]) for k in held}, {k: weight[k] / total for k in held}
        new = averaged(replies, got, share, model_part(old), f"cluster {name}")
        clusters[name] = clusters[name] if new is None else cast_like(new, old)
    return {**after, "clusters": clusters}


def whole_mean(server: State) -> State:
    """Return the federation's model: the mean of the clusters' models by their members' examples."""
    held = rows_of_clusters(server)
    parts = {name: {**of_all(server), **server["clusters"][name]} for name in held}
    return {**server, **mean(parts, held, server)} if held else server


def largest(server: State) -> str:
    """Return the cluster with most examples; ties: the first."""
    held = rows_of_clusters(server)
    return max(held, key=lambda name: held[name], default="0")


def rows_of_clusters(server: State) -> dict[str, float]:
    """Map each cluster to the examples of its known members, in the clusters' order; empty ones are left out."""
    out = dict.fromkeys(server["clusters"], 0.0)
    for k, name in server["cluster"].items():
        out[name] += server["rows"].get(k, 0)
    return {name: n for name, n in out.items() if n}


def products(trees: list[Tree], others: list[Tree]) -> Tensor:
    """Return the inner products of all pairs of trees, (len(trees), len(others)), in float64, tensor by tensor."""
    out = torch.zeros(len(trees), len(others), dtype=torch.float64)
    for name in trees[0]:
        a, b = (torch.stack([t[name].reshape(-1).double() for t in side]) for side in (trees, others))
        out += a @ b.T
    return out


def squared_distances(trees: list[Tree], others: list[Tree]) -> Tensor:
    """Return ||a - b||^2 of all pairs of trees, (len(trees), len(others)), in float64, tensor by tensor."""
    out = torch.zeros(len(trees), len(others), dtype=torch.float64)
    for name in trees[0]:
        theirs = [t[name].reshape(-1).double() for t in others]
        apart = torch.empty_like(theirs[0])  # one at a time stays in the cache
        for i, tree in enumerate(trees):
            own = tree[name].reshape(-1).double()
            for j, other in enumerate(theirs):
                torch.sub(own, other, out=apart)
                out[i, j] += apart @ apart
    return out
