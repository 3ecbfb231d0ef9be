"""Rows of one party as its source gives them, for mechanisms that change rows before anything is computed from them (`Work.rows`).

The draws of such a mechanism are functions of a secret of the run, so that a row is changed alike in every round and after a resume.
The secret comes from the operating system, or from the seed under noise = "seed". Whoever holds it can draw the same again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fedatlas import secret

if TYPE_CHECKING:
    from torch import Tensor

Columns = tuple[tuple[str, tuple[str, ...]], ...]
"""(name, its categories) of each column of a table, in order; () categories for a column of numbers."""


Total = Callable[[Callable[["OwnRows"], "Tensor"]], "Tensor"]
"""(what a party counts in its rows, int64 (n,)) -> the sum over all parties, of which nobody sees a part."""


class OwnRows(NamedTuple):
    """Rows of one party in stored form: before categories are coded, missing cells are filled and numbers are scaled.

    A mechanism returns changed rows by `_replace`. It may change cells, leave rows out (in ``x``, ``y`` and ``row`` alike), rename
    columns, and give a column other categories; the number of columns stays.
    """

    x: Tensor  # of a table float (n, columns): numbers, or codes into a column's categories, NaN = missing; else as stored
    y: Tensor  # class numbers int64 (n,), numbers float (n,), or tokens int64 (n, length)
    row: Tensor  # int64 (n,): the place of each row among all that its party holds, or that a file has
    columns: Columns = ()  # of a table; () for pictures, tokens, and arrays without names
    classes: tuple[str, ...] = ()  # names of the classes; () for a target of numbers
    told: Mapping[str, Any] = {}  # plain values that the run's folder keeps, in the open, for reading new rows


class RowsHow(NamedTuple):
    """The party whose rows are changed, and the secrets from which a mechanism draws."""

    party: int  # `algorithm.SERVER`: test rows of the server, or new rows of anybody
    parties: int
    own: bytes  # known to this party only, 32 bytes
    shared: bytes  # known to all clients and not to the server, 32 bytes
    told: Mapping[int, Mapping[str, Any]] = {}  # party -> `OwnRows.told`, for `Work.new_rows`


def how_of(name: str, keys: Mapping[str, Any], root: bytes, seed: int, party: int, parties: int) -> RowsHow:
    """Return what a mechanism draws from for one party's rows. ``root``: the run's secret; the seed under noise = "seed"."""
    root = f"seed {seed}".encode() if keys.get("noise") == "seed" else root

    def derived(what: str) -> bytes:
        return hashlib.blake2b(f"fedatlas rows {name} {what}".encode(), key=root, digest_size=32).digest()

    return RowsHow(party, parties, derived(f"of party {party}"), derived("of all clients"))


def fresh_root() -> secret.Secret:
    """Return a new secret for a run."""
    return secret.Secret(secret.key())
