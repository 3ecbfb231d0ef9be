"""The cells of a generalised column.

A number becomes ``[25-37]``, the least and the largest of its class, in words with `` to `` if one of the two is negative. A
category becomes ``{A, B}``, the class's categories in their order, or ``*`` if these are all; with a hierarchy it becomes the
smallest group that holds them. Where a class has one value, its cells stay. ``missing`` stands for missing cells among others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedatlas.privacy.anonymity.hierarchy import ANY
from fedatlas.privacy.anonymity.measures import extremes
from fedatlas.privacy.anonymity.mondrian import MISSING, Quasi

ABSENT = "missing"


def generalised(column: Quasi, texts: Sequence[str], of: np.ndarray) -> list[str]:
    """Return the cell of each row; of rows that are left out, "".

    texts: the cells as they were read, whose spelling is kept where a number is written. of: the class of each row.
    """
    classes = int(of.max()) + 1
    named = (_sets if column.categories else _ranges)(column, texts, of, classes)
    return [named[c] if c >= 0 else "" for c in of.tolist()]


def _ranges(column: Quasi, texts: Sequence[str], of: np.ndarray, classes: int) -> list[str]:
    there = (of >= 0) & (column.values != MISSING)
    low, high = extremes(column.values[there], of[there], classes)
    holes = np.bincount(of[(of >= 0) & (column.values == MISSING)], minlength=classes) > 0
    spelled = dict(zip(column.values.tolist(), texts, strict=True))
    return [_range(*ends, spelled) for ends in zip(low.tolist(), high.tolist(), holes.tolist(), strict=True)]


def _range(low: float, high: float, holes: bool, spelled: dict[float, str]) -> str:
    if low > high:  # no known number
        return ""
    text = spelled[low]
    if low < high:
        text = f"[{text}{' to ' if low < 0 else '-'}{spelled[high]}]"
    return f"{{{text}, {ABSENT}}}" if holes else text


def _sets(column: Quasi, texts: Sequence[str], of: np.ndarray, classes: int) -> list[str]:
    if column.tree is not None:
        low, high = extremes(column.values[of >= 0], of[of >= 0], classes)
        return [column.tree.label(a, b) for a, b in zip(low.astype(int), high.astype(int), strict=True)]
    held: list[set[int]] = [set() for _ in range(classes)]
    for c, code in zip(of.tolist(), column.values.astype(int).tolist(), strict=True):
        if c >= 0:
            held[c].add(code)
    return [_set([column.categories[code] for code in sorted(codes)], len(column.categories)) for codes in held]


def _set(names: list[str], of: int) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) == of:
        return ANY
    quoted = [f'"{name}"' if "," in name else name or ABSENT for name in names]
    return f"{{{', '.join(quoted)}}}"
