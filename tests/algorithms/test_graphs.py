"""Graphs of federations without a server and the matrices they mix by (B19, B20)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.algorithm import Mixing
from fedatlas.algorithms import ALGORITHMS, graphs
from fedatlas.algorithms.graphs import Graph
from fedatlas.rng import numpy_stream


def matrix(mixing: Mixing, K: int) -> np.ndarray:
    W = np.zeros((K, K))
    for i, row in mixing.items():
        for j, w in row.items():
            W[i, j] = w
    return W


def test_spectral_gaps() -> None:
    # eigenvalues: ring 1/3 + 2/3 cos(2 pi k / K); 3 x 4 torus (1 + 2 cos(2 pi a / 3) + 2 cos(2 pi b / 4)) / 5, of which 3/5 is the second;
    # complete: all but one are 0; directed ring without the short cut (e^(2 pi i k / K) + 1) / 2, of modulus cos(pi k / K)
    def found(name: str, K: int) -> float:
        return float(ALGORITHMS["gossip"](graph=name).card.describe(K, 1)["spectral_gap"])  # type: ignore[misc]

    assert found("ring", 12) == pytest.approx(2 / 3 * (1 - math.cos(math.pi / 6)), abs=1e-12)
    assert found("torus", 12) == pytest.approx(2 / 5, abs=1e-12)
    assert found("complete", 12) == pytest.approx(1, abs=1e-12)
    assert found("ring", 1) == 1
    one_way = ALGORITHMS["push_sum"](graph="given", arcs=[(k, (k + 1) % 5) for k in range(5)])
    assert one_way.card.describe(5, 1)["spectral_gap"] == pytest.approx(1 - math.cos(math.pi / 5), abs=1e-12)


@st.composite
def adjacencies(draw: st.DrawFn, directed: bool = False) -> np.ndarray:
    """Any graph of up to nine nodes."""
    K = draw(st.integers(1, 9))
    found = np.array(draw(st.lists(st.booleans(), min_size=K * K, max_size=K * K)), dtype=bool).reshape(K, K)
    found &= ~np.eye(K, dtype=bool)
    return found if directed else np.triu(found) | np.triu(found).T


@given(adjacencies(), st.data())
def test_metropolis_matrices_are_doubly_stochastic(found: np.ndarray, data: st.DataObject) -> None:
    """Symmetric, without negative entries, positive only where there is an edge; also among those who are there."""
    K = len(found)
    W = graphs.metropolis(found)
    assert np.array_equal(W > 0, found | np.eye(K, dtype=bool))
    present = tuple(sorted(data.draw(st.sets(st.integers(0, K - 1)))))
    for M, size in ((W, K), (matrix(graphs.among(W, present), K)[np.ix_(present, present)], len(present))):
        assert np.allclose(M, M.T, rtol=0, atol=1e-15)
        assert np.allclose(M.sum(0), 1, rtol=0, atol=1e-12)
        assert np.allclose(M.sum(1), 1, rtol=0, atol=1e-12)
        assert (M >= 0).all()
        assert M.shape == (size, size)
    values = np.linalg.eigvalsh(W)
    assert values[0] > -1
    assert values[-1] == pytest.approx(1)
    assert (graphs.spectral_gap(W) > 1e-9) == (
        not graphs.unreached(found)
    )  # one component, and only then one eigenvalue 1


@given(adjacencies(directed=True), st.data())
def test_out_shares_are_column_stochastic(found: np.ndarray, data: st.DataObject) -> None:
    K = len(found)
    A = graphs.out_shares(found)
    assert np.array_equal(A > 0, found | np.eye(K, dtype=bool))
    present = tuple(sorted(data.draw(st.sets(st.integers(0, K - 1)))))
    for M in (A, matrix(graphs.among(A, present), K)[np.ix_(present, present)]):
        assert np.allclose(M.sum(0), 1, rtol=0, atol=1e-12)
        assert (M >= 0).all()


@given(adjacencies(), st.integers(0, 99), st.data())
def test_pairs_are_disjoint_neighbours_and_as_many_as_fit(found: np.ndarray, seed: int, data: st.DataObject) -> None:
    K = len(found)
    present = tuple(sorted(data.draw(st.sets(st.integers(0, K - 1)))))
    W = graphs.matching(found, present, numpy_stream(seed, "gossip", 1))
    assert np.array_equal(W, W.T)
    assert np.allclose(W.sum(0), 1)
    paired = {(i, j) for i in range(K) for j in range(i) if W[i, j]}
    assert all(found[i, j] and {i, j} <= set(present) and W[i, i] == W[j, j] == W[i, j] == 0.5 for i, j in paired)
    alone = [k for k in present if W[k, k] == 1]
    assert not found[np.ix_(alone, alone)].any()


@pytest.mark.parametrize(("name", "K", "degrees"), [
    ("ring", 2, [1, 1]), ("ring", 5, [2, 2]), ("torus", 4, [2, 2]), ("torus", 6, [3, 3]), ("torus", 12, [4, 4]), ("complete", 7, [6, 6]),
])  # fmt: skip
def test_graphs_have_their_degrees(name: str, K: int, degrees: list[int]) -> None:
    facts = ALGORITHMS["gossip"](graph=name).card.describe(K, 1)  # type: ignore[misc]
    assert (facts["degrees"], facts["messages"], facts["nodes"]) == (degrees, degrees[0] * K, K)


def test_the_directed_ring_has_its_short_cut() -> None:
    found = graphs.directed_ring(5)
    arcs = sorted((int(j), int(i)) for i, j in np.argwhere(found))
    assert arcs == [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 0)]


@pytest.mark.parametrize("directed", [False, True])
def test_random_graphs_are_connected_and_of_the_seed(directed: bool) -> None:
    graph = Graph("random", directed)
    drawn = [graphs.hears(graph, 12, seed) for seed in range(5)]
    assert all(not graphs.unreached(found) for found in drawn)
    assert len({found.tobytes() for found in drawn}) == 5
    assert all(np.array_equal(found, found.T) != directed for found in drawn)
    graphs.hears.cache_clear()
    assert np.array_equal(graphs.hears(graph, 12, 3), drawn[3])
    dense = graphs.hears(graph._replace(probability=1.0), 12, 0)
    assert np.array_equal(dense, graphs.complete(12))
    share = graphs.hears(graph, 200, 1).sum() / (200 * 199)
    assert share == pytest.approx(2 * math.log(200) / 200, abs=0.008)  # five deviations of that many pairs
