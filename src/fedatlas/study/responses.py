"""The responses of a run, one record each: the table, the analysis, the recommender and the pages ask the record (C12, C13).

A response is read from the rows of ``metrics.jsonl`` or from ``summary.json``; what a run cannot know of itself (messages, CPU-seconds,
memory) is counted by the process that runs the study. To add one, see CONTRIBUTING.md. Nothing of torch is imported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from fedatlas.study.plain import Plain, Row
from fedatlas.wording import bytes_text, flops_text, number, seconds_text

FACTS = {
    "node_count": "nodes",  # clients with rows
    "train_rows": "rows",  # training rows of all of them
    "h": "heterogeneity",
    "class_count": "classes",
    "majority": "majority",  # accuracy of always naming one class
    "data_set": "data",
    "server_sees": "server_sees",
}
"""The federation of a run, not a response: column of the table -> name in the analysis and in requirements."""


class Response(NamedTuple):
    """One figure of a run, and what everything else needs to know of it."""

    name: str  # in a sentence
    unit: str
    meaning: str
    quality: bool = False  # a quality of the model, or a cost
    more: bool = False  # whether more is better
    scale: Literal["logit", "log", "plain"] = "log"  # on which the recommender predicts and compares it
    row: Callable[[Row], Any] | None = None  # its value in one row of metrics.jsonl
    run: Callable[[Row], Any] | None = None  # its value in summary.json
    over: Literal["last", "sum", "share", "whole"] = "sum"
    """A run's value: that of its last judged row, the sum of its rows, or of the run, after fewer rounds in proportion or the same."""
    curve: Callable[[Row], Sequence[Sequence[Any]]] | None = (
        None  # (round, value) in summary.json, where rows do not tell
    )
    missing: float = math.nan  # the value of a run that does not tell it
    column: str = ""  # in the table, where it differs from the key in `RESPONSES`
    listed: bool = True  # a column of every table; otherwise it is kept where a run has it
    parts: tuple[str, ...] = ()  # the sum of these responses, without a column
    exact: bool = False  # computed: no noise between seeds
    forecast: Literal["", "gap", "nearest", "experiment"] = ""
    """How the recommender foresees it: gap to the baseline, nearest measured setting, only from a user's experiment, or not at all."""
    grows: Literal["", "nodes", "rows"] = ""  # a nearest setting's value grows in proportion
    against: str = ""  # the baseline's response that its gap is measured to, where it differs
    effects: bool = False  # whether the analysis has its effects
    front: bool = False  # whether it decides who stands on a front
    text: Callable[[float], str] = number  # a value in a table
    said: str = "{}"  # the value in a sentence


def of_clients(figure: str) -> Callable[[Row], Any]:
    """A figure over the clients' own rows; None without ``evaluation.clients``."""
    return lambda row: (row.get("client_accuracy") or row.get("client_rmse") or {}).get(figure)


def of_row(key: str) -> Callable[[Row], Any]:
    """A key of the row."""
    return lambda row: row.get(key)


