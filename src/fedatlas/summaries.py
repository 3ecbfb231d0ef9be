"""Questions by which a server learns about all parties' rows before round 1; the answers of single parties are summed.

A `Summary` is a pure function of one party's rows and a message. Its answer is numbers by name, as plain values of the
codec. No rows are sent, although the sums of a party with a single row are that row. `Learn` asks all parties and adds
the answers; `in_process` is the one here. Masks, or a link to other machines, use another `Learn` with the same questions
and the same use of the sums.

==================  =====================================================================================================
`COLUMN_MOMENTS`    n, sum x, sum x^2 of each numeric column, for mean and deviation (`Moments`)
`PICTURE_MOMENTS`   the same of each channel, over pixels
`TARGET_MOMENTS`    the same of a target that is a number
`constants_of`      sums of the parties' own means and deviations, for one of the above
`CATEGORIES`        rows with each known category; categories that no party holds are dropped (`categories`)
`MISSING`           rows, and missing cells of each column
`AT_MOST`           cells not above a threshold: a step of the bisection that finds `medians`
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

STEPS = 32  # of the bisection: the number of bits of a float32

Message = Mapping[str, Any]
Numbers = Mapping[str, Any]
"""Integers and tensors by name, of one party or summed over parties."""


class StoredRows(Protocol):
    """A party's rows: inputs (rows, ...) in stored form, targets (rows, ...)."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


class Traffic(NamedTuple):
    """Bytes of an exchange over all parties."""

    up: int = 0
    down: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Return the traffic of both exchanges."""
        return Traffic(self.up + other.up, self.down + other.down)


Crossing = tuple[int, str, str, Any]
"""(index of the party among those with rows, "up" or "down", name of the question, content of the message)."""

_OVERHEARD: ContextVar[list[Crossing] | None] = ContextVar("overheard", default=None)


@contextmanager
def overheard() -> Iterator[list[Crossing]]:
    """Collect the messages of the exchanges inside the block, if they count as traffic."""
    found: list[Crossing] = []
    token = _OVERHEARD.set(found)
    try:
        yield found
    finally:
        _OVERHEARD.reset(token)


def note(party: int, direction: str, what: str, value: Any) -> None:
    """Note a message, if messages are being collected.

    Class counts are left out: only a simulation makes them, for a notice.
    """
    if (found := _OVERHEARD.get()) is not None and what != CLASSES.name:
        found.append((party, direction, what, value))


def in_turn(answers: Sequence[Numbers]) -> Numbers:
    """Add the answers one after another, in the order of parties."""
    total = answers[0]
    for answer in answers[1:]:
        total = {name: total[name] + answer[name] for name in total}
    return total


def in_pieces(answers: Sequence[Numbers]) -> Numbers:
    """Add the answers with torch's sum, whose order of addition gives the same last bits as a mean over parties."""
    return {
        name: torch.stack([answer[name] for answer in answers]).sum(0)
        if isinstance(value, Tensor)
        else sum(answer[name] for answer in answers)
        for name, value in answers[0].items()
    }


class Summary(NamedTuple):
    """A question about the rows of one party; a server needs only the sum of the answers."""

    name: str
    of: Callable[[StoredRows, Message], Numbers]
    # What each party is told for it, question or outcome, from (message, sum); None: nothing beyond what it already has.
    told: Callable[[Message, Numbers], Any] = lambda message, total: None
    # (message, answer) -> the answer as it is sent if nothing hides it.
    plain: Callable[[Message, Numbers], Any] = lambda message, answer: answer
    add: Callable[[Sequence[Numbers]], Numbers] = in_turn  # if answers are at hand; orders differ only by rounding
    linear: bool = True  # the result follows from this one sum; else from many, each depending on the one before


class Learnt(NamedTuple):
    """The sum over all parties, and its traffic."""

    sum: Numbers
    traffic: Traffic


