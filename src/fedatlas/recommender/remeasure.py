"""``recommend --measure``: the best three choices, FedAvg and the baseline on the user's own data, and the answer from that.

They are a small study of their own, with the study's rates tried on validation rows and three seeds. What was predicted and what was
obtained is added to the study's record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.files import disk_error
from fedatlas.recommender.answer import recommend as answer_to
from fedatlas.recommender.answer_files import Say, record_of
from fedatlas.recommender.contest import COSTS, QUALITIES
from fedatlas.recommender.own_experiment import Own
from fedatlas.recommender.own_experiment import finished as completed
from fedatlas.recommender.ranking import Outlook
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Run, cell_runs, choice_of, finished, value_of
from fedatlas.study.measurements import Study as Measured
from fedatlas.study.read_measurements import measured
from fedatlas.study.study import Study
from fedatlas.study.table import Table

SEEDS = (1, 2, 3)
DRAWS = 2000


def measured_answer(own: Own, answer: dict[str, Any], barred: Mapping[str, str], out: Path, say: Say) -> dict[str, Any]:
    """Runs what the answer names, and answers anew; ``before`` keeps what was predicted."""
    names = chosen(own, answer, barred)
    rounds = max([entry["rounds"] for entry in answer["top"]] or [answer["nearest_miss"]["rounds"]])
    study = study_of(own, names, rounds)
    study.run(out / "measured", say=say)
    kept = Table.open(study.table(out / "measured"))
    try:
        runs = measured(kept)
    finally:
        kept.close()
    anew = answer_to(
        own.basis.fitted,
        own.asked,
        references=own.basis.references,
        new_data=own.new_data,
        barred={**barred, **dict.fromkeys(set(own.basis.fitted.choices) - set(names), "it was not run on your data.")},
        outlook=outlook_of(own, runs),
    )
    lines = compared(own, answer, runs)
    append(record_of(own.basis), lines)
    rates = {choice_of(runs, run): run["rates"] for run in cell_runs(runs) if run["status"] == "done"}
    done = completed(own, anew, out, rates)
    done["notes"].insert(
        0, f"Figures are those measured on your data; low and high are those of {len(SEEDS)} seeds, not of new data."
    )
    before = {key: answer[key] for key in ("answer", "top", "nearest_miss")}
    return {
        **done,
        "measured": {"choices": names, "rounds": rounds, "seeds": len(SEEDS), "obtained": lines},
        "before": before,
    }


def chosen(own: Own, answer: Mapping[str, Any], barred: Mapping[str, str]) -> list[str]:
    """The best three, FedAvg, and its masked twin where that is the reference; ConfigError where nothing can be run."""
    names = [entry["choice"] for entry in answer["top"]]
    names += [answer["nearest_miss"]["choice"]] if answer["nearest_miss"] else []
    names += [answer["reference"]] if answer["reference"] else []
    names += list(own.basis.references[:1])
    names = [name for name in dict.fromkeys(names) if name not in barred and name in own.basis.fitted.choices]
    if not names:
        raise ConfigError("--measure: none of the study's choices can run on this experiment (refused says why).")
    return names


def study_of(own: Own, names: Sequence[str], rounds: int) -> Study:
    """The small study of these choices on the user's data."""
    near = own.basis.near(own.order, names[0])
    local = own.basis.configurations[near, names[0]]["local"]
    levels = [{"name": name, "set": dict(own.basis.sets[name])} for name in names]
    base = {key: value for key, value in own.base.items() if key != "seed"}
    tables: dict[str, Any] = {
        "base": {**base, "local": dict(local), "rounds": rounds},
        "seeds": list(SEEDS),
        "factor": [{"name": "choice", "role": "choice", "level": levels}],
    }
    if own.basis.rates:
        tables["tuning"] = {"keys": {key: list(values) for key, values in own.basis.rates.items()}}
    return Study.of("measured", **tables)


def outlook_of(own: Own, runs: Measured) -> Outlook:
    """What was measured, in the place of what is foreseen: means over seeds, and how else they might have come out."""
    fitted = own.basis.fitted
    shape = len(fitted.choices), len(fitted.rounds)
    by_choice: dict[str, list[Run]] = {}
    for run in cell_runs(runs):
        by_choice.setdefault(choice_of(runs, run), []).append(run)
    values, spread = {}, {}
    for quality in (q for q in QUALITIES if q in fitted.gaps):
        each = np.full((len(SEEDS), *shape), np.nan)
        for j, choice in enumerate(fitted.choices):
            for run in by_choice.get(choice, ()):
                if run["status"] == "done":
                    each[SEEDS.index(run["seed"]), j] = [value_of(run, quality, r) for r in fitted.rounds]
        if np.isfinite(each).any():
            values[quality], spread[quality] = means(each), otherwise(each)
    for cost in (*COSTS, "seconds"):
        values[cost] = np.full(shape, np.nan)
        for j, choice in enumerate(fitted.choices):
            ends = [
                [value_of(run, cost, r) for r in fitted.rounds]
                for run in by_choice.get(choice, ())
                if run["status"] == "done"
            ]
            if ends:
                values[cost][j] = np.mean(ends, axis=0)
    finishes = [
        np.mean([finished(run) for run in by_choice[choice]]) if choice in by_choice else np.nan
        for choice in fitted.choices
    ]
    return Outlook(values, spread, np.array(finishes, dtype=float))


def means(each: Floats) -> Floats:
    """(J, R) means over seeds, where all have a value."""
    found: Floats = each.mean(axis=0)
    return found


def otherwise(each: Floats) -> Floats:
    """(draws, J, R) means as other seeds might have given them: Student's t with the seeds' own deviations, the same for all choices."""
    seeds = len(each)
    stream = numpy_stream(0, "remeasure")
    wide = np.sqrt((seeds - 1) / stream.chisquare(seeds - 1, DRAWS))
    weights = stream.standard_normal((DRAWS, seeds)) * wide[:, None] / np.sqrt(seeds * (seeds - 1))
    mean = each.mean(axis=0)
    drawn: Floats = np.clip(mean + np.tensordot(weights, each - mean, axes=1), 0.0, 1.0)
    return drawn


def compared(own: Own, answer: Mapping[str, Any], runs: Measured) -> list[dict[str, Any]]:
    """Predicted against obtained: accuracy of each choice that was named, at its rounds, on average over the seeds."""
    out = []
    for entry in [*answer["top"], *([answer["nearest_miss"]] if answer["nearest_miss"] else [])]:
        found = [
            value_of(r, "accuracy", entry["rounds"])
            for r in cell_runs(runs)
            if choice_of(runs, r) == entry["choice"] and r["status"] == "done"
        ]
        predicted = entry["predicted"]["accuracy"]
        if found and np.isfinite(found).all() and predicted["value"] is not None:
            out.append(
                {
                    "study": own.basis.name,
                    "choice": entry["choice"],
                    "rounds": entry["rounds"],
                    "nodes": own.asked.nodes,
                    "rows": own.asked.rows,
                    "heterogeneity": own.asked.heterogeneity,
                    "classes": own.asked.classes,
                    "predicted": predicted,
                    "obtained": float(np.mean(found)),
                }
            )
    return out


def append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Adds lines to a record that only grows; DiskError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except OSError as error:
        raise disk_error(path, error) from error
