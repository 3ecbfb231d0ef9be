"""Mixings of the changes before a rule combines them: ``pre`` in ``[aggregation]``. Every one is a matrix M, y = M x.

=========  =====================================================================================  =============================
nnm        y_i: the mean of the n - f changes nearest to x_i, itself included                     Allouah et al., AISTATS 2023
bucketing  y_i: the mean of s changes drawn at random; the last bucket may hold fewer             Karimireddy et al., ICLR 2022
arc        y_i = x_i min(1, C / ||x_i||): the floor(2 f (n - f) / n) longest get the next length  Allouah et al., ICLR 2025
=========  =====================================================================================  =============================

Mixed changes have no weights of their own: after ``nnm`` and ``bucketing`` a rule counts all equally. Shortened ones keep theirs.

f: number of a round's clients assumed hostile, which is the rule's if it has one; omitted = floor(0.2 n).
s: changes in a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedatlas.aggregation.changes import Changes, Mixed
from fedatlas.aggregation.rules import Rule, RuleResult, shares, squares
from fedatlas.registry import Count, Whole
from fedatlas.rng import numpy_stream

BUCKET = 2  # changes in a bucket
Mixing = Callable[[Changes, int], Tensor]


def nearest_mixed(changes: Changes, f: int) -> Tensor:
    """Return M of NNM, (n, n): equal shares of the n - f nearest; among equals the first."""
    n = len(changes)
    order = squares(changes).fill_diagonal_(-1.0).sort(dim=1, stable=True).indices[:, : n - f]
    return torch.zeros(n, n, dtype=torch.float64).scatter_(1, order, 1 / (n - f))


def bucketed(changes: Changes, size: int) -> Tensor:
    """Return M of bucketing, (ceil(n / s), n)."""
    order = torch.from_numpy(numpy_stream(changes.seed, "buckets").permutation(len(changes)))
    rows = [order[at : at + size] for at in range(0, len(order), size)]
    matrix = torch.zeros(len(rows), len(order), dtype=torch.float64)
    for row, held in zip(matrix, rows, strict=True):
        row[held] = 1 / len(held)
    return matrix


def shortened(changes: Changes, f: int) -> Tensor:
    """Return M of adaptive robust clipping, (n, n): the factors on its diagonal."""
    norms, n = changes.norms(), len(changes)
    most = norms.sort().values[n - 2 * f * (n - f) // n - 1]
    return torch.where(norms > most, most / norms.clamp(min=1e-300), 1.0).diag()


def nnm(*, f: Count | None = None) -> Mixing:
    """Each change becomes the mean of the n - f changes nearest to it, itself included."""
    return nearest_mixed


def bucketing(*, f: Count | None = None, s: Whole = BUCKET) -> Mixing:
    """Changes are put in buckets drawn in every round, and the rule gets the buckets' means."""
    return lambda changes, f: bucketed(changes, s)


def arc(*, f: Count | None = None) -> Mixing:
    """The floor(2 f (n - f) / n) longest changes are shortened to the length of the next one."""
    return shortened


def before(pre: str, rule: Rule, *, f: int | None = None, s: int | None = None) -> Rule:
    """Return a rule that mixes changes first. ``f``: assumed hostile, if the rule has none; ``s``: changes in a bucket."""
    mixing = PRE[pre](**({} if s is None else {"s": s}))
    keeps = pre == "arc"

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        matrix = mixing(changes, f)
        found = rule.judge(Mixed(changes, matrix), weights if keeps else shares(None, len(matrix)), f)
        if keeps:
            return found
        given = torch.tensor(found.weights, dtype=torch.float64) @ matrix
        chosen = tuple(k for k, weight in enumerate(given.tolist()) if weight)
        whole = found.chosen is None and len(chosen) == len(changes)
        return RuleResult(found.value, tuple(given.tolist()), None if whole else chosen)

    def fewest(f: int) -> int:
        return max(rule.fewest(f), 2 * f + 1)

    return rule._replace(
        said=f"{SAID[pre]} {rule.said}",
        judge=judge,
        f=rule.f if f is None else f,
        fewest=fewest,
        needs=rule.needs or "more than 2 f changes",
        weighted=rule.weighted and keeps,
        pre=pre,
        bucket=(s or BUCKET) if pre == "bucketing" else 1,
    )


PRE: Mapping[str, Callable[..., Mixing]] = {"nnm": nnm, "bucketing": bucketing, "arc": arc}

SAID: Mapping[str, str] = {
    "nnm": "The server first replaced each change by the **mean of those nearest to it**.",
    "bucketing": "The server first took **means of a few changes drawn at random**.",
    "arc": "The server first **shortened the longest changes** to the length of the next one.",
}
