"""How sure figures are that nodes' sums tell: rows of equal weight are counted in them, so accuracy has intervals without any row.

The sums say how many rows of each class a model gets right, and so on how many rows it and a constant class disagree.
"""

from __future__ import annotations

from typing import NamedTuple

from fedatlas.metrics.intervals import proportion
from fedatlas.metrics.metric import Metric
from fedatlas.metrics.quality import ClassSums, NumberSums
from fedatlas.verdict.evidence import Shares, enough, of_counts
from fedatlas.verdict.rule import ends


class SumsInterval(NamedTuple):
    """What of `metric` and of its difference from the best constant sums tell besides the figures."""

    own: dict[str, float]  # test_rows, and of accuracy low and high, by Wilson
    better_by: dict[str, float]  # value, and of accuracy low, high and error


def sure_of(
    sums: ClassSums | NumberSums,
    constant: float,
    metric: Metric,
    value: float | None,
    reached: float | None,
    *,
    alike: bool,
) -> SumsInterval:
    """Return how sure a figure is, and by how much it is better than that of a constant model, ``reached``.

    ``constant``: what that model answers. ``alike``: whether every row counts as one, so that sums are counts. Sums under masks come
    rounded, and a hostile node's may be no counts: they are taken to be the nearest counts.
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
