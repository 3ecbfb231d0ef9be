"""The sentences that open a study's page: each setting's answer, or over many settings how often which answer is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from fedatlas.study.answers import SettingAnswer
from fedatlas.study.measurements import Measurements, levels_text
from fedatlas.study.plain import Plain, RunRow
from fedatlas.study.verdict import range_text
from fedatlas.verdict.answer import Answer
from fedatlas.verdict.evidence import SEEDS
from fedatlas.verdict.rule import Verdict
from fedatlas.verdict.schemes import choice_text, ranking_text
from fedatlas.verdict.sentences import beyond_text, figures_text, reached_text, text
from fedatlas.wording import bytes_text, count, listed, number, signed

FEW = 6  # most settings answered one by one
RATE = "local.lr"
OFTEN = 0.15  # a level stands out where a choice wins so much more often than over all settings
VERDICTS: tuple[Verdict, ...] = ("yes", "yes, but", "no", "cannot tell")
NOTHING = "No run of any setting finished, so there is nothing to report."
UNKNOWN = "For some runs the table does not keep how many test rows there were, so intervals leave out that seeds share training rows."


def rate_note(study: Measurements) -> list[str]:
    """Return that all choices of a setting ran with one rate, which was tuned for none of them; nothing with one algorithm."""
    runs = [run for run in study.cells() if "configuration" in run]
    algorithms = {str(run["configuration"].get("algorithm", {}).get("name")) for run in runs}
    rates: dict[tuple[str, ...], set[float | None]] = {}
    for run in runs:
        rates.setdefault(study.setting_of(run), set()).add(run["configuration"].get("local", {}).get("lr"))
    every = set().union(*rates.values()) - {None}
    if (
        len(algorithms) < 2
        or not every
        or any(RATE in (run.get("rates") or ()) for run in runs)
        or any(len(x) > 1 for x in rates.values())
    ):
        return []
    rate = f"{RATE}={every.pop():g}" if len(every) == 1 else f"one {RATE} in each setting"
    return [
        f"All choices ran with {rate}, which may suit one better than another: [tuning] in the study picks each choice's own."
    ]


def answer_of(study: Measurements, found: Sequence[SettingAnswer]) -> Plain:
    """Return the answer of a study as plain values: its sentences, ``text``, how often which verdict, and each setting."""
    told = [one for one in found if one.answer is not None]
    if not told:
        said = [NOTHING]
    else:
        said = [in_setting(study, one) for one in told] if len(told) <= FEW else over_settings(study, told)
        said += [*notes(study, told), *rate_note(study)]
    verdicts = Counter(one.answer.verdict for one in told if one.answer is not None)
    return {
        "text": " ".join(said),
        "verdict": next(iter(verdicts)) if len(verdicts) == 1 else None,
        "verdicts": dict(verdicts),
        "sentences": said,
        "settings": [plain(study, one) for one in found],
    }


def plain(study: Measurements, one: SettingAnswer) -> Plain:
    """Return the answer of a setting as plain values."""
    found = one.answer
    return {
        "levels": dict(zip(study.settings, one.setting, strict=True)),
        "figure": one.figure,
        "words": one.words,
        "means": dict(one.ranking.means),
        "order": list(one.ranking.order),
        "pairs": [pair.plain() for pair in one.ranking.pairs],
        "first": one.first,
        "take": one.take,
        "bytes": one.costs[one.take].bytes if one.take else None,
        "text": verdict_text(found) if found is not None else "",
        "answer": None if found is None else {"verdict": found.verdict, **found.plain()},
    }


def in_setting(study: Measurements, one: SettingAnswer) -> str:
    """Return the answer of a setting: the ranking, the choice to take and why, and whether to federate with it."""
    assert one.answer is not None
    where = f"{levels_text(zip(study.settings, one.setting, strict=True))}: " if study.settings else ""
    ranking = ranking_text(one.ranking, one.words) if len(one.ranking.order) > 1 else ""
    only = "" if ranking else f"{one.take} is the only choice that finished."
    said = (ranking or only, choice_text(one.ranking, one.costs), verdict_text(one.answer))
    return where + " ".join(filter(None, said))


def verdict_text(found: Answer) -> str:
    """Return whether to federate with a choice; with few seeds, or nothing to compare with, only what it reaches."""
    if not found.compared:
        return " ".join(filter(None, (reached_text(found), beyond_text(found))))
    if len(found.seeds) >= SEEDS:
        return text(found)
    few = f"{count(len(found.seeds), 'seed')} {'is' if len(found.seeds) == 1 else 'are'} too few for a verdict"
    reached = f"with {found.asked.scheme}, {figures_text(found)}, {bytes_text(found.asked.cost)} a training"
    return f"{few}, which takes {SEEDS}; {reached}."


def over_settings(study: Measurements, told: Sequence[SettingAnswer]) -> list[str]:
    """Return how often which answer is given, which choice is to be taken, and which wins, where most often."""
    return [*verdicts_text(told), taken_text(told), *winners_text(study, told), *ties_text(told)]


def verdicts_text(told: Sequence[SettingAnswer]) -> list[str]:
    """Return how often to federate, and the gain over training alone; nothing where nothing was trained alone."""
    found = [one.answer for one in told if one.answer is not None and one.answer.compared]
    if not found:
        return []
    counts = Counter(one.verdict for one in found)
    shown = listed([f"{name} in {counts[name]}" for name in VERDICTS if counts[name]])
    gains = [one.gain.value for one in found if one.gain is not None]
    spread = (
        f"; the gain over training alone is {signed(float(np.median(gains)))} in the median setting" if gains else ""
    )
    ends = f" ({range_text(gains, signed)})" if gains else ""
    whole = (
        f"; of the other {len(told) - len(found)} nothing was trained to compare with" if len(found) < len(told) else ""
    )
    return [
        f"To federate: {shown} of {count(len(found), 'setting')}, each with the choice to take there{spread}{ends}{whole}."
    ]


def taken_text(told: Sequence[SettingAnswer]) -> str:
    """Return which choices are to be taken, and how often."""
    counts = Counter(one.take for one in told).most_common()
    shown = listed([f"{name} in {n}" for name, n in counts])
    return f"The choice to take, the cheapest of those that cannot be told apart from the best: {shown} of {count(len(told), 'setting')}."


def winners_text(study: Measurements, told: Sequence[SettingAnswer]) -> list[str]:
    """Return in how many settings a choice is better than every other, by how much, and where most often."""
    counts, out = Counter(one.first[0] for one in told if alone(one)), []
    for name, won in counts.most_common():
        leads = [lead for one in told if alone(one) and one.first == [name] and (lead := lead_of(one)) is not None]
        by = f", by {number(float(np.median(leads)))} over the next in the median setting" if leads else ""
        out.append(f"{name} wins in {won} of {count(len(told), 'setting')}{by}{most_where(study, told, name)}.")
    return out


def alone(one: SettingAnswer) -> bool:
    """Return whether one choice is told apart from all others."""
    return len(one.first) == 1 and len(one.ranking.order) > 1


def lead_of(one: SettingAnswer) -> float | None:
    """Return the difference between the first two choices within seeds."""
    first = one.ranking.pairs[0].difference if one.ranking.pairs else None
    return None if first is None else first.value


def ties_text(told: Sequence[SettingAnswer]) -> list[str]:
    """Return in how many settings the best cannot be told apart, and from which choices."""
    ties = [one for one in told if len(one.first) > 1]
    if not ties:
        return []
    usual = listed(
        [f"{name} ({n})" for name, n in Counter(x for one in ties for x in sorted(one.first)).most_common(4)]
    )
    return [f"In {len(ties)} of {len(told)} the best cannot be told apart from others; among them are {usual}."]


def most_where(study: Measurements, told: Sequence[SettingAnswer], choice: str) -> str:
    """Return the level of a setting's factor in which a choice wins far more often than elsewhere; "" if none stands out."""
    won = [one for one in told if alone(one) and one.first == [choice]]
    share, best, said = len(won) / len(told), OFTEN, ""
    for i, factor in enumerate(study.settings):
        for level in sorted({one.setting[i] for one in told}):
            here = sum(one.setting[i] == level for one in told)
            n = sum(one.setting[i] == level for one in won)
            if here >= 3 and n / here - share > best:
                best, said = n / here - share, f", most often with {factor} {level} ({n} of {here})"
    return said


def of_columns(run: RunRow) -> bool:
    """Return whether the parties of a run hold columns."""
    held = run.get("configuration") or {}
    return bool(held.get("parties")) or held.get("partition", {}).get("name") in {"vertical", "hybrid"}


def notes(study: Measurements, told: Sequence[SettingAnswer]) -> list[str]:
    """Return what the answers may not be read to say."""
    out = []
    found = [one.answer for one in told if one.answer is not None]
    if not any(one.compared for one in found):
        way = f"alone = true in the study also trains each {found[0].asked.party} alone"
        if any(map(of_columns, study.cells())):
            way = "'fedatlas run' and 'fedatlas compare' also train the party with the label alone"
        out.append(f"Whether to federate is not answered, since nothing was trained to compare with: {way}.")
    if any(pair.difference is not None for one in told for pair in one.ranking.pairs) and not all(
        one.rows_known for one in told
    ):
        out.append(UNKNOWN)
    return out
