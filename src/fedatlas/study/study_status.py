"""Looking at a study: before it runs (``--dry-run``), and at how far it has come (``--status``). Nothing is trained for the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedatlas.data.sources import read_once
from fedatlas.errors import FedatlasError
from fedatlas.runs.preview import dry_run as forecast
from fedatlas.setup.assembly import set_up
from fedatlas.study.execute import PARALLEL, warm
from fedatlas.study.jobs import Job, Plan
from fedatlas.study.table import STATUSES, Table
from fedatlas.wording import count, seconds_text

TIMED = 12  # runs whose rounds are timed for a forecast
SHOWN = 20  # sentences that are shown


def dry_run(plan: Plan) -> dict[str, Any]:
    """Cells, those that would be refused with their sentence, runs and hours.

    Every cell is set up with its first seed, since some refusals need the data. Hours are the seconds of rounds, evaluation and set-up
    of at most `TIMED` runs spread over all of them, times the number of runs, over the runs at once.
    """
    refused: list[dict[str, Any]] = []
    firsts = sorted((place.jobs[0] for place in plan.places), key=data_first)
    with read_once():
        for job in firsts:
            why = job.refused or refusal(job)
            if why:
                refused.append({"levels": dict(job.levels), "reason": why})
        bad = {tuple(sorted(one["levels"].items())) for one in refused}
        baselines = [job for job in plan.baselines if job.config is not None]
        cells = [job for place in plan.places if place.cell.levels not in bad for job in place.jobs if job.config]
        trials = [job for place in plan.places if place.cell.levels not in bad for job in place.trials if job.config]
        every = {job.keys.run_key: job for job in (*baselines, *trials, *cells)}
        each = timed(sorted((job for job in firsts if job.levels not in bad), key=lambda job: job.levels))
    parallel = plan.study.table.execute.parallel or PARALLEL
    return {
        "study": plan.study.name,
        "settings": len({place.cell.setting for place in plan.places}),
        "cells": len(plan.places),
        "holdout": sum(place.cell.holdout for place in plan.places),
        "refused": sorted(refused, key=lambda one: sorted(one["levels"].items())),
        "runs": len(every),
        "runs_by_kind": {"baseline": len(baselines), "tuning": len(trials), "cell": len(cells)},
        "seconds_a_run": each,
        "timed": min(TIMED, len(firsts)),
        "parallel": parallel,
        "hours": len(every) * each / parallel / 3600,
        "notices": list(plan.notices),
    }


def data_first(job: Job) -> tuple[str, int]:
    """Runs of the same rows follow each other, so that these are read once; otherwise the order stays."""
    return ("", 0) if job.config is None else (job.config.data.model_dump_json(), job.seed)


def refusal(job: Job) -> str:
    """The sentence that a run would be refused with once its data are read; "" where it would begin."""
    assert job.checked is not None
    warm(job.checked.config, job.seed)
    try:
        set_up(job.checked)
    except FedatlasError as error:
        return str(error)
    return ""


def timed(jobs: Sequence[Job]) -> float:
    """Mean seconds of a run, timed on a few spread over all; 0 where there is none."""
    step = max(1, -(-len(jobs) // TIMED))
    some = [job.checked for job in jobs[::step] if job.checked is not None]
    seconds = [float(forecast(whole, baselines=False)["seconds_about"]) for whole in some]
    return sum(seconds) / max(len(seconds), 1)


def show_dry_run(found: dict[str, Any]) -> list[str]:
    """`dry_run` for people, a line each."""
    kinds = found["runs_by_kind"]
    held = f", {found['holdout']} of them in settings that are held out" if found["holdout"] else ""
    tried = f", {count(kinds['tuning'], 'trial')} of rates" if kinds["tuning"] else ""
    out = [f"Study {found['study']}: {count(found['settings'], 'setting')}, {count(found['cells'], 'cell')}{held}."]
    out.append(
        f"{count(found['runs'], 'run')}: {kinds['cell']} of cells, {count(kinds['baseline'], 'baseline')}{tried}."
    )
    out += refusals([(one["reason"], one["levels"]) for one in found["refused"]], "would be refused")
    out += found["notices"]
    whole, one = seconds_text(3600 * found["hours"]), seconds_text(found["seconds_a_run"])
    out.append(
        f"About {whole} with {found['parallel']} at once: {one} a run, timed on {count(found['timed'], 'cell')}, without what a process "
        "needs to begin. Nothing was trained."
    )
    return out


def refusals(found: Sequence[tuple[str, dict[str, str]]], what: str) -> list[str]:
    """Sentences with the cells they hold for."""
    by_reason: dict[str, list[str]] = {}
    for reason, levels in found:
        cell = ", ".join(f"{name} {level}" for name, level in sorted(levels.items())) or "the base"
        by_reason.setdefault(reason, []).append(cell)
    out = []
    for reason, cells in list(by_reason.items())[:SHOWN]:
        several = dict.fromkeys(cells)
        more = f" and {len(several) - 3} more" if len(several) > 3 else ""
        out.append(f"{count(len(several), 'cell')} {what} ({'; '.join(list(several)[:3])}{more}): {reason}")
    if len(by_reason) > SHOWN:
        out.append(f"{len(by_reason) - SHOWN} more sentences: --json says them all.")
    return out


def status(table: Table, study: str) -> dict[str, Any]:
    """How far a study has come: runs by status, and why those that did not come to their end."""
    found = table.reasons(study, *(each for each in STATUSES if each not in ("planned", "running", "done")))
    return {
        "study": study,
        "table": str(table.path),
        "runs": table.counts(study),
        "reasons": [
            {"status": state, "reason": reason, "levels": levels, "seed": seed} for state, reason, levels, seed in found
        ],
    }


def show_status(found: dict[str, Any]) -> list[str]:
    """`status` for people, a line each."""
    runs = ", ".join(f"{number} {state}" for state, number in found["runs"].items() if number)
    out = [f"Study {found['study']} in {found['table']}: {runs or 'no runs'}."]
    for state in STATUSES:
        told = [(one["reason"], one["levels"]) for one in found["reasons"] if one["status"] == state]
        out += refusals(told, f"{state}") if told else []
    return out
