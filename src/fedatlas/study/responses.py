"""The responses of a run, one record each, used by the table, the analysis, the recommender and the pages (C12, C13).

A response is read from the rows of ``metrics.jsonl`` or from ``summary.json``. Quantities that a run cannot measure itself (messages,
CPU-seconds, memory) are counted by the process that runs the study. To add one, see CONTRIBUTING.md. Imports nothing from torch.
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
    "majority": "majority",  # accuracy of always predicting the largest class
    "data_set": "data",
    "server_sees": "server_sees",
}
"""The federation of a run, not a response: column of the table -> name in the analysis and in requirements."""


class Response(NamedTuple):
    """One figure of a run, and everything the other parts need to know about it."""

    name: str  # in a sentence
    unit: str
    meaning: str
    quality: bool = False  # a quality of the model, or a cost
    more: bool = False  # whether more is better
    scale: Literal["logit", "log", "plain"] = "log"  # scale for the recommender's predictions and comparisons
    row: Callable[[Row], Any] | None = None  # its value in one row of metrics.jsonl
    run: Callable[[Row], Any] | None = None  # its value in summary.json
    over: Literal["last", "sum", "share", "whole"] = "sum"
    """A run's value: its last judged row, the sum of its rows, or one value of the run, after fewer rounds in proportion or unchanged."""
    curve: Callable[[Row], Sequence[Sequence[Any]]] | None = None  # (round, value) in summary.json, if rows lack it
    missing: float = math.nan  # value for a run without it
    column: str = ""  # name in the table, if it differs from the key in `RESPONSES`
    listed: bool = True  # a column of every table; otherwise kept only if a run has it
    parts: tuple[str, ...] = ()  # the sum of these responses, without a column
    exact: bool = False  # computed: no noise between seeds
    forecast: Literal["", "gap", "nearest", "experiment"] = ""
    """How the recommender predicts it: gap to the baseline, nearest measured setting, only from a user's experiment, or not at all."""
    grows: Literal["", "nodes", "rows"] = ""  # scales a nearest setting's value
    against: str = ""  # the baseline's response for its gap, if it differs
    effects: bool = False  # the analysis reports its effects
    front: bool = False  # it is an axis of the fronts
    text: Callable[[float], str] = number  # a value in a table
    said: str = "{}"  # the value in a sentence


def of_clients(figure: str) -> Callable[[Row], Any]:
    """Return a reader of a figure over the clients' own rows; it gives None without ``evaluation.clients``."""
    return lambda row: (row.get("client_accuracy") or row.get("client_rmse") or {}).get(figure)


def of_row(key: str) -> Callable[[Row], Any]:
    """Return a reader of a key of the row."""
    return lambda row: row.get(key)


share = partial(Response, unit="share from 0 to 1", quality=True, more=True, scale="logit", over="last")
OF_CLIENTS = "accuracy (of numbers: RMSE) on the clients' own test rows"
RESPONSES: dict[str, Response] = {
    "accuracy": share(
        "accuracy", meaning="share of test rows whose class is predicted correctly", row=of_row("accuracy"), forecast="gap",
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
        "seconds by the clock", "s", "wall-clock duration of the rounds, including the load of other processes", row=of_row("seconds"),
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
        "memory in MiB", "MiB", "the peak of the run's process, without memory shared with its parent", over="whole", column="memory_mib",
        forecast="nearest", effects=True, text="{:,.1f}".format, said="{} MiB",
    ),
    "epsilon": Response(
        "epsilon", "", "privacy loss according to the run's ledger; infinite without noise", over="whole", exact=True,
        run=lambda summary: summary.get("privacy", {}).get("epsilon", "infinite"), missing=math.inf,
        curve=lambda summary: summary.get("privacy", {}).get("curve") or [], forecast="nearest",
        text="{:.3g}".format, said="epsilon {}",
    ),
}  # fmt: skip
"""Name in the analysis and in requirements -> its record, in the order of the table's columns."""


def which(**wanted: Any) -> list[str]:
    """Return the names of the responses whose record has these fields: ``which(front=True)``."""
    return [name for name, one in RESPONSES.items() if all(getattr(one, key) == x for key, x in wanted.items())]


def columns() -> dict[str, Response]:
    """Return column of the table -> its response."""
    return {one.column or name: one for name, one in RESPONSES.items() if not one.parts}


def responses(rows: Sequence[Row], summary: Row) -> Plain:
    """Return column -> value of a run at its last judged row, if the run has it; {} if no row was judged.

    A sum is None if a row hides its part.
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
    """Return the responses of a longer run, ``given``, as if it had ended after ``rounds``.

    Counts not kept by round (messages, CPU-seconds) are taken in proportion; memory and facts are those of the longer run.
    """
    share = rounds / max(rows[-1]["round"], 1)
    out = {**given, **responses([row for row in rows if row["round"] <= rounds], {})}
    counted = [column for column, one in columns().items() if one.over == "share" and given.get(column) is not None]
    return out | {column: given[column] * share for column in counted}


def merit(values: Row, *, clients: bool = False) -> float | None:
    """Return the figure that compares two runs: accuracy, for numbers minus the RMSE; on the clients' own rows if ``clients``."""
    numbers = values.get("rmse") is not None
    found = values.get("client_mean") if clients else None
    found = found if found is not None else values.get("rmse" if numbers else "accuracy")
    return None if found is None else -float(found) if numbers else float(found)


def told(name: str, value: float) -> str:
    """Return a value of a response for a sentence, with its unit."""
    return RESPONSES[name].said.format(RESPONSES[name].text(value))
