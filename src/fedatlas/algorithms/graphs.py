"""Graphs of nodes, the mixing matrices built on them, and their speed of mixing (B19, B20).

A graph of K nodes is a matrix of booleans, ``hears[i, j]``: node i hears node j. Its diagonal is empty, since each node
hears itself anyway. A mixing matrix has the same orientation: W[i, j] is the weight that i gives to j's message.

Source of the Metropolis weights: Xiao, Boyd, Systems & Control Letters 2004.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream

Booleans = NDArray[np.bool_]
Matrix = NDArray[np.float64]
Probability = Annotated[float, Field(gt=0, le=1)]
Pairs = list[tuple[int, int]]
DRAWS = 200  # random graphs drawn in search of a connected one


class Graph(NamedTuple):
    """The graph of the nodes, before their number is known."""

    name: str
    directed: bool = False
    probability: float | None = None  # of an edge of a random graph; None: 2 ln K / K, which is nearly always connected
    pairs: tuple[tuple[int, int], ...] | None = None  # of a given graph: edges, or arcs (from, to)


def graph_of(name: str, directed: bool, probability: float | None, pairs: Sequence[tuple[int, int]] | None) -> Graph:
    """Return the graph of a table's keys; ConfigError if a key does not belong to it, or its pairs are missing."""
    graph = Graph(name, directed, probability, None if pairs is None else tuple((int(a), int(b)) for a, b in pairs))
    key = "arcs" if graph.directed else "edges"
    if graph.name != "given" and graph.pairs is not None:
        raise ConfigError(
            f"algorithm.{key}: a graph '{graph.name}' sets its own; remove the key or set graph = 'given'."
        )
    if graph.name == "given" and graph.pairs is None:
        raise ConfigError(f"algorithm.graph = 'given' needs its {key}: algorithm.{key} = [[0, 1], [1, 2], ...].")
    if graph.name != "random" and graph.probability is not None:
        raise ConfigError(
            "algorithm.probability: only graph = 'random' uses it; remove the key or set graph = 'random'."
        )
    return graph


@lru_cache(maxsize=16)
def hears(graph: Graph, K: int, seed: int) -> Booleans:
    """Return the graph of K nodes, connected in both directions; ConfigError, with the reason, if there is none."""
    if graph.name == "random":
        found = random_graph(graph, K, seed)
    else:
        build = {"ring": ring, "directed_ring": directed_ring, "torus": torus, "complete": complete}
        found = given(graph, K) if graph.name == "given" else build[graph.name](K)
        lost = unreached(found)
        if lost:
            names = ", ".join(str(k) for k in lost[:5]) + (" ..." if len(lost) > 5 else "")
            what, way = ("arcs", "way there and back") if graph.directed else ("edges", "way")
            raise ConfigError(
                f"algorithm.{what}: the graph is not connected; there is no {way} between node 0 and node {names}."
            )
    found.flags.writeable = False
    return found


def ring(K: int) -> Booleans:
    """Return 0 - 1 - ... - (K-1) - 0."""
    one_way = np.roll(np.eye(K, dtype=bool), 1, axis=0)
    return (one_way | one_way.T) & ~np.eye(K, dtype=bool)


def directed_ring(K: int) -> Booleans:
    """Return 0 -> 1 -> ... -> (K-1) -> 0, and 0 -> 2, so that the nodes differ."""
    found = np.roll(np.eye(K, dtype=bool), 1, axis=0) & ~np.eye(K, dtype=bool)
    if K > 2:
        found[2, 0] = True
    return found


def torus(K: int) -> Booleans:
    """Return a grid of a x b nodes closed at both ends; a is the largest divisor of K up to its square root."""
    a = max(d for d in range(1, math.isqrt(K) + 1) if K % d == 0)
    if a < 2:
        raise ConfigError(
            f"algorithm.graph = 'torus' needs a x b nodes with a and b at least 2, which {K} clients do not allow."
        )
    b = K // a
    at = np.arange(K).reshape(a, b)
    found = np.zeros((K, K), dtype=bool)
    for moved in (np.roll(at, 1, 0), np.roll(at, 1, 1)):
        found[at.ravel(), moved.ravel()] = found[moved.ravel(), at.ravel()] = True
    return found


def complete(K: int) -> Booleans:
    """Return the graph in which every node hears every other."""
    return ~np.eye(K, dtype=bool)


