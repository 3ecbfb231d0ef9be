"""Groups of clients that complement each other: the rule G = {psi, phi, tau} (G1 to G7).

psi turns a client into a vector without seeing its data, tau says how well two vectors complement each other (the larger the
better), phi forms the groups. Everything here is a pure function of arrays; training and scoring are in `superclients.py`.

Source: Zaccone, Rizzardi, Caldarola, Ciccone, Caputo, ICPR 2022; the thesis' algorithms 7 to 9 are not followed where
they go wrong (errata of the thesis: argmin for argmax, groups that never close, a lost last group).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.rng import derive, numpy_stream

Vector = np.ndarray
Tau = Callable[[Vector, Vector], float]
ROUNDING = 32  # units in the last place: rows at most this far from their mean, on average, count as equal
Pick = Callable[[list[int], list[int]], int]
"""Function of the group so far and the clients left, in ascending order; it returns the next client."""


class Limits(NamedTuple):
    """The size at which a group is full: at ``examples`` examples or ``clients`` clients."""

    examples: float  # D_min
    clients: int  # K_max


# ---------------------------------------------------------------------- psi


def normalised(p: Vector, how: str) -> Vector:
    """Normalise mean confidences per class: divided by their sum, or by the thesis' second softmax, which blurs them (G2)."""
    if how == "softmax":
        e = np.exp(p - p.max())
        return np.asarray(e / e.sum())
    return np.asarray(p / max(p.sum(), 1e-12))


def principal_scores(rows: np.ndarray, share: float = 0.9) -> np.ndarray:
    """Return (K, D) -> (K, q): PCA scores on the fewest components that hold ``share`` of the variance (G3).

    By the K x K Gram matrix, since D is a model's size. The sign of a component is that which makes its largest loading
    positive. Clients that differ only by rounding, in the rows' own precision, have no variance: (K, 1) zeros.
    """
    centred = rows - rows.mean(0, keepdims=True, dtype=np.float64).astype(rows.dtype)
    gram = (centred @ centred.T).astype(np.float64)
    values, vectors = np.linalg.eigh(gram)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    rounding = (ROUNDING * float(np.finfo(rows.dtype).eps)) ** 2
    if values.sum() <= rounding * max(float(np.square(rows, dtype=np.float64).sum()), 1e-300):
        return np.zeros((len(rows), 1))
    kept = int(np.searchsorted(np.cumsum(values) / values.sum(), share - 1e-12)) + 1
    scores = vectors[:, :kept] * np.sqrt(values[:kept])
    loadings = centred.T @ vectors[:, :kept].astype(centred.dtype)
    largest = loadings[np.abs(loadings).argmax(0), np.arange(kept)]
    return np.asarray(scores * np.where(largest < 0, -1.0, 1.0))


# ---------------------------------------------------------------------- tau


def gini(a: Vector, b: Vector) -> float:
    """Return 1 - sum q_i^2 of the even mixture q = (a + b) / 2."""
    return float(1 - np.square((a + b) / 2).sum())


def kl(a: Vector, b: Vector) -> float:
    """Return 1 - KL(q || uniform) of the even mixture q; 0 log 0 = 0."""
    q = (a + b) / 2
    inside = q[q > 0]
    return float(1 - (inside * np.log(inside * len(q))).sum())


def cosine(a: Vector, b: Vector) -> float:
    """Return 1 - cos(a, b)."""
    return float(1 - a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-12))


def wasserstein_values(a: Vector, b: Vector) -> float:
    """Return the distance of the entries as samples of values, as in the authors' code; it ignores the entries' classes."""
    return float(np.abs(np.sort(a) - np.sort(b)).mean())


def wasserstein_support(a: Vector, b: Vector) -> float:
    """Return the distance of the entries as masses at the classes' positions. For distributions."""
    return float(np.abs(np.cumsum(a - b)).sum())


TAU: Mapping[str, Tau] = {
    "gini": gini,
    "kl": kl,
    "cosine": cosine,
    "wasserstein_values": wasserstein_values,
    "wasserstein_support": wasserstein_support,
}
OF_DISTRIBUTIONS = ("gini", "kl", "wasserstein_support")

