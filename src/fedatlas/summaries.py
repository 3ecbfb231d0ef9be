"""What a server learns from all parties' rows before round 1: questions about the rows of one, whose answers are added up.

A `Summary` is a pure function of one party's rows and a message; its answer is numbers by name, plain values of the codec. No rows
leave, though the sums of a party with a single row are that row. `Learn` asks all parties and adds up: `in_process` here. Masks, or
a link to other machines, are another `Learn`, and change nothing of what is asked nor of what is made of a sum.

==================  =====================================================================================================
`COLUMN_MOMENTS`    n, sum x, sum x^2 of each numeric column: mean and deviation (`Moments`)
`PICTURE_MOMENTS`   the same of each channel, over pixels
`TARGET_MOMENTS`    the same of a target that is a number
`constants_of`      of one of these: the means and deviations of parties that scale by their own, added up
`CATEGORIES`        rows with each known category: those are kept that anybody holds (`categories`)
`MISSING`           rows, and missing cells of each column
`AT_MOST`           cells at most a threshold: a step of the bisection that finds `medians`
`CLASSES`           rows of each class (`class_counts`)
==================  =====================================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedatlas.wire import codec

STEPS = 32  # of the bisection: as many as float32 has bits

Message = Mapping[str, Any]
Numbers = Mapping[str, Any]
"""Whole numbers and tensors by name: of one party, or added up over parties."""


class StoredRows(Protocol):
    """What one party holds: inputs (rows, ...) in stored form, targets (rows, ...)."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


class Traffic(NamedTuple):
    """Bytes of an exchange over all parties."""

    up: int = 0
    down: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Both exchanges."""
        return Traffic(self.up + other.up, self.down + other.down)


Crossing = tuple[int, str, str, Any]
"""(party by its place among those who hold rows, "up" or "down", name of the question, what crosses)."""

_OVERHEARD: ContextVar[list[Crossing] | None] = ContextVar("overheard", default=None)


@contextmanager
def overheard() -> Iterator[list[Crossing]]:
    """Inside, whatever crosses between parties and server for an exchange that is counted is noted."""
    found: list[Crossing] = []
    token = _OVERHEARD.set(found)
    try:
        yield found
    finally:
        _OVERHEARD.reset(token)


def note(party: int, direction: str, what: str, value: Any) -> None:
    """Notes what crosses, where somebody listens; the counts behind a notice, which a simulation makes for itself, do not cross."""
    if (found := _OVERHEARD.get()) is not None and what != CLASSES.name:
        found.append((party, direction, what, value))


def in_turn(answers: Sequence[Numbers]) -> Numbers:
    """One after another, in the order of parties."""
    total = answers[0]
    for answer in answers[1:]:
        total = {name: total[name] + answer[name] for name in total}
    return total


def in_pieces(answers: Sequence[Numbers]) -> Numbers:
    """By torch's own sum, which adds up in another order: its last bits are those of a mean over parties."""
    return {
        name: torch.stack([answer[name] for answer in answers]).sum(0)
        if isinstance(value, Tensor)
        else sum(answer[name] for answer in answers)
        for name, value in answers[0].items()
    }


class Summary(NamedTuple):
    """A question about the rows of one party; a server needs the sum of the answers and no single one."""

    name: str
    of: Callable[[StoredRows, Message], Numbers]
    # What each party is told for it, question or outcome, of (message, sum); None: nothing that it has not anyway.
    told: Callable[[Message, Numbers], Any] = lambda message, total: None
    # (message, answer) -> the answer as it is written where nothing hides it.
    plain: Callable[[Message, Numbers], Any] = lambda message, answer: answer
    add: Callable[[Sequence[Numbers]], Numbers] = in_turn  # where answers are at hand: orders differ by rounding alone
    linear: bool = True  # what is wanted is made of this one sum; else of many, each asked for by what the last one was


class Learnt(NamedTuple):
    """The sum over all parties, and what it took."""

    sum: Numbers
    traffic: Traffic


Learn = Callable[[Summary, Message], Learnt]
"""Asks all parties one question and adds up their answers."""

Learner = Callable[[Sequence[StoredRows]], Learn]
"""Who asks parties that hold these rows."""


