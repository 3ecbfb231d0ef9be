"""The run's metric of finished models: of each client's, on the rows it is judged on and on its own, and over all clients.

Scores of different models are never put together: where clients use different models, the figure is the mean over them,
weighted by their test rows (C14), and those for which it is undefined are left out and counted. Intervals of models that
are judged on the same rows come from the same draws of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedatlas.course.metric_rows import KeptRows, Lines, kept, owners
from fedatlas.metrics.intervals import drawings, interval, usual_draws
from fedatlas.metrics.metric import Metric, Said
from fedatlas.metrics.quality import Floats
from fedatlas.record.judged_rows import OWNER, TRIVIAL
from fedatlas.setup.assembly import Setup

ENDS = ("value", "low", "high")
COMMON = Lines("", "")
NONE: Mapping[str, float | None] = dict.fromkeys(ENDS)
TOGETHER = 5_000_000  # largest number of rows times models whose intervals are computed together
OF_OWNERS = 1_000  # rows that count for each owner in the number of draws: fewer draws for many owners


class Resampled(NamedTuple):
    """A figure, its values over the draws of the rows (draws,), and how many rows count."""

    value: float | None
    values: Floats
    rows: int

    def ends(self) -> dict[str, float | None]:
        """Return {value, low, high}."""
        found = interval(np.nan if self.value is None else self.value, self.values)
        return dict(zip(ENDS, (found.estimate, found.low, found.high), strict=True))


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
    return {k: Resampled(metric.value(one), np.concatenate(found[k]), one.rows) for k, one in said.items()}


def mean_of(each: Mapping[int, Resampled]) -> tuple[Resampled, int]:
    """Return the mean over clients, weighted by their test rows, and how many clients have no figure and are left out."""
    known = [one for one in each.values() if one.value is not None and one.rows]
    left_out = len(each) - len(known)
    if not known:
        return Resampled(None, np.empty(0), 0), left_out
    rows = np.array([one.rows for one in known], dtype=np.float64)
    value = float(np.array([one.value for one in known]) @ rows / rows.sum())
    draws = min(len(one.values) for one in known)
    table = np.stack([one.values[:draws] for one in known])
    there = np.isfinite(table)
    weight = there * rows[:, None]
    total = weight.sum(0)
    sums = (np.where(there, table, 0.0) * weight).sum(0)
    return Resampled(
        value, np.divide(sums, total, out=np.full(draws, np.nan), where=total > 0), int(rows.sum())
    ), left_out


class ByMetric:
    """The figures of the clients' final models by the run's metric, and the arrays that are kept of them."""

    def __init__(self, setup: Setup, metric: Metric, intervals: bool, most: int) -> None:
        self.setup, self.metric, self.intervals = setup, metric, intervals
        self.kept, self.owner = KeptRows(most), owners(setup)
        self.labels = setup.dataset.train.y[:1].numel() or 1  # of a row
        self.judged: dict[int, Resampled] = {}
        self.own: dict[int, Resampled] = {}
        self.constant: dict[int, Resampled] = {}
        self._waiting: dict[int, Said] = {}
        if self.owner is not None:
            self.kept.add({OWNER: self.owner})

    def common(self, client: int, said: Said, constant: Said) -> None:
        """Add a client that is judged on the common rows by a model of its own."""
        self.kept.add({**kept(said, Lines(f"-{client}", "")), **kept(constant, COMMON, TRIVIAL)})
        self._waiting[client] = said
        if len(self._waiting) * len(said.weight) > TOGETHER:
            self._end_waiting()
        self.own |= self._own(client, said)

    def shared(self, client: int, said: Said) -> None:
        """Add a client that is judged on the common rows by the model that all share."""
        self.own |= self._own(client, said)

    def held(self, client: int, said: Said, constant: Said) -> None:
        """Add a client that is judged on rows that it held out: its own."""
        one = Lines(f"-{client}", f"-{client}")
        self.kept.add({**kept(said, one), **kept(constant, one, TRIVIAL)})
        found = self._drawn({0: said, 1: constant}, ("client", client))
        self.judged[client] = self.own[client] = found[0]
        self.constant[client] = found[1]

    def end(self, said: Said | None, constant: Said, trained: Collection[int]) -> dict[str, Any]:
        """Return the summary's ``metric`` and ``trivial``. ``said``: of the model that all share; ``constant``: on the common rows.

        ``trained``: the clients whose models have learnt something.
        """
        self._end_waiting()
        if said is not None:
            self.kept.add({**kept(said, COMMON), **kept(constant, COMMON, TRIVIAL)})
            one, other = self._drawn({0: said, 1: constant}, ("test",)).values()
            self.judged = dict.fromkeys(self.setup.sizes, one) | self.judged
            return self._told(one, other, {})
        if any(k not in self.constant for k in self.judged):
            same = self._drawn({0: constant}, ("clients",))[0]
            self.constant = dict.fromkeys(self.judged, same) | self.constant
        (one, left_out), (other, _) = (mean_of({k: x[k] for k in trained}) for x in (self.judged, self.constant))
        return self._told(one, other, {"models": len(trained), "left_out": left_out})

    def _told(self, one: Resampled, other: Resampled, more: Mapping[str, int]) -> dict[str, Any]:
        metric, own = self.metric, mean_of(self.own)
        sign = -1.0 if metric.lower_is_better else 1.0
        draws = min(len(one.values), len(other.values))
        known = one.value is not None and other.value is not None
        better = Resampled(
            sign * (one.value - other.value) if known else None,
            sign * (one.values[:draws] - other.values[:draws]),
            one.rows,
        )  # type: ignore[operator]
        asked = self.setup.config.evaluation.metric is not None
        return {
            "metric": {
                "name": metric.name,
                "asked": asked,
                **one.ends(),
                "test_rows": one.rows,
                **more,
                "own": {**own[0].ends(), "test_rows": own[0].rows, "clients": len(self.own), "left_out": own[1]}
                if self.own
                else None,
            },
            "trivial": {**other.ends(), "better_by": better.ends()},
        }

    def entry(self, client: int, *, learnt: bool) -> dict[str, Any]:
        """Return the fields of a client in `per_client`. ``learnt``: whether its figure says anything about the method."""
        found = self.own.get(client)
        own = None if found is None else {"test_rows": found.rows, **(found.ends() if learnt else NONE)}
        return {"metric": self.judged[client].ends() if learnt else dict(NONE), "own": own}

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
        one, models = next(iter(said.values())), max(len(said) - 1, 1) if self.metric.needs else 1
        draws = self._draws(one, len(one.weight) * self.labels * models)
        return drawn_of(self.metric, said, self.setup.seed, key, draws)

    def _draws(self, said: Said, labels: int) -> int:
        return usual_draws(labels) if self.intervals and said.rows > 1 else 0
