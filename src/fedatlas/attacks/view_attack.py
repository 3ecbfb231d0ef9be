"""The record of an attack on a view (`ViewAttack`), and the arguments of its functions.

Such an attack only observes. It runs after the run, in a process without data: its `answer` is a function of a
`Knowledge`. Another process, which has the data, scores that answer: `score` is a function of the `Truth`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit
from torch import Tensor, nn

from fedatlas.attacks.declaration import Declaration
from fedatlas.attacks.roles import ATTACKERS, ViewRole
from fedatlas.data.batches import Rows
from fedatlas.metrics.intervals import Interval
from fedatlas.metrics.quality import Floats
from fedatlas.tree import Tree

Arrays = Mapping[str, np.ndarray]
Files = Mapping[str, Arrays]
"""File name -> its arrays."""


SHADOWS = "shadows"
"""The folder of an attack's finished shadow models."""


class ViewGradients(NamedTuple):
    """The gradients that a view reveals of the first round, and the model at which the first step took them (`local_steps`)."""

    clients: tuple[int, ...]  # the client of each; a mean of all clients is one entry, -1
    gradients: Tree  # (T, ...)
    params: Tree
    buffers: Tree


class Knowledge(NamedTuple):
    """Everything the attacker's process can access."""

    seed: int
    config: Any  # the experiment
    loss: Any  # `models.Loss`
    classes: int
    network: Callable[[int], nn.Module]  # seed -> the run's network, untrained, in evaluation
    box: Callable[
        [], tuple[Tensor, Tensor]
    ]  # black and white as the network reads them; ConfigError unless rows are pictures
    gradients: Callable[[int], ViewGradients]  # those of at most this many clients; 0 = all
    model: Callable[[], Mapping[str, Tensor]]  # the newest global model that the role knows
    arrays: Callable[[str], Arrays]  # one of `ViewAttack.files`
    told: Mapping[str, Any]  # output of `ViewAttack.tells`
    shape: tuple[int, ...]  # of a row as the network reads it; () for words
    models: Callable[
        [int], Iterator[tuple[int, Mapping[str, Tensor]]]
    ]  # (round, model that the role was sent first in it) of at most this many rounds, spread evenly; 0 = all
    keep: Callable[[str, Arrays], None]  # write a file that `arrays` reads; under `SHADOWS`, also in a later attack
    rounds: Callable[[int], Iterable[tuple[int, ViewGradients]]]  # gradients of each round up to this one; 0 = the end
    inputs: tuple[str, ...] = ()  # names of a table's model inputs


class Truth(NamedTuple):
    """Everything that only a holder of the data can access."""

    seed: int
    classes: int
    sizes: Mapping[int, int]  # client -> rows it trains on
    kept_sizes: Mapping[int, int]  # client -> rows it holds out
    rows: Callable[[int], Rows]  # rows that a client trains on
    kept: Callable[[int], Rows]  # rows that it holds out
    test: Callable[[Tensor], Tensor]  # class -> its test rows
    box: Callable[[], tuple[Tensor, Tensor]]
    worked: Mapping[int, Sequence[int]] = {}  # round -> the clients that worked in it, where the run tells
    inputs: tuple[str, ...] = ()  # names of a table's model inputs

    @property
    def trained(self) -> Sequence[int]:
        """The clients of the first round; all that hold rows where the run does not tell."""
        return self.worked.get(1) or [k for k, n in self.sizes.items() if n]


class Score(NamedTuple):
    """The figures of an answer."""

    metrics: Mapping[str, Mapping[str, float | None]]  # name -> `value low high placebo`
    leaks: Mapping[str, Mapping[str, float | None]]  # name -> `value low high` above the placebo, see `is_leak`
    targets: int
    arrays: Arrays  # for the report
    notes: Sequence[str] = ()  # sentences about the figures, for the record


class Picture(NamedTuple):
    """A picture of the report, with the rows of its table. ``draw`` names its kind: "pairs", "curve" or "dots"."""

    draw: str
    id: str
    title: str
    label: str  # text alternative
    how: str  # how to read it
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    names: tuple[str, str]  # "pairs": of the upper and the lower row; "curve", "dots": titles of the axes
    values: Sequence[
        tuple[Any, ...]
    ]  # "pairs": (above, below, text); "curve": points (x, y); "dots": (place, series, y, low, high)


class ViewAttack(NamedTuple):
    """An attack on a view, with the checked keys of its table (``keys``)."""

    name: str
    kind: str  # its family, as attack.json names it
    role: ViewRole  # the role whose view it uses
    keys: Mapping[str, Any]
    declares: Declaration
    answer: Callable[[Knowledge], Arrays]
    score: Callable[[Truth, Arrays], Score]
    figures: Mapping[str, str]  # metric -> its readable name
    leak: str  # the metric whose leak decides the verdict
    pictures: Callable[[Arrays], Sequence[Picture]]
    thing: str = "target"  # unit of `Score.targets`
    roles: tuple[str, ...] = ATTACKERS  # kinds of role that can carry it out
    rounds: tuple[int, int] | None = (
        0,
        0,
    )  # of the view, from and to, 0 = the set-up, the end; None: needs only the final model
    refuses: Callable[[Any], str] = lambda config: (
        ""
    )  # the experiment -> why the attack would be meaningless; "" if it is not
    refuses_run: Callable[[Any, Sequence[int]], str] = lambda config, rows: (
        ""
    )  # the same for a run: rows of each client
    files: tuple[str, ...] = ()  # drawn for the attacker before round 1
    draws: Callable[[Truth], Files] = lambda truth: {}  # these files
    undrawn: str = ""  # advice if one is missing
    late: str = (
        ""  # if one is missing it can be drawn afterwards, and an audit does not do so by itself for this reason
    )
    tells: Callable[[Truth], Mapping[str, Any]] | None = None  # further knowledge, named in the declaration
    single: bool = False  # judges the updates of single clients, which a sum hides
    sized: bool = False  # told how many rows each client trains on
    shadows: bool = (
        False  # told how many rows each client trains on, and what it makes of shadow models is kept with the run
    )
    beside: ViewRole | None = None  # a role that colludes: its view is given to the attacker, too

    @property
    def views(self) -> tuple[ViewRole, ...]:
        """The roles whose views the attacker is given."""
        return (self.role,) if self.beside is None else (self.role, self.beside)


def measured(value: Interval, placebo: float | None) -> dict[str, float | None]:
    """Return a metric of a `Score`."""
    return {"value": value.estimate, "low": value.low, "high": value.high, "placebo": placebo}


def leak_of(figure: Floats, placebo: Floats) -> dict[str, float | None]:
    """Return the leak over targets: the mean of ``figure`` minus ``placebo`` (T,), its standard error, and the 95% interval of Student's t.

    A bootstrap of few targets would be too narrow. A single target has no interval.
    """
    gain, many = figure - placebo, len(figure)
    value, error, half = float(gain.mean()), None, None
    if many > 1:
        error = float(gain.std(ddof=1)) / math.sqrt(many)
        half = float(stdtrit(many - 1, 0.975)) * error
    low, high = (None, None) if half is None else (value - half, value + half)
    return {"value": value, "low": low, "high": high, "error": error}


def is_leak(found: Mapping[str, float | None]) -> bool:
    """Return whether a leak may be claimed: its interval lies above 0, and its value ``beyond`` what the placebo does by chance."""
    value, low = found.get("value"), found.get("low")
    return value is not None and low is not None and low > 0 and value > (found.get("beyond") or 0.0)
