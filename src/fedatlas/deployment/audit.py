"""A node's audit log: ``audit.jsonl`` holds one line per agreement, request, answer and refusal.

The lines form a chain, which shows whether a line was altered.

    audit.jsonl   {number, at, kind, run, what, ..., before}   before: SHA-256 of the last whole line
    audit.head    how many lines there are, and the SHA-256 of the last

The line of an answer is on the disk before the answer leaves. A line that was cut short belongs to an answer that never
left, and is skipped. A user who can write both files can cut off the end or rewrite them. A digest noted elsewhere
reveals that.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import DataError
from fedatlas.files import disk_error
from fedatlas.wording import count

LOG, HEAD = "audit.jsonl", "audit.head"
FIRST = "0" * 64  # predecessor of the first line
AGREEMENT, REQUEST, ANSWER, REFUSAL = "agreement", "request", "answer", "refusal"


class Line(NamedTuple):
    """A whole line: its place in the file, its digest and its content."""

    place: int  # from 1
    digest: str
    said: Mapping[str, Any]


class Found(NamedTuple):
    """Content of an audit log. ``problem``: the first sign that it was altered; "" if there is none."""

    lines: tuple[Line, ...]
    torn: int  # lines that were cut short
    problem: str

    @property
    def head(self) -> str:
        """The digest of the last line, which represents all before it."""
        return self.lines[-1].digest if self.lines else FIRST


class Audit:
    """The log of one node. Only the process of that node writes to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / LOG
        lines, _ = parsed(self.path)
        self.number, self.last = len(lines), lines[-1].digest if lines else FIRST

    def note(self, kind: str, *, sync: bool = True, **said: Any) -> None:
        """Append a line. With ``sync`` it is on the disk when this returns. DiskError if it cannot be written."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        told = {name: value for name, value in said.items() if value not in (None, "", ())}
        text = json.dumps({"number": self.number + 1, "at": at, "kind": kind, **told, "before": self.last})
        try:
            with open(self.path, "a+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - 1, 0))
                closing = b"" if not size or file.read(1) == b"\n" else b"\n"  # of a line that was cut short
                data = closing + text.encode() + b"\n"
                while data:
                    data = data[file.write(data) :]
                if sync:
                    os.fsync(file.fileno())
            self.number, self.last = self.number + 1, digest_of(text)
            if sync:  # never ahead of the log
                part = self.folder / f"{HEAD}.part"
                part.write_text(f"{self.number} {self.last}\n", encoding="ascii")
                os.replace(part, self.folder / HEAD)
        except OSError as error:
            raise disk_error(self.path, error) from error


def digest_of(text: str) -> str:
    """Return the SHA-256 of a line without its line feed."""
    return hashlib.sha256(text.encode()).hexdigest()


def parsed(path: Path) -> tuple[list[Line], int]:
    """Return the whole lines of a log, and the number of lines that were cut short or are not log lines."""
    texts = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else []
    lines, torn = [], 0
    for place, text in enumerate(texts, 1):
        try:
            said = json.loads(text) if text else None
        except ValueError:
            said = None
        if isinstance(said, dict) and is_line(said):
            lines.append(Line(place, digest_of(text), said))
        else:
            torn += bool(text)
    return lines, torn


def is_line(said: Mapping[str, Any]) -> bool:
    """Return whether a table has the fields of a log line, each of its type.

    Other programs may write to the file too.
    """
    texts = "kind" in said and all(
        isinstance(said.get(name, ""), str)
        for name in ("kind", "at", "run", "what", "left", "told", "protected", "why")
    )
    place, cohort = said.get("place", [0]), said.get("cohort", [])
    listed = isinstance(place, list) and place and isinstance(cohort, list) and all(isinstance(x, str) for x in cohort)
    share = type(said.get("share", 0.0)) is float
    return bool(
        texts and listed and share and type(said.get("rows", 0)) is int and ("epsilon" not in said or "run" in said)
    )


def verified(folder: Path, known: str = "") -> Found:
    """Read a node's log and check its chain. DataError without a log.

    ``known``: a digest noted before, which must be among its lines.
    """
    if not (folder / LOG).exists():
        raise DataError(f"'{folder / LOG}' is not there: name the bundle of a node that has run.")
    lines, torn = parsed(folder / LOG)
    return Found(tuple(lines), torn, _broken(lines) or _cut(folder, lines) or _unknown(lines, known))


def _broken(lines: Sequence[Line]) -> str:
    before = FIRST
    for number, line in enumerate(lines, 1):
        if line.said.get("before") != before or line.said.get("number") != number:
            return f"line {line.place} does not follow the one before it: a line there was altered, removed or added"
        before = line.digest
    return ""


def _cut(folder: Path, lines: Sequence[Line]) -> str:
    try:
        number, last = (folder / HEAD).read_text(encoding="ascii").split()
        at = int(number)
    except (OSError, ValueError):
        return f"'{HEAD}' is gone or damaged: whether the end was cut off cannot be told" if lines else ""
    if at > len(lines):
        return f"the log ends after {count(len(lines), 'line')}, but had {at}: its end was cut off"
    return "" if (FIRST if not at else lines[at - 1].digest) == last else f"line {at} is not the one that was written"


def _unknown(lines: Sequence[Line], known: str) -> str:
    seen = not known or known == FIRST or any(line.digest == known for line in lines)
    return (
        ""
        if seen
        else "the digest that was noted is of none of its lines: the log was written anew, or its end cut off"
    )


KINDS = {
    "facts": "facts of its rows (columns, names of classes and categories, numbers of rows)",
    "sums": "sums over its rows before round 1",
    "updates": "updates",
    "figures": "figures of judging",
    "label counts": "numbers of rows of each class",
    "columns": "messages between parties that hold columns",
}
"""Kinds of content that can leave a site, by the field ``kind`` of an answer's ``left``."""
HOW = {"alone": "which the server saw alone", "masked": "only inside sums of several nodes", "sealed": "encrypted"}


