"""Intervals of figures that are made of the nodes' sums.

Accuracy has intervals without any row if all rows weigh the same, because the sums then are counts. They give the
number of rows of each class that a model gets right, and so on how many rows the model and a constant class disagree.
"""

from __future__ import annotations

from typing import NamedTuple

from fedatlas.metrics.intervals import proportion
from fedatlas.metrics.metric import Metric
from fedatlas.metrics.quality import ClassSums, NumberSums
from fedatlas.verdict.evidence import Shares, enough, of_counts
from fedatlas.verdict.rule import ends


class SumsInterval(NamedTuple):
    """Interval of `metric`, and its difference from the best constant, as far as sums tell them."""

    own: dict[str, float]  # test_rows; for accuracy also low and high, by Wilson
    better_by: dict[str, float]  # value; for accuracy also low, high and error


def sure_of(
    sums: ClassSums | NumberSums,
    constant: float,
    metric: Metric,
    value: float | None,
    reached: float | None,
    *,
    alike: bool,
) -> SumsInterval:
    """Return the interval of a figure, and its difference from the figure ``reached`` by a constant model.

    ``constant``: the answer of that model. ``alike``: whether every row counts as one, so that sums are counts. Masked
    sums are rounded, and those of a hostile node may not be counts. The nearest counts are used.
    """
    own, better = dict[str, float](), dict[str, float]()
    if value is not None and reached is not None:
        better["value"] = reached - value if metric.lower_is_better else value - reached
    rows = round(sums.weight)
    if not alike:
        return SumsInterval(own, better)
    own["test_rows"] = rows
    if metric.name == "accuracy" and isinstance(sums, ClassSums) and enough(rows):
        c = int(constant)
        counts = (min(round(float(x)), rows) for x in (sums.hits.sum(), sums.true[c], sums.hits[c]))
        hits, held, both = counts
        own["low"], own["high"] = proportion(hits, rows)
        found = ends(of_counts(Shares(rows, max(hits - both, 0), max(held - both, 0))))
        better |= {} if found is None else found._asdict()
    return SumsInterval(own, better)
