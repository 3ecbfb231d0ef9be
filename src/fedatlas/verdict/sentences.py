"""The answer in plain English: one paragraph for the page, the terminal and summary.json."""

from __future__ import annotations

from fedatlas.verdict.answer import Answer
from fedatlas.verdict.digits import Digits, digits_of
from fedatlas.verdict.evidence import LEVEL, RARE, RARITY, ROWS, SEEDS, enough
from fedatlas.verdict.price import price_text
from fedatlas.verdict.rule import Ends
from fedatlas.verdict.sure import sure_text
from fedatlas.verdict.whom import few_text, left_out_text, lonely_texts, nobody_else, several, whom_text
from fedatlas.wording import bytes_text, capital, count, listed, number, plural


def text(found: Answer) -> str:
    """Return the paragraph: should we federate, with which scheme, at which cost, for whom, how sure."""
    if found.unlike:
        return (
            f"These data cannot tell whether to federate with {found.asked.scheme}: the seeds are judged by different figures "
            f"({listed(found.unlike)}), which have no mean. Name one (evaluation.metric), and run again."
        )
    if found.asked.judge:
        return " ".join(
            filter(
                None, (_together(found), beyond_text(found), _how_sure(found), _alone_text(found), swing_text(found))
            )
        )
    if not found.compared:
        return " ".join(filter(None, (_uncompared(found), beyond_text(found), _priced(found), swing_text(found))))
    first = f"{_lead(found)}: {figures_text(found)}, {bytes_text(found.asked.cost)}{_cost_of(found)}"
    whom = whom_text(found)
    bare = (
        f"{count(found.bare_seeds, 'more seed')} without a model alone to compare with {'is' if found.bare_seeds == 1 else 'are'} left out."
        if found.bare_seeds
        else ""
    )
    said = (nothing_text(found), f"{first}{f'; {whom}' if whom else ''}.", bare, *_reasons(found), *_more(found))
    return " ".join(filter(None, said))


def _cost_of(found: Answer) -> str:
    if found.asked.cost is None:
        return " how much was sent, which would show who took part"
    return " a training" if len(found.seeds) > 1 else ""


def _lead(found: Answer) -> str:
    scheme = found.asked.scheme
    if found.verdict == "yes":
        return f"Federate, with {scheme}"
    if found.verdict == "yes, but":
        losers = [p.name for p in found.parties if p.fate == "loses"]
        return f"Federate, with {scheme}, but not for {several(losers, found.asked.party)}"
    if found.verdict == "no" and _little(found):
        return f"On average, federation with {scheme} is not worth it"
    if found.verdict == "no":
        return f"{'Do' if nobody_else(found) else 'On average, do'} not federate with {scheme}"
    return f"These data cannot tell whether to federate with {scheme}"


def _little(found: Answer) -> bool:
    """Return whether a no means that the gain is below the margin, and not that federation makes models worse."""
    return found.gain is not None and found.gain.high >= -found.asked.margin and found.asked.margin > 0


def nothing_text(found: Answer) -> str:
    """Return that there may be nothing to learn, if no model is told apart from the constant one; else ""."""
    models = {
        "alone": found.alone_over_trivial,
        "together": found.over_trivial,
        "pooled": found.pooled_over_trivial,
    }
    known = {name: one for name, one in models.items() if one is not None}
    if (
        not {"alone", "together"} <= known.keys()
        or not found.asked.trivial
        or (found.pooled is not None and len(known) < 3)
    ):
        return ""
    if any(one.low > 0 for one in known.values()):
        return ""
    names = " or ".join((", ".join(list(known)[:-1]), list(known)[-1]))
    said = "is better than" if any(one.high < 0 for one in known.values()) else "is told apart from"
    return f"No model, {names}, {said} {found.asked.trivial}: there may be nothing to learn here."


def digits(found: Answer) -> Digits:
    """Return the decimals of the answer's figures."""
    levels, gain = [found.together, found.alone], found.gain
    if gain is None:
        return digits_of(levels, ())
    shown = digits_of(levels, (gain.value, gain.low, gain.high))
    margin = found.asked.margin  # an end beyond it decides, so it must not be rounded to it
    return shown.telling([(gain.low, margin), (gain.high, margin), (gain.high, -margin)])


def figures_text(found: Answer) -> str:
    """Return "together AUC 0.930, alone 0.880 (+0.050, +0.020 to +0.080, 5 seeds)"."""
    as_text = digits(found)
    pair = f"together {found.asked.words} {as_text.number(found.together)}, alone {as_text.number(found.alone)}"
    many = len(found.seeds)
    seeds = count(many, "seed") if many > 1 else f"one seed, {count(_rows(found), found.asked.rows)}"
    if found.gain is None:
        return f"{pair} ({seeds})"
    less = " less error" if found.asked.lower_is_better else ""
    return f"{pair} ({as_text.signed(found.gain.value)}{less}, {_ends(found.gain, as_text)}, {seeds})"


def _rows(found: Answer) -> int:
    return found.test_rows if found.mean_rows is None else found.mean_rows


def _ends(found: Ends, as_text: Digits) -> str:
    return as_text.ends(found.low, found.high)


