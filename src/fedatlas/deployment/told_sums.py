"""The rows of each file whose sums a node sent before round 1, over all its runs.

No weighted sum of the sent sums may be a sum over a few rows. A run's sums are over the node's training rows. Another
share of test rows, another seed, label or mark of a missing cell makes them sums over other rows. The difference of two
runs' sums is a sum over the rows in which they differ. So before its first sum over other rows leaves, a node looks for
factors with which the earlier and the new sums add up to a sum over fewer rows than ``min_rows``. The search is exact,
but one that takes too long counts as found. The same is done for each column with missing cells, whose sums are over
its filled cells. If factors are found for such a column, it is sent as an empty one.

    told/FILE/NNNNNN.bin    {sets: rows, and filled rows of columns that have missing cells; hidden: columns told as empty ones}
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.data.dataset import Split
from fedatlas.errors import PrivacyError
from fedatlas.files import write_bytes
from fedatlas.wire import codec

TOLD, ROWS = "told", ""
MOST = 64  # different sets of rows of a file
PATIENCE = 5_000_000  # groups of rows that a search may visit, a few seconds
ZERO = 1e-7
AGAIN = (
    "its policy.toml refuses sums before round 1 over these training rows: with those of earlier runs they add up to a sum over fewer "
    "than min_rows = {} rows, which repeat = false forbids; take another seed, the same data.test, label and na as before, or "
    "data.constants."
)
Rows = np.ndarray[Any, np.dtype[np.bool_]]


class ToldRows(NamedTuple):
    """The rows that the sums of a run are over, per column with missing cells. ``ROWS``: of all other columns."""

    sets: Mapping[str, Rows]
    hidden: tuple[str, ...] = ()

    def of(self, column: str) -> Rows | None:
        """Return the rows of a column; None if it was sent as an empty one."""
        return None if column in self.hidden else self.sets.get(column, self.sets[ROWS])

    def without(self, columns: Collection[str]) -> ToldRows:
        """Return a copy with these columns sent as empty ones."""
        sets = {name: rows for name, rows in self.sets.items() if name not in columns}
        return ToldRows(sets, tuple(sorted(columns)))

    def short(self, least: int) -> set[str]:
        """Return the columns with fewer filled cells."""
        return {name for name, rows in self.sets.items() if name != ROWS and int(rows.sum()) < least}

    def fewest(self) -> int:
        """Return the number of rows of the smallest sum."""
        return min(int(rows.sum()) for rows in self.sets.values())

    def same(self, other: ToldRows) -> bool:
        """Return whether the sums are over the same rows, column by column."""
        alike = self.hidden == other.hidden and self.sets.keys() == other.sets.keys()
        return alike and all(np.array_equal(rows, other.sets[name]) for name, rows in self.sets.items())


class ToldSums:
    """The sums that one node sent of its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / TOLD

    def telling(self, file: str, split: Split, columns: Sequence[str], least: int, *, repeat: bool) -> Split:
        """Note that sums of these training rows leave, and return the rows.

        Columns whose sums would tell a few cells are emptied.

        ``file``: digest of the file. PrivacyError if sums would add up to one over fewer rows than ``least``, unless
        ``repeat``.
        """
        columns = tuple(columns) or tuple(map(str, range(split.x.shape[1])))
        new, before = rows_of(split, columns), list(self._before(file))
        told = next((one for one in before if new.without(one.hidden).same(one) and one.fewest() >= least), None)
        if told is None:
            told = new.without(self._few(before, new, columns, 0 if repeat else least) | new.short(least))
            self._keep(file, len(before), told)
        hide = torch.tensor([name in told.hidden for name in columns])
        return split._replace(x=torch.where(hide, torch.nan, split.x)) if told.hidden else split

    def _few(self, before: Sequence[ToldRows], new: ToldRows, columns: Sequence[str], least: int) -> set[str]:
        """Return the columns whose sums would tell a few cells. PrivacyError if all would."""
        if least < 2:  # every sum is over at least one row
            return set()
        if exposed(before, new, ROWS, least):
            raise PrivacyError(AGAIN.format(least))
        holed = {*new.sets, *(name for one in before for name in one.sets)}.intersection(columns)
        return {name for name in holed - new.short(least) if exposed(before, new, name, least)}

    def _before(self, file: str) -> Iterator[ToldRows]:
        for path in sorted((self.folder / file).glob("*.bin")):
            kept = codec.decode(path.read_bytes(), own=True)
            sets = {name: unpacked(bits.numpy().tobytes()) for name, bits in kept["sets"].items()}
            yield ToldRows(sets, tuple(kept["hidden"]))

    def _keep(self, file: str, number: int, new: ToldRows) -> None:
        sets = {name: torch.frombuffer(packed(rows), dtype=torch.uint8) for name, rows in new.sets.items()}
        path = self.folder / file / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, codec.encode({"sets": sets, "hidden": list(new.hidden)}))