# ---------------------------------------------------------------------- phi


def form(pick: Pick, sizes: Mapping[int, int], limits: Limits) -> list[list[int]]:
    """Form groups of all clients, each ascending, numbered by their smallest client.

    A group closes at ``limits.examples`` examples or ``limits.clients`` clients. The clients left at the end go, one
    by one, to the groups with the fewest examples that have room.
    """
    rest, out, group = sorted(sizes), list[list[int]](), list[int]()

    def examples(members: Sequence[int]) -> int:
        return sum(sizes[k] for k in members)

    while rest:
        k = pick(group, rest)
        rest.remove(k)
        group.append(k)
        if examples(group) >= limits.examples or len(group) >= limits.clients:
            out.append(group)
            group = []
    if group and (not out or -(-len(sizes) // len(out)) > limits.clients):
        raise ConfigError(
            f"superclients of at least {limits.examples:.0f} examples and at most {limits.clients} clients cannot be formed: "
            f"{len(group)} clients with {examples(group)} examples are left over; lower algorithm.min_examples "
            "(or group_size), or raise algorithm.max_clients."
        )
    while group:
        smallest = min((g for g in out if len(g) < limits.clients), key=examples)
        smallest.append(group.pop())
    return sorted(sorted(members) for members in out)


def short(groups: Sequence[Sequence[int]], sizes: Mapping[int, int], limits: Limits) -> list[str]:
    """Return a sentence for every group that closed at its number of clients, with too few examples."""
    held = [sum(sizes[k] for k in group) for group in groups]
    return [
        f"superclient {i} has {len(group)} clients and {n} examples, fewer than the {limits.examples:.0f} asked for."
        for i, (group, n) in enumerate(zip(groups, held, strict=True))
        if n < limits.examples
    ]


def random_pick(clients: Sequence[int], seed: int) -> Pick:
    """Return a `Pick` that takes the next client of a shuffled list (G5)."""
    order = [int(k) for k in numpy_stream(seed, "grouping", "random").permutation(sorted(clients))]
    place = {k: i for i, k in enumerate(order)}
    return lambda group, rest: min(rest, key=place.__getitem__)


def greedy_pick(
    vectors: Mapping[int, Vector], sizes: Mapping[int, int], tau: Tau, *, first: str, start: Vector | None, seed: int
) -> Pick:
    """Return a `Pick` of the client that complements the group best; ties: the smallest id (G6).

    A group's vector is the mean of its members' by examples. An empty group takes the client with the largest
    tau(``start``, .), without ``start`` the one of largest norm, or with ``first = "random"`` any.
    """
    stream = numpy_stream(seed, "grouping", "first")

    def pick(group: list[int], rest: list[int]) -> int:
        if not group and first == "random":
            return int(stream.choice(rest))
        if not group and start is None:
            return max(rest, key=lambda k: (float(np.linalg.norm(vectors[k])), -k))
        mean = np.average([vectors[j] for j in group], axis=0, weights=[sizes[j] for j in group]) if group else start
        at = np.asarray(mean)
        return max(rest, key=lambda k: (tau(at, vectors[k]), -k))

    return pick


def kmeans_pick(vectors: Mapping[int, Vector], clusters: int, seed: int) -> Pick:
    """Return a `Pick` of one client at random from each non-empty cluster in turn (G7)."""
    from sklearn.cluster import KMeans  # imported here: it takes a second

    clients = sorted(vectors)
    points = np.stack([vectors[k] for k in clients])
    distinct = len(np.unique(points, axis=0))
    state = derive(seed, "grouping", "kmeans") % 2**32
    made = KMeans(min(clusters, distinct), n_init=10, random_state=state).fit(points)
    cluster = dict(zip(clients, (int(c) for c in made.labels_), strict=True))
    stream, last = numpy_stream(seed, "grouping", "draw"), [-1]

    def pick(group: list[int], rest: list[int]) -> int:
        left = sorted({cluster[k] for k in rest})
        last[0] = next((c for c in left if c > last[0]), left[0])
        return int(stream.choice([k for k in rest if cluster[k] == last[0]]))

    return pick
