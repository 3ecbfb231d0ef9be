"""``report.html``: a self-contained page about one finished run, or a comparison of several. It opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedatlas.files import write_text

REPORT, COMPARISON = "report.html", "comparison.html"


def write_report(runs: Sequence[Path], out: Path | None = None, remarks: Sequence[str] = ()) -> Path:
    """Write the report of these run folders to ``out``, with remarks below its answer; return its path.

    The default is report.html in the run's folder, or for several runs comparison.html in the first folder. If parties
    hold columns, each party without the label gets its page next to the default one.

    ConfigError if a folder is not a run, is not finished, is named twice, or predicts a different kind of target than the first.
    """
    from fedatlas.reporting.entries import COLUMNS, party_entries, read_entries
    from fedatlas.reporting.page import render

    entries = read_entries([Path(run) for run in runs])
    path = Path(out) if out is not None else Path(runs[0]) / (REPORT if len(runs) == 1 else COMPARISON)
    write_text(path, render(entries, remarks))
    if out is None and len(entries) == len(entries[0].subjects) == 1 and entries[0].subjects[0].page == COLUMNS:
        for entry in party_entries(entries[0]):
            write_text(path.with_name(f"report-{entry.subjects[0].party}.html"), render([entry]))
    return path
