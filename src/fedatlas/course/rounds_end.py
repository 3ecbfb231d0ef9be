"""The summary of a run whose clients hold rows. If the run diverged, it covers the models before that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from fedatlas import plugins
from fedatlas.course import attack_record, drift_record, privacy_record
from fedatlas.course.evaluation import NotJudged, floats_in
from fedatlas.course.snapshot import Snapshot
from fedatlas.engine.executors import Plan, steps_of
from fedatlas.metrics.clusters import cluster_figures
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import planted_groups, summarise


def figures(now: Snapshot, plan: Plan, folder: RunFolder, rows: Sequence[RoundRow], diverged: str) -> RunSummary:
    """Return the summary of these rows and of the final models.

    ``diverged``: the reason if the run diverged. If attackers were declared, the divergence is their result, and the
    figures are those of `attack_record.chance` rather than of the models before it.
    """
    setup, models, evaluator = now.setup, now.models(), now.evaluator
    evaluator.at(now.number)
    ruined = bool(diverged and setup.checked.poisonings)  # the attack's result, not an accident
    last = None if ruined else judged(now, rows[-1])
    judges = now.federation.judge is not None
    if judges and last is None and all(row["loss"] is None for row in rows):
        raise NotJudged(
            "the nodes could not judge any round: give the server test rows of its own (--test), or submit the run again once all nodes "
            "that judge stay connected."
        )
    summary = summarise(setup, plan, [*rows[:-1], last or rows[-1]])
    if judges and last is None:
        summary["notices"].append(
            f"The final model could not be judged; the figures are those of round {summary['final']['round']}."
        )
    executor = now.federation.executor
    summary["plan"]["steps"] = [] if executor is None else steps_of(executor)
    if setup.algorithm.groups is not None:
        summary["groups"] = [list(group) for group in setup.algorithm.groups(now.server)]
    summary["per_client"] = evaluator.per_client(now.client_model) if last or judges else without_models(now)
    if last:
        summary |= evaluator.by_metric(None if setup.personal else models["global"], summary["per_client"])
    if setup.algorithm.clusters is not None:
        found = setup.algorithm.clusters(now.server)
        summary["clusters"] = cluster_figures(found, planted_groups(setup.partition))
    if not setup.personal:
        summary["final"] |= evaluator.detail(models["global"]) if last else {"interval": {}}
    if (
        last and setup.config.evaluation.on == "validation" and evaluator.with_test and not setup.checked.blind
    ):  # these rows were not used for any choice
        one = None if setup.personal else models["global"]
        summary["test"] = evaluator.tested(one, now.client_model, setup.rows.common("test"))
    if setup.checked.mechanisms:
        summary["privacy"] = privacy_record.summary(setup, folder)
    summary |= attack_record.summary(now, rows) | drift_record.summary(setup, rows)
    if ruined:
        summary["final"] |= attack_record.chance(setup, now.number + 1)
    if plugins.LOADED:
        summary["plugins"] = list(plugins.LOADED)
    if setup.own_module:
        summary["module"] = setup.own_module
    return cast(RunSummary, summary)


def judged(now: Snapshot, row: RoundRow) -> RoundRow | None:
    """Return the last row with its figures, computed now if the run diverged in a round between two evaluations.

    None if a figure is NaN or infinity, or if the parties that judge could not.
    """
    if row["loss"] is not None:
        return row
    try:
        quality = now.quality()
    except NotJudged:
        return None
    return cast(RoundRow, {**row, **quality}) if all(map(math.isfinite, floats_in(quality))) else None


def without_models(now: Snapshot) -> list[dict[str, Any]]:
    """Return `per_client` without figures, for models that are unknown or whose outputs are NaN or infinity."""
    setup, common = now.setup, now.evaluator.rows.n
    sizes = setup.sizes
    held = {k: len(setup.held_out.get(k, ())) for k in sorted(sizes)}
    return [
        {"client": k, "train_rows": sizes[k], "test_rows": n or common, "own_rows": n > 0}
        | dict.fromkeys(("value", "low", "high"))
        for k, n in held.items()
    ]
