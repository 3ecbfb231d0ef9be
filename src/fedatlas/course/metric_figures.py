"""The run's metric of finished models: per client, on its judged rows and on its own rows, and over all clients.

Scores of different models are never pooled. If clients use different models, the figure is the mean over them, weighted by their test
rows (C14). Models with an undefined figure are left out and counted. Intervals of models that are judged on the same rows come from
the same draws of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedatlas.course.metric_rows import KeptRows, Lines, kept, owners
from fedatlas.metrics.intervals import drawings, interval, usual_draws
from fedatlas.metrics.metric import METRICS, Metric, Said
from fedatlas.metrics.quality import Floats, over
from fedatlas.record.judged_rows import OWNER, TRIVIAL
from fedatlas.setup.assembly import Setup
from fedatlas.setup.trivial import positive_of

COMMON = Lines("", "")
NONE: Mapping[str, float | None] = dict.fromkeys(("value", "low", "high"))
TOGETHER = 5_000_000  # largest number of rows times models whose intervals are computed together
OF_OWNERS = 1_000  # rows per owner that count towards the number of draws: many owners get fewer draws


class Resampled(NamedTuple):
    """A figure, its values over the draws of the rows (draws,), and the number of counted rows."""

    value: float | None
    values: Floats
    rows: int
    log_loss: float | None = None  # reported when an area is undefined, as for rows of only one class

    def ends(self) -> dict[str, float | None]:
        """Return {value, low, high}, and ``log_loss`` if there is one."""
        found = interval(np.nan if self.value is None else self.value, self.values)
        beside = {} if self.log_loss is None else {"log_loss": self.log_loss}
        return {"value": found.estimate, "low": found.low, "high": found.high, **beside}

    def better_than(self, other: Resampled, metric: Metric) -> Resampled:
        """Return how much better this figure is than another one from the same draws; positive is better."""
        sign, draws = -1.0 if metric.lower_is_better else 1.0, min(len(self.values), len(other.values))
        value = None if self.value is None or other.value is None else sign * (self.value - other.value)
        return Resampled(value, sign * (self.values[:draws] - other.values[:draws]), self.rows)


def drawn_of(
    metric: Metric, said: Mapping[int, Said], seed: int, key: tuple[int | str, ...], draws: int
) -> dict[int, Resampled]:
    """Return the figures of several models on the same rows, all from the same draws."""
    if not said:
        return {}
    figures = {k: metric.weighted(one) for k, one in said.items()}
    found: dict[int, list[Floats]] = {k: [np.empty(0)] for k in said}
    rows = len(next(iter(said.values())).weight)
    for counts in drawings(rows, seed, *key, draws=draws) if rows > 1 else ():
        for k, each in figures.items():
            found[k].append(each(counts)[metric.name])
    return {k: _resampled(metric, one, np.concatenate(found[k])) for k, one in said.items()}


def _resampled(metric: Metric, said: Said, values: Floats) -> Resampled:
    value = metric.value(said)
    beside = METRICS["log_loss"].value(said) if value is None and said.outputs is not None else None
    return Resampled(value, values, said.rows, beside)


def mean_of(each: Mapping[int, Resampled]) -> tuple[Resampled, int]:
    """Return the mean over clients, weighted by their test rows, and the number of clients left out for lack of a figure."""
    known = [one for one in each.values() if one.value is not None and one.rows]
    left_out = len(each) - len(known)
    if not known:
        return Resampled(None, np.empty(0), 0), left_out
    rows = np.array([one.rows for one in known], dtype=np.float64)
    value = float(np.array([one.value for one in known]) @ rows / rows.sum())
    draws = min(len(one.values) for one in known)
    table = np.stack([one.values[:draws] for one in known])
    weight = np.isfinite(table) * rows[:, None]  # a draw leaves out a client without a figure
    means = over((np.where(weight > 0, table, 0.0) * weight).sum(0), weight.sum(0))
    return Resampled(value, means, int(rows.sum())), left_out


class ByMetric:
    """The figures of the clients' final models by the run's metric, and the arrays kept of them."""

    def __init__(self, setup: Setup, metric: Metric, intervals: bool, most: int) -> None:
        self.setup, self.metric, self.intervals = setup, metric, intervals
        self.kept, self.owner = KeptRows(most), owners(setup)
        self.labels = setup.dataset.train.y[:1].numel() or 1  # labels per row
        self.held_by: set[int] = set()  # clients judged on rows they held out
        self.judged: dict[int, Resampled] = {}
        self.own: dict[int, Resampled] = {}
        self.constant: dict[int, Resampled] = {}
        self._waiting: dict[int, Said] = {}
        if self.owner is not None:
            self.kept.add({OWNER: self.owner})

    def common(self, client: int, said: Said, constant: Said) -> None:
        """Add a client that is judged on the common rows by its own model."""
        self.kept.add({**kept(said, Lines(f"-{client}", "")), **kept(constant, COMMON, TRIVIAL)})
        self._waiting[client] = said
        if len(self._waiting) * len(said.weight) > TOGETHER:
            self._end_waiting()
        self.own |= self._own(client, said)

    def shared(self, client: int, said: Said) -> None:
        """Add a client that is judged on the common rows by the shared model."""
        self.own |= self._own(client, said)

    def held(self, client: int, said: Said, constant: Said) -> None:
        """Add a client that is judged on the rows it held out."""
        one = Lines(f"-{client}", f"-{client}")
        self.kept.add({**kept(said, one), **kept(constant, one, TRIVIAL)})
        found = self._drawn({0: said, 1: constant}, ("client", client))
        self.held_by.add(client)
        self.judged[client] = self.own[client] = found[0]
        self.constant[client] = found[1]

    def end(self, said: Said | None, constant: Said, trained: Collection[int]) -> dict[str, Any]:
        """Return the summary's ``metric`` and ``trivial``. ``said``: of the shared model; ``constant``: on the common rows.

        ``trained``: the clients whose models have learnt something.
        """
        self._end_waiting()
        common = len(constant.weight) if len(self.held_by) < len(self.setup.sizes) else 0
        if said is not None:
            self.kept.add({**kept(said, COMMON), **kept(constant, COMMON, TRIVIAL)})
            one, other = self._drawn({0: said, 1: constant}, ("test",)).values()
            self.judged = dict.fromkeys(self.setup.sizes, one) | self.judged
            return self._told(one, other, self.own, {"test_rows": one.rows})
        if common:
            same = self._drawn({0: constant}, ("clients",))[0]
            self.constant = dict.fromkeys(self.judged, same) | self.constant
        (one, left_out), (other, _) = (mean_of({k: x[k] for k in trained}) for x in (self.judged, self.constant))
        rows = common + sum(self.judged[k].rows for k in self.held_by)
        own = {k: x for k, x in self.own.items() if k in trained}
        return self._told(one, other, own, {"test_rows": rows, "models": len(trained), "left_out": left_out})

    def _told(
        self, one: Resampled, other: Resampled, own: Mapping[int, Resampled], more: Mapping[str, int]
    ) -> dict[str, Any]:
        asked, mean = self.setup.config.evaluation.metric is not None, None
        if own:
            found, left_out = mean_of(own)
            mean = {**found.ends(), "test_rows": found.rows, "clients": len(own), "left_out": left_out}
        better = one.better_than(other, self.metric).ends()
        return {
            "metric": {"name": self.metric.name, "asked": asked, **self._positive(), **one.ends(), **more, "own": mean},
            "trivial": {**other.ends(), "better_by": better},
        }

    def _positive(self) -> dict[str, str]:
        c = positive_of(self.setup)
        return {} if c is None else {"positive": self.setup.dataset.class_names[c]}

    def mean(self, said: Mapping[int, Said]) -> dict[str, Any]:
        """Return the metric of models on the same rows. For several models, the mean and the number left out."""
        found, left_out = mean_of(self._drawn(said, ("test",)))
        several = {"models": len(said), "left_out": left_out} if len(said) > 1 else {}
        rows = max(one.rows for one in said.values())
        return {"name": self.metric.name, **found.ends(), "test_rows": rows, **several}

    def entry(self, client: int, headline: Mapping[str, Any], *, learnt: bool) -> dict[str, Any]:
        """Return the fields of a client in `per_client`. ``learnt``: whether its figure says anything about the method.

        ``headline``: its {value, low, high} by accuracy or squared error. The metric uses these if it is made of the same scores.
        """
        found = self.own.get(client)
        own = None if found is None else {"test_rows": found.rows, **(found.ends() if learnt else NONE)}
        ends = self.judged[client].ends() if self.metric.needs else {key: headline[key] for key in NONE}
        return {"metric": ends if learnt else dict(NONE), "own": own}

    def _own(self, client: int, said: Said) -> dict[int, Resampled]:
        if self.owner is None:
            return {}
        mine = said.at(self.owner == client)
        draws = self._draws(mine, max(len(mine.weight), OF_OWNERS * len(self.setup.sizes)))
        return drawn_of(self.metric, {client: mine}, self.setup.seed, ("own", client), draws)

    def _end_waiting(self) -> None:
        self.judged |= self._drawn(self._waiting, ("clients",))
        self._waiting = {}

    def _drawn(self, said: Mapping[int, Said], key: tuple[int | str, ...]) -> dict[int, Resampled]:
        if not said:
            return {}
        one, models = next(iter(said.values())), max(len(said) - 1, 1)
        draws = self._draws(one, len(one.weight) * self.labels * models)
        return drawn_of(self.metric, said, self.setup.seed, key, draws)

    def _draws(self, said: Said, labels: int) -> int:
        return usual_draws(labels) if self.intervals and said.rows > 1 else 0
