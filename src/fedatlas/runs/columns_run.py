"""A run of parties that hold columns, beside what they would have without each other, and its report."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedatlas.config import ExperimentConfig
from fedatlas.course.columns import run_columns
from fedatlas.course.progress import Progress, Run
from fedatlas.federation.link import Observer
from fedatlas.files import write_json
from fedatlas.record.run_folder import SUMMARY, Start, asked
from fedatlas.reporting import write_report
from fedatlas.runs.columns_baselines import gains


def run_between(
    config: ExperimentConfig,
    path: Path,
    start: Start,
    baselines: bool | None,
    progress: Progress,
    observers: Iterable[Observer] = (),
) -> Run:
    """The run; unless ``baselines`` is False the same trees without each party, too, in the clear; and report.html."""
    done, growing = run_columns(
        config, path, start=start, progress=progress, options=asked(baselines), observers=observers
    )
    summary = dict(done.summary)
    if baselines is not False:
        told = progress.said
        told("Baselines for comparison, in the clear: the same trees without each party ...")
        held = growing.held
        summary["gain"] = gains(held.parties, growing.federation.states, growing.how, growing.number)
        write_json(path / SUMMARY, summary)
    growing.federation.close()
    write_report([path])
    progress.finished(path, summary)
    return Run(path, summary)
