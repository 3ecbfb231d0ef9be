"""The analysis of a study as plain values, ``analysis.json``, and its page.

It has the choices of each setting compared with the centralised baseline, main and two-way effects, fronts, and sentences that
answer the question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.files import write_json, write_text
from fedatlas.privacy.mechanisms import MECHANISMS, made
from fedatlas.privacy.terms import protects
from fedatlas.study.answer_text import answer_of
from fedatlas.study.answers import SettingAnswer, answers
from fedatlas.study.effects import effects, grouped_levels
from fedatlas.study.finished_part import show_finished
from fedatlas.study.front import FrontChoice, fronts
from fedatlas.study.measurements import FEATURES, Measurements, level, value_of
from fedatlas.study.page import render
from fedatlas.study.plain import Plain, RunRow
from fedatlas.study.read_measurements import measured
from fedatlas.study.responses import which
from fedatlas.study.slopes import slopes
from fedatlas.study.study_status import reasons
from fedatlas.study.table import ENDED, Table
from fedatlas.study.verdict import sentences
from fedatlas.study.winners import Lead, SettingStanding, standings

LEVEL = 0.95
ANALYSIS, PAGE = "analysis.json", "analysis.html"


def analyse(table: Table, study: str, folder: Path, told: Sequence[str] = (), done: Plain | None = None) -> Plain:
    """Write analysis.json and analysis.html of a study into its folder; return the content of the former.

    ``told``: sentences on runs that do not count. ``done``: how much of the plan has ended (`finished_part.finished`), if it is known.
    """
    found = analysis(measured(table, study))
    found["sentences"] = [*(show_finished(done) if done else ()), *found["sentences"], *told]
    found["plan"] = done
    found["runs"] = {status: n for status, n in table.counts(study).items() if n}
    found["reasons"] = reasons(table, study, ENDED[1:])
    write_json(folder / ANALYSIS, found)
    write_text(folder / PAGE, render(found))
    return found


def analysis(study: Measurements, *, seed: int = 0) -> Plain:
    """Return the whole analysis of the measurements. Without several seeds there are no intervals, and a sentence says so."""
    where, front = standings(study, seed=seed, level=LEVEL), fronts(study, seed=seed)
    answered = {one.setting: one for one in answers(study)}
    told = [name for name in which(effects=True) if np.isfinite(study.by_cell(name)).any(axis=2).sum() > 1]
    found: Plain = {
        "study": study.name,
        "confidence": LEVEL,
        "factors": dict.fromkeys(study.settings, "setting") | dict.fromkeys(study.choices, "choice"),
        "choices": study.choice_names(),
        "twins": dict(study.twins),
        "epsilon_of": epsilon_of(study),
        "reference": study.reference(),
        "seeds": len(study.seeds()),
        "tuned": any(run.get("rates") for run in study.cells()),
        "settings": [setting(study, one, where.get(name), front.get(name, [])) for name, one in answered.items()],
        "record": [record(study, [*answered.values()], choice) for choice in study.choice_names()],
        "effects": {response: effects_of(study, response, seed) for response in told},
        "outcomes": outcomes(study),
        "answer": answer_of(study, [*answered.values()]),
    }
    return dict(as_json(found | {"sentences": [*found["answer"]["sentences"], *sentences(found)]}))


def epsilon_of(study: Measurements) -> dict[str, str]:
    """Return choice -> whom its epsilon is about, in words, for the choices that state one."""
    tables = {study.choice_of(run): (run.get("configuration") or {}).get("privacy") or () for run in study.cells()}
    known = {
        choice: protects(made(one["name"]) for one in found if one["name"] in MECHANISMS)
        for choice, found in tables.items()
    }
    return {choice: known[choice] for choice in study.choice_names() if known.get(choice)}


def setting(
    study: Measurements, answer: SettingAnswer, standing: SettingStanding | None, front: Sequence[FrontChoice]
) -> Plain:
    """Return one setting: facts, baseline, choices on and off the front, and the best choices, by the rule of its answer."""
    name, lead = answer.setting, lead_of(answer)
    cells = [run for run in study.cells() if study.setting_of(run) == name]
    pooled = [run for run in study.pooled() if study.setting_of(run) == name]
    return {
        "levels": dict(zip(study.settings, name, strict=True)),
        "facts": {fact: mean([run.get(fact) for run in cells]) for fact in FEATURES} | {"data": cells[0].get("data")},
        "baseline": {axis: mean_of(pooled, axis) for axis in which(front=True)},
        "choices": [on_front(one) for one in front],
        "first": answer.first,
        "lead": None if lead is None else lead._asdict(),
        "differences": [one._asdict() for one in standing.leads] if standing else [],
    }


def on_front(one: FrontChoice) -> Plain:
    """Return a choice of a setting; accuracy is called ``quality``."""
    values = {"quality" if name == "accuracy" else name: value for name, value in one.values.items()}
    return {"choice": one.choice, **values, "on_front": one.on_front, "chance": one.chance}


def mean_of(runs: Sequence[RunRow], response: str) -> float | None:
    """Return the mean of a response over some runs."""
    return mean([value_of(run, response) for run in runs])


def mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the known values; None if none is known."""
    known = [float(x) for x in values if x is not None and math.isfinite(x)]
    return sum(known) / len(known) if known else None