def random_graph(graph: Graph, K: int, seed: int) -> Booleans:
    """Draw Erdos-Renyi graphs G(K, p) until one is connected."""
    p = min(1.0, 2 * math.log(K) / K) if graph.probability is None else graph.probability
    for draw in range(DRAWS):
        u = numpy_stream(seed, "graph", draw).random((K, K))
        found = (u < p) & ~np.eye(K, dtype=bool)
        if not graph.directed:
            found = np.triu(found)
            found = found | found.T
        if not unreached(found):
            return found
    raise ConfigError(
        f"algorithm.probability = {p:g}: none of {DRAWS} random graphs of {K} nodes was connected; raise it "
        f"(most are connected above ln K / K = {math.log(K) / K:.2g})."
    )


def given(graph: Graph, K: int) -> Booleans:
    """Return the user's edges, or arcs from the first to the second node."""
    key = "arcs" if graph.directed else "edges"
    found = np.zeros((K, K), dtype=bool)
    for sender, receiver in graph.pairs or ():
        for k in (sender, receiver):
            if not 0 <= k < K:
                raise ConfigError(
                    f"algorithm.{key}: [{sender}, {receiver}] names node {k}, but the nodes are 0 to {K - 1}."
                )
        if sender == receiver:
            raise ConfigError(f"algorithm.{key}: [{sender}, {receiver}] joins a node with itself; remove it.")
        found[receiver, sender] = True
        if not graph.directed:
            found[sender, receiver] = True
    return found


def unreached(found: Booleans) -> list[int]:
    """Return the nodes that do not hear node 0, or that node 0 does not hear, over any number of hops."""
    from scipy.sparse.csgraph import connected_components

    _, part = connected_components(found, directed=True, connection="strong")
    return [int(k) for k in np.flatnonzero(part != part[0])]


def metropolis(found: Booleans) -> Matrix:
    """Return W_ij = 1 / (1 + max(deg i, deg j)) on edges, with row sums 1 by the diagonal: symmetric, doubly stochastic."""
    degree = found.sum(axis=1)
    W = np.where(found, 1.0 / (1.0 + np.maximum.outer(degree, degree)), 0.0)
    np.fill_diagonal(W, 1.0 - W.sum(axis=1))
    return W


def out_shares(found: Booleans) -> Matrix:
    """Return A_ij = 1 / (1 + number that hear j) for j and those that hear it: columns sum to one, rows may not."""
    heard = found | np.eye(len(found), dtype=bool)
    A: Matrix = heard / heard.sum(axis=0)
    return A


def matching(found: Booleans, present: tuple[int, ...], stream: np.random.Generator) -> Matrix:
    """Return random disjoint pairs of neighbours, as many as the order of drawing allows; each pair takes its mean."""
    edges = np.argwhere(np.triu(found))
    free = np.zeros(len(found), dtype=bool)
    free[list(present)] = True
    W = np.eye(len(found))
    for i, j in stream.permutation(edges):
        if free[i] and free[j]:
            free[i] = free[j] = False
            W[[i, i, j, j], [i, j, i, j]] = 0.5
    return W


def among(W: Matrix, present: tuple[int, ...]) -> Mapping[int, Mapping[int, float]]:
    """Return the matrix among present nodes: the share that would go to an absent node stays with its sender.

    Columns still sum to one; of a symmetric matrix, which stays symmetric, rows too.
    """
    there, absent = np.array(present, dtype=int), np.ones(len(W), dtype=bool)
    absent[there] = False
    part = W[np.ix_(there, there)] + np.diag(W[np.ix_(absent, there)].sum(axis=0))
    return {
        int(i): {int(j): float(w) for j, w in zip(there, row, strict=True) if w != 0}
        for i, row in zip(there, part, strict=True)
    }


def spectral_gap(W: Matrix) -> float:
    """Return 1 - the second largest modulus of an eigenvalue; with 1, a single round mixes completely.

    For symmetric W that modulus is max(|lambda_2|, |lambda_n|).
    """
    if len(W) < 2:
        return 1.0
    values = np.linalg.eigvalsh(W) if np.array_equal(W, W.T) else np.linalg.eigvals(W)
    return float(1.0 - np.sort(np.abs(values))[-2])


def describe(graph: Graph, found: Booleans, W: Matrix) -> dict[str, Any]:
    """Describe a graph for the record; ``messages`` are those of a round with all nodes."""
    sends = found.sum(axis=0)
    return {
        "graph": graph.name,
        "nodes": len(found),
        "degrees": [int(sends.min()), int(sends.max())],
        "messages": int(sends.sum()),
        "spectral_gap": max(0.0, spectral_gap(W)),
    }
