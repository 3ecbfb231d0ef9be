"""The end of a run: its models and its summary; of one that diverged, those before it did."""

from __future__ import annotations

import math
from typing import Any

from fedatlas import plugins
from fedatlas.course import attack_record, privacy_record
from fedatlas.course.client_models import files_of
from fedatlas.course.progress import Row
from fedatlas.course.rounds import Simulation, floats_in
from fedatlas.engine.executors import steps_of
from fedatlas.metrics.clusters import cluster_figures
from fedatlas.record.run_folder import JUDGED, SUMMARY, RunFolder
from fedatlas.record.summary import planted_groups, summarise
from fedatlas.setup.assembly import test_rows


def write_end(
    simulation: Simulation, folder: RunFolder, rows: list[Row], diverged: str = "", early: str = ""
) -> dict[str, Any]:
    """The models and the summary; of a run that ``diverged``, those before it did, and why; why one ended ``early``."""
    models = simulation.models()
    left = files_of(models, simulation.setup.mixed)
    files = {file: folder.save_model(file, model.save()) for file, model in left.items()}
    ruined = bool(diverged and simulation.setup.poisonings)  # which is an outcome, and not that of the model before
    last = None if ruined else judged(simulation, rows[-1])
    summary = summarise(simulation.setup, simulation.plan, [*rows[:-1], last or rows[-1]])
    executor = simulation.federation.executor
    summary["plan"]["steps"] = [] if executor is None else steps_of(executor)
    summary["sha256"] = files  # so that no other run's model is taken for this one's
    if simulation.setup.algorithm.groups is not None:
        summary["groups"] = [list(group) for group in simulation.setup.algorithm.groups(simulation.server)]
    summary["per_client"] = (
        simulation.evaluator.per_client(simulation.client_model) if last else without_models(simulation)
    )
    folder.save_arrays(JUDGED, simulation.evaluator.judged if last else {})
    if simulation.setup.algorithm.clusters is not None:
        found = simulation.setup.algorithm.clusters(simulation.server)
        summary["clusters"] = cluster_figures(found, planted_groups(simulation.setup.partition))
    if not simulation.setup.personal:
        summary["final"] |= simulation.evaluator.detail(models["global"]) if last else {"interval": {}}
    if last and simulation.setup.config.evaluation.on == "validation":  # no choice was made by these rows
        one, rows_left = None if simulation.setup.personal else models["global"], test_rows(simulation.setup)
        summary["test"] = simulation.evaluator.tested(one, simulation.client_model, rows_left)
    if simulation.protection is not None:
        summary["privacy"] = privacy_record.summary(simulation.protection, simulation.setup, folder)
    summary |= attack_record.summary(simulation, rows)
    if ruined:
        summary["final"] |= attack_record.chance(simulation.setup, simulation.number + 1)
    if plugins.LOADED:
        summary["plugins"] = list(plugins.LOADED)
    if simulation.setup.own_module:
        summary["module"] = simulation.setup.own_module
    if diverged:
        summary["diverged"] = diverged
    if early:
        summary["stopped"] = early
    folder.write_json(SUMMARY, summary)
    return summary


def judged(simulation: Simulation, row: Row) -> Row | None:
    """The last row with its figures, which a divergence between two evaluations left out; None where they are no numbers."""
    if row["loss"] is not None:
        return row
    quality = simulation.quality()
    return {**row, **quality} if all(map(math.isfinite, floats_in(quality))) else None


def without_models(simulation: Simulation) -> list[dict[str, Any]]:
    """`per_client` where it is not known what the clients would use, or what they would use answers no numbers."""
    setup, common = simulation.setup, simulation.evaluator.rows.n
    sizes = setup.sizes
    held = {k: len(setup.held_out.get(k, ())) for k in sorted(sizes)}
    return [
        {"client": k, "train_rows": sizes[k], "test_rows": n or common, "own_rows": n > 0}
        | dict.fromkeys(("value", "low", "high"))
        for k, n in held.items()
    ]