Learn = Callable[[Summary, Message], Learnt]
"""Function that asks all parties one question and adds up their answers."""

Learner = Callable[[Sequence[StoredRows]], Learn]
"""Makes the `Learn` that asks parties with these rows."""


def in_process(parties: Sequence[StoredRows]) -> Learn:
    """Ask one party after another in this process, and count the messages that would be sent, in the codec's form."""

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
    """Return the traffic of a question if nothing hides its answers."""
    told = summary.told(message, total)
    up = sum(codec.size(summary.plain(message, answer)) for answer in answers)
    return Traffic(up, 0 if told is None else codec.size(told) * len(answers))


# ---------------------------------------------------------------------------------------------- means and deviations


class Moments(NamedTuple):
    """n, sum x and sum x^2 per column (float64), of one party or summed over parties."""

    n: int
    total: Tensor
    squares: Tensor

    def mean(self) -> Tensor:
        """Return sum x / n."""
        return self.total / max(self.n, 1)

    def sd(self) -> Tensor:
        """Return sqrt(sum x^2 / n - mean^2), the population standard deviation; 1 for a constant column."""
        mean = self.mean()
        variance = self.squares / max(self.n, 1) - mean**2
        # Rounding leaves about 1e-16 of the squares in a constant column: below that there is no spread.
        constant = variance <= 1e-12 * (self.squares / max(self.n, 1))
        return torch.where(constant, 1.0, variance.clamp_min(0).sqrt())

    def constants(self) -> dict[str, Tensor]:
        """Return mean and deviation by name."""
        return {"mean": self.mean(), "sd": self.sd()}


def moments_of(x: Tensor) -> Moments:
    """Return the moments of rows (n, columns)."""
    x = x.to(torch.float64)
    return Moments(len(x), x.sum(0), (x**2).sum(0))


def moments_of_pictures(x: Tensor) -> Moments:
    """Return the moments of pictures (n, channels, h, w) by channel; n counts pixels, and bytes are summed exactly."""
    if x.dtype != torch.uint8:
        return moments_of(x.movedim(1, -1).reshape(-1, x.shape[1]))
    counts = torch.stack([torch.bincount(x[:, c].reshape(-1).long(), minlength=256) for c in range(x.shape[1])])
    value = torch.arange(256, dtype=torch.float64)
    counts = counts.to(torch.float64)
    return Moments(int(counts[0].sum()), counts @ value, counts @ value**2)


def filled(x: Tensor, medians: Tensor) -> Tensor:
    """Replace the missing cells of each column by its median; they stay missing if the median is NaN."""
    return torch.where(torch.isnan(x), medians, x)


def _columns(rows: StoredRows, message: Message) -> Numbers:
    """Return the moments of ``columns`` (their numbers). ``fill`` replaces a missing cell of each column of the table."""
    return moments_of(filled(rows.x, message["fill"])[:, message["columns"]])._asdict()


def _constants(message: Message, total: Numbers) -> Numbers:
    return Moments(**total).constants()


COLUMN_MOMENTS = Summary("moments of columns", _columns, _constants)
PICTURE_MOMENTS = Summary(
    "moments of pictures", lambda rows, message: moments_of_pictures(rows.x)._asdict(), _constants
)
TARGET_MOMENTS = Summary("moments of targets", lambda rows, message: moments_of(rows.y[:, None])._asdict(), _constants)


def constants_of(moments: Summary) -> Summary:
    """Return the question about the mean over parties of their own means and deviations.

    These constants scale rows that no party holds.
    """

    def of(rows: StoredRows, message: Message) -> Numbers:
        return {"clients": 1, **Moments(**moments.of(rows, message)).constants()}

    def told(message: Message, total: Numbers) -> Numbers:
        return {name: total[name] / total["clients"] for name in ("mean", "sd")}

    return Summary(moments.name.replace("moments", "constants"), of, told, add=in_pieces)


# ------------------------------------------------------------------------------------------------------------ counts


