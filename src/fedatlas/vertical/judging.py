"""Figures of the model on rows outside training. Only the active party can compute them: it has labels and margins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedatlas.algorithm import Ask, Question, RoundGenerator, State
from fedatlas.errors import ProtocolError
from fedatlas.metrics import quality, resampling
from fedatlas.metrics.intervals import bootstrap
from fedatlas.metrics.metric import METRICS, Constant, Metric, Said, chosen, constant_class, constant_number
from fedatlas.metrics.quality import Floats
from fedatlas.metrics.resampling import Weighted
from fedatlas.vertical.align import Answered
from fedatlas.vertical.forms import Exactly, Form, InOrder, ListOf, Number, OneOf
from fedatlas.vertical.letters import Due, answered
from fedatlas.vertical.parties import Columns, aligned, each, places

JUDGE = "judge"
JUDGED_ON = ("test", "held")
FIGURE = OneOf((Exactly(None), Number()))
INTERVAL = InOrder((FIGURE, FIGURE, FIGURE, Number(0, 1)))
NAMES = {
    "classes": ("accuracy", "macro_f1", "weighted_f1", "auc", "loss"),
    "numbers": ("rmse", "mae", "r2", "loss"),
}
"""Figures of each task. F1 of each class is added for classes."""
ENDS = ("balanced_accuracy", "pr_auc", "log_loss")  # figures of classes that only the intervals have
OF_TWO = ("calibration_error",)  # the same, of two classes only
Outputs = Callable[[State], Floats]
"""Function from the active party's state to (N,) log-odds of class 1, or numbers in the label's unit; for three or more classes
(N, classes) log-probabilities."""


def probabilities(margins: Floats) -> Floats:
    """Return the probabilities of class 1 from log-odds, or of all classes from log-probabilities (n, classes)."""
    if margins.ndim > 1:
        return np.asarray(np.exp(margins))
    out: Floats = np.where(margins >= 0, 1, np.exp(np.minimum(margins, 0))) / (1 + np.exp(-np.abs(margins)))
    return out


class Judged:
    """Labels, weights and outputs of some rows, in the order of their places."""

    def __init__(self, data: Columns, state: State, outputs: Floats, which: str) -> None:
        own, at = aligned(data, state), places(state, which)
        assert own.y is not None
        chosen = places(state, "train")
        train = self.train = own.y[chosen]
        self.train_weight = np.ones(len(train)) if own.weight is None else own.weight[chosen]
        self.task, self.y, self.out = data.task, own.y[at], outputs[at]
        self.weight = np.ones(len(at)) if own.weight is None else own.weight[at]
        self.unit = float(train.std()) or 1.0

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.out.shape[1] if self.out.ndim > 1 else 2

    @property
    def losses(self) -> Floats:
        """(n,) log loss, or the squared error in units of the training labels' variance."""
        if self.classes > 2:
            return np.asarray(-self.out[np.arange(len(self.y)), self.y.astype(np.int64)])
        if self.task == "classes":
            found: Floats = np.logaddexp(0.0, self.out) - self.y * self.out
            return found
        error: Floats = (self.out - self.y) / self.unit
        return error**2

    @property
    def scores(self) -> Floats:
        """(n,) scores whose mean gives the headline figure: 1 if right, else 0; or squared errors in the label unit."""
        return (self.predicted == self.y).astype(np.float64) if self.task == "classes" else (self.out - self.y) ** 2

    @property
    def predicted(self) -> Floats:
        """(n,) the class, or the number."""
        if self.classes > 2:
            return np.asarray(self.out.argmax(axis=1), np.float64)
        return (self.out > 0).astype(np.float64) if self.task == "classes" else self.out

    def figures(self) -> dict[str, Any]:
        """Return the quality fields of a row of metrics.jsonl; for classes also the area under the ROC curve.

        Of three or more classes it is the mean over classes, each against the rest.
        """
        if self.task == "numbers":
            return dict(quality.number_figures(quality.number_sums(self.out, self.y, self.losses, self.weight)))
        y = self.y.astype(np.int64)
        found = quality.class_figures(
            quality.class_sums(self.predicted.astype(np.int64), y, self.losses, self.classes, self.weight)
        )
        found.pop("per_class_accuracy")
        area = quality.auc(self.out, y, self.weight) if self.classes == 2 else METRICS["auc"].value(self.said())
        return {**found, "auc": area}

    def weighted(self) -> Weighted:
        """Return the function that computes the figures with intervals on bootstrap samples."""
        loss = resampling.of_mean("loss", self.losses, self.weight)
        if self.task == "numbers":
            root = resampling.of_mean("rmse", self.scores, self.weight, root=True)
            return resampling.together(root, resampling.of_numbers(self.out, self.y, self.weight), loss)
        y, predicted, said = self.y.astype(np.int64), self.predicted.astype(np.int64), self.said()
        scores = [METRICS[name].weighted(said) for name in ("balanced_accuracy", "pr_auc")]
        if self.classes > 2:
            scores += [METRICS[name].weighted(said) for name in ("auc", "log_loss")]
        else:
            scores.append(resampling.of_two_classes(self.out, probabilities(self.out), y, self.weight))
        return resampling.together(
            resampling.of_mean("accuracy", self.scores, self.weight),
            resampling.of_classes(predicted, y, self.classes, self.weight),
            *scores,
            loss,
        )

    def said(self) -> Said:
        """Return the model's predictions for the rows, in the form that any metric needs."""
        if self.task == "numbers":
            return Said(self.scores, self.weight, self.y, self.out)
        y, predicted = self.y.astype(np.int64), self.predicted.astype(np.int64)
        return Said(self.scores, self.weight, y, predicted, self.out)

    def by_constant(self, one: Constant) -> Said:
        """Return the predictions of a constant model for the rows."""
        said, predicted = self.said(), np.full(len(self.y), one.predicted)
        if self.task == "numbers":
            return said._replace(score=(self.y - predicted) ** 2, predicted=predicted)
        right = (self.y == predicted).astype(np.float64)
        return said._replace(
            score=right, predicted=predicted.astype(np.int64), outputs=np.full(self.out.shape, one.outputs)
        )

    def constant(self) -> Constant:
        """Return the constant model of the training rows."""
        if self.task == "numbers":
            return constant_number(self.train, self.train_weight)
        counts = np.bincount(self.train.astype(np.int64), self.train_weight, self.classes)
        return constant_class(counts.astype(np.float64))

    def metric(self, asked: str | None) -> Metric:
        """Return the metric of the experiment, or else the one that suits the training labels."""
        if self.task == "numbers":
            return METRICS[asked or chosen("numbers", None)]
        counts = np.bincount(self.train.astype(np.int64), minlength=self.classes).tolist()
        return METRICS[asked or chosen("classes", counts)]


