"""Figures of test rows under many weightings at once, as needed by the bootstrap, computed as a few weighted sums.

A `Weighted` maps how often each row was drawn, (draws, n), to each figure's values, (draws,), nan if undefined. They
are the figures of `quality` for rows repeated as often as drawn, times their weights. The sums are NumPy's, computed by
one thread in a fixed order, and never a product that a library may split among threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.quality import (
    BINS,
    Floats,
    Values,
    clipped,
    floats,
    one_of_two,
    over,
    plain_array,
    row_weights,
    without_ignored,
)

Weighted = Callable[[Floats], dict[str, Floats]]
Area = Callable[[Floats], Floats]
"""Maps how often each row was drawn, (draws, n), to the area under a curve, (draws,)."""


def together(*parts: Weighted) -> Weighted:
    """Return the figures of all parts."""
    return lambda drawn: {name: x for part in parts for name, x in part(drawn).items()}


def of_mean(name: str, scores: Floats, weights: Floats, root: bool = False) -> Weighted:
    """Return the weighted mean of the rows' scores (n,), or its root."""
    sums = summed(weights * scores, weights)

    def figures(drawn: Floats) -> dict[str, Floats]:
        found = over(*sums(drawn).T)
        return {name: np.sqrt(found) if root else found}

    return figures


def of_classes(
    predicted: Values, targets: Values, classes: int, weights: Values | None = None, ignore: int | None = None
) -> Weighted:
    """Return macro and weighted F1; also for tokens (n, length)."""
    y, p = plain_array(targets), plain_array(predicted)
    row = np.broadcast_to(np.arange(len(y)).reshape(-1, *[1] * (y.ndim - 1)), y.shape)
    y, p, w, row = without_ignored(y, ignore, p, row_weights(weights, y), row)
    right = y == p
    sums = [grouped(w, y, classes, row), grouped(w, p, classes, row), grouped(w[right], y[right], classes, row[right])]

    def figures(drawn: Floats) -> dict[str, Floats]:
        true, said, hits = (each(drawn) for each in sums)
        f1, there = over(2 * hits, true + said), true + said > 0
        known = np.where(there, f1, 0.0)
        return {
            "macro_f1": over(known.sum(1), there.sum(1).astype(np.float64)),
            "weighted_f1": over((known * true).sum(1), true.sum(1)),
        }

    return figures


def of_numbers(predicted: Values, targets: Values, weights: Values | None = None) -> Weighted:
    """Return mean absolute error in the target's unit, and R^2. For the root mean squared error use `of_mean`."""
    y = floats(targets).ravel()
    error, w = y - floats(predicted).reshape(y.shape), row_weights(weights, y)
    centred = y - (np.median(y) if len(y) else 0.0)  # the centre of most draws, with or without an outlier
    sums = summed(w, w * centred, w * centred**2, w * error**2, w * np.abs(error))
    differ = different(y, w)

    def figures(drawn: Floats) -> dict[str, Floats]:
        total, first, second, squared, absolute = sums(drawn).T
        spread = second - first * over(first, total)
        return {
            "mae": over(absolute, total),
            "r2": 1 - over(squared, np.where(differ(drawn) & (spread > 1e-12 * second), spread, 0.0)),
        }

    return figures


def different(y: Floats, w: Floats) -> Callable[[Floats], NDArray[np.bool_]]:
    """Map (draws, n) to (draws,): whether the targets of the drawn rows differ. Rows of weight 0 are ignored."""
    value = np.unique(y, return_inverse=True)[1]
    counts = w > 0

    def found(drawn: Floats) -> NDArray[np.bool_]:
        there = (drawn > 0) & counts
        least, most = (np.where(there, value, end).astype(np.int64) for end in (len(y), -1))
        return np.asarray(least.min(1, initial=len(y)) < most.max(1, initial=-1))

    return found


