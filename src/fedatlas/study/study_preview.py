"""A study before it runs (``--dry-run``): its cells, refusals, runs and hours. Nothing is trained for the table."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.data.sources import read_once
from fedatlas.errors import FedatlasError
from fedatlas.runs.preview import dry_run
from fedatlas.setup.with_data import task_with_data
from fedatlas.study.design import ExecuteTable
from fedatlas.study.local_runs import PARALLEL, preload
from fedatlas.study.plain import Plain, Row
from fedatlas.study.plan import PlannedRun, StudyPlan
from fedatlas.study.study_status import show_reasons
from fedatlas.wording import count, seconds_text

TIMED = 12  # runs timed for a forecast


def preview(plan: StudyPlan, cluster: str | None = None) -> Plain:
    """Return cells, those that would be refused with the reason, runs and hours.

    Every cell is set up with its first seed, since some refusals need the data. Hours are the mean seconds of rounds, evaluation and
    set-up of at most `TIMED` runs spread over all of them, times the number of runs, divided by the number of parallel runs.
    ``cluster``: address of a Ray cluster, of which the same is told.
    """
    firsts = sorted((one.runs[0] for one in plan.cells), key=by_data)
    with read_once():
        refused = {run.levels: why for run in firsts if (why := run.refused or refusal(run))}
        allowed = [one for one in plan.cells if one.cell.levels not in refused]
        runs = {
            "baseline": [run for run in plan.baselines if run.config],
            "tuning": [run for one in allowed for run in one.trials if run.config],
            "cell": [run for one in allowed for run in one.runs if run.config],
        }
        each = timed(sorted((run for run in firsts if run.levels not in refused), key=lambda run: run.levels))
    parallel = plan.study.table.execute.parallel or PARALLEL
    every = len({run.keys.run_key for kind in runs.values() for run in kind})
    found = {
        "study": plan.study.name,
        "settings": len({one.cell.setting for one in plan.cells}),
        "cells": len(plan.cells),
        "holdout": sum(one.cell.holdout for one in plan.cells),
        "refused": [{"levels": dict(levels), "reason": why} for levels, why in sorted(refused.items())],
        "runs": every,
        "runs_by_kind": {kind: len(found) for kind, found in runs.items()},
        "seconds_a_run": each,
        "timed": min(TIMED, len(firsts)),
        "parallel": parallel,
        "hours": every * each / parallel / 3600,
        "notices": list(plan.notices),
    }
    return found if cluster is None else {**found, "cluster": there(plan.study.table.execute, cluster, every, each)}


def there(how: ExecuteTable, cluster: str, runs: int, seconds: float) -> Plain:
    """Return what a cluster has, and the hours of so many runs of so many seconds on it, with the start of its workers."""
    from fedatlas.cluster.nodes import listed_nodes
    from fedatlas.study.cluster_runs import STARTING, seats

    nodes = listed_nodes(cluster)
    parallel = sum(seats(how, one) for one in nodes)
    whole = STARTING + max(seconds, runs * seconds / max(parallel, 1)) * (runs > 0)
    return {"nodes": len(nodes), "cores": sum(one.cores for one in nodes), "parallel": parallel, "hours": whole / 3600}


def by_data(run: PlannedRun) -> tuple[str, int]:
    """Return a key that groups runs with the same rows, so that these are read once; otherwise the order is kept."""
    return ("", 0) if run.config is None else (run.config.data.model_dump_json(), run.seed)


def refusal(run: PlannedRun) -> str:
    """Return the sentence that refuses a run once its data are read; "" if it would start."""
    assert run.checked is not None
    preload(run.checked.config, run.seed)
    try:
        task_with_data(run.checked)
    except FedatlasError as error:
        return str(error)
    return ""


def timed(runs: Sequence[PlannedRun]) -> float:
    """Return the mean seconds of a run, timed on a few spread over all; 0 for no runs."""
    step = max(1, -(-len(runs) // TIMED))
    some = [run.checked for run in runs[::step] if run.checked is not None]
    found = [dry_run(whole, baselines=False) for whole in some]
    seconds = [float(one["seconds_about" if "seconds_about" in one else "seconds"]) for one in found]
    return sum(seconds) / max(len(seconds), 1)


def show_preview(found: Row) -> list[str]:
    """Return `preview` as text, one line per item."""
    kinds = found["runs_by_kind"]
    held = f", {found['holdout']} of them in held-out settings" if found["holdout"] else ""
    tried = f", {count(kinds['tuning'], 'trial')} of rates" if kinds["tuning"] else ""
    whole, one = seconds_text(3600 * found["hours"]), seconds_text(found["seconds_a_run"])
    timed = f"{one} per run, timed on {count(found['timed'], 'cell')}, without the start of each process"
    return [
        f"Study {found['study']}: {count(found['settings'], 'setting')}, {count(found['cells'], 'cell')}{held}.",
        f"{count(found['runs'], 'run')}: {kinds['cell']} of cells, {count(kinds['baseline'], 'baseline')}{tried}.",
        *show_reasons(found["refused"], "would be refused"),
        *found["notices"],
        f"About {whole} with {found['parallel']} at once: {timed}. Nothing was trained.",
        *([show_cluster(found)] if "cluster" in found else []),
    ]


def show_cluster(found: Row) -> str:
    """Return what the cluster of `preview` would bring, as a sentence."""
    there = found["cluster"]
    has = f"The cluster has {count(there['nodes'], 'node')} with {count(there['cores'], 'core')}"
    if there["hours"] >= found["hours"]:
        return f"{has}. It would bring nothing: this machine is done as soon."
    return f"{has}: about {seconds_text(3600 * there['hours'])} with {there['parallel']} at once."
