"""The gain of each client by the run's metric: on the rows it is judged on, and on its own alone.

A gain is positive where the federation is better, also of figures of which lower is better. Both models get the same draws
of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedatlas.course.metric_figures import TOGETHER, Resampled, drawn_of, mean_of
from fedatlas.metrics.intervals import usual_draws
from fedatlas.metrics.metric import METRICS, Metric, Said
from fedatlas.record.judged_rows import Arrays, own_of, said_of


def by_metric(parts: Mapping[str, Mapping[str, Any]], together: Arrays, alone: Arrays) -> dict[str, Any]:
    """Return ``gain["metric"]``. ``parts``: summaries of the run and of its baselines, by name.

    ``together``, ``alone``: the rows kept of the run and of the baseline of each client alone, {} if there are none.
    """
    first = parts["federated"]
    metric, seed = metric_of(first), first["seed"]
    trained = [row["client"] for row in first["per_client"] if row["train_rows"]]
    known = _both(trained, together, alone, said_of)
    held = [k for k in known if f"weight-{k}" in together]
    judged = {k: one for k in held for one in _gains(metric, {k: known[k]}, seed, ("gain", k)).values()}
    judged |= _gains(metric, {k: pair for k, pair in known.items() if k not in held}, seed, ("gain",))
    mine = _both(trained, together, alone, own_of)
    own = {k: one for k in mine for one in _gains(metric, {k: mine[k]}, seed, ("gain", "own", k), len(mine)).values()}
    rows = {name: {row["client"]: row for row in part["per_client"]} for name, part in parts.items()}
    return {
        "name": metric.name,
        "clients": [_client(k, rows, judged, own) for k in sorted(rows["federated"])],
        "mean": _mean(judged),
        "own_mean": _mean(own),
        "values": {name: part["metric"]["value"] for name, part in parts.items()},
    }


def metric_of(summary: Mapping[str, Any]) -> Metric:
    """Return the metric of a run's summary, about the class that it names."""
    found = summary["metric"]
    metric, positive = METRICS[found["name"]], found.get("positive")
    return metric if positive is None else metric.of_class(summary["class_names"].index(positive))


def _both(
    clients: Sequence[int], together: Arrays, alone: Arrays, of: Callable[[Arrays, int], Said | None]
) -> dict[int, tuple[Said, Said]]:
    pairs = {k: (of(together, k), of(alone, k)) for k in clients}
    return {k: (one, other) for k, (one, other) in pairs.items() if one is not None and other is not None}


def _gains(
    metric: Metric, pairs: Mapping[int, tuple[Said, Said]], seed: int, key: tuple[int | str, ...], groups: int = 1
) -> dict[int, Resampled]:
    """Return the gains of clients that are judged on the same rows. ``groups``: how often this is done, for the draws."""
    if not pairs:
        return {}
    rows = max(len(next(iter(pairs.values()))[0].weight), 1)
    draws = usual_draws(max(rows * len(pairs), 1_000 * groups) if metric.needs else rows)
    out, every, some = dict[int, Resampled](), list(pairs), max(TOGETHER // rows, 1)
    for at in range(0, len(every), some):
        chosen = every[at : at + some]
        said = {2 * k + side: pairs[k][side] for k in chosen for side in (0, 1)}
        drawn = drawn_of(metric, said, seed, key, draws)
        out |= {k: drawn[2 * k].better_than(drawn[2 * k + 1], metric) for k in chosen}
    return out


def _client(
    client: int,
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]],
    judged: Mapping[int, Resampled],
    own: Mapping[int, Resampled],
) -> dict[str, Any]:
    """Return a client's row: its figures with each model, the gain, and the same on its own rows."""
    found = {name: each[client]["metric"] for name, each in rows.items()}
    said: dict[str, Any] = {"client": client, **found, "gain": judged[client].ends() if client in judged else None}
    first = rows["federated"][client]["own"]
    if first is None:
        return {**said, "own": None}
    ends = {name: {key: each[client]["own"][key] for key in ("value", "low", "high")} for name, each in rows.items()}
    gain = own[client].ends() if client in own else None
    return {**said, "own": {"test_rows": first["test_rows"], **ends, "gain": gain}}


def _mean(gains: Mapping[int, Resampled]) -> dict[str, Any] | None:
    """Return the mean gain of the clients, weighted by test rows, and how many have none."""
    if not gains:
        return None
    mean, left_out = mean_of(gains)
    return {**mean.ends(), "clients": len(gains) - left_out, "left_out": left_out}
