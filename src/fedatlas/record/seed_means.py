"""Details of a run's summary besides figures, as means over several seeds: classes, clients, gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.metrics.intervals import over_seeds

DETAIL = (
    "per_class_f1",
    "per_class_accuracy",
    "confusion",
    "two_class",
    "word_accuracy",
    "client_accuracy",
    "client_rmse",
)
OF_ONE = ("low", "high", "reliability", "interval")
"""Keys that are None over seeds, because intervals over test rows, and bins, belong to one seed."""

BY_METRIC = ("metric", "own")
"""Keys of figures by the run's metric, which have no mean if the seeds have different metrics."""


def detail_over(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return ``final`` by class and client, ``gain`` and ``per_client`` as means over the seeds, as far as all have them.

    Single clients are included only if they are the same natural owners. Otherwise client k differs between seeds.
    """
    finals = [one["final"] for one in summaries]
    out: dict[str, Any] = {
        "final": {
            key: mean_of([f[key] for f in finals]) for key in DETAIL if all(f.get(key) is not None for f in finals)
        }
    }
    names = [[row.get("name") for row in one.get("per_client") or ()] for one in summaries]
    same = all(one.get("partition") == "natural" for one in summaries) and all(each == names[0] for each in names)
    alike = len({(one.get("metric") or {}).get("name") for one in summaries}) == 1
    left = (*(() if same else ("clients",)), *(() if alike else BY_METRIC))
    if all(one.get("gain") for one in summaries):
        out["gain"] = mean_of([without(one["gain"], left) for one in summaries])
    if same and all("per_client" in one for one in summaries):
        out["per_client"] = mean_of([without(one["per_client"], left) for one in summaries])
    return out


def without(value: Any, keys: Sequence[str]) -> Any:
    """Return tables and lists without these keys, at every depth."""
    if isinstance(value, Mapping):
        return {key: without(x, keys) for key, x in value.items() if key not in keys}
    return [without(x, keys) for x in value] if isinstance(value, list) else value


def mean_of(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, by key of tables and by place of lists. Equal values stay as they are.

    None if the seeds have nothing in common: texts that differ, lists of different lengths, no number.
    """
    first = values[0]
    if all(value == first and type(value) is type(first) for value in values) and not isinstance(first, Mapping | list):
        return first
    if all(isinstance(value, Mapping) for value in values):
        keys = [key for key in first if all(key in value for value in values)]
        return {key: None if key in OF_ONE else mean_of([value[key] for value in values]) for key in keys}
    if all(isinstance(value, list) for value in values):
        alike = len({len(value) for value in values}) == 1
        return [mean_of(each) for each in zip(*values, strict=True)] if alike else None
    known = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return over_seeds(known).mean if len(known) + values.count(None) == len(values) else None