def packed(rows: Rows) -> bytearray:
    """Return a set of rows as bytes."""
    return bytearray(zlib.compress(np.packbits(rows).tobytes()))


def unpacked(data: bytes) -> Rows:
    """Return the set of rows in some bytes; its length is a multiple of eight."""
    return np.unpackbits(np.frombuffer(zlib.decompress(data), np.uint8)).astype(bool)


def rows_of(split: Split, columns: Sequence[str]) -> ToldRows:
    """Return the rows of a split by their numbers in the file, and the filled ones of columns with missing cells."""
    at = split.numbered().row
    assert at is not None
    size = -(-(int(at.max()) + 1 if len(at) else 0) // 8) * 8

    def placed(rows: torch.Tensor) -> Rows:
        found = np.zeros(size, bool)
        found[rows.numpy()] = True
        return found

    sets = {ROWS: placed(at)}
    if split.x.dim() == 2 and split.x.is_floating_point():
        filled = ~torch.isnan(split.x)
        holed = (~filled.all(0)).nonzero().flatten().tolist()
        sets |= {columns[j]: placed(at[filled[:, j]]) for j in holed}
    return ToldRows(sets)


def exposed(before: Sequence[ToldRows], new: ToldRows, column: str, least: int) -> bool:
    """Return whether the sums of a column, with the new ones, add up to one over 1 to ``least`` - 1 rows."""
    known = [rows for one in before if (rows := one.of(column)) is not None]
    mine = new.of(column)
    assert mine is not None
    size = max(map(len, [*known, mine]))
    sets = np.stack([np.pad(rows, (0, size - len(rows))) for rows in [*known, mine]])
    return few_rows(np.unique(sets[:-1], axis=0) if known else sets[:0], sets[-1], least)


def few_rows(known: Rows, new: Rows, least: int) -> bool:
    """Return whether ``new`` (rows,) plus multiples of ``known`` (sets, rows) is nonzero in 1 to ``least`` - 1 rows.

    Rows that are in the same sets form one group with their count. True if the search takes too long.
    """
    if len(known) >= MOST:
        return not bool((known == new).all(1).any())
    sets = np.vstack([known, new])
    bits = np.ascontiguousarray(np.packbits(sets, axis=0).T)
    keys = bits.view(np.dtype((np.void, bits.shape[1])))[:, 0]
    _, first, sizes = np.unique(keys, return_index=True, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    values, sizes = sets[:, first[order]].astype(float), sizes[order]
    return Search(values[-1], values[:-1].T, sizes).found(least)


class Search:
    """The search for such multiples. ``new`` (groups,), ``known`` (groups, sets), ``sizes`` (groups,), largest first."""

    def __init__(self, new: Any, known: Any, sizes: Any) -> None:
        self.new, self.known, self.sizes = new, known, sizes
        self.patience = PATIENCE

    def found(self, least: int) -> bool:
        """Return whether there are multiples that leave 1 to ``least`` - 1 rows."""
        if not np.abs(settled(self.new, self.known)[0]).max(initial=0.0) > ZERO:
            return False  # the new sums follow from the known ones
        large = self.sizes >= least  # such groups must vanish
        left, free = settled(self.new, self.known, large)
        if np.abs(left[large]).max(initial=0.0) > ZERO:
            return False
        return self._few(left[~large], free[~large], self.sizes[~large], least)

    def _few(self, left: Any, free: Any, sizes: Any, budget: int) -> bool:
        """Search one group after another.

        ``left``: rest of each group. ``free`` (groups, ways): ways in which the rests can still be changed.
        """
        self.patience -= len(left) + 50
        if self.patience < 0:
            return True
        open_ = np.abs(free).max(1, initial=0.0) > ZERO
        budget -= int(sizes[~open_ & (np.abs(left) > ZERO)].sum())
        if budget <= 0:
            return False
        if not open_.any():
            return True
        left, free, sizes = left[open_], free[open_], sizes[open_]
        way = int(np.abs(free[0]).argmax())  # the first group vanishes by it ...
        share = free[:, way] / free[0, way]
        rest = np.delete(free - np.outer(share, free[0]), way, axis=1)
        if self._few(left - share * left[0], rest, sizes, budget):
            return True
        return self._few(left[1:], free[1:], sizes[1:], budget - int(sizes[0]))  # ... or it is one of those that stay


def settled(new: Any, known: Any, which: Any = slice(None)) -> tuple[Any, Any]:
    """Return ``new`` less the multiples of ``known`` that bring the groups ``which`` nearest to 0.

    Also return the ways to change it that leave those groups as they are.
    """
    some = known[which]
    if not some.size:
        return new, known
    factors = np.linalg.lstsq(some, new[which], rcond=None)[0]
    _, spread, ways = np.linalg.svd(np.linalg.qr(some, mode="r"))
    rank = int((spread > ZERO).sum())
    return new - known @ factors, known @ ways[rank:].T
