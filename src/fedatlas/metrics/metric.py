"""The figure by which models are compared (``evaluation.metric``): a table of records, each a function of row scores.

A `Metric` maps a model's results on some rows (`Said`) to a `Weighted`. So its value, its interval and the paired
difference of two models come from the same few sums. Scores of different models are never put into one `Said`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedatlas.errors import ConfigError
from fedatlas.metrics import resampling
from fedatlas.metrics.quality import Floats, clipped, one_of_two, over
from fedatlas.metrics.resampling import Area, Weighted

Task = Literal["classes", "numbers", "tokens"]
Need = Literal["true", "predicted", "outputs"]
SKEWED = 1.5  # times its even share that the largest class holds, above which accuracy is misleading
OF_ONE_CLASS = frozenset({"pr_auc"})  # figures of two classes that depend more on one of them
_LEAST = math.log(1e-12)  # C15: of a log-probability


class Said(NamedTuple):
    """One model's results on n rows, and the truth. Fields that a metric does not need may be None."""

    score: Floats  # (n,) share of right answers, or squared error in the target's unit
    weight: Floats  # (n,)
    true: NDArray[Any] | None = None  # (n,) class numbers, or numbers in the target's unit
    predicted: NDArray[Any] | None = None  # (n,) the same
    outputs: NDArray[Any] | None = None  # (n,) log-odds of class 1 of two; (n, C) log-probabilities of more classes

    @property
    def rows(self) -> int:
        """How many rows count."""
        return int(np.count_nonzero(self.weight))

    def at(self, rows: NDArray[Any]) -> Said:
        """Return the same of some rows, by mask or numbers."""
        return Said(*(None if x is None else x[rows] for x in self))  # type: ignore[arg-type]


class Constant(NamedTuple):
    """A model with one answer for all rows."""

    predicted: float  # the class number, or the number in the target's unit
    outputs: NDArray[Any] | None  # () log-odds of class 1 of two, (C,) log-probabilities of more; None for numbers


def constant_class(weights: Floats) -> Constant:
    """Return the model that always answers with the class of the largest weight, and states the classes' shares (C,)."""
    share = clipped(weights / max(weights.sum(), 1e-12))
    odds = np.log(share[1] / share[0]) if len(share) == 2 else np.log(share)
    return Constant(float(weights.argmax()), np.asarray(odds))


def constant_number(values: Floats, weights: Floats | None = None) -> Constant:
    """Return the model that always answers with the mean of the values (n,)."""
    w = np.ones(len(values)) if weights is None else weights
    return Constant(float((w * values).sum() / max(w.sum(), 1e-12)), None)


class Metric(NamedTuple):
    """One figure. ``weighted(said)`` maps weightings of the rows to {name: values}, nan where it is undefined."""

    name: str
    words: str  # its name on a page
    tasks: tuple[Task, ...]
    needs: tuple[Need, ...]  # besides score and weight
    weighted: Callable[[Said], Weighted]
    lower_is_better: bool = False

    def of_class(self, positive: int | None) -> Metric:
        """Return the metric for class 0 of two instead of class 1, if that makes a difference."""
        if positive != 0 or self.name not in OF_ONE_CLASS:
            return self
        return self._replace(weighted=lambda said: self.weighted(_swapped(said)))

    def value(self, said: Said) -> float | None:
        """Return the figure of these rows; None if it is undefined."""
        found = (
            float(self.weighted(said)(np.ones((1, len(said.weight))))[self.name][0]) if len(said.weight) else math.nan
        )
        return found if math.isfinite(found) else None


def _swapped(said: Said) -> Said:
    """Return the same with two classes in the other order. More than two classes stay as they are."""
    true, outputs = _given(said.true), _given(said.outputs)
    return said if outputs.ndim > 1 else said._replace(true=1 - true, outputs=-outputs)


def _of_mean(name: str, root: bool = False) -> Callable[[Said], Weighted]:
    return lambda said: resampling.of_mean(name, said.score.astype(np.float64), said.weight.astype(np.float64), root)


def _picked(name: str, of: Callable[[Said], Weighted]) -> Callable[[Said], Weighted]:
    def weighted(said: Said) -> Weighted:
        every = of(said)
        return lambda drawn: {name: every(drawn)[name]}

    return weighted


def _classes(said: Said) -> Weighted:
    true, predicted = _given(said.true), _given(said.predicted)
    most = int(max(true.max(initial=0), predicted.max(initial=0))) + 1
    return resampling.of_classes(predicted, true, most, said.weight)


def _numbers(said: Said) -> Weighted:
    return resampling.of_numbers(_given(said.predicted), _given(said.true), said.weight)


def _balanced(said: Said) -> Weighted:
    true, right = _given(said.true), _given(said.true) == _given(said.predicted)
    most, row, w = int(true.max(initial=0)) + 1, np.arange(len(true)), said.weight.astype(np.float64)
    sums = resampling.grouped(w, true, most, row), resampling.grouped(w * right, true, most, row)

    def figures(drawn: Floats) -> dict[str, Floats]:
        there, hits = (each(drawn) for each in sums)
        known = there > 0
        recalls = np.where(known, np.divide(hits, there, out=np.zeros_like(hits), where=known), 0.0)
        return {"balanced_accuracy": over(recalls.sum(1), known.sum(1).astype(np.float64))}

    return figures


