"""Predictions of models for the rows they are judged on, as the run's metric needs them: kept row by row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.data.batches import Rows
from fedatlas.metrics import quality
from fedatlas.metrics.metric import Constant, Metric, Said
from fedatlas.model import Model, Scores
from fedatlas.record.judged_rows import named
from fedatlas.setup.assembly import Setup, pooled

OF_METRIC = ("true", "predicted", "outputs")  # the last fields of `Said`
NARROW = np.float32  # keeps the order of log-probabilities at both ends


def right(setup: Setup, predicted: Tensor, y: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return, per row, the share of its labels predicted correctly, and the number of labels that count.

    Ignored and uncounted labels do not count.
    """
    hit, d = (predicted == y).double(), setup.dataset
    if d.task != "tokens" and not d.uncounted:
        return hit.numpy(), np.ones(len(y))
    counted = (~torch.isin(y, torch.tensor((d.ignore, *d.uncounted)))).double()
    if d.task != "tokens":
        return hit.numpy(), counted.numpy()
    total = counted.sum(1)
    return ((hit * counted).sum(1) / total.clamp(min=1)).numpy(), total.numpy()


def scored(setup: Setup, predicted: Tensor, rows: Rows) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return, per row, the score whose weighted mean gives the headline figure, and its weight.

    The score is the share of correct answers, or the squared error.
    """
    own = np.ones(rows.n) if rows.weight is None else rows.weight.double().numpy()
    if setup.dataset.task == "numbers":
        return (setup.dataset.target_sd * (predicted - rows.y.double())).square().numpy(), own
    hit, counted = right(setup, predicted, rows.y)
    return hit, own * counted


def said_of(setup: Setup, metric: Metric, scores: Scores, rows: Rows, model: Model) -> Said:
    """Return a model's predictions for rows, with what the metric needs. ``scores``: those of the model on these rows."""
    d, outputs = setup.dataset, None
    if "outputs" in metric.needs:
        outputs = log_odds(scores, rows, model) if d.classes == 2 else log_probabilities(model.predict(rows.x))
    score, weight = scored(setup, scores.predicted, rows)
    true, predicted = (d.predictions(_plain(x)).numpy() for x in (rows.y, scores.predicted))
    return _needed(metric, Said(score, weight, true, predicted, outputs))


def said_by_constant(setup: Setup, metric: Metric, one: Constant, rows: Rows) -> Said:
    """Return the constant model's predictions for rows."""
    d, y = setup.dataset, _plain(rows.y)
    predicted = torch.full_like(y, float(d.targets(torch.tensor(one.predicted, dtype=torch.float64))))
    outputs = None if one.outputs is None else np.broadcast_to(one.outputs, (rows.n, *one.outputs.shape))
    score, weight = scored(setup, predicted, rows)
    return _needed(metric, Said(score, weight, d.predictions(y).numpy(), d.predictions(predicted).numpy(), outputs))


def log_odds(scores: Scores, rows: Rows, model: Model) -> NDArray[Any]:
    """Return (n,), the log-odds of class 1 of two."""
    margin = scores.margin if scores.margin is not None else quality.margins(model.predict(rows.x))
    return margin.double().numpy()


def log_probabilities(outputs: Tensor) -> NDArray[Any]:
    """Map raw outputs to (n, C) log-probabilities."""
    return torch.log_softmax(outputs.double(), -1).numpy().astype(NARROW)


def owners(setup: Setup) -> NDArray[np.int64] | None:
    """Return (n,) the client that owns each common row, -1 for no client; None if rows have no natural owners."""
    places = setup.partition.info.get("owners")
    if setup.partition.counted or places is None:
        return None
    if setup.config.evaluation.on == "validation":
        of = np.full(len(setup.dataset.train.y), -1)
        for k, rows in setup.validation.items():
            of[rows] = k
        return np.asarray(of[pooled(setup.validation)], np.int64)
    owner = setup.dataset.test.client
    if owner is None:
        return None
    known = np.full(max(int(owner.max()), *places) + 2, -1)  # the last place stands for -1
    known[list(places)] = np.arange(len(places))
    return np.asarray(known[owner.numpy()], np.int64)


class KeptRows:
    """Arrays of `record.judged_rows` in addition to score and weight, up to ``most`` numbers; beyond that none are kept."""

    def __init__(self, most: int) -> None:
        self.most, self.held, self.arrays = most, 0, dict[str, NDArray[Any]]()

    def add(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep arrays, each name once."""
        new = {name: x for name, x in arrays.items() if name not in self.arrays}
        self.held += sum(x.size for x in new.values())
        if self.held > self.most:
            self.arrays.clear()
        else:
            self.arrays |= new


class Lines(NamedTuple):
    """Suffixes of a model's array names, "" or "-K": of the model's predictions, and of the rows."""

    model: str
    rows: str


def kept(said: Said, lines: Lines, kind: str = "") -> dict[str, NDArray[Any]]:
    """Return a model's arrays as they are kept, with score and weight in float32 as in earlier versions."""
    narrow = said._replace(score=said.score.astype(NARROW), weight=said.weight.astype(NARROW))
    return named(narrow, *lines, kind)


def _plain(values: Tensor) -> Tensor:
    return values.double().reshape(-1) if values.is_floating_point() else values


def _needed(metric: Metric, said: Said) -> Said:
    true, predicted, outputs = (
        x if name in metric.needs else None for name, x in zip(OF_METRIC, said[2:], strict=True)
    )
    return Said(said.score, said.weight, true, predicted, outputs)
