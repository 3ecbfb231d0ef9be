"""Quality of predictions (C12): figures from sums that add up over batches, clients and machines.

`class_sums` and `number_sums` turn a batch into sums; ``+`` joins them in any order; `class_figures` and
`number_figures` turn the sums into figures, None if undefined. Every row may have a weight (survey
weights); all sums are float64. Figures that need all rows at once are separate: `confusion_matrix`, and for two classes
`auc`, `log_loss` and `calibration`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[Any]
Floats = NDArray[np.float64]

LOWER_IS_BETTER = frozenset({"loss", "rmse", "mae"})

BINS = 10  # in a reliability diagram
_TINY = 1e-12  # C15; log-loss clips probabilities to [1e-12, 1 - 1e-12]


def plain_array(x: Values) -> NDArray[Any]:
    """Return a tensor or an array as NumPy's, on the CPU."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    return np.asarray(x)


def floats(x: Values) -> Floats:
    """Return a tensor or an array as NumPy's float64."""
    return plain_array(x).astype(np.float64)


def row_weights(weights: Values | None, like: NDArray[Any]) -> Floats:
    """Return row weights (n,) broadcast over a row's steps, in the shape of ``like``, (n,) or (n, length)."""
    if weights is None:
        return np.ones(like.shape)
    w = floats(weights)
    return np.broadcast_to(w.reshape(w.shape + (1,) * (like.ndim - w.ndim)), like.shape)


def _count(index: NDArray[Any], weights: Floats, length: int) -> Floats:
    """Return (length,): the total weight of each index."""
    without_ignored: Floats = np.bincount(index, weights, length).astype(np.float64, copy=False)
    return without_ignored