def _areas(name: str, under: Callable[[Any, NDArray[np.bool_], Floats], Area]) -> Callable[[Said], Weighted]:
    """Return the area of class 1 of two.

    For more classes: the mean of one against the rest, over classes with both kinds of rows.
    """

    def weighted(said: Said) -> Weighted:
        true, outputs, w = _given(said.true), _given(said.outputs), said.weight.astype(np.float64)
        if outputs.ndim == 1:
            one = under(outputs, one_of_two(true), w)
            return lambda drawn: {name: one(drawn)}
        there = np.unique(true[w > 0]).astype(np.int64)  # the others have rows of only one kind, in each draw
        each = [under(outputs[:, c], true == c, w) for c in there]

        def figures(drawn: Floats) -> dict[str, Floats]:
            if not each:
                return {name: np.full(len(drawn), np.nan)}
            found = np.stack([area(drawn) for area in each])
            known = ~np.isnan(found)
            return {name: over(np.where(known, found, 0.0).sum(0), known.sum(0).astype(np.float64))}

        return figures

    return weighted


def _log_loss(said: Said) -> Weighted:
    true, outputs = _given(said.true), _given(said.outputs).astype(np.float64)
    if outputs.ndim == 1:
        p, y = clipped(1 / (1 + np.exp(-np.clip(outputs, -700, 700)))), one_of_two(true)
        losses = -np.log(np.where(y, p, 1 - p))
    else:
        losses = -np.maximum(outputs[np.arange(len(true)), true.astype(np.int64)], _LEAST)
    return resampling.of_mean("log_loss", losses, said.weight.astype(np.float64))


def _given(values: NDArray[Any] | None) -> NDArray[Any]:
    assert values is not None, "a metric's needs are kept with the rows"
    return values


METRICS: Mapping[str, Metric] = {
    one.name: one
    for one in (
        Metric("accuracy", "accuracy", ("classes", "tokens"), (), _of_mean("accuracy")),
        Metric("balanced_accuracy", "balanced accuracy", ("classes",), ("true", "predicted"), _balanced),
        Metric("macro_f1", "macro F1", ("classes",), ("true", "predicted"), _picked("macro_f1", _classes)),
        Metric("auc", "AUC", ("classes",), ("true", "outputs"), _areas("auc", resampling.under_roc)),
        Metric(
            "pr_auc",
            "average precision",
            ("classes",),
            ("true", "outputs"),
            _areas("pr_auc", resampling.under_precision),
        ),
        Metric("log_loss", "log-loss", ("classes",), ("true", "outputs"), _log_loss, lower_is_better=True),
        Metric("rmse", "root mean squared error", ("numbers",), (), _of_mean("rmse", root=True), lower_is_better=True),
        Metric(
            "mae",
            "mean absolute error",
            ("numbers",),
            ("true", "predicted"),
            _picked("mae", _numbers),
            lower_is_better=True,
        ),
        Metric("r2", "R²", ("numbers",), ("true", "predicted"), _picked("r2", _numbers)),
    )
}


def chosen(task: Task, counts: Sequence[float] | None) -> str:
    """Return the default metric, used without ``evaluation.metric``.

    ``counts``: training rows of each class; None if they are not told.
    """
    if task == "numbers":
        return "rmse"
    if task == "tokens" or not counts or not skewed(counts):
        return "accuracy"
    return "auc" if len(counts) == 2 else "macro_f1"


def skewed(counts: Sequence[float]) -> bool:
    """Return whether the largest class holds over `SKEWED` times its even share of the rows."""
    return max(counts) * len(counts) > SKEWED * sum(counts)


def positive_class(
    asked: str | None, names: Sequence[str], counts: Sequence[float] | None, what: str = ""
) -> int | None:
    """Return the class of two that figures of one class refer to: the one asked for, else the rarer one of the training rows.

    None for other numbers of classes. ``counts``: training rows of each class; without them it is the second class.
    ConfigError if the data called ``what`` do not have the class asked for, or do not have two classes.
    """
    if asked is not None and (len(names) != 2 or asked not in names):
        known = " or ".join(f"'{name}'" for name in names) if len(names) == 2 else ""
        cure = f"use {known}" if known else "remove the key, which is for a target of two classes"
        raise ConfigError(f"evaluation.positive = '{asked}' is none of two classes of '{what}': {cure}.")
    if len(names) != 2:
        return None
    if asked is not None:
        return list(names).index(asked)
    return 0 if counts and counts[0] < counts[1] else 1


def fitting(name: str, task: Task, what: str, key: str = "evaluation.metric") -> Metric:
    """Return the metric called ``name`` that ``key`` names. ConfigError if it does not fit the task of the data called ``what``."""
    found = METRICS[name]
    if task in found.tasks:
        return found
    able = [one.name for one in METRICS.values() if task in one.tasks]
    said = {"classes": "a class", "numbers": "a number", "tokens": "a text"}[task]
    raise ConfigError(
        f"{key} = '{name}': the target of '{what}' is {said}; use {' or '.join(able)}, or remove the key."
    )