def in_process(parties: Sequence[StoredRows]) -> Learn:
    """Asks one party after another in this process; counts the messages in which that would travel, as the codec writes them."""

    def learn(summary: Summary, message: Message) -> Learnt:
        answers = [summary.of(rows, message) for rows in parties]
        total = summary.add(answers)
        told = summary.told(message, total)
        for k, answer in enumerate(answers):
            note(k, "up", summary.name, summary.plain(message, answer))
            if told is not None:
                note(k, "down", summary.name, told)
        return Learnt(total, in_the_clear(summary, message, answers, total))

    return learn


def in_the_clear(summary: Summary, message: Message, answers: Sequence[Numbers], total: Numbers) -> Traffic:
    """The messages in which a question travels where nothing hides its answers."""
    told = summary.told(message, total)
    up = sum(codec.size(summary.plain(message, answer)) for answer in answers)
    return Traffic(up, 0 if told is None else codec.size(told) * len(answers))


# ---------------------------------------------------------------------------------------------- means and deviations


class Moments(NamedTuple):
    """n, sum x, sum x^2 per column (float64): of one party, or added up over parties."""

    n: int
    total: Tensor
    squares: Tensor

    def mean(self) -> Tensor:
        """Sum / n."""
        return self.total / max(self.n, 1)

    def sd(self) -> Tensor:
        """sqrt(sum x^2 / n - mean^2), the standard deviation of a population; 1 where it is 0, a constant column."""
        mean = self.mean()
        variance = self.squares / max(self.n, 1) - mean**2
        # Rounding leaves about 1e-16 of the squares in a constant column: below that there is no spread.
        constant = variance <= 1e-12 * (self.squares / max(self.n, 1))
        return torch.where(constant, 1.0, variance.clamp_min(0).sqrt())

    def constants(self) -> dict[str, Tensor]:
        """Mean and deviation."""
        return {"mean": self.mean(), "sd": self.sd()}


def moments_of(x: Tensor) -> Moments:
    """Of rows (n, columns)."""
    x = x.to(torch.float64)
    return Moments(len(x), x.sum(0), (x**2).sum(0))


def moments_of_pictures(x: Tensor) -> Moments:
    """Of pictures (n, channels, h, w) by channel: n counts pixels; bytes are counted by value, exactly."""
    if x.dtype != torch.uint8:
        return moments_of(x.movedim(1, -1).reshape(-1, x.shape[1]))
    counts = torch.stack([torch.bincount(x[:, c].reshape(-1).long(), minlength=256) for c in range(x.shape[1])])
    value = torch.arange(256, dtype=torch.float64)
    counts = counts.to(torch.float64)
    return Moments(int(counts[0].sum()), counts @ value, counts @ value**2)


def filled(x: Tensor, medians: Tensor) -> Tensor:
    """Missing cells of a column replaced by its median, where it is not NaN."""
    return torch.where(torch.isnan(x), medians, x)


def _columns(rows: StoredRows, message: Message) -> Numbers:
    """``columns``: numbers of the columns; ``fill``: what stands in for a missing cell of each column of the table."""
    return moments_of(filled(rows.x, message["fill"])[:, message["columns"]])._asdict()


def _constants(message: Message, total: Numbers) -> Numbers:
    return Moments(**total).constants()


COLUMN_MOMENTS = Summary("moments of columns", _columns, _constants)
PICTURE_MOMENTS = Summary(
    "moments of pictures", lambda rows, message: moments_of_pictures(rows.x)._asdict(), _constants
)
TARGET_MOMENTS = Summary("moments of targets", lambda rows, message: moments_of(rows.y[:, None])._asdict(), _constants)


def constants_of(moments: Summary) -> Summary:
    """The question after the mean over parties of their own means and deviations, for rows that no party holds."""

    def of(rows: StoredRows, message: Message) -> Numbers:
        return {"clients": 1, **Moments(**moments.of(rows, message)).constants()}

    def told(message: Message, total: Numbers) -> Numbers:
        return {name: total[name] / total["clients"] for name in ("mean", "sd")}

    return Summary(moments.name.replace("moments", "constants"), of, told, add=in_pieces)


# ------------------------------------------------------------------------------------------------------------ counts


def _holding(rows: StoredRows, message: Message) -> Numbers:
    """``names``: the known categories of each column, by its number."""
    counts = {}
    for column, known in message["names"].items():
        codes = rows.x[:, int(column)]
        counts[column] = torch.bincount(codes[~torch.isnan(codes)].long(), minlength=len(known))
    return counts


