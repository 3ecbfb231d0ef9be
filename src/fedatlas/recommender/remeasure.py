"""``recommend --measure``: the best three choices, FedAvg and the baseline on the user's own data, and the answer from these.

They form a small study, with the study's rates tried on validation rows and three seeds. Predicted and obtained values are
added to the study's record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.errors import ConfigError
from fedatlas.files import disk_error
from fedatlas.recommender.answer import answer_for
from fedatlas.recommender.answer_files import Say, record_of
from fedatlas.recommender.contest import mean_cost
from fedatlas.recommender.ranking import Forecast
from fedatlas.recommender.user_experiment import UserExperiment, completed
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Measurements, beats_majority, value_of
from fedatlas.study.plain import Plain, Row
from fedatlas.study.read_measurements import measured
from fedatlas.study.responses import which
from fedatlas.study.study import Study
from fedatlas.study.table import Table

SEEDS = (1, 2, 3)
DRAWS = 2000


def measured_answer(user: UserExperiment, answer: Plain, barred: Mapping[str, str], out: Path, say: Say) -> Plain:
    """Run the choices that the answer names, and answer again; ``before`` keeps the predictions."""
    names, fitted = chosen(user, answer, barred), user.basis.fitted
    rounds = max([entry["rounds"] for entry in answer["top"]] or [answer["nearest_miss"]["rounds"]])
    study = study_of(user, names, rounds)
    study.run(out / "measured", say=say)
    with closing(Table.open(study.table(out / "measured"))) as kept:
        runs = measured(kept)
    not_run = dict.fromkeys(set(fitted.choices) - set(names), "it was not run on your data.")
    again = answer_for(
        fitted,
        user.asked,
        barred={**barred, **not_run},
        measured=as_forecast(user, runs),
    )
    lines = compared(user, answer, runs)
    append(record_of(user.basis), lines)
    rates = {runs.choice_of(run): run["rates"] for run in runs.cells() if run["status"] == "done"}
    done = completed(user, again, out, rates)
    done["notes"].insert(
        0, f"Figures are measurements on your data; low and high come from {len(SEEDS)} seeds, not from new data."
    )
    return {
        **done,
        "measured": {"choices": names, "rounds": rounds, "seeds": len(SEEDS), "obtained": lines},
        "before": {key: answer[key] for key in ("answer", "top", "nearest_miss")},
    }


def named(answer: Row) -> list[Row]:
    """Return the candidates that an answer names."""
    return [*answer["top"], *filter(None, [answer["nearest_miss"]])]


def chosen(user: UserExperiment, answer: Row, barred: Mapping[str, str]) -> list[str]:
    """Return the best three, FedAvg, and its masked twin if that is the reference; ConfigError if none can be run."""
    if not named(answer):
        raise ConfigError("--measure: your requirements allow none of the study's choices (see refused): loosen one.")
    names = [*(entry["choice"] for entry in named(answer)), answer["reference"], *user.basis.fitted.references[:1]]
    names = [name for name in dict.fromkeys(names) if name not in barred and name in user.basis.fitted.choices]
    if not names:
        raise ConfigError("--measure: none of the study's choices can run on this experiment (see refused).")
    return names


def study_of(user: UserExperiment, names: Sequence[str], rounds: int) -> Study:
    """Return the small study of these choices on the user's data."""
    levels = [{"name": name, "set": dict(user.basis.sets[name])} for name in names]
    base = {key: value for key, value in user.base.items() if key != "seed"}
    tables: Plain = {
        "base": {**base, "local": user.baseline_local(), "rounds": rounds},
        "seeds": list(SEEDS),
        "factor": [{"name": "choice", "role": "choice", "level": levels}],
    }
    if user.basis.rates:
        tables["tuning"] = {"keys": {key: list(values) for key, values in user.basis.rates.items()}}
    return Study.of("measured", **tables)


def as_forecast(user: UserExperiment, runs: Measurements) -> Forecast:
    """Return the measurements in the form of a forecast: means over seeds, with resampled means for their spread."""
    fitted, there = user.basis.fitted, runs.choice_names()

    def placed(of: Callable[[int], Any], *shape: int) -> Floats:
        """Return (J, ...) figures of the measured choices, nan for others."""
        found = np.full((len(fitted.choices), *shape), np.nan)
        for k, name in enumerate(there):
            found[fitted.choices.index(name)] = of(k)
        return found

    values, spread, size = {}, {}, len(fitted.rounds)
    for quality in (q for q in which(forecast="gap") if q in fitted.gaps):
        curves = np.stack([runs.by_cell(quality, r)[0] for r in fitted.rounds], axis=-1)  # (choices, seeds, R)
        each = np.moveaxis(placed(curves.__getitem__, len(SEEDS), size), 1, 0)
        if np.isfinite(each).any():
            values[quality], spread[quality] = each.mean(axis=0), resampled(each)
    for cost in (*which(forecast="nearest"), *which(forecast="experiment")):
        values[cost] = placed(mean_cost(runs, cost)[0].__getitem__, size)
    done = [[beats_majority(run) for run in runs.cells() if runs.choice_of(run) == name] for name in there]
    return Forecast(values, spread, placed(lambda k: np.mean(done[k])))


def resampled(each: Floats) -> Floats:
    """Return (draws, J, R) means as from other seeds: Student's t with the seeds' own deviations, the same for all choices."""
    seeds = len(each)
    stream = numpy_stream(0, "remeasure")
    wide = np.sqrt((seeds - 1) / stream.chisquare(seeds - 1, DRAWS))
    weights = stream.standard_normal((DRAWS, seeds)) * wide[:, None] / np.sqrt(seeds * (seeds - 1))
    mean = each.mean(axis=0)
    drawn: Floats = np.clip(mean + np.tensordot(weights, each - mean, axes=1), 0.0, 1.0)
    return drawn


def compared(user: UserExperiment, answer: Row, runs: Measurements) -> list[Plain]:
    """Return predicted and obtained accuracy of each choice named, at its rounds, on average over the seeds."""
    out, done = [], [run for run in runs.cells() if run["status"] == "done"]
    facts = {key: getattr(user.asked, key) for key in ("nodes", "rows", "heterogeneity", "classes")}
    for entry in named(answer):
        here = [run for run in done if runs.choice_of(run) == entry["choice"]]
        found = [value_of(run, "accuracy", entry["rounds"]) for run in here]
        predicted = entry["predicted"]["accuracy"]
        if found and np.isfinite(found).all() and predicted["value"] is not None:
            what = {"study": user.basis.name, "choice": entry["choice"], "rounds": entry["rounds"]}
            out.append({**what, **facts, "predicted": predicted, "obtained": float(np.mean(found))})
    return out


def append(path: Path, lines: Sequence[Row]) -> None:
    """Append lines to a record; DiskError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
    except OSError as error:
        raise disk_error(path, error) from error