def lead_of(answer: SettingAnswer) -> Lead | None:
    """Return the lead of the best choice over the next one that is told apart from it; None without one."""
    best = answer.ranking.order[:1]
    for pair in answer.ranking.pairs:
        if [pair.one] == best and pair.apart and pair.difference is not None:
            return Lead(pair.one, pair.other, *pair.difference[:3])
    return None


def record(study: Measurements, told: Sequence[SettingAnswer], choice: str) -> Plain:
    """Return where a choice is first, alone or among others, and its comparison with the reference, by the rule of the answers."""
    one, reference = study.twins.get(choice, choice), study.reference()
    compared = reference if reference is not None and reference != one else ""
    pairs = [
        (answer, pair) for answer in told for pair in answer.ranking.pairs if {pair.one, pair.other} == {one, compared}
    ]
    apart = [pair.one for _, pair in pairs if pair.apart]
    gains = [answer.better(one, compared) for answer, _ in pairs]
    won = [answer for answer in told if answer.first == [one]]
    return {
        "choice": choice,
        "twin": study.twins.get(choice),
        "settings": sum(one in answer.ranking.means for answer in told),
        "alone": len(won),
        "among": sum(one in answer.first for answer in told),
        "better": apart.count(one),
        "worse": apart.count(compared),
        "difference": float(np.median(gains)) if gains else None,
        "most": max(gains, default=None),
        "least": min(gains, default=None),
        "where": [dict(zip(study.settings, answer.setting, strict=True)) for answer in won],
    }


def effects_of(study: Measurements, response: str, seed: int) -> Plain:
    """Return main and two-way effects on a response, and the baseline's mean over the settings of each level."""
    found, along = effects(study, response, seed=seed, level=LEVEL), slopes(study, response, LEVEL)
    return {
        "mean": found.mean,
        "effects": [effect._asdict() for effect in found.effects],
        "open": [{"factors": list(factors), "levels": list(levels)} for factors, levels in found.open],
        "left_out": found.left_out,
        "seeds_df": found.noise.df,
        "over": found.over,
        "slopes": [one._asdict() for one in along.slopes],
        "slopes_over": along.over,
        "baseline": baseline_by_level(study, response),
    }


def baseline_by_level(study: Measurements, response: str) -> dict[str, dict[str, float | None]]:
    """Return factor -> level -> mean of the centralised baseline over the settings that have it."""
    runs = study.pooled()
    out: dict[str, dict[str, float | None]] = {"": {"": mean_of(runs, response)}}
    for factor in study.settings:
        levels = grouped_levels([str(level(run, factor)) for run in runs])
        out[factor] = {
            one: mean_of([r for r, own in zip(runs, levels, strict=True) if own == one], response) for one in levels
        }
    return out


def outcomes(study: Measurements) -> dict[str, dict[str, int]]:
    """Return choice -> status -> runs of its cells."""
    out: dict[str, dict[str, int]] = {}
    for run in study.cells():
        of = out.setdefault(study.choice_of(run), {})
        of[str(run["status"])] = of.get(str(run["status"]), 0) + 1
    return out


def as_json(value: Any) -> Any:
    """Return the value for JSON: unknown or infinite numbers become null."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
