"""For whom: the parties by name, those that cannot be judged, and what would change that."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.evidence import RARE, ROWS, SEEDS, enough
from fedatlas.verdict.rule import PartyVerdict
from fedatlas.wording import count, listed

NAMED = 8  # most parties that a sentence names
LARGEST = 0.5  # share of the rows that a test should take at most
STEP = 0.05  # a share is rounded up to


def whom_text(found: Answer) -> str:
    """Return "certain for A and B, not told apart from training alone for C, too few rows to say for D"."""
    party = found.asked.party
    if not found.own_rows:
        how = f" ({found.asked.hold} judges each on rows of its own)" if found.asked.hold else ""
        return f"judged on everybody's rows, so no {party} is named{how}"
    if not found.parties:
        return f"each seed deals the rows anew, so no {party} is named" if len(found.seeds) > 1 else ""
    if 1 < len(found.seeds) < SEEDS:  # there is no interval over so few, whatever the rows
        return ""
    said = {
        "gains": "certain for {}",
        "loses": "certainly worse for {}",
        "open": "open for {}, who may gain more than that",
        "not told apart": "not told apart from training alone for {}",
        "too few to say": "too few rows to say for {}",
    }
    fates = {p.name: _fate(found, p) for p in found.parties}
    out = []
    for fate, words in said.items():
        names = [name for name, one in fates.items() if one == fate]
        if names and not (fate == "loses" and found.verdict == "yes, but"):
            out.append(words.format(several(names, party)))
    return ", ".join(out)


def _fate(found: Answer, p: PartyVerdict) -> str:
    """Return the party's fate; where the mean says no, a party that may still gain more than the margin is open."""
    beyond = p.gain is not None and p.gain.high > found.asked.margin
    return "open" if found.verdict == "no" and p.fate == "not told apart" and beyond else p.fate


def several(names: Sequence[str], party: str) -> str:
    """Return the names, or how many there are."""
    return listed(names) if len(names) <= NAMED else count(len(names), party)


def nobody_else(found: Answer) -> bool:
    """Return whether a no holds for everybody: no party gains, may gain, or cannot be judged."""
    return all(p.fate == "loses" or (p.fate == "not told apart" and _fate(found, p) != "open") for p in found.parties)


def lonely_texts(found: Answer) -> list[str]:
    """Return what becomes of each party whose own rows hold one class."""
    return [always_text(p) for p in found.parties if p.alone_always is not None][:NAMED]


def always_text(p: PartyVerdict) -> str:
    """Return that a party's model alone knows one class, and whether its test rows can judge a model."""
    always, few = f"alone it always answers '{p.alone_always}'", p.fate == "too few to say"
    judge = f", and its {count(p.test_rows, 'test row')} cannot judge any model" if few and p.test_rows else ""
    if p.train_rows is None:
        return f"{p.name} alone always answers '{p.alone_always}'{judge}."
    return f"{p.name} has {count(p.train_rows, 'training row')}, all '{p.alone_always}': {always}{judge}."


def left_out_text(found: Answer) -> str:
    """Return which parties are not in the means, since the figure is undefined on their rows."""
    if not found.left_out:
        return ""
    asked = found.asked
    names = [p.name for p in found.parties if p.test_rows and (p.together is None or p.alone is None)]
    who = several(names, asked.party) if len(names) == found.left_out else count(found.left_out, asked.party)
    one = found.left_out == 1
    where = f"{'its' if one else 'their'} {asked.rows}s"
    return f"{who} {'is' if one else 'are'} not in the means, since {asked.words} is undefined on {where}."


def few_text(found: Answer) -> str:
    """Return what the parties lack that cannot be judged, and which share of test rows would do for them."""
    few = [p for p in found.parties if p.fate == "too few to say" and p.test_rows and not enough(p.test_rows, p.rarer)]
    if not few or len(few) > NAMED or not found.compared:
        return ""
    rare = any(p.rarer is not None for p in few)
    need = f"{ROWS} {found.asked.rows}s{f', {RARE} of them of the rarer class' if rare else ''}"
    has = listed([f"{p.name} has {p.test_rows}{_rare(p)}" for p in few])
    cure = _cure(found, few) if found.asked.hold else ""
    return f"An interval takes {need}: {has}.{f' {cure}' if cure else ''}"


def _rare(p: PartyVerdict) -> str:
    return f" ({p.rarer} of the rarer class)" if p.rarer is not None and p.test_rows >= ROWS else ""


def _cure(found: Answer, few: Sequence[PartyVerdict]) -> str:
    shares = {p.name: _share(p) for p in few}
    able = {name: share for name, share in shares.items() if share is not None}
    lacking = [name for name in shares if name not in able]
    out = []
    if able:
        share = max(able.values())
        key = found.asked.hold.partition(" = ")[0]
        out.append(f"{key} = {share:g}, or as large a data.test, would do for {listed(list(able))}")
    if lacking:
        one = len(lacking) == 1
        out.append(f"{listed(lacking)} {'needs' if one else 'need'} more rows")
    return "; ".join(out) + "."


def _share(p: PartyVerdict) -> float | None:
    """Return the share of a party's rows that makes a test of it; None where half of them are too few."""
    if p.train_rows is None or not p.test_rows or p.rarer == 0:
        return None
    need = ROWS if p.rarer is None else max(ROWS, p.test_rows * RARE / p.rarer)
    share = math.ceil(need / (p.train_rows + p.test_rows) / STEP - 1e-9) * STEP
    return round(share, 2) if share <= LARGEST else None
