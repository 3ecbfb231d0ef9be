"""For whom: the parties by name, those that cannot be judged, and what would change that."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.evidence import RARE, ROWS, SEEDS, enough
from fedatlas.verdict.hold_out import hold_out
from fedatlas.verdict.rule import PartyVerdict
from fedatlas.wording import capital, count, listed, plural, signed

NAMED = 8  # most parties that a sentence names
LISTED = 3  # most parties whose test rows are listed one by one


def whom_text(found: Answer) -> str:
    """Return "certain for A and B, not told apart from training alone for C, too few rows to say for D"."""
    party = found.asked.party
    if not found.own_rows:
        how = f" ({found.asked.hold} judges each on rows of its own)" if found.asked.hold else ""
        return f"judged on everybody's rows, so no {party} is named{how}"
    if not found.parties:
        return f"each seed deals the rows anew, so no {party} is named" if len(found.seeds) > 1 else ""
    if 1 < len(found.seeds) < SEEDS:  # too few seeds for an interval, for any number of rows
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
            every = "any of the" if fate in ("not told apart", "too few to say") else "all"
            out.append(words.format(several(names, party, len(found.parties), every)))
    mean = found.verdict == "yes" and len(fates) > 1 and "gains" not in fates.values()
    return ", ".join([*([f"this is about the mean of the {plural(party)}{_estimates(found)}"] if mean else []), *out])


def _estimates(found: Answer) -> str:
    """Return the least and the largest gain of the parties that have one, certain or not."""
    asked = found.asked
    gains = {
        p.name: asked.better * (p.together - p.alone)
        for p in found.parties
        if p.together is not None and p.alone is not None
    }
    if len(gains) < 2:
        return ""
    low, high = min(gains, key=gains.__getitem__), max(gains, key=gains.__getitem__)
    return f" (estimates from {signed(gains[low])} for {low} to {signed(gains[high])} for {high})"


def _fate(found: Answer, p: PartyVerdict) -> str:
    """Return the party's fate. If the mean says no, a party that may still gain more than the margin is "open"."""
    beyond = p.gain is not None and p.gain.high > found.asked.margin
    return "open" if found.verdict == "no" and p.fate == "not told apart" and beyond else p.fate


def several(names: Sequence[str], party: str, of: int = 0, every: str = "all") -> str:
    """Return the names, or their number if they are many. All of three or more parties become "all 8 offices"."""
    if len(names) == of > 2:
        return f"{every} {count(of, party)}"
    return listed(names) if len(names) <= NAMED else count(len(names), party)


def nobody_else(found: Answer) -> bool:
    """Return whether a no holds for everybody: no party gains, may gain, or cannot be judged."""
    return all(p.fate == "loses" or (p.fate == "not told apart" and _fate(found, p) != "open") for p in found.parties)


def lonely_texts(found: Answer) -> list[str]:
    """Return a sentence for each party whose own rows hold one class."""
    several = len(found.seeds) > 1
    return [always_text(p, several=several) for p in found.parties if p.alone_always is not None][:NAMED]


def always_text(p: PartyVerdict, *, several: bool = False) -> str:
    """Return that a party's model alone knows one class, and whether its test rows can judge a model.

    Means over several seeds.
    """
    always, few = f"alone it always answers '{p.alone_always}'", p.fate == "too few to say"
    judge = f", and its {count(p.test_rows, 'test row')} cannot judge any model" if few and p.test_rows else ""
    if p.train_rows is None:
        return f"{p.name} alone always answers '{p.alone_always}'{judge}."
    return f"{p.name} has {'on average ' if several else ''}{count(p.train_rows, 'training row')}, all '{p.alone_always}': {always}{judge}."


def left_out_text(found: Answer) -> str:
    """Return which parties are not in the means, because the figure is undefined on their rows."""
    if not found.left_out:
        return ""
    asked = found.asked
    names = [p.name for p in found.parties if p.test_rows and (p.together is None or p.alone is None)]
    who = several(names, asked.party) if len(names) == found.left_out else count(found.left_out, asked.party)
    one = found.left_out == 1
    where = f"{'its' if one else 'their'} {asked.rows}s"
    return f"{who} {'is' if one else 'are'} not in the means, since {asked.words} is undefined on {where}."


def few_text(found: Answer) -> str:
    """Return what the parties without a verdict lack, and which share of test rows would suffice for them."""
    few = [p for p in found.parties if p.fate == "too few to say" and p.test_rows and not enough(p.least_rows, p.rarer)]
    if not few or not found.compared or (len(few) > NAMED and len(few) < len(found.parties)):
        return ""
    need = f"{ROWS} {found.asked.rows}s"
    rare = any(p.rarer is not None for p in few)
    if rare:
        need += f", {RARE} of them of the rarer class"
    if len(found.seeds) > 1:
        need += f"{',' if rare else ''} in each seed"
    cure = _cure(found, few) if found.asked.hold else ""
    return f"An interval takes {need}: {_have(found, few)}.{cure}"


def _have(found: Answer, few: Sequence[PartyVerdict]) -> str:
    """Return how many test rows each of these parties has, in the seed where it has the fewest; for many parties, the range."""
    if len(few) <= LISTED:
        return listed([f"{p.name} has {p.least_rows:,}{_rare(p)}" for p in few])
    rows, rare = [p.least_rows for p in few], [p.rarer for p in few if p.rarer is not None]
    said = f"{_names(found, few, few)} have {_range(rows)}"
    return f"{said}, and {_range(rare)} of the rarer class" if rare else said


def _range(rows: Sequence[int]) -> str:
    low, high = min(rows), max(rows)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rare(p: PartyVerdict) -> str:
    return f" ({p.rarer} of the rarer class)" if p.rarer is not None and p.least_rows >= ROWS else ""


def _names(found: Answer, some: Sequence[PartyVerdict], few: Sequence[PartyVerdict]) -> str:
    """Return the names. If they are many and an earlier sentence has named just these, return only their number."""
    if LISTED < len(some) == len(few) < len(found.parties):
        return f"those {count(len(some), found.asked.party)}"
    return several([p.name for p in some], found.asked.party, len(found.parties))


def _cure(found: Answer, few: Sequence[PartyVerdict]) -> str:
    """Return a sentence about the share of rows that must become test rows; "" if there is nothing to say."""
    cure = hold_out(found, few)
    if cure is None:
        return ""
    out = []
    if cure.able:
        likely = "most likely " if cure.likely else ""
        frequent = any(p.rarer is not None for p in cure.able)
        rarer = ", if the rarer class is as frequent in all rows" if frequent else ""
        out.append(f"{cure.setting} would {likely}do for {_names(found, cure.able, few)}{rarer}")
    rare = [p for p in cure.lacking if p.rarer is not None and p.rarer < RARE]
    for some, what in (
        ([p for p in cure.lacking if p not in rare], "more rows"),
        (rare, "more rows of the rarer class"),
    ):
        if some:
            out.append(f"{_names(found, some, few)} need{'s' if len(some) == 1 else ''} {what}")
    said = "; ".join(out)
    everybody = said.startswith(
        f"all {count(len(found.parties), found.asked.party)}"
    )  # else a key, or a name in its spelling
    return f" {capital(said) if everybody else said}."