share = partial(Response, unit="share from 0 to 1", quality=True, more=True, scale="logit", over="last")
OF_CLIENTS = "accuracy (of numbers: RMSE) on the clients' own test rows"
RESPONSES: dict[str, Response] = {
    "accuracy": share(
        "accuracy", meaning="share of test rows whose class is predicted rightly", row=of_row("accuracy"), forecast="gap",
        effects=True, front=True,
    ),
    "macro_f1": share(
        "macro-F1", meaning="F1 averaged over classes", row=of_row("macro_f1"), forecast="gap", effects=True,
    ),
    "loss": Response(
        "loss", "", "mean loss on test rows", quality=True, scale="plain", row=of_row("loss"), over="last",
    ),
    "client_mean": share("the clients' mean accuracy", meaning=f"mean over clients of {OF_CLIENTS}", row=of_clients("mean")),
    "client_accuracy_p10": share(
        "accuracy of the client at the tenth percentile", meaning=f"tenth percentile over clients of {OF_CLIENTS}",
        row=of_clients("p10"), column="client_p10", forecast="gap", against="accuracy", effects=True,
    ),
    "client_min": share(
        "accuracy of the worst-off client", meaning=f"smallest over clients of {OF_CLIENTS}", row=of_clients("min"),
    ),
    "rmse": Response(
        "RMSE", "the target's", "root mean squared error on test rows", quality=True, scale="plain", row=of_row("rmse"),
        over="last", listed=False,
    ),
    "cpu_seconds": Response(
        "CPU-seconds", "s", "processor time of the run's process", over="share", forecast="nearest", grows="rows",
        effects=True, front=True, text=seconds_text, said="{} of CPU",
    ),
    "seconds": Response(
        "seconds by the clock", "s", "duration of the rounds, beside whatever else ran", row=of_row("seconds"),
        forecast="experiment", text=seconds_text, said="{} by the clock",
    ),
    "bytes_up": Response("bytes to the server", "bytes", "bytes that clients sent", row=of_row("bytes_up"), exact=True),
    "bytes_down": Response("bytes to clients", "bytes", "bytes that the server sent", row=of_row("bytes_down"), exact=True),
    "bytes": Response(
        "bytes sent", "bytes", "bytes up and down", parts=("bytes_up", "bytes_down"), exact=True, forecast="nearest",
        grows="nodes", effects=True, front=True, text=bytes_text,
    ),
    "messages_up": Response("messages to the server", "", "messages that clients sent", over="share", exact=True),
    "messages_down": Response("messages to clients", "", "messages that the server sent", over="share", exact=True),
    "messages": Response(
        "messages", "", "messages up and down", parts=("messages_up", "messages_down"), exact=True, forecast="nearest",
        grows="nodes", text="{:,.0f}".format, said="{} messages",
    ),
    "flops": Response(
        "operations", "floating-point operations", "operations of local training", row=of_row("flops"), exact=True,
        forecast="nearest", grows="rows", text=flops_text, said="{} operations",
    ),
    "memory": Response(
        "memory in MiB", "MiB", "the most that the run's process held beyond what it shared", over="whole", column="memory_mib",
        forecast="nearest", effects=True, text="{:,.1f}".format, said="{} MiB",
    ),
    "epsilon": Response(
        "epsilon", "", "privacy loss that the run's ledger counts; infinite without noise", over="whole", exact=True,
        run=lambda summary: summary.get("privacy", {}).get("epsilon", "infinite"), missing=math.inf,
        curve=lambda summary: summary.get("privacy", {}).get("curve") or [], forecast="nearest",
        text="{:.3g}".format, said="epsilon {}",
    ),
}  # fmt: skip
"""Name in the analysis and in requirements -> its record, in the order of the table's columns."""


def which(**wanted: Any) -> list[str]:
    """Names of the responses whose record has these fields: ``which(front=True)``."""
    return [name for name, one in RESPONSES.items() if all(getattr(one, key) == x for key, x in wanted.items())]


def columns() -> dict[str, Response]:
    """Column of the table -> its response."""
    return {one.column or name: one for name, one in RESPONSES.items() if not one.parts}


def responses(rows: Sequence[Row], summary: Row) -> Plain:
    """Column -> value of a run at its last judged row, as far as the run tells it; {} where nothing was judged.

    A sum is None where a row must not tell its part.
    """
    judged = [row for row in rows if row.get("loss") is not None]
    out: Plain = {}
    for column, one in columns().items() if judged else ():
        if one.run is not None:
            out[column] = one.run(summary)
        elif one.row is not None:
            values = [one.row(row) for row in (rows if one.over == "sum" else judged[-1:])]
            value = None if any(x is None for x in values) else sum(values)
            if one.listed or value is not None:
                out[column] = value
    return out


def prefix(rows: Sequence[Row], given: Row, rounds: int) -> Plain:
    """The responses of a longer run, ``given``, as of one that ended after ``rounds``.

    Counts that no round keeps (messages, CPU-seconds) are taken in proportion; memory and facts are the longer run's.
    """
    share = rounds / max(rows[-1]["round"], 1)
    out = {**given, **responses([row for row in rows if row["round"] <= rounds], {})}
    counted = [column for column, one in columns().items() if one.over == "share" and given.get(column) is not None]
    return out | {column: given[column] * share for column in counted}


def merit(values: Row, *, clients: bool = False) -> float | None:
    """The figure that tells which of two runs is better: accuracy, of numbers minus the RMSE; of the clients' own rows, if asked for."""
    numbers = values.get("rmse") is not None
    found = values.get("client_mean") if clients else None
    found = found if found is not None else values.get("rmse" if numbers else "accuracy")
    return None if found is None else -float(found) if numbers else float(found)


def told(name: str, value: float) -> str:
    """A value of a response in a sentence, with its unit."""
    return RESPONSES[name].said.format(RESPONSES[name].text(value))
