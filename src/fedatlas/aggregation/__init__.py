"""How the updates of an ask become one value. `fedatlas list reducers` prints this table."""

from collections.abc import Callable, Mapping

from fedatlas.aggregation.reducers import Reducer, each, mean, neighbours, total

REDUCERS: Mapping[str, Callable[[], Reducer]] = {"mean": mean, "sum": total, "each": each, "neighbours": neighbours}