def _reasons(found: Answer) -> list[str]:
    """Return the reasons for the answer that the interval does not show."""
    if found.verdict == "no" and _little(found):
        margin = number(found.asked.margin)
        return [f"The mean gain is below {margin}, up to which models count as equally good (evaluation.margin)."]
    if found.verdict != "cannot tell":
        return []
    seeds = len(found.seeds)
    if found.gain is None and 1 < seeds < SEEDS:
        return [f"{count(seeds, 'seed')} are too few for a verdict over seeds: give {SEEDS} or more."]
    if found.gain is None and few_text(found):
        return []  # that sentence follows, with their numbers
    if found.gain is None:
        return [f"Too few to say: an interval takes {ROWS} {found.asked.rows}s{_rarer(found)}."]
    if found.gain.low > found.asked.margin and not nothing_text(found):
        return [f"The model is not told apart from {found.asked.trivial or 'the trivial one'}{_by(found)}."]
    return []


def _rarer(found: Answer) -> str:
    return f", {RARE} of them of the rarer class" if enough(_rows(found)) else ""


def _by(found: Answer) -> str:
    beyond = found.over_trivial
    if beyond is None:
        return ""
    as_text = digits_of([found.trivial], [beyond.value, beyond.low, beyond.high])
    return f" ({as_text.signed(beyond.value)}, {_ends(beyond, as_text)})"


def _more(found: Answer) -> list[str]:
    """Return the later sentences: how sure, the margin, parties that lack a class or rows, the trivial model, the last rounds."""
    asked, out = found.asked, [sure_text(found, digits(found))]
    if asked.margin and not (found.verdict == "no" and _little(found)):
        out.append(f"A difference up to {number(asked.margin)} does not count (evaluation.margin).")
    out += [*lonely_texts(found), left_out_text(found), few_text(found)]
    if found.verdict != "cannot tell" or found.gain is None or found.gain.low <= asked.margin or nothing_text(found):
        out.append(beyond_text(found))
    return [*out, _priced(found), swing_text(found)]


def beyond_text(found: Answer) -> str:
    """Return how the model compares with the trivial one."""
    asked, beyond = found.asked, found.over_trivial
    if found.trivial is None or not asked.trivial:
        return ""
    reached = f"{capital(asked.trivial)} reaches {number(found.trivial)}"
    if beyond is None:
        return f"{reached}."
    by = _by(found).strip(" ()")
    if beyond.low > 0:
        value, ends = by.split(", ", 1)
        return f"{reached}, and the model is better by {value} ({ends})."
    if beyond.high < 0:
        return f"{reached}, and the model is worse ({by})."
    return f"{reached}, from which the model is not told apart ({by})."


def _priced(found: Answer) -> str:
    """Return the cost of protection; "" if it was not measured."""
    if found.price is None:
        return ""
    less, several = found.asked.lower_is_better, len(found.seeds) > 1
    return price_text(found.price, found.asked.words, lower_is_better=less, several=several)


def _uncompared(found: Answer) -> str:
    return (
        f"Whether to federate is not answered, since nothing was trained to compare with: run again with baselines (--baselines, in "
        f"Python baselines=True), which also trains each {found.asked.party} alone. {reached_text(found)}"
    )


def _together(found: Answer) -> str:
    """Return the figure that real parties reach together, on how many rows, at which cost."""
    asked = found.asked
    ends = "" if found.interval is None else f" ({' to '.join(map(number, found.interval))})"
    rows = count(found.test_rows, asked.rows) if found.test_rows else f"the {asked.rows}s"
    return (
        f"With {asked.scheme}, the {plural(asked.party)} together reach {asked.words} {number(found.together)}{ends} on "
        f"{rows}{' of the nodes' if asked.judge == 'nodes' else ''}, {bytes_text(asked.cost)}{_cost_of(found)}."
    )


def _how_sure(found: Answer) -> str:
    """Return what the intervals of a deployed run count, or why there are none."""
    asked = found.asked
    if found.interval is not None:
        many = "s are" if found.over_trivial is not None else " is one"
        return f"The interval{many} of {LEVEL:.0%} over the {asked.rows}s of one seed, without the chance of training."
    if found.test_rows and not enough(found.test_rows):
        return f"Too few to say how sure that is: an interval takes {ROWS} {asked.rows}s{_rarer(found)}."
    if asked.judge == "nodes":
        return f"How sure that is cannot be said: nodes tell sums, which give {asked.words} no interval; {asked.rows}s at the server do."
    rare = f"{RARE} {asked.rows}s of the rarer class" if asked.figure in RARITY else "more"
    return f"Too few to say how sure that is: an interval takes {rare}."


def _alone_text(found: Answer) -> str:
    """Return that nobody trains alone in a deployed run, and how to measure that comparison."""
    holder = found.asked.judge == "holder"
    who, each, own = ("the party with the label", "It", "columns") if holder else ("any of them", "Each", "rows")
    return (
        f"Whether to federate is not answered: nobody trains alone in a deployed run, so whether {who} would do as well alone was not "
        f"measured. {each} can measure that by training on its own {own} ('fedatlas run') and judging both models on rows that "
        "neither has seen."
    )


def reached_text(found: Answer) -> str:
    """Return the scheme's own figure, and its cost."""
    asked = found.asked
    rows = f" on {count(found.test_rows, asked.rows)}" if found.test_rows else ""
    return f"With {asked.scheme}, {asked.words} is {number(found.together)}{rows}, {bytes_text(asked.cost)}{_cost_of(found)}."


def swing_text(found: Answer) -> str:
    """Return that the figure swings over the last rounds, and the remedies; "" if it does not."""
    if found.swing is None:
        return ""
    cures = f"; what calms it: {', or '.join(found.cures)}" if found.cures else ""
    what = found.swing_of or found.asked.words
    return f"Over the last rounds {what} still swings by {number(found.swing)}, so much depends on the round of the end{cures}."
