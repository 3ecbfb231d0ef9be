"""``fedatlas align``: find the rows that parties have in common, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from fedatlas.algorithm import State
from fedatlas.course.matching import Say, followed
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.vertical import align, psi
from fedatlas.vertical.ids import look_of

TRIED = 200  # ids that a dry run masks to time one


def aligned(whole: Checked, observers: Iterable[Observer] = (), say: Say = lambda line: None) -> dict[str, Any]:
    """Match the rows of an experiment's parties. ``say`` is told of the progress, at most every two seconds.

    Returns the number of ids of each party, of rows that all have and that each pair has, bytes and seconds.
    """
    held, began = consortium(whole), time.perf_counter()
    federation, state = matched(held, observers, say)
    cost = federation.cost
    return {
        **about(held),
        "rows": state["align"]["rows"],
        "common": state["align"]["common"],
        **({"passes": state["align"]["passes"]} if held.align.linked else {}),
        "bytes": cost.bytes_up + cost.bytes_down,
        "seconds": time.perf_counter() - began,
        "notices": [*held.notices, *state["align"]["notices"]],
    }


def matched(
    held: Consortium, observers: Iterable[Observer] = (), say: Say = lambda line: None
) -> tuple[InProcess, State]:
    """Return the parties' federation after the matching, and the coordinator's state."""
    federation = columns_federation(
        followed(held, say), align.QUESTIONS, observers=observers, name="align", run="align"
    )
    state = federation.drive(lambda: align.align(held.align, held.beginning), RoundStart(0, 1.0))
    assert state is not None
    return federation, state


def looked_at(held: Consortium) -> dict[str, Any]:
    """Return what would be matched, the bytes that would be sent and about how long it would take; send nothing."""
    ids = [int(n) for n in about(held)["ids"].values()]
    return {
        **about(held),
        "looks": {one.name: look_of([x for x in one.ids if x])._asdict() for one in held.tables},
        **({"ambiguous": _ambiguous(held)} if held.align.linked else {}),
        "bytes": bytes_of(held.align, ids),
        "seconds": seconds_of(held.align, ids, held.parties[0].workers),
        "notices": list(held.notices),
    }


def _ambiguous(held: Consortium) -> dict[str, list[int]]:
    """Return party -> for each key, its rows whose id another of its rows has."""
    keys = range(len(held.align.keys))
    return {one.name: [align.entering(one, number)[1] for number in keys] for one in held.parties}


def about(held: Consortium) -> dict[str, Any]:
    """Return the method of matching, and each party's name, number of ids, and columns that they are made of."""
    return {
        "made_of": {one.name: str(one.ids) for one in held.config.parties},
        "align": held.align.record(),
        "parties": list(held.names),
        "active": held.names[held.active],
        "ids": {one.name: len(one.ids) - one.without_id for one in held.tables},
    }


def bytes_of(how: align.Align, ids: list[int]) -> int:
    """Estimate the bytes that matching sends, up and down.

    Points are sent there and back; with three or more parties, through all of them in turn. Of several keys each counts as
    if no row were matched before it.
    """
    if how.name == "none":
        return 0
    points = psi.BYTES * sum(ids) * len(how.keys)
    if len(ids) == 2:
        return 4 * points
    return (2 * len(ids) - 1) * points + 2 * (len(ids) - 1) * sum(ids) * len(how.keys)


def seconds_of(how: align.Align, ids: list[int], workers: int) -> float:
    """Estimate how many seconds matching takes on this machine, from the time for a few ids."""
    if how.name == "none":
        return 0.0
    some = [str(i) for i in range(TRIED)]
    began = time.perf_counter()
    points = psi.hashed(some, how.group)
    hashing = time.perf_counter() - began
    psi.raised(points, psi.exponent(how.group), how.group)
    each = time.perf_counter() - began - hashing
    return (hashing + len(ids) * each) * sum(ids) * len(how.keys) / TRIED / workers
