"""The answer in plain English: one paragraph for the page, the terminal and summary.json."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.evidence import RARE, ROWS, SEEDS, enough
from fedatlas.verdict.price import price_text
from fedatlas.verdict.rule import Ends, PartyVerdict
from fedatlas.wording import bytes_text, capital, count, listed, number, signed

NAMED = 8  # most parties that a sentence names


def text(found: Answer) -> str:
    """Return the paragraph: should we federate, with which scheme, at which cost, for whom, how sure."""
    if not found.compared:
        return " ".join(filter(None, (_uncompared(found), _beyond(found), _priced(found), swing_text(found))))
    first = f"{_lead(found)}: {figures_text(found)}, {bytes_text(found.asked.cost)}{_cost_of(found)}"
    whom = whom_text(found)
    return " ".join(filter(None, (f"{first}{f'; {whom}' if whom else ''}.", *_reasons(found), *_more(found))))


def _cost_of(found: Answer) -> str:
    if found.asked.cost is None:
        return " how much was sent, which would show who took part"
    return " a seed" if len(found.seeds) > 1 else ""


def _lead(found: Answer) -> str:
    scheme = found.asked.scheme
    if found.verdict == "yes":
        return f"Federate, with {scheme}"
    if found.verdict == "yes, but":
        losers = [p.name for p in found.parties if p.fate == "loses"]
        return f"Federate, with {scheme}, but not for {several(losers, found.asked.party)}"
    if found.verdict == "no":
        return f"Do not federate with {scheme}"
    return f"These data cannot tell whether to federate, with {scheme}"


def figures_text(found: Answer) -> str:
    """Return "together AUC 0.93, alone 0.88 (+0.05, +0.02 to +0.08, 5 seeds)"."""
    pair = f"together {found.asked.words} {number(found.together)}, alone {number(found.alone)}"
    seeds = (
        count(len(found.seeds), "seed")
        if len(found.seeds) > 1
        else f"one seed, {count(found.test_rows, found.asked.rows)}"
    )
    less = ", error avoided" if found.asked.lower_is_better else ""
    if found.gain is None:
        return f"{pair} ({seeds})"
    return f"{pair} ({signed(found.gain.value)}{less}, {ends_text(found.gain)}, {seeds})"


def ends_text(found: Ends) -> str:
    """Return '+0.02 to +0.08'."""
    return f"{signed(found.low)} to {signed(found.high)}"


def whom_text(found: Answer) -> str:
    """Return "certain for A and B, not told apart for C, too few rows to say for D"."""
    if not found.own_rows:
        return f"judged on everybody's rows, so no {found.asked.party} is named"
    if not found.parties:
        return f"each seed deals the rows anew, so no {found.asked.party} is named" if len(found.seeds) > 1 else ""
    said = {
        "gains": "certain for {}",
        "loses": "certainly worse for {}",
        "not told apart": "not told apart for {}",
        "too few to say": "too few rows to say for {}",
    }
    out = []
    for fate, words in said.items():
        names = [p.name for p in found.parties if p.fate == fate]
        if names and not (fate == "loses" and found.verdict == "yes, but"):
            out.append(words.format(several(names, found.asked.party)))
    return ", ".join(out)


def several(names: Sequence[str], party: str) -> str:
    """Return the names, or how many there are."""
    return listed(names) if len(names) <= NAMED else count(len(names), party)


def _reasons(found: Answer) -> list[str]:
    """Return why the data cannot tell, where that is not plain from the interval."""
    if found.verdict != "cannot tell":
        return []
    seeds = len(found.seeds)
    if found.gain is None and 1 < seeds < SEEDS:
        return [f"{count(seeds, 'seed')} are too few for a verdict over seeds: give {SEEDS} or more."]
    if found.gain is None:
        return [f"Too few to say: an interval takes {ROWS} {found.asked.rows}s{_rarer(found)}."]
    if found.gain.low > found.asked.margin:
        return [f"The model is not told apart from {found.asked.trivial or 'the trivial one'}{_by(found)}."]
    return []


def _rarer(found: Answer) -> str:
    return f", {RARE} of them of the rarer class" if enough(found.test_rows) else ""


def _by(found: Answer) -> str:
    beyond = found.over_trivial
    return "" if beyond is None else f" ({signed(beyond.value)}, {ends_text(beyond)})"


def _more(found: Answer) -> list[str]:
    """Return the sentences behind the first: the margin, parties that lack a class, the trivial model, the last rounds."""
    asked, out = found.asked, []
    if asked.margin:
        out.append(f"A difference up to {number(asked.margin)} does not count (evaluation.margin).")
    out += [always_text(p) for p in found.parties if p.alone_always is not None][:NAMED]
    if found.left_out:
        whose = "its" if found.left_out == 1 else "their"
        are = "is" if found.left_out == 1 else "are"
        who = count(found.left_out, asked.party)
        out.append(f"{who} without this figure on {whose} {asked.rows}s {are} left out of the means.")
    if found.verdict != "cannot tell" or found.gain is None or found.gain.low <= asked.margin:
        out.append(_beyond(found))
    return [*out, _priced(found), swing_text(found)]


def always_text(party: PartyVerdict) -> str:
    """Return that a party's model alone knows one class."""
    return f"{party.name} alone always answers '{party.alone_always}'."


def _beyond(found: Answer) -> str:
    """Return how the model compares with the trivial one."""
    asked, beyond = found.asked, found.over_trivial
    if found.trivial is None or not asked.trivial:
        return ""
    reached = f"{capital(asked.trivial)} reaches {number(found.trivial)}"
    if beyond is None:
        return f"{reached}."
    if beyond.low > 0:
        return f"{reached}, and the model is better by {signed(beyond.value)} ({ends_text(beyond)})."
    if beyond.high < 0:
        return f"{reached}, and the model is worse ({signed(beyond.value)}, {ends_text(beyond)})."
    return f"{reached}, from which the model is not told apart ({signed(beyond.value)}, {ends_text(beyond)})."


def _priced(found: Answer) -> str:
    """Return what protection costs; "" where that was not measured."""
    if found.price is None:
        return ""
    less, several = found.asked.lower_is_better, len(found.seeds) > 1
    return price_text(found.price, found.asked.words, lower_is_better=less, several=several)


def _uncompared(found: Answer) -> str:
    asked = found.asked
    return (
        f"Whether to federate is not answered, since nothing was trained to compare with: run again with --baselines, which also "
        f"trains each {asked.party} alone. With {asked.scheme}, {asked.words} is {number(found.together)} on "
        f"{count(found.test_rows, found.asked.rows)}, {bytes_text(asked.cost)}{_cost_of(found)}."
    )


def swing_text(found: Answer) -> str:
    """Return that the figure swings over the last rounds, and what cures it; "" where it does not."""
    if found.swing is None:
        return ""
    cures = f"; what calms it: {', or '.join(found.cures)}" if found.cures else ""
    what = found.swing_of or found.asked.words
    return f"Over the last rounds {what} still swings by {number(found.swing)}, so much depends on the round of the end{cures}."
