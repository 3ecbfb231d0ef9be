"""A party's record of the sums that it helped to open and of the sessions that it began. No update is opened twice.

Two openings of one ask would be two sums that differ by the clients between them. So a party helps only once for (run, round, ask),
regardless of the attempt. The record is a plain value, ``{run: [[round, ask], ...]}``. It is kept in the party's persistent memory and
written there *before* the shares leave. Each failed session reveals a bit. A party therefore begins at most ``TRIES`` for an ask, and
notes each in the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.errors import ProtocolError

Record = Mapping[str, Sequence[Any]]
TRIES = 3


def given(record: Record, run: str, round: int, ask: int | str) -> bool:
    """Whether the party helped to open this ask before."""
    return [round, ask] in [list(entry) for entry in record.get(run, ())]


def noted(record: Record, run: str, round: int, ask: int | str) -> dict[str, list[Any]]:
    """Return the record with this ask added. ProtocolError if it is already there."""
    if given(record, run, round, ask):
        raise ProtocolError(
            f"the sum of round {round}, ask {ask} was opened once and is not opened again: read it from the journal of the run."
        )
    return _with(record, run, [round, ask])


def begun(tries: Record, run: str, round: int, ask: int | str) -> dict[str, list[Any]]:
    """Return the sessions begun so far, including this one. ProtocolError if the limit for this ask was reached."""
    if [list(entry) for entry in tries.get(run, ())].count([round, ask]) >= TRIES:
        raise ProtocolError(
            f"{TRIES} masked sessions were begun for '{ask}' in round {round}, and no more are: refused."
        )
    return _with(tries, run, [round, ask])


def _with(record: Record, run: str, one: list[Any]) -> dict[str, list[Any]]:
    kept = {name: [list(entry) for entry in entries] for name, entries in record.items()}
    return {**kept, run: [*kept.get(run, []), one]}
