"""Cost-complexity pruning: branches that lower the impurity too little for their number of leaves become leaves."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from fractions import Fraction

from fedatlas.vertical.forest.leaf_sets import leaves_of


def pruned(inner: Collection[int], cost: Mapping[int, Fraction], alpha: Fraction) -> list[int]:
    """Return the inner nodes that are kept, ascending. ``cost``: of each node as a leaf, its share of rows times impurity.

    Of all branches the one with the smallest (cost as a leaf - cost of its leaves) / (leaves - 1), and of equal ones the
    one with the smallest node number, is cut while this is at most ``alpha``.
    """
    kept, below, leaves = set(inner), dict[int, Fraction](), dict[int, int]()
    for v in leaves_of(inner):
        below[v], leaves[v] = cost[v], 1
    for v in sorted(kept, reverse=True):
        below[v], leaves[v] = below[2 * v] + below[2 * v + 1], leaves[2 * v] + leaves[2 * v + 1]

    def rise(v: int) -> Fraction:
        return (cost[v] - below[v]) / (leaves[v] - 1)

    waiting = [(rise(v), v) for v in kept] if alpha else []
    heapq.heapify(waiting)
    while waiting and waiting[0][0] <= alpha:
        now, v = heapq.heappop(waiting)
        if v not in kept or now != rise(v):
            continue  # cut with a branch above it, or entered again since
        kept -= {u for u in kept if u.bit_length() >= v.bit_length() and u >> (u.bit_length() - v.bit_length()) == v}
        fewer, more = leaves[v] - 1, cost[v] - below[v]
        while v:
            below[v], leaves[v] = below[v] + more, leaves[v] - fewer
            if v in kept:
                heapq.heappush(waiting, (rise(v), v))
            v //= 2
    return sorted(kept)
