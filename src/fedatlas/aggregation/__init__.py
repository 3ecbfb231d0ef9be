"""Aggregation of an ask's updates to one value.

`fedatlas list reducers` prints `REDUCERS`, `fedatlas list rules` prints `RULES`. `before` puts something in front of a rule.
"""

from collections.abc import Callable, Mapping

from fedatlas.aggregation.before_rule import PRE, before
from fedatlas.aggregation.reducers import Reducer, each, mean, neighbours, total
from fedatlas.aggregation.rules import RULES

__all__ = ["PRE", "REDUCERS", "RULES", "before"]

REDUCERS: Mapping[str, Callable[[], Reducer]] = {"mean": mean, "sum": total, "each": each, "neighbours": neighbours}
