"""The answer of a deployed run: what its parties reach together, how sure, and against the trivial model; nobody trains alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.metrics.intervals import proportion
from fedatlas.record.judged_rows import Arrays
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.runs.answer import answer_of, asked_of
from fedatlas.runs.metric_gain import metric_of
from fedatlas.verdict.answer import Answer, Judge
from fedatlas.verdict.evidence import enough
from fedatlas.verdict.rule import Ends

NORMAL = 1.959963985  # standard errors from the middle to the end of an interval of 95%


def deployed_answer(run: Path, summary: Mapping[str, Any]) -> Answer | None:
    """Return what a run between real parties reached. None for one that diverged, or whose last model nobody judged.

    Where the server holds the test rows, figures are those of a simulation's answer; else those that nodes told.
    """
    if "diverged" in summary or "metric" not in summary:
        return None
    found = answer_of(run, summary)
    if found is None:
        found = _of_figures(run, summary)
    elif found.over_trivial is not None:  # else the rows are too few to say
        found = found._replace(interval=_interval(RunFolder(run).arrays(JUDGED), summary))
    judge, party = _judge(summary), "party" if "parties" in summary else found.asked.party
    return found._replace(asked=found.asked._replace(judge=judge, hold="", party=party), compared=False)


def _judge(summary: Mapping[str, Any]) -> Judge:
    if "parties" in summary:
        return "holder"
    return "server" if any(one["test_rows"] for one in summary["per_client"]) else "nodes"


def _interval(kept: Arrays, summary: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the interval of the figure on the rows kept: Wilson's for accuracy without weights, else the bootstrap's."""
    metric, weight = summary["metric"], kept["weight"]
    if metric["name"] == "accuracy" and summary["task"] == "classes" and bool((weight == 1).all()):
        return proportion(round(metric["value"] * len(weight)), len(weight))
    return _told(metric)


def _better(found: Mapping[str, Any]) -> Ends | None:
    """Return the difference from the trivial model; without its standard error where the summary has none: of 95% it is half / 1.96."""
    if (ends := _told(found)) is None:
        return None
    return Ends(found["value"], *ends, found.get("error", (ends[1] - ends[0]) / 2 / NORMAL))


def _told(figure: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = figure.get("low"), figure.get("high")
    return None if low is None or high is None else (low, high)


def _of_figures(run: Path, summary: Mapping[str, Any]) -> Answer:
    """Return the answer from the summary alone: no row is known here."""
    metric, trivial = summary["metric"], summary.get("trivial", {})
    rows = metric["test_rows"] or 0
    config = RunFolder.open(run).config()
    return Answer(
        asked_of(config, summary, metric_of(summary)),
        "not compared",
        [summary["seed"]],
        [str(summary.get("judged_on", ""))],
        rows,
        sum(one["train_rows"] or 0 for one in summary.get("per_client", ())),
        own_rows=False,
        together=metric["value"],
        alone=None,
        trivial=trivial.get("value"),
        gain=None,
        over_trivial=_better(trivial.get("better_by", {})) if enough(rows) else None,
        parties=[],
        compared=False,
        interval=_told(metric) if enough(rows) else None,
    )
