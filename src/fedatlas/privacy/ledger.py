"""The ledger: one line per release of noisy numbers, on the disk before the release is used.

``ledger.jsonl`` only grows. A resume never truncates it: what was released stays released, so a repeated round costs
again (under noise = "seed" it is the same release and counts once). A checkpoint holds a `Mark`, the length and the
SHA-256 of the ledger at that time. A resume verifies that the ledger still begins with it.

A process that dies in the middle of `append` leaves a torn last line. A release is used only after its whole line is
on the disk, so a torn line belongs to a release that nobody saw. It costs nothing. It is counted and reported
(`Ledger.torn`) instead of being dropped silently. A last line that lacks only its line feed is an event.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from fedatlas.errors import CheckpointError, DiskError, PrivacyError

Continuous = Literal["gaussian", "laplace"]
Kind = Literal["gaussian", "laplace", "skellam", "response"]
"""Noise; "response": values replaced by random ones, with a likelihood ratio of e^(1 / multiplier) at most."""
Unit = Literal["client", "record"]
Neighbours = Literal["add or remove", "zero out", "replace"]
"""The difference of two data sets in one unit: it is there or not, it counts as zero (its presence is known), or its values differ."""


class Event(NamedTuple):
    """A release as plain data."""

    mechanism: str  # name of the mechanism's table
    round: int
    noise: Kind
    multiplier: float  # standard deviation (Laplace: scale) of the noise over the sensitivity; 0 = no noise
    sensitivity: float  # how far one unit moves what is released, in the norm of the noise
    unit: Unit
    neighbours: Neighbours
    delta: float  # the delta at which the run states its epsilon; 0 for pure differential privacy
    rate: float = 1.0  # probability that a unit took part, drawn in secret; 1 = nothing was sampled
    clients: tuple[int, ...] = ()  # the only clients whose data this release depends on; () = any client's
    source: Literal["os", "seed"] = "os"
    times: int = 1  # releases of this kind in one line, such as the steps of one visit
    steps: float = 0.0  # of whole-numbered noise: the sensitivity in its steps; 0 = the noise is continuous


class Ledger(NamedTuple):
    """The content of a ledger file."""

    events: tuple[Event, ...]
    torn: int  # lines left incomplete when a process died; their releases were never used


class Mark(NamedTuple):
    """The length and hash of the ledger at the time of a checkpoint."""

    bytes: int
    sha256: str


def append(path: Path, events: Sequence[Event]) -> None:
    """Append one line per event and return once all are on the disk. Only then may their releases be used.

    PrivacyError for an event that an accountant could not read. DiskError if it cannot be written; the release must then not be used.
    """
    for event in events:
        if problem := _problem(event):
            raise PrivacyError(f"a release of {event.mechanism} cannot be entered in the ledger: {problem}.")
    add(path, "".join(json.dumps(event._asdict(), allow_nan=False) + "\n" for event in events))


def add(path: Path, text: str) -> None:
    """Append whole lines to a growing file and return once they and its name are on the disk. A torn line before them is closed."""
    try:
        made = not path.exists()
        with open(path, "a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                text = text if file.read(1) == b"\n" else "\n" + text
            data = text.encode()
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        if made and os.name == "posix":
            _flush_folder(path.parent)
    except OSError as error:
        why = error.strerror or str(error)
        raise DiskError(f"'{path}' could not be written: {why}; without its line the run does not go on.") from error


def read(path: Path) -> Ledger:
    """Return all events in the order written; none if the file is missing. CheckpointError for a whole line that is not an event."""
    found: list[Event] = []
    torn = 0
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if line.endswith(b"}"):  # an event is a flat object: its only closing brace ends it
            found.append(_parsed(path, number, line))
        else:
            torn += bool(line)
    return Ledger(tuple(found), torn)


def mark(path: Path) -> Mark:
    """Return the length and the hash of the ledger, for a checkpoint."""
    content = _content(path)
    return Mark(len(content), hashlib.sha256(content).hexdigest())


def verify(path: Path, seen: Mark) -> None:
    """Raise CheckpointError unless the ledger still begins with what the checkpoint saw."""
    content = _content(path)
    if len(content) < seen.bytes:
        raise CheckpointError(
            f"the ledger '{path}' has {len(content)} bytes, its checkpoint saw {seen.bytes}: "
            "releases are missing from it, put the whole file back."
        )
    if hashlib.sha256(content[: seen.bytes]).hexdigest() != seen.sha256:
        raise CheckpointError(
            f"the ledger '{path}' was altered since the checkpoint was written: put the file back as it was."
        )


def counted(events: Sequence[Event]) -> tuple[Event, ...]:
    """Return the releases that cost: every line. Equal lines under noise = "seed" count once, since they are the same release."""
    once = dict.fromkeys(events)
    seeded = [event for event in once if event.source == "seed"]
    return (*(event for event in events if event.source == "os"), *seeded) if seeded else tuple(events)


def _problem(event: Event) -> str:
    """Return why an event is invalid; "" if it is valid."""
    if not (0 < event.rate <= 1):
        return f"its rate {event.rate} is no probability above 0"
    if not (0 <= event.delta < 1):
        return f"its delta {event.delta} is not in [0, 1)"
    if not (math.isfinite(event.multiplier) and event.multiplier >= 0):
        return f"its noise multiplier is {event.multiplier}"
    if not (math.isfinite(event.sensitivity) and event.sensitivity > 0):
        return f"its sensitivity is {event.sensitivity}"
    if event.times < 1:
        return f"it counts {event.times} releases"
    if not (math.isfinite(event.steps) and (event.steps > 0) == (event.noise == "skellam")):
        return f"{event.noise} noise has no sensitivity of {event.steps} steps"
    known = event.noise in get_args(Kind) and event.unit in get_args(Unit) and event.neighbours in get_args(Neighbours)
    return "" if known and event.source in {"os", "seed"} else "it is of an unknown kind"


def _parsed(path: Path, number: int, line: bytes) -> Event:
    try:
        values = json.loads(line)
        event = Event(**{**values, "clients": tuple(values["clients"])})
        problem = _problem(event)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"line {number} of the ledger '{path}' is damaged: put the file back as it was."
        ) from error
    if problem:
        raise CheckpointError(
            f"line {number} of the ledger '{path}' is damaged, {problem}: put the file back as it was."
        )
    return event


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(f"the ledger '{path}' cannot be read: {error.strerror or error}.") from error


def _flush_folder(folder: Path) -> None:
    """Flush a folder, since the name of a new file is on the disk only once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