def _held(message: Message, counts: Numbers) -> dict[str, list[str]]:
    """The names of categories that are held at all, in the order given."""
    return {
        column: [name for name, n in zip(known, counts[column].tolist(), strict=True) if n]
        for column, known in message["names"].items()
    }


CATEGORIES = Summary("categories", _holding, _held, _held)


def categories(learn: Learn, names: Mapping[int, Sequence[str]]) -> tuple[dict[int, tuple[str, ...]], Traffic]:
    """Of the known ``names`` of each column those that any party holds, in the order given."""
    if not names:
        return {}, Traffic()
    message = {"names": {str(column): list(known) for column, known in names.items()}}
    learnt = learn(CATEGORIES, message)
    return {int(j): tuple(known) for j, known in _held(message, learnt.sum).items()}, learnt.traffic


def _missing(rows: StoredRows, message: Message) -> Numbers:
    return {"n": len(rows.x), "missing": torch.isnan(rows.x).sum(0)}


MISSING = Summary("missing cells", _missing)


def _classes(rows: StoredRows, message: Message) -> Numbers:
    """``classes``: how many there are; a label that is none of them counts nowhere."""
    known = (rows.y >= 0) & (rows.y < message["classes"])
    return {"rows": torch.bincount(rows.y[known], minlength=message["classes"])}


CLASSES = Summary("classes", _classes)


def class_counts(learn: Learn, classes: int) -> Tensor:
    """Rows of each class over all parties, (classes,)."""
    counts: Tensor = learn(CLASSES, {"classes": classes}).sum["rows"]
    return counts


# ----------------------------------------------------------------------------------------------------------- medians


def _at_most(rows: StoredRows, message: Message) -> Numbers:
    """``threshold``: int32 (columns, 2), in the order of `ordered`, for each of ``columns``; a missing cell counts as infinite."""
    x = rows.x.T.contiguous()[message["columns"]]
    keys = ordered(torch.nan_to_num(x, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf))
    one, other = message["threshold"].T
    counts = (keys <= one[:, None]).sum(1)
    same = torch.equal(one, other)  # as in most steps: the middle ranks part late
    return {"at_most": torch.stack([counts, counts if same else (keys <= other[:, None]).sum(1)], 1)}


AT_MOST = Summary(
    "cells at most a threshold",
    _at_most,
    lambda message, total: {"threshold": message["threshold"]},
    linear=False,
)
"""A sum, but one of 32 whose next threshold follows from the last: who adds up under masks would open 32 counts a column, each of
which says where single cells lie, to find one median. So it is no plain sum, and privacy refuses it."""


def medians(learn: Learn, columns: Sequence[int], cells: Tensor) -> tuple[Tensor, Traffic]:
    """The exact median of each of ``columns`` over all parties' cells that are not missing, from counts alone; NaN where there is none.

    ``cells``: how many these are, (columns,), which follows from `MISSING`. Bisection over float32's ordered bit patterns: 32
    times the server sends two thresholds a column and each party says how many of its cells are at most that; the two
    middle ranks are found at once, and their mean is the median.
    """
    ranks = torch.stack([(cells + 1) // 2, cells // 2 + 1], 1)
    low = torch.full_like(ranks, -(1 << 31))
    high = torch.full_like(ranks, (1 << 31) - 1)
    traffic = Traffic()
    for _ in range(STEPS):
        middle = (low + high) >> 1
        learnt = learn(AT_MOST, {"columns": list(columns), "threshold": middle.to(torch.int32)})
        enough = learnt.sum["at_most"] >= ranks
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle + 1)
        traffic = traffic.plus(learnt.traffic)
    values = _turned(high.to(torch.int32)).view(torch.float32).to(torch.float64).mean(1)
    return torch.where(cells > 0, values, torch.nan), traffic


def ordered(x: Tensor) -> Tensor:
    """float32 -> int32 in the order of the numbers, -0 before 0."""
    return _turned(x.to(torch.float32).contiguous().view(torch.int32))


def _turned(bits: Tensor) -> Tensor:
    """Numbers as bits -> in ascending order, and back: of those below 0 all bits but the sign are turned over."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