def question(outputs: Outputs) -> Mapping[str, Question]:
    """Return the question by which a model is judged."""

    def judge(model: Any, data: Columns, message: Any, state: State, session: Any) -> Answered:
        if message["on"] not in JUDGED_ON:
            raise ProtocolError("a model is judged on rows that test or that are held out, and on no others.")
        found = Judged(data, state, outputs(state), message["on"])
        ends = drawn(found, data.seed) if message["intervals"] else {}
        return {"figures": found.figures(), "intervals": ends}, state, session

    return {JUDGE: Question(judge, shows=("figures", "intervals"), stateful=True)}


def drawn(found: Judged, seed: int) -> dict[str, Any]:
    """Return each figure with its interval on bootstrap samples of the judged rows."""
    return {k: [*one] for k, one in bootstrap(found.weighted(), len(found.y), seed, "test").items()}


def due(on: str, *, last: bool) -> Due:
    """Return which figures may be asked for. ``last``: also those of a finished model."""
    told = [{"on": on, "intervals": False}]
    told += [{"on": one, "intervals": True} for one in dict.fromkeys((on, "test"))] if last else []
    return {JUDGE: ("active", told)}


def figures_of(task: str, intervals: bool, classes: int = 2) -> Form:
    """Return the form of an answer with the figures of a task."""
    of_classes = task == "classes"
    more = (*ENDS, *(OF_TWO if classes == 2 else ())) if of_classes else ()
    ends = (*NAMES[task], *more) if intervals else ()
    by_class: Mapping[str, Form] = {"per_class_f1": ListOf(FIGURE, classes)} if of_classes else {}
    figures = {**dict.fromkeys(NAMES[task], FIGURE), **by_class}
    return {"figures": figures, "intervals": dict.fromkeys(ends, INTERVAL)}


def judged(server: State, on: str = "test", intervals: bool = False) -> RoundGenerator:
    """Add ``quality`` to the server's state: figures of the "test" or "held" out rows, and their ``intervals``."""
    active = server["active"]
    ask = Ask((active,), JUDGE, {active: {"on": on, "intervals": intervals}}, "each")
    heard = (yield from each(ask, server["names"]))[active]
    tasks = [server["task"]] if "task" in server else [*NAMES]
    form = OneOf(tuple(figures_of(task, intervals, server.get("classes", 2)) for task in tasks))
    answered(server["names"][active], JUDGE, heard, form)
    return {**server, "quality": dict(heard["figures"]), "intervals": dict(heard["intervals"])}
