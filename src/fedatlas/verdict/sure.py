"""The certainty of an answer: the unit of its interval, what it excludes, and what would settle the question."""

from __future__ import annotations

import math

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.digits import Digits
from fedatlas.verdict.evidence import LEVEL, student
from fedatlas.verdict.rule import Ends, bonferroni
from fedatlas.wording import count, plural

MOST_ROWS, MOST_SEEDS = 30, 30  # largest factor of rows, and number of seeds, worth mentioning
USUAL_SEEDS = 5  # with fewer, intervals are much wider than the spread over seeds


def sure_text(found: Answer, digits: Digits) -> str:
    """Return the level and the unit of the interval.

    If the data cannot tell, add what they exclude and what would settle it.
    """
    if found.gain is None:
        return ""
    level = f"{LEVEL:.0%}"
    if len(found.seeds) > 1:
        how = f"The interval is one of {level}; its unit is the seed.{_few_seeds(found)}"
    else:
        how = (
            f"The interval is one of {level} over the {found.asked.rows}s of one seed, without the chance of training."
        )
    if found.verdict != "cannot tell" or found.gain.low > found.asked.margin:
        return how
    return f"{how} {_excluded(found.gain, digits)} {_settled(found)}".rstrip()


def _few_seeds(found: Answer) -> str:
    """Return how much narrower the parties' intervals would be over five seeds, if a party is not told apart and rows are drawn."""
    now, drawn = len(found.seeds), found.test_rows / found.train_rows if found.train_rows else 0.0
    judged = sum(p.gain is not None for p in found.parties)
    if (
        now >= USUAL_SEEDS
        or len(set(found.judged_on)) == 1
        or not any(p.fate == "not told apart" for p in found.parties)
    ):
        return ""
    level = bonferroni(judged)
    was, would = (student((1 + level) / 2, n - 1) * math.sqrt(1 / n + drawn) for n in (now, USUAL_SEEDS))
    return (
        f" {count(now, 'seed')} say little about single {plural(found.asked.party)}: {USUAL_SEEDS} would make their intervals "
        f"about {would / was:.1f} times as wide, were the spread the same."
    )


def _excluded(gain: Ends, digits: Digits) -> str:
    more = f"a mean gain above {digits.number(gain.high)}" if gain.high > 0 else ""
    less = f"a mean loss above {digits.number(-gain.low)}" if gain.low < 0 else ""
    return f"Excluded are {more} and {less}." if more and less else f"Excluded is {more or less}."


def _settled(found: Answer) -> str:
    """Return about how many rows or seeds would bring the interval clear of the margin, if the difference stayed the same."""
    gain, seeds = found.gain, len(found.seeds)
    assert gain is not None
    beyond = abs(gain.value - found.asked.margin)
    half = (gain.high - gain.low) / 2
    if not beyond or not half:
        return ""
    if seeds > 1 and (many := _seeds(found, beyond)) is not None:
        return f"Were the difference as it is here, about {many} seeds would settle it."
    times = (half / beyond) ** 2
    if times > MOST_ROWS:
        return "The difference is so small that more rows would hardly settle it."
    rows = math.ceil(times * found.test_rows)
    rounded = math.ceil(rows / 10 ** max(len(str(rows)) - 2, 0)) * 10 ** max(len(str(rows)) - 2, 0)
    return f"Were the difference as it is here, about {count(rounded, found.asked.rows)} would settle it."


def _seeds(found: Answer, beyond: float) -> int | None:
    """Return how many seeds would suffice; None if they share their rows, or if no number of seeds would."""
    if len(set(found.judged_on)) == 1 or not found.train_rows or found.gain is None:
        return None
    now, drawn = len(found.seeds), found.test_rows / found.train_rows
    spread = found.gain.error / math.sqrt(1 / now + drawn)
    for many in range(now + 1, MOST_SEEDS + 1):
        if student((1 + LEVEL) / 2, many - 1) * spread * math.sqrt(1 / many + drawn) < beyond:
            return many
    return None
