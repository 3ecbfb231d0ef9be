"""``report.html``: one self-contained page about one finished run, or several side by side. It opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedatlas.experiment.files import write_text

REPORT = "report.html"


def write_report(runs: Sequence[Path], out: Path | None = None) -> Path:
    """Writes the report of these run folders to ``out`` (default: report.html in the first of them) and returns its path.

    ConfigError where a folder is no run, is not finished, is named twice, or predicts another kind of thing than the first.
    """
    from fedatlas.experiment.report.page import render
    from fedatlas.experiment.report.source import read_entries

    entries = read_entries([Path(run) for run in runs])
    path = Path(out) if out is not None else Path(runs[0]) / REPORT
    write_text(path, render(entries))
    return path
