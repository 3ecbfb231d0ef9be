"""What a study says, as plain values: ``analysis.json``, which the report page sets.

Choices setting by setting beside the centralised baseline, main and two-way effects, fronts, and the sentences that answer the question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.files import write_json, write_text
from fedatlas.study.effects import effects
from fedatlas.study.front import fronts
from fedatlas.study.measurements import (
    FACTS,
    Run,
    Study,
    by_cell,
    cell_runs,
    choice_names,
    choice_of,
    level,
    setting_names,
    setting_of,
    value_of,
)
from fedatlas.study.read_measurements import measured
from fedatlas.study.table import Table
from fedatlas.study.verdict import sentences
from fedatlas.study.winners import Standing, better_and_worse, standings

RESPONSES = ("accuracy", "macro_f1", "client_accuracy_p10", "cpu_seconds", "bytes", "memory")
LEVEL = 0.95
ANALYSIS, PAGE = "analysis.json", "analysis.html"


def analyse(table: Table, study: str, folder: Path) -> dict[str, Any]:
    """Writes analysis.json and analysis.html of a study into its folder, and returns what the first holds."""
    from fedatlas.reporting.study import render

    found = analysis(measured(table, study))
    found["runs"] = {status: n for status, n in table.counts(study).items() if n}
    found["reasons"] = [
        {"status": status, "reason": reason, "levels": levels, "seed": seed}
        for status, reason, levels, seed in table.reasons(study, "refused", "diverged", "timeout", "memory", "failed")
    ]
    write_json(folder / ANALYSIS, found)
    write_text(folder / PAGE, render(found))
    return found


def analysis(study: Study, *, seed: int = 0) -> dict[str, Any]:
    """The whole analysis of what was measured. Without several seeds there are no intervals, and it says so."""
    where = standings(study, seed=seed, level=LEVEL)
    front = fronts(study, seed=seed)
    told = [response for response in RESPONSES if np.isfinite(by_cell(study, response)).any()]
    found = {
        "study": study.name,
        "confidence": LEVEL,
        "factors": dict.fromkeys(study.settings, "setting") | dict.fromkeys(study.choices, "choice"),
        "choices": choice_names(study),
        "twins": dict(study.twins),
        "reference": next((name for name in study.references if name in choice_names(study)), None),
        "seeds": len({run["seed"] for run in cell_runs(study)}),
        "settings": [setting(study, name, where.get(name), front.get(name, [])) for name in setting_names(study)],
        "record": record(study, where),
        "effects": {response: effects_of(study, response, seed) for response in told},
        "outcomes": outcomes(study),
    }
    return dict(plain(found | {"sentences": sentences(found)}))


def setting(study: Study, name: tuple[str, ...], standing: Standing | None, members: Sequence[Any]) -> dict[str, Any]:
    """One setting: what it is, its baseline, its choices on and off the front, and who is first."""
    runs = [run for run in study.runs if setting_of(study, run) == name]
    cells = [run for run in runs if run["kind"] == "cell"]
    first = standing.first if standing else []
    rest = [other for other in standing.means if other not in first] if standing else []
    return {
        "levels": dict(zip(study.settings, name, strict=True)),
        "facts": {fact: mean([run.get(fact) for run in cells]) for fact in FACTS} | {"data": cells[0].get("data")},
        "baseline": {
            key: mean_of([r for r in runs if r["kind"] == "baseline"], key)
            for key in ("accuracy", "cpu_seconds", "bytes")
        },
        "choices": [member._asdict() for member in members],
        "first": first,
        "lead": standing.lead(first[0], rest[0])._asdict() if standing and rest else None,
        "differences": [one._asdict() for one in standing.leads] if standing else [],
    }


def mean_of(runs: Sequence[Run], response: str) -> float | None:
    """The mean of a response over the runs that are done."""
    return mean([value_of(run, response) for run in runs if run["status"] == "done"])


def mean(values: Sequence[Any]) -> float | None:
    """The mean of what is known; None of nothing."""
    known = [float(x) for x in values if x is not None and math.isfinite(x)]
    return sum(known) / len(known) if known else None


def record(study: Study, where: Mapping[tuple[str, ...], Standing]) -> list[dict[str, Any]]:
    """For each choice: where it stands first, alone or among others, and how it compares with the reference."""
    reference = next((name for name in study.references if name in choice_names(study)), None)
    out = []
    for choice in choice_names(study):
        one = study.twins.get(choice, choice)
        better, worse, gains = (
            better_and_worse(dict(where), one, reference) if reference not in (None, one) else (0, 0, [])
        )
        out.append(
            {
                "choice": choice,
                "twin": study.twins.get(choice),
                "settings": sum(one in standing.means for standing in where.values()),
                "alone": sum(standing.first == [one] for standing in where.values()),
                "among": sum(one in standing.first for standing in where.values()),
                "better": better,
                "worse": worse,
                "difference": float(np.median(gains)) if gains else None,
                "most": max(gains, default=None),
                "least": min(gains, default=None),
                "where": [
                    dict(zip(study.settings, name, strict=True)) for name, s in where.items() if s.first == [one]
                ],
            }
        )
    return out


def effects_of(study: Study, response: str, seed: int) -> dict[str, Any]:
    """Main and two-way effects on a response, and the baseline's mean over the settings of each level."""
    found = effects(study, response, seed=seed, level=LEVEL)
    return {
        "mean": found.mean,
        "effects": [effect._asdict() for effect in found.effects],
        "open": [{"factors": list(factors), "levels": list(levels)} for factors, levels in found.open],
        "left_out": found.left_out,
        "seeds_df": found.noise.df,
        "baseline": baseline_by_level(study, response),
    }


def baseline_by_level(study: Study, response: str) -> dict[str, dict[str, float | None]]:
    """factor -> level -> mean of the centralised baseline over the settings that have it."""
    from fedatlas.study.effects import grouped_levels

    runs = [run for run in study.runs if run["kind"] == "baseline" and run["status"] == "done"]
    out: dict[str, dict[str, float | None]] = {"": {"": mean_of(runs, response)}}
    for factor in study.settings:
        levels = grouped_levels([str(level(run, factor)) for run in runs])
        out[factor] = {
            one: mean_of([r for r, own in zip(runs, levels, strict=True) if own == one], response) for one in levels
        }
    return out


def outcomes(study: Study) -> dict[str, dict[str, int]]:
    """choice -> status -> runs of its cells."""
    out: dict[str, dict[str, int]] = {}
    for run in cell_runs(study):
        of = out.setdefault(choice_of(study, run), {})
        of[str(run["status"])] = of.get(str(run["status"]), 0) + 1
    return out


def plain(value: Any) -> Any:
    """As JSON has it: what is not known or endless becomes null."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
