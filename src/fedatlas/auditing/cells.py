"""Counts of rows that a release page tells, and those of them that are too small to be told."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedatlas.auditing.verdict import RowCount

MIN_CELL = 10  # rows; the threshold that output checkers of research environments commonly ask for

ROWS = re.compile(r"\b(one|\d[\d,]*)(?= (?:[\w'-]+ ){0,5}(?:rows?|ids?)\b)", re.IGNORECASE)
"""A count of rows in a sentence: '7 rows', 'one test row', '3 of 100 rows', '3 training and 40 test rows', '8 of 20 ids'."""


def cells(summary: Mapping[str, Any]) -> Iterator[RowCount]:
    """Yield every count of rows on the page: by party, by class, and of the rows that judged the model and its versions."""
    names, facts = summary.get("class_names") or (), summary.get("partition_facts") or {}
    for party in parties(summary):
        yield RowCount(f"training rows of {party['name']}", int(party["train_rows"]))
        if party.get("own_rows"):
            yield RowCount(f"test rows of {party['name']}", int(party["test_rows"]))
    if facts.get("histogram"):
        owned = facts["histogram"][: (summary.get("canaries") or {}).get("first")]
        for c, name in enumerate(names):
            yield RowCount(f"training rows of class '{name}'", int(sum(row[c] for row in owned)))
    if rows := (summary.get("metric") or {}).get("test_rows"):
        yield RowCount("rows that judged the model", int(rows))
    if rows := (summary.get("guard") or {}).get("rows"):
        yield RowCount("rows of the guard", int(rows))
    confusion = (summary.get("final") or {}).get("confusion")
    if confusion and not summary.get("weighted"):
        for name, row in zip(names, confusion, strict=False):
            yield RowCount(f"test rows of class '{name}'", int(sum(row)))


def parties(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return each party that holds rows, without canaries: its name, rows, figure and interval.

    Where parties hold columns, each has the training rows that all of them have.
    """
    if not summary.get("partition_facts") and "parties" in summary:
        common = summary["rows"]["train"]
        return [{"name": one["name"], "train_rows": one.get("train", common)} for one in summary["parties"]]
    first = (summary.get("canaries") or {}).get("first", math.inf)
    rows = [
        {**one, "name": str(one.get("name") or f"client {one['client']}")}
        for one in summary.get("per_client") or ()
        if one["client"] < first
    ]
    if rows:
        return [one for one in rows if one.get("train_rows")]
    sizes = (summary.get("partition_facts") or {}).get("sizes") or ()
    return [{"name": f"client {k}", "train_rows": n} for k, n in enumerate(sizes) if n and k < first]


def tellable(notices: Sequence[str], least: int) -> tuple[list[str], int]:
    """Return the notices that count no rows below ``least``, and how many others there are."""
    told = [one for one in notices if all(rows >= least for rows in map(_number, ROWS.findall(one)) if rows)]
    return told, len(notices) - len(told)


def _number(text: str) -> int:
    return 1 if text.lower() == "one" else int(text.replace(",", ""))


def small(found: Sequence[RowCount], least: int) -> list[RowCount]:
    """Return the counts of 1 to ``least`` - 1 rows. An empty cell tells of nobody."""
    return [one for one in found if 0 < one.rows < least]
