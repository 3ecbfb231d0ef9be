"""``report.html``: one self-contained page about one finished run, or several side by side. It opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedatlas.errors import ConfigError
from fedatlas.files import write_text

REPORT, COMPARISON = "report.html", "comparison.html"


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of these run folders to ``out`` and returns its path.

    By default to report.html in the run's folder, of several to comparison.html in the first of them.

    ConfigError where a folder is no run, is not finished, is named twice, or predicts another kind of thing than the first.
    """
    from fedatlas.reporting.entries import read_entries
    from fedatlas.reporting.page import render

    if any(is_columns(Path(run)) for run in runs):
        return write_columns([Path(run) for run in runs], out)
    entries = read_entries([Path(run) for run in runs])
    path = Path(out) if out is not None else Path(runs[0]) / (REPORT if len(runs) == 1 else COMPARISON)
    write_text(path, render(entries))
    return path


def is_columns(run: Path) -> bool:
    """Whether a folder holds a run of parties that hold columns."""
    from fedatlas.record.run_folder import CONFIG, RunFolder

    return (run / CONFIG).exists() and RunFolder(run).of_columns


def write_columns(runs: Sequence[Path], out: Path | None) -> Path:
    """The report of one run of parties that hold columns; beside it in the run's folder a page for each party without the label."""
    from fedatlas.record.run_folder import RunFolder
    from fedatlas.reporting.columns_report import page_of, page_of_other

    if len(runs) > 1:
        raise ConfigError(
            "runs of parties that hold columns side by side are not in this version: report one at a time."
        )
    path = Path(out) if out is not None else runs[0] / REPORT
    folder = RunFolder.open(runs[0])
    write_text(path, page_of(folder))
    for one in folder.summary()["parties"] if out is None else ():
        if not one["active"] and (runs[0] / f"party-{one['name']}.json").exists():
            write_text(runs[0] / f"report-{one['name']}.html", page_of_other(folder, one["name"]))
    return path
