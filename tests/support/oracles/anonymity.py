"""k-anonymity, l-diversity, t-closeness and strict Mondrian in plain Python, as their papers write them, on lists of rows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from scipy.optimize import linprog

Values = Sequence[Hashable]


def classes(cells: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """The rows that look alike."""
    found = defaultdict(list)
    for i, row in enumerate(cells):
        found[tuple(row)].append(i)
    return list(found.values())


def distinct(values: Values) -> float:
    return len(set(values))


def entropy(values: Values) -> float:
    """The largest l for which they are entropy l-diverse."""
    return math.exp(-sum(n / len(values) * math.log(n / len(values)) for n in Counter(values).values()))


def recursive(values: Values, c: float, l: int) -> bool:  # noqa: E741
    r = sorted(Counter(values).values(), reverse=True)
    return len(r) >= l and r[0] < c * sum(r[l - 1 :])


def closeness(part: Values, whole: Values, distance: Callable[[Hashable, Hashable], float]) -> float:
    """The earth mover's distance as a transport problem, for any distance between two values."""
    names = sorted(set(whole), key=str)
    supply = [part.count(a) / len(part) for a in names]
    demand = [whole.count(b) / len(whole) for b in names]
    cost = [distance(a, b) for a in names for b in names]
    m = len(names)
    sums = np.zeros((2 * m, m * m))
    for i in range(m):
        sums[i, i * m : (i + 1) * m] = 1
        sums[m + i, i::m] = 1
    found = linprog(cost, A_eq=sums[:-1], b_eq=(supply + demand)[:-1], bounds=(0, None))
    assert found.status == 0, found.message
    return float(found.fun)


def mondrian(
    rows: Sequence[Sequence[float]], k: int, fine: Callable[[list[int]], bool] = lambda part: True
) -> list[list[int]]:
    """Classes by strict Mondrian on numbers: lower median, widest normalised range, ties by column, `fine` as further stop rule."""
    spans = [max(column) - min(column) for column in zip(*rows, strict=True)]

    def allowed(part: list[int]) -> bool:
        return len(part) >= k and fine(part)

    def split(part: list[int]) -> list[list[int]]:
        own = [[rows[i][j] for i in part] for j in range(len(spans))]
        widths = [(max(v) - min(v)) / span if span else 0.0 for v, span in zip(own, spans, strict=True)]
        for j in sorted(range(len(spans)), key=lambda j: (-widths[j], j)):
            m = sorted(own[j])[(len(part) - 1) // 2]
            for lower in (lambda x, m=m: x <= m, lambda x, m=m: x < m):
                left = [i for i in part if lower(rows[i][j])]
                right = [i for i in part if not lower(rows[i][j])]
                if left and right and allowed(left) and allowed(right):
                    return split(left) + split(right)
        return [part]

    return split(list(range(len(rows))))