def _holding(rows: StoredRows, message: Message) -> Numbers:
    """Count the rows with each known category. ``names``: the known categories of each column, by its number."""
    counts = {}
    for column, known in message["names"].items():
        codes = rows.x[:, int(column)]
        counts[column] = torch.bincount(codes[~torch.isnan(codes)].long(), minlength=len(known))
    return counts


def _held(message: Message, counts: Numbers) -> dict[str, list[str]]:
    """Return the names of the categories that some party holds, in the order given."""
    return {
        column: [name for name, n in zip(known, counts[column].tolist(), strict=True) if n]
        for column, known in message["names"].items()
    }


CATEGORIES = Summary("categories", _holding, _held, _held)


def categories(learn: Learn, names: Mapping[int, Sequence[str]]) -> tuple[dict[int, tuple[str, ...]], Traffic]:
    """Return, of the known ``names`` of each column, those that any party holds, in the order given."""
    if not names:
        return {}, Traffic()
    message = {"names": {str(column): list(known) for column, known in names.items()}}
    learnt = learn(CATEGORIES, message)
    return {int(j): tuple(known) for j, known in _held(message, learnt.sum).items()}, learnt.traffic


def _missing(rows: StoredRows, message: Message) -> Numbers:
    return {"n": len(rows.x), "missing": torch.isnan(rows.x).sum(0)}


MISSING = Summary("missing cells", _missing)


def _classes(rows: StoredRows, message: Message) -> Numbers:
    """Count the rows of each class. ``classes``: the number of classes. Other labels are not counted."""
    known = (rows.y >= 0) & (rows.y < message["classes"])
    return {"rows": torch.bincount(rows.y[known], minlength=message["classes"])}


CLASSES = Summary("classes", _classes)


def class_counts(learn: Learn, classes: int) -> Tensor:
    """Return the rows of each class over all parties, (classes,)."""
    counts: Tensor = learn(CLASSES, {"classes": classes}).sum["rows"]
    return counts


# ----------------------------------------------------------------------------------------------------------- medians


def _at_most(rows: StoredRows, message: Message) -> Numbers:
    """Count cells at most ``threshold``: int32 (columns, 2), in the order of `ordered`, for ``columns``. A missing cell is infinite."""
    x = rows.x.T.contiguous()[message["columns"]]
    keys = ordered(torch.nan_to_num(x, nan=torch.inf, posinf=torch.inf, neginf=-torch.inf))
    one, other = message["threshold"].T
    counts = (keys <= one[:, None]).sum(1)
    same = torch.equal(one, other)  # true in most steps: the two middle ranks separate late
    return {"at_most": torch.stack([counts, counts if same else (keys <= other[:, None]).sum(1)], 1)}


AT_MOST = Summary(
    "cells at most a threshold",
    _at_most,
    lambda message, total: {"threshold": message["threshold"]},
    linear=False,
)
"""A sum, but one of 32 whose thresholds follow from each other: under masks, 32 counts per column would be opened to find
one median, and each reveals where single cells lie. It is therefore not linear, and privacy mechanisms refuse it."""


def medians(learn: Learn, columns: Sequence[int], cells: Tensor) -> tuple[Tensor, Traffic]:
    """Return the exact median of each of ``columns`` over all parties' known cells, from counts; NaN without cells.

    ``cells``: number of known cells, (columns,), which follows from `MISSING`. The method is bisection over float32's
    ordered bit patterns: 32 times the server sends two thresholds per column, and each party returns how many of its
    cells are at most that. The two middle ranks are found together, and their mean is the median.
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
    """Map float32 to int32 in the order of the numbers, with -0 before 0."""
    return _turned(x.to(torch.float32).contiguous().view(torch.int32))


def _turned(bits: Tensor) -> Tensor:
    """Map bit patterns to ascending order, and back: for negative numbers, all bits but the sign are inverted."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
