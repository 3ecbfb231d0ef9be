"""The metric of a run, and the constant model with which every other model is compared.

In a simulation both come from the clients' training rows. In a deployment the server knows the rows of each class only
if it was told before round 1 (`Holdings.class_counts`). Otherwise the metric is the default one, and the constant is
the best one on the test rows, with a note. Neither asks a party anything, and nothing enters the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.batches import Rows
from fedatlas.metrics.metric import Constant, Metric, chosen, constant_class, constant_number, fitting, positive_class
from fedatlas.metrics.quality import Floats
from fedatlas.setup.assembly import Setup
from fedatlas.setup.party_rows import PartyRows


class Trivial(NamedTuple):
    """The constant model of a run."""

    constant: Constant
    source: str  # the rows for which it is the best: "training rows" or "test rows"


def metric_of(setup: Setup) -> Metric:
    """Return the metric that the experiment asks for, else the one that suits its data. ConfigError if it does not fit."""
    d, asked = setup.dataset, setup.config.evaluation.metric
    return fitting(asked or chosen(d.task, class_rows(setup)), d.task, d.name).of_class(positive_of(setup))


def positive_of(setup: Setup) -> int | None:
    """Return the class of two that figures of one class refer to; None for other targets."""
    d = setup.dataset
    return positive_class(
        setup.config.evaluation.positive, d.class_names if d.task == "classes" else (), class_rows(setup), d.name
    )


def class_rows(setup: Setup) -> list[float] | None:
    """Return the number of training rows of each class; None without classes, or if the server was not told."""
    if setup.dataset.task != "classes":
        return None
    if not setup.partition.counted:
        return [*map(float, _weights(setup.rows.targets()[0], None, setup.dataset.classes))]
    told = setup.held.class_counts
    return None if told is None else told.tolist()


def trivial_of(setup: Setup, judged: Rows, rows: PartyRows) -> Trivial:
    """Return the constant model: the most frequent class or label, or the mean.

    ``judged``: the test rows; ``rows``: the source of the clients' rows, which ``[drift]`` changes.
    """
    d, told = setup.dataset, class_rows(setup) if setup.partition.counted else None
    if told is not None:
        return Trivial(constant_class(np.array(told)), "training rows")
    if setup.partition.counted:
        (y, weight), source = (
            (d.predictions(judged.y.double()) if d.task == "numbers" else judged.y, judged.weight),
            "test rows",
        )
    else:
        (y, weight), source = rows.targets(), "training rows"
    if d.task != "numbers":
        skip = (d.ignore, *d.uncounted) if d.task == "tokens" else d.uncounted
        return Trivial(constant_class(_weights(y, weight, d.classes, skip)), source)
    w = None if weight is None else weight.double().numpy()
    return Trivial(constant_number(y.double().reshape(-1).numpy(), w), source)


def _weights(y: Tensor, weight: Tensor | None, classes: int, skip: tuple[int, ...] = ()) -> Floats:
    """Return the weight of each class, (C,); labels of a text count as often as its row."""
    kept = ~torch.isin(y, torch.tensor(skip)) if skip else torch.ones_like(y, dtype=torch.bool)
    w = torch.ones(len(y), dtype=torch.float64) if weight is None else weight.double()
    each = w.reshape(-1, *[1] * (y.dim() - 1)).expand_as(y)[kept]
    return np.bincount(y[kept].numpy(), each.numpy(), classes).astype(np.float64)
