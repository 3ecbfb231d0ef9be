"""What summary.json says of a run whose clients hold rows; of one that diverged, from the models before it did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, cast

from fedatlas import plugins
from fedatlas.algorithm import State
from fedatlas.course import attack_record, privacy_record
from fedatlas.course.attack_record import Attacked
from fedatlas.course.evaluation import floats_in
from fedatlas.course.keeper import Keeper
from fedatlas.engine.executors import Plan, steps_of
from fedatlas.metrics.clusters import cluster_figures
from fedatlas.privacy.protection import Protection
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.record.summary import planted_groups, summarise
from fedatlas.setup.assembly import test_rows


class Simulated(Attacked, Protocol):
    """Of a simulation what is looked at here."""

    keeper: Keeper
    plan: Plan
    protection: Protection | None

    @property
    def number(self) -> int: ...
    @property
    def server(self) -> State: ...
    def quality(self) -> dict[str, Any]: ...


def figures(simulation: Simulated, rows: Sequence[RoundRow], diverged: str) -> RunSummary:
    """The summary of these rows and of the models behind the last of them; ``diverged``: why it ended there, of one that did."""
    setup, models, evaluator = simulation.setup, simulation.models_by_name(), simulation.evaluator
    ruined = bool(diverged and setup.checked.poisonings)  # which is an outcome, and not that of the model before
    last = None if ruined else judged(simulation, rows[-1])
    summary = summarise(setup, simulation.plan, [*rows[:-1], last or rows[-1]])
    executor = simulation.federation.executor
    summary["plan"]["steps"] = [] if executor is None else steps_of(executor)
    if setup.algorithm.groups is not None:
        summary["groups"] = [list(group) for group in setup.algorithm.groups(simulation.server)]
    summary["per_client"] = evaluator.per_client(simulation.client_model) if last else without_models(simulation)
    if setup.algorithm.clusters is not None:
        found = setup.algorithm.clusters(simulation.server)
        summary["clusters"] = cluster_figures(found, planted_groups(setup.partition))
    if not setup.personal:
        summary["final"] |= evaluator.detail(models["global"]) if last else {"interval": {}}
    if last and setup.config.evaluation.on == "validation":  # no choice was made by these rows
        one = None if setup.personal else models["global"]
        summary["test"] = evaluator.tested(one, simulation.client_model, test_rows(setup))
    if simulation.protection is not None:
        summary["privacy"] = privacy_record.summary(simulation.protection, setup, simulation.keeper.folder)
    summary |= attack_record.summary(simulation, rows)
    if ruined:
        summary["final"] |= attack_record.chance(setup, simulation.number + 1)
    if plugins.LOADED:
        summary["plugins"] = list(plugins.LOADED)
    if setup.own_module:
        summary["module"] = setup.own_module
    return cast(RunSummary, summary)


def judged(simulation: Simulated, row: RoundRow) -> RoundRow | None:
    """The last row with its figures, which a divergence between two evaluations left out; None where they are no numbers."""
    if row["loss"] is not None:
        return row
    quality = simulation.quality()
    return cast(RoundRow, {**row, **quality}) if all(map(math.isfinite, floats_in(quality))) else None


def without_models(simulation: Simulated) -> list[dict[str, Any]]:
    """`per_client` where it is not known what the clients would use, or what they would use answers no numbers."""
    setup, common = simulation.setup, simulation.evaluator.rows.n
    sizes = setup.sizes
    held = {k: len(setup.held_out.get(k, ())) for k in sorted(sizes)}
    return [
        {"client": k, "train_rows": sizes[k], "test_rows": n or common, "own_rows": n > 0}
        | dict.fromkeys(("value", "low", "high"))
        for k, n in held.items()
    ]
