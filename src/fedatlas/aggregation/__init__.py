"""Aggregation of an ask's updates to one value. `fedatlas list reducers` prints `REDUCERS`, `fedatlas list rules` prints `RULES`."""

from collections.abc import Callable, Mapping

from fedatlas.aggregation.reducers import Reducer, each, mean, neighbours, total
from fedatlas.aggregation.rules import RULES

__all__ = ["REDUCERS", "RULES"]

REDUCERS: Mapping[str, Callable[[], Reducer]] = {"mean": mean, "sum": total, "each": each, "neighbours": neighbours}
