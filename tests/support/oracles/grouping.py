"""FedSeq's superclients, from the first model to the groups: ICPR 2022, and Rizzardi's thesis with the errata to G1 to G7.

Everybody trains w_0 for some epochs; a trained model becomes a vector (its confidences in the exemplars of each class, or the principal
components of its linear weights); groups grow by the client that complements them best. Distances are written out entry by entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from oracles.fedavg import client_update
from oracles.problem import Problem

Vector = list[float]
CLASSES = 3


def confidences(problem: Problem, k: int, epochs: int, softened: bool) -> Vector:
    """How sure client k's model is of each class, over the public exemplars of that class: a distribution.

    The means are divided by their sum; the thesis' equation 4.1 has a second softmax instead.
    """
    assert problem.public is not None
    x, y = problem.public
    logits = problem.logits(client_update(problem._replace(epochs=epochs), 0, k, problem.w0), x)
    sure = [
        [
            math.exp(float(row[c])) / sum(math.exp(float(z)) for z in row)
            for row, label in zip(logits, y, strict=True)
            if label == c
        ]
        for c in range(CLASSES)
    ]
    means = [sum(found) / len(found) for found in sure]
    means = [math.exp(p) for p in means] if softened else means
    return [p / sum(means) for p in means]


def components(problem: Problem, clients: Sequence[int], epochs: int, layers: Sequence[str]) -> dict[int, Vector]:
    """Scores of the clients' linear weights on the first principal components that hold nine tenths of the variance."""
    models = [problem.named(client_update(problem._replace(epochs=epochs), 0, k, problem.w0)) for k in clients]
    table = np.array([np.concatenate([model[name].numpy().ravel() for name in layers]) for model in models])
    table = table - table.mean(axis=0)
    u, s, loadings = np.linalg.svd(table, full_matrices=False)
    kept = next(q for q in range(1, len(s) + 1) if (s[:q] ** 2).sum() >= 0.9 * (s**2).sum())
    scores = u[:, :kept] * s[:kept]
    for q in range(kept):
        if max(loadings[q], key=abs) < 0:  # a component's sign is arbitrary: its largest loading is positive
            scores[:, q] *= -1
    return {k: [float(value) for value in row] for k, row in zip(clients, scores, strict=True)}


def gini(a: Vector, b: Vector) -> float:
    return 1 - sum(((s + t) / 2) ** 2 for s, t in zip(a, b, strict=True))


def kl(a: Vector, b: Vector) -> float:
    mixed = [(s + t) / 2 for s, t in zip(a, b, strict=True)]
    return 1 - sum(q * (math.log(q) - math.log(1 / len(mixed))) for q in mixed if q > 0)


def cosine(a: Vector, b: Vector) -> float:
    return 1 - sum(s * t for s, t in zip(a, b, strict=True)) / math.sqrt(sum(s * s for s in a) * sum(t * t for t in b))


def wasserstein_values(a: Vector, b: Vector) -> float:
    return sum(abs(s - t) for s, t in zip(sorted(a), sorted(b), strict=True)) / len(a)


def wasserstein_support(a: Vector, b: Vector) -> float:
    """Mass that crosses each border between neighbouring classes."""
    return sum(abs(sum(a[:c]) - sum(b[:c])) for c in range(1, len(a)))


TAU: Mapping[str, Callable[[Vector, Vector], float]] = {
    "gini": gini,
    "kl": kl,
    "cosine": cosine,
    "wasserstein_values": wasserstein_values,
    "wasserstein_support": wasserstein_support,
}


def mean_of(group: Sequence[int], vectors: Mapping[int, Vector], n: Mapping[int, int]) -> Vector:
    """A superclient's vector: its members', by their examples."""
    total = sum(n[k] for k in group)
    return [sum(n[k] * vectors[k][i] for k in group) / total for i in range(len(vectors[group[0]]))]


def best(values: Mapping[int, float]) -> int:
    """The client with the largest value, the smallest of equals."""
    top = max(values.values())
    return min(k for k, value in values.items() if value == top)


def superclients(
    problem: Problem,
    *,
    psi: str,
    metric: str,
    min_examples: int,
    max_clients: int,
    pretrain_epochs: int,
    layers: Sequence[str] = ("hidden.weight", "head.weight"),
    softened: bool = False,
    even_start: bool = True,
) -> list[list[int]]:
    """Greedy groups, numbered by their smallest client; ``even_start``: the first member complements the even vector best."""
    n, tau = problem.n, TAU[metric]
    if psi == "conf":
        vectors = {k: confidences(problem, k, pretrain_epochs, softened) for k in n}
    else:
        vectors = components(problem, sorted(n), pretrain_epochs, layers)
    even = [1 / len(vectors[0])] * len(vectors[0])
    free, done, group = set(n), list[list[int]](), list[int]()
    while free:
        if group or even_start:
            at = mean_of(group, vectors, n) if group else even
            k = best({k: tau(at, vectors[k]) for k in free})
        else:
            k = best({k: sum(value**2 for value in vectors[k]) for k in free})
        free.discard(k)
        group.append(k)
        if len(group) == max_clients or sum(n[j] for j in group) >= min_examples:
            done.append(group)
            group = []
    while group:  # too few for a group of their own
        room = [g for g in done if len(g) < max_clients]
        min(room, key=lambda g: sum(n[j] for j in g)).append(group.pop())
    return sorted(sorted(g) for g in done)
