"""Schemes over several seeds, ranked by the figure that decides: the same for a page of several runs and for `compare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.metric import METRICS
from fedatlas.verdict.schemes import (
    SchemeCost,
    SchemeRanking,
    SeedDraws,
    SeedFigure,
    choice_text,
    chosen,
    rank,
    ranking_text,
)
from fedatlas.wording import NAMES, total_of

Summary = Mapping[str, Any]
Runs = Mapping[str, Mapping[int, Summary]]
"""Scheme -> seed -> summary.json."""
DrawsOf = Callable[[str, int], SeedDraws | None]
"""(scheme, seed) -> its figure in draws of its test rows."""
SENT = ("bytes_up", "bytes_down", "bytes_peer")
PLAINEST = "fedavg"


class Ranked(NamedTuple):
    """The ranking of schemes by one figure."""

    figure: str
    words: str
    lower_is_better: bool
    values: Mapping[str, Mapping[int, SeedFigure]]  # scheme -> seed -> the figure
    ranking: SchemeRanking
    costs: Mapping[str, SchemeCost]

    @property
    def chosen(self) -> str:
        """The scheme to take: of those not told apart from the best, the cheapest."""
        return chosen(self.ranking, self.costs)

    @property
    def text(self) -> str:
        """The ranking in sentences, and which scheme to take."""
        return " ".join(filter(None, (ranking_text(self.ranking, self.words), choice_text(self.ranking, self.costs))))


def ranked(runs: Runs, resampled: DrawsOf = lambda scheme, seed: None) -> Ranked | None:
    """Rank schemes by the figure of their answers; None without a run, or if runs are compared by different figures.

    ``resampled`` is called if all runs are judged on the same test rows, whose error is then in every difference.
    """
    known = [one for found in runs.values() for one in found.values()]
    if not known or len({_figure(one) for one in known}) > 1:
        return None
    figure = _figure(known[0])
    words = METRICS[figure].words if figure in METRICS else NAMES[figure]
    lower = figure in METRICS and METRICS[figure].lower_is_better
    answered = all("answer" in one for one in known)
    same = len(runs) > 1 and len({_judged_on(one) for one in known}) == 1
    values: dict[str, dict[int, SeedFigure]] = {}
    for name, found in runs.items():
        each = {seed: (_value(one, figure, answered), _judged_on(one)) for seed, one in found.items()}
        if any(value is not None for value, _ in each.values()):
            values[name] = {
                seed: SeedFigure(value, on, resampled(name, seed) if same else None)
                for seed, (value, on) in each.items()
                if value is not None
            }
    costs = {name: _cost([*found.values()]) for name, found in runs.items()}
    return Ranked(figure, words, lower, values, rank(values, lower_is_better=lower, drawn=_drawn(known)), costs)


def _cost(found: list[Summary]) -> SchemeCost:
    costs = [one.get("cost", {}) for one in found]
    seconds = over_seeds([one.get("seconds") for one in costs]).mean
    sent = total_of(total_of(one.get(key) for key in SENT) for one in costs)
    names = {str(one.get("algorithm", "")).lower() for one in found}
    return SchemeCost(None if sent is None else sent / len(found), seconds or 0.0, names == {PLAINEST})


def _figure(summary: Summary) -> str:
    usual = "rmse" if summary["task"] == "numbers" else "accuracy"
    return str(summary.get("metric", {}).get("name", usual))


def _value(summary: Summary, figure: str, answered: bool) -> float | None:
    """Return a run's figure: on test rows that no choice has used, if it has such; else that of its answer."""
    found: Any
    if "test" in summary:
        found = summary["test"].get("metric", {}).get("value", summary["test"].get(figure))
    elif answered:
        found = summary["answer"]["together"]
    else:
        found = summary.get("metric", {}).get("value", summary["final"].get(figure))
    return None if found is None else float(found)


def _judged_on(summary: Summary) -> str:
    """Return the fingerprint of the rows whose figure `_value` is."""
    return str(summary.get("test", {}).get("judged_on", summary.get("judged_on")))


def _drawn(known: list[Summary]) -> float:
    """Return test rows per training row if seeds draw their test rows, for the correction of Nadeau and Bengio; else 0."""
    first = known[0].get("answer")
    if first is None or len({_judged_on(one) for one in known}) == 1 or not first["train_rows"]:
        return 0.0
    rows = known[0].get("test", {}).get("metric", {}).get("test_rows", first["test_rows"])
    return float(rows / first["train_rows"])