def left_text(lines: Iterable[Line]) -> str:
    """Return a paragraph that lists what has left a site so far."""
    lines = [line for line in lines if line.said["kind"] == ANSWER]
    left = {_asked(line): line.said for line in lines if "left" in line.said}  # a repeated answer has the same bytes
    told = Counter((one["left"], one.get("protected", "")) for one in left.values())
    parts = [
        f"{KINDS[kind]} {f'({HOW[how]}) ' if how in HOW else ''}{count(told[kind, how], 'time')}"
        for kind in KINDS
        for how in ("", *HOW)
        if (kind, how) in told
    ]
    runs = len({line.said.get("run") for line in lines})
    what = (
        f"What left this site so far, in {count(runs, 'run')}: {'; '.join(parts)}."
        if parts
        else "Nothing has left this site."
    )
    return " ".join(filter(None, (what, nearly_text(lines), spent_text(lines))))


def nearly_text(lines: Iterable[Line]) -> str:
    """Name the masked sums that were nearly this site's own update, or ""."""
    found = [line.said for line in lines if "share" in line.said]
    if not found:
        return ""
    runs, most = {one.get("run") for one in found}, max(one["share"] for one in found)
    return (
        f"In {count(len(runs), 'run')} this site held up to {most:.1%} of the training rows, by which updates weigh: the mean of a "
        "masked sum was nearly its own update (max_weight_share in policy.toml refuses that)."
    )


def _asked(line: Line) -> tuple[Any, ...]:
    """Return the key of the request that an answer belongs to: the digest of its log line if the line does not tell."""
    said = line.said
    place = tuple(said["place"]) if "place" in said else said.get("index", said.get("told", line.digest))
    return said.get("run"), said["left"], place


def spent_text(lines: Iterable[Line]) -> str:
    """Return the total epsilon of the runs whose answers had noise."""
    runs = {line.said["run"]: line.said["epsilon"] for line in lines if "epsilon" in line.said}
    if not runs:
        return "Epsilon: no noise was used, so differential privacy promises nothing."
    known = [epsilon for epsilon in runs.values() if isinstance(epsilon, int | float)]
    total = f"at most {sum(known):.4g}" if len(known) == len(runs) else "not stated by every run"
    return f"Epsilon: {total}, added up over {count(len(runs), 'run')} with noise."


def table(lines: Iterable[Line]) -> list[str]:
    """Return the log as lines for people. Control characters, which may come from the wire, are replaced."""
    out = []
    for line in lines:
        one = line.said
        cohort = f"with {', '.join(one['cohort'])}" if one.get("cohort") else ""
        rows = count(one["rows"], "row") if "rows" in one else ""
        place = f"round {one['place'][0]}" if one.get("place") else ""
        more = (
            one.get("left", ""),
            one.get("protected", ""),
            rows,
            cohort,
            "again" if one.get("again") else "",
            one.get("why", ""),
        )
        texts = (one.get("at", "")[:19], f"{one['kind']:<9}", one.get("run", ""), one.get("what", ""), place, *more)
        shown = "  ".join(str(text) for text in texts if text)
        out.append("".join(c if c.isprintable() else "?" for c in shown))
    return out