def over(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """Return a / b, nan where b is 0."""
    out: Floats = np.divide(a, b, out=np.full(np.shape(a), np.nan), where=b > 0)
    return out


def without_ignored(y: NDArray[Any], ignore: int | None, *others: NDArray[Any]) -> list[NDArray[Any]]:
    """Return arrays of one shape, flattened, without the places where the target is ``ignore``; the target first."""
    kept = np.ones(y.shape, bool) if ignore is None else y != ignore
    return [x[kept] for x in (y, *others)]


def predictions(outputs: Tensor) -> Tensor:
    """Return class numbers from raw outputs (..., classes): the largest; or from one raw score (n, 1) or (n,): 1 if above 0."""
    if outputs.dim() == 1 or outputs.shape[-1] == 1:
        return (outputs.reshape(len(outputs)) > 0).long()
    return outputs.argmax(-1)


def margins(outputs: Tensor) -> Tensor:
    """Map two-class outputs, (n, 2) logits or (n, 1) raw scores, to (n,) log-odds of class 1, float64; a sigmoid gives p."""
    scores = outputs.detach().double()
    return scores[:, 1] - scores[:, 0] if scores.dim() == 2 and scores.shape[1] == 2 else scores.reshape(len(scores))


@dataclass(frozen=True)
class ClassSums:
    """Sums over rows (or tokens): true weight, predicted weight and correct weight of each class; and of the loss."""

    true: Floats  # (C,)
    predicted: Floats  # (C,)
    hits: Floats  # (C,)
    loss: float

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(
            self.true + other.true,
            self.predicted + other.predicted,
            self.hits + other.hits,
            self.loss + other.loss,
        )

    @property
    def weight(self) -> float:
        """Total weight: the number of rows if they have no weights."""
        return float(self.true.sum())


def class_sums(
    predicted: Values,
    targets: Values,
    losses: Values,
    classes: int,
    weights: Values | None = None,
    ignore: int | None = None,
) -> ClassSums:
    """Return the sums of a batch. ``predicted``, ``targets``, ``losses`` are (n,), or (n, length) for tokens; ``weights`` (n,).

    Targets equal to ``ignore`` are not counted.
    """
    y, p, losses = plain_array(targets), plain_array(predicted), floats(losses)
    y, p, losses, w = without_ignored(y, ignore, p, losses, row_weights(weights, y))
    right = y == p
    hits = _count(y[right], w[right], classes)
    return ClassSums(_count(y, w, classes), _count(p, w, classes), hits, float(w @ losses))


def accuracy(sums: ClassSums, exclude: tuple[int, ...] = ()) -> float | None:
    """Return the share of the weight predicted correctly (top-1), over rows whose true class is not in ``exclude``."""
    kept = np.ones(len(sums.true), bool)
    kept[list(exclude)] = False
    return _ratio(float(sums.hits[kept].sum()), float(sums.true[kept].sum()))


def per_class_f1(sums: ClassSums) -> Floats:
    """Return (C,): 2 hits / (true + predicted); nan for a class that is never true nor predicted."""
    return over(2 * sums.hits, sums.true + sums.predicted)


def per_class_accuracy(sums: ClassSums) -> Floats:
    """Return (C,): hits / true (recall); nan for a class without rows."""
    return over(sums.hits, sums.true)


def macro_f1(sums: ClassSums) -> float | None:
    """Return the plain mean of F1 over the classes that are true or predicted at least once, as in scikit-learn."""
    f1 = per_class_f1(sums)
    return None if np.isnan(f1).all() else float(np.nanmean(f1))


def weighted_f1(sums: ClassSums) -> float | None:
    """Return the mean of F1 weighted by each class's true rows."""
    f1 = np.nan_to_num(per_class_f1(sums))
    return _ratio(float(f1 @ sums.true), sums.weight)


def class_figures(sums: ClassSums, exclude: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the figures of classification as plain values for JSON; None if undefined. ``exclude``: classes not in accuracy."""
    return {
        "accuracy": accuracy(sums, exclude),
        "macro_f1": macro_f1(sums),
        "weighted_f1": weighted_f1(sums),
        "per_class_f1": _plain(per_class_f1(sums)),
        "per_class_accuracy": _plain(per_class_accuracy(sums)),
        "loss": _ratio(sums.loss, sums.weight),
    }


@dataclass(frozen=True)
class NumberSums:
    """Sums over rows for numbers: weight, the targets' mean and spread sum w (y - mean)^2, errors, loss."""

    weight: float
    mean: float
    spread: float
    squared: float  # sum w (y - prediction)^2
    absolute: float  # sum w |y - prediction|
    loss: float
    least: float = -math.inf  # smallest and largest target of the rows that count
    most: float = math.inf

    def __add__(self, other: NumberSums) -> NumberSums:
        total = self.weight + other.weight
        if total == 0:
            return self
        gap = other.mean - self.mean
        return NumberSums(
            total,
            self.mean + gap * other.weight / total,
            # Chan, Golub, LeVeque 1983: no difference of large squares, so R^2 stays accurate for targets far from 0.
            self.spread + other.spread + gap * gap * self.weight * other.weight / total,
            self.squared + other.squared,
            self.absolute + other.absolute,
            self.loss + other.loss,
            min(self.least, other.least),
            max(self.most, other.most),
        )


def number_sums(predicted: Values, targets: Values, losses: Values, weights: Values | None = None) -> NumberSums:
    """Return the sums of a batch of numbers; ``predicted`` (n,) or (n, 1), the others (n,)."""
    y = floats(targets).ravel()
    error = y - floats(predicted).reshape(y.shape)
    w = row_weights(weights, y)
    total = float(w.sum())
    mean = float(w @ y) / total if total else 0.0
    spread, squared, absolute, loss = (
        float(w @ x) for x in ((y - mean) ** 2, error**2, np.abs(error), floats(losses).ravel())
    )
    counted = y[w > 0]
    ends = counted.min(initial=math.inf), counted.max(initial=-math.inf)
    return NumberSums(total, mean, spread, squared, absolute, loss, *map(float, ends))


def number_figures(sums: NumberSums) -> dict[str, float | None]:
    """Return root mean squared error and mean absolute error in the target's unit, R^2 = 1 - squared / spread, mean loss.

    R^2 is None if all targets are equal. Rounding can then leave a tiny spread, and R^2 would be huge.
    """
    mse = _ratio(sums.squared, sums.weight)
    return {
        "rmse": None if mse is None else math.sqrt(mse),
        "mae": _ratio(sums.absolute, sums.weight),
        "r2": None if sums.spread <= 0 or sums.least == sums.most else 1 - sums.squared / sums.spread,
        "loss": _ratio(sums.loss, sums.weight),
    }


class Span(NamedTuple):
    """Rows with similar true numbers, in the target's unit."""

    low: float
    high: float
    weight: float
    true: float  # mean
    predicted: float  # mean
    p10: float  # tenth and ninetieth percentile of the predictions, by rows
    p90: float
    rmse: float


def by_target(predicted: Values, targets: Values, weights: Values | None = None, spans: int = 10) -> list[Span]:
    """Return the predictions for small to large true numbers: spans with about equal numbers of rows, in order.

    Equal numbers are in one span; if there are at most ``spans`` different numbers, each has its own.
    """
    y, p = floats(targets).ravel(), floats(predicted).ravel()
    w = row_weights(weights, y)
    values = np.unique(y)
    edges = values if len(values) <= spans else np.unique(np.quantile(y, np.arange(1, spans + 1) / spans))
    at = np.searchsorted(edges, y)  # a number on an edge belongs to the lower span
    out = []
    for k in np.unique(at):
        inside = at == k
        own, true, said = w[inside], y[inside], p[inside]
        total = float(own.sum())
        if not total:
            continue
        mean, stated, squared = (float(own @ x) / total for x in (true, said, (said - true) ** 2))
        p10, p90 = (float(v) for v in np.quantile(said, (0.1, 0.9)))
        out.append(Span(float(true.min()), float(true.max()), total, mean, stated, p10, p90, math.sqrt(squared)))
    return out


def confusion_matrix(
    predicted: Values, targets: Values, classes: int, weights: Values | None = None, ignore: int | None = None
) -> Floats:
    """Return (C, C): weight of rows of true class i (row) predicted as j (column). Matrices of batches add up."""
    y, p = plain_array(targets), plain_array(predicted)
    y, p, w = without_ignored(y, ignore, p, row_weights(weights, y))
    return _count(y * classes + p, w, classes * classes).reshape(classes, classes)


def auc(scores: Values, targets: Values, weights: Values | None = None) -> float | None:
    """Return the area under the ROC curve: the chance that a row of class 1 scores above one of class 0, ties counting half.

    The Mann-Whitney form; None if one class has no weight.
    """
    y = one_of_two(targets)
    w = row_weights(weights, y)
    _, group = np.unique(floats(scores), return_inverse=True)
    groups = int(group.max(initial=-1)) + 1
    positive, negative = _count(group[y], w[y], groups), _count(group[~y], w[~y], groups)
    below = np.cumsum(negative) - negative
    return _ratio(float(positive @ (below + negative / 2)), float(positive.sum() * negative.sum()))


def one_of_two(targets: Values) -> NDArray[np.bool_]:
    """Return whether each row is of class 1, (n,)."""
    found: NDArray[np.bool_] = plain_array(targets) > 0
    return found


def clipped(probabilities: Floats) -> Floats:
    """Return probabilities clipped so that their logarithm is finite on both sides."""
    return np.clip(probabilities, _TINY, 1 - _TINY)


def log_loss(probabilities: Values, targets: Values, weights: Values | None = None) -> float | None:
    """Return the mean of -log p(true class) for two classes; ``probabilities`` (n,) of class 1."""
    p, y = clipped(floats(probabilities)), one_of_two(targets)
    w = row_weights(weights, y)
    return _ratio(-float(w @ np.log(np.where(y, p, 1 - p))), float(w.sum()))


class Bin(NamedTuple):
    """One bin of a reliability diagram."""

    low: float
    high: float
    weight: float
    predicted: float  # mean probability of class 1 in the bin
    observed: float  # share of class 1 in the bin


class Calibration(NamedTuple):
    """Agreement of stated probabilities with observed shares. ``bins`` holds the non-empty bins."""

    error: float | None  # expected calibration error: mean |observed - predicted| weighted by the bins' rows
    bins: tuple[Bin, ...]


def calibration(probabilities: Values, targets: Values, weights: Values | None = None, bins: int = BINS) -> Calibration:
    """Return the expected calibration error and equal-width reliability bins for the probability of class 1 (two classes).

    Naeini, Cooper, Hauskrecht 2015, with the probability of class 1 instead of the larger one.
    """
    p = floats(probabilities)
    y = one_of_two(targets).astype(np.float64)
    w = row_weights(weights, y)
    edges = np.linspace(0, 1, bins + 1)
    at = np.searchsorted(edges[1:-1], p)  # p on an inner edge belongs to the lower bin
    weight, predicted, observed = (_count(at, w * x, bins) for x in (np.ones_like(p), p, y))
    total = weight.sum()
    rows = tuple(
        Bin(*(float(x) for x in (edges[b], edges[b + 1], weight[b], predicted[b] / weight[b], observed[b] / weight[b])))
        for b in np.flatnonzero(weight)
    )
    return Calibration(_ratio(float(np.abs(observed - predicted).sum()), float(total)), rows)


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def _plain(values: Floats) -> list[float | None]:
    return [None if math.isnan(v) else v for v in values.tolist()]
