"""A run's figure in draws of its test rows, for pairs of schemes that are judged on the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.metrics.metric import METRICS, Metric
from fedatlas.metrics.resampling import Weighted
from fedatlas.record.judged_rows import Arrays, of_test, own_of, said_of
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.verdict.evidence import Evidence, drawn_figures, mean_gap
from fedatlas.verdict.schemes import SeedDraws

DRAWS = 400  # the standard error of a difference is then known to 4%


def resampled(run: RunFolder, summary: Mapping[str, Any]) -> SeedDraws | None:
    """Return the mean over the parties by test rows, as in the answer, in draws that are the same for every scheme.

    For a run judged on validation rows, these are its test rows. None for runs whose rows were not kept.
    """
    metric = METRICS.get(summary.get("metric", {}).get("name", ""))
    columns = "parties" in summary  # one party judges, and keeps the test rows in any case
    if metric is None or not (columns or "per_client" in summary):
        return None
    kept, clients = run.arrays(JUDGED), [0] if columns else [row["client"] for row in summary["per_client"]]
    arrays = of_test(kept) if "test" in summary and not columns else kept
    own = [k for k in clients if own_of(arrays, k) is not None]
    if not own and not any(f"{part}-{k}" in arrays for part in ("score", "weight") for k in clients):
        clients = clients[:1]  # all share the model and the rows
    found = {k: one for k in own or clients if (one := _evidence(metric, arrays, k, bool(own))) is not None}
    if not found:
        return None
    if own:
        each = [drawn_figures([one], metric.name, 0, "ranking", k, draws=DRAWS)["one"] for k, one in found.items()]
        figures = [table[:, 0] for table in each]
    else:
        figures = [*drawn_figures([*found.values()], metric.name, 0, "ranking", draws=DRAWS)["one"].T]
    rows = [one.rows for one in found.values()]
    return SeedDraws(mean_gap(figures, rows), sum(rows) if own else rows[0])


def _evidence(metric: Metric, arrays: Arrays, client: int, own: bool) -> Evidence | None:
    said = (own_of if own else said_of)(arrays, client)
    if said is None or any(getattr(said, need) is None for need in metric.needs):
        return None
    said = said.at(said.weight > 0)
    figures: Weighted = metric.weighted(said)
    return Evidence(said.rows, {"one": figures}) if said.rows else None
