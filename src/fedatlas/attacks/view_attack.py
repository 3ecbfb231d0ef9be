"""The record of an attack on a view (`ViewAttack`), and the values that its functions are called with.

Such an attack observes and changes nothing. It runs after the run, in a process that holds no data: its `answer` is a function of a
`Knowledge`. Another process, which has the data, scores that answer: `score` is a function of the `Truth`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.roles import KINDS, ViewRole
from fedatlas.data.batches import Rows
from fedatlas.metrics.intervals import Interval
from fedatlas.tree import Tree

Arrays = Mapping[str, np.ndarray]
Files = Mapping[str, Arrays]
"""File name -> its arrays."""


class ViewGradients(NamedTuple):
    """The gradients that a view shows of the first round, and the model that they were taken at."""

    clients: tuple[int, ...]  # whose each is; a mean of all clients is one entry, -1
    gradients: Tree  # (T, ...)
    params: Tree
    buffers: Tree


class Knowledge(NamedTuple):
    """Everything the attacker's process can look up."""

    seed: int
    config: Any  # the experiment
    loss: Any  # `models.Loss`
    classes: int
    network: Callable[[int], nn.Module]  # seed -> the run's network, untrained, in evaluation
    box: Callable[
        [], tuple[Tensor, Tensor]
    ]  # black and white as the network reads them; ConfigError unless rows are pictures
    gradients: Callable[[int], ViewGradients]  # those of at most so many clients; 0 = all
    model: Callable[[], Mapping[str, Tensor]]  # the newest global model that the role knows
    arrays: Callable[[str], Arrays]  # one of `ViewAttack.files`
    told: Mapping[str, Any]  # what `ViewAttack.tells` gave


class Truth(NamedTuple):
    """Everything that only a holder of the data can look up."""

    seed: int
    classes: int
    sizes: Mapping[int, int]  # client -> rows that it trains on
    kept_sizes: Mapping[int, int]  # client -> rows that it holds out
    rows: Callable[[int], Rows]  # those that a client trains on
    kept: Callable[[int], Rows]  # those that it holds out
    test: Callable[[Tensor], Tensor]  # class -> the test rows of it
    box: Callable[[], tuple[Tensor, Tensor]]
    trained: Sequence[int] = ()  # clients of the first round


class Score(NamedTuple):
    """The figures of an answer."""

    metrics: Mapping[str, Mapping[str, float | None]]  # name -> `value low high placebo`
    leaks: Mapping[str, Mapping[str, float | None]]  # name -> `value low high` above the placebo
    targets: int
    arrays: Arrays  # for the report


class Picture(NamedTuple):
    """A picture of the report, with the rows of its table. ``draw`` names how it is drawn: "pairs" or "curve"."""

    draw: str
    id: str
    title: str
    label: str  # for those who do not see it
    how: str  # how to read it
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    names: tuple[str, str]  # "pairs": of the upper and the lower row; "curve": titles of the axes
    values: Sequence[tuple[Any, ...]]  # "pairs": (above, below, text); "curve": points (x, y)


class ViewAttack(NamedTuple):
    """An attack on a view, with the keys of its table (``keys``, checked)."""

    name: str
    kind: str  # its family, as attack.json names it
    role: ViewRole  # whose view it looks at
    keys: Mapping[str, Any]
    declares: Declaration
    answer: Callable[[Knowledge], Arrays]
    score: Callable[[Truth, Arrays], Score]
    figures: Mapping[str, str]  # metric -> what people call it
    leak: str  # the metric whose leak decides the verdict
    pictures: Callable[[Arrays], Sequence[Picture]]
    thing: str = "target"  # what `Score.targets` counts
    roles: tuple[str, ...] = KINDS  # the kinds of role that can carry it out
    rounds: tuple[int, int] | None = (
        0,
        0,
    )  # of the view, from and to, 0 = the set-up, the end; None: it needs the final model only
    refuses: Callable[[Any], str] = lambda config: (
        ""
    )  # the experiment -> why the attack could say nothing; "" where it can
    refuses_run: Callable[[Any, Sequence[int]], str] = lambda config, rows: ""  # the same of a run: rows of each client
    files: tuple[str, ...] = ()  # drawn for the attacker before round 1
    draws: Callable[[Truth], Files] = lambda truth: {}  # these files
    undrawn: str = ""  # what to do where one is missing
    tells: Callable[[Truth], Mapping[str, Any]] | None = None  # further knowledge, which the declaration names


def measured(value: Interval, placebo: float | None) -> dict[str, float | None]:
    """A metric of a `Score`."""
    return {"value": value.estimate, "low": value.low, "high": value.high, "placebo": placebo}