def of_two_classes(margin: Values, probabilities: Values, targets: Values, weights: Values | None = None) -> Weighted:
    """Return AUC from scores (n,), log-loss and expected calibration error from the probability of class 1, (n,)."""
    p, y = floats(probabilities), one_of_two(targets)
    w = row_weights(weights, y)
    area = under_roc(margin, y, w)
    at = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], p)
    losses = -np.log(np.where(y, clipped(p), 1 - clipped(p)))
    sums, gaps = summed(w * losses, w), grouped(w * (y - p), at, BINS, np.arange(len(y)))

    def figures(drawn: Floats) -> dict[str, Floats]:
        loss, total = sums(drawn).T
        return {
            "auc": area(drawn),
            "log_loss": over(loss, total),
            "calibration_error": over(np.abs(gaps(drawn)).sum(1), total),
        }

    return figures


def under_roc(score: Values, y: NDArray[np.bool_], w: Floats) -> Area:
    """Return the area under the ROC curve of scores (n,); ``y``: whether each row is of the class. Ties count half."""
    score = plain_array(score)
    order = np.argsort(score, kind="stable")
    positive, negative = order[y[order]], order[~y[order]]
    lower, upper = (np.searchsorted(score[negative], score[positive], side=side) for side in ("left", "right"))

    def area(drawn: Floats) -> Floats:
        weight = drawn * w
        won = [pairs_won(one[positive], one[negative], lower, upper) for one in weight]
        return over(np.array(won), weight[:, positive].sum(1) * weight[:, negative].sum(1))

    return area


def under_precision(score: Values, y: NDArray[np.bool_], w: Floats) -> Area:
    """Return average precision, as scikit-learn defines it: the precision at each score, by the recall that it adds.

    Rows with equal scores are found together. nan unless there are rows of both kinds.
    """
    score = plain_array(score)
    order = np.argsort(-score, kind="stable")
    down, own = -score[order], w[order]
    hit = np.flatnonzero(y[order])
    last = np.searchsorted(down, down[hit], side="right") - 1  # of the rows that score as much as each of the class
    before = np.searchsorted(hit, last, side="right")  # how many of the class are found with it

    def one(weight: Floats) -> float:
        seen, hits = weight.cumsum(), weight[hit]
        found = np.concatenate([[0.0], hits.cumsum()])[before]
        total = found[-1] if len(hit) else 0.0
        if not 0 < total < seen[-1]:  # rows of only one kind
            return np.nan
        all_of = seen[last]
        return float((hits * found / np.where(all_of > 0, all_of, 1.0)).sum() / total)

    return lambda drawn: np.array([one(counts[order] * own) for counts in drawn])


def pairs_won(positive: Floats, negative: Floats, lower: Values, upper: Values) -> float:
    """Return the weight of pairs in which the positive row scores higher; ties count half.

    Weights are in the scores' order.

    ``lower``, ``upper``: numbers of negative rows that score below each positive row, and at most as high.
    """
    below = np.concatenate([[0.0], np.cumsum(negative)])
    return float((positive * (below[lower] + below[upper])).sum() / 2)


def summed(*columns: Floats) -> Callable[[Floats], Floats]:
    """Map (draws, n) to (draws, columns): the sums of each of ``columns``, (n,), over the rows drawn."""
    return lambda drawn: np.stack([(drawn * column).sum(1) for column in columns], axis=1)


def grouped(values: Floats, group: Values, groups: int, row: Values) -> Callable[[Floats], Floats]:
    """Map (draws, n) to (draws, groups): the sums of ``values`` by ``group``, each as often as its ``row`` was drawn."""
    order = np.argsort(group, kind="stable")
    there, starts = np.unique(group[order], return_index=True)
    held, of = values[order], row[order]

    def sums(drawn: Floats) -> Floats:
        out = np.zeros((len(drawn), groups))
        for one, counts in zip(out, drawn, strict=True):  # one draw at a time, since a row of text has many values
            one[there] = np.add.reduceat(counts[of] * held, starts)
        return out

    return sums
