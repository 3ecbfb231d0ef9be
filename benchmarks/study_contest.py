"""The value of a recommendation: every data set of a study left out in turn, against simpler advice.

Each federation is asked the questions of `questions`, as if its data set had not been measured. An answer is worth the accuracy
measured there. If it breaks a limit, did not finish, or is "none" though something measured keeps all limits, it is worth the accuracy
of always naming one class; `MISS` takes the nearest miss that comes with "none" instead. Regret is what an answer lacks of the best
candidate that keeps all limits; where none does, it is not counted. The unit is the data set: figures are means over data sets of the
mean over their federations, with a 95% bootstrap over data sets (over federations, if there is only one data set).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from table import number
from table import table as markdown

from fedatlas.config import parse
from fedatlas.data.sources import load_dataset, read_once
from fedatlas.recommender.contest import Fitted, fit_study, from_logit, quantiles
from fedatlas.recommender.requirements import Requirements, requirements
from fedatlas.recommender.shipped import Basis, load_study
from fedatlas.recommender.track_record import measured_in, trial
from fedatlas.rng import numpy_stream
from fedatlas.study.measurements import Floats, Measurements
from fedatlas.study.read_measurements import measured
from fedatlas.study.table import Table

DRAWS, CONFIDENCE = 4000, 0.9
ANSWER, MISS, SINGLE, FEDAVG = (
    "the first answer",
    "or its nearest miss",
    "the best single choice of the others",
    "FedAvg with a picked rate",
)
ADVICE = (ANSWER, MISS, SINGLE, FEDAVG)
Ask = dict[str, Any]


class Case(NamedTuple):
    """One federation asked one question: what each advice is worth there."""

    data: str
    best: float | None  # accuracy of the best candidate that keeps all limits; None: there is none
    worth: dict[str, float]  # advice -> accuracy
    answered: bool
    kept: bool
    deviates: bool


def questions(base: float, bytes_: float, seconds: float) -> dict[str, Ask]:
    """What is asked in a federation whose baseline reaches ``base`` and whose FedAvg costs so much."""
    return {
        "free": {},
        "accuracy near the baseline": {"at_least": {"accuracy": base - 0.05}},
        "server sees sums only": {"at_least": {"accuracy": base - 0.05}, "privacy": {"server_sees": "sums"}},
        "half of FedAvg's bytes": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"bytes": bytes_ / 2}},
        "half of FedAvg's seconds": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"cpu_seconds": seconds / 2}},
        "a finite epsilon": {"at_least": {"accuracy": 0.8 * base}, "at_most": {"epsilon": 500.0}},
        "the worst-off clients": {"at_least": {"client_accuracy_p10": 0.7 * base}},
    }


def asked(base: float, limits: Mapping[str, Any]) -> Requirements:
    """Requirements of somebody who knows what the baseline reaches; the federation itself is that which is left out."""
    federation = {"nodes": 2, "rows": 100, "heterogeneity": 0.0, "centralised": float(np.clip(base, 0.001, 0.999))}
    return requirements({"confidence": CONFIDENCE, "federation": federation, **limits})


def of_table(table: Table, study: str | None = None) -> dict[str, Any]:
    """All figures of a study's table."""
    read = measured(table, study)
    return contest(read.name, fit_study(read), majorities(read))


def of_study(name: str) -> dict[str, Any]:
    """All figures of a study that was kept for others, from its arrays; the largest classes are counted in its data."""
    basis = load_study(name)
    return contest(basis.name, basis.fitted, counted(basis))


def majorities(read: Measurements) -> Floats:
    """(n,) the accuracy of always naming one class in each setting; one of so many classes where the table does not tell."""
    found: dict[Any, list[float]] = {}
    for run in read.cells():
        told = run.get("majority")
        found.setdefault(read.setting_of(run), []).append(1 / run["classes"] if told is None else told)
    return np.array([np.mean(found[name]) for name in read.setting_names()])


def counted(basis: Basis) -> Floats:
    """(n,) the same, of the test rows of a shipped study."""
    found = []
    with contextlib.chdir(basis.folder), read_once():  # constants are named from there
        for i in range(len(basis.fitted.settings)):
            given = next(plain for (at, _), plain in basis.configurations.items() if at == i)
            shares = []
            for seed in basis.about["seeds"]:
                y = load_dataset(parse({**given, "seed": seed}).data, seed).splits["test"].y
                shares.append(float(np.bincount(np.asarray(y, dtype=int)).max() / len(y)))
            found.append(float(np.mean(shares)))
    return np.array(found)


def contest(name: str, fitted: Fitted, floors: Floats) -> dict[str, Any]:
    """All figures of a fitted study; ``floors`` (n,): the accuracy of always naming one class."""
    cases: dict[str, list[Case]] = {}
    for i, base in enumerate(from_logit(fitted.levels["accuracy"])):
        if np.isfinite(base):
            for question, limits in asked_of(fitted, i, float(base)).items():
                cases.setdefault(question, []).append(case(fitted, floors, i, question, asked(float(base), limits)))
    return {
        "study": name,
        "settings": len(fitted.settings),
        "data_sets": len(set(fitted.data)),
        "choices": fitted.choices,
        "way": fitted.way,
        "score": fitted.score,
        "questions": {question: told(found) for question, found in cases.items()},
        "kept": kept_share([one for found in cases.values() for one in found]),
        "coverage": covered(fitted),
    }


def asked_of(fitted: Fitted, i: int, base: float) -> dict[str, Ask]:
    """The questions of one federation."""
    plain = fitted.choices.index(fitted.references[0]) if fitted.references else 0
    return questions(base, *(float(np.nanmax(fitted.costs[cost][i, plain])) for cost in ("bytes", "cpu_seconds")))


def worths(fitted: Fitted, floors: Floats, i: int, need: Requirements) -> Floats:
    """(J, R) what each candidate is worth in setting ``i``: its accuracy, or the floor where it breaks a limit or did not finish."""
    accuracy, kept = measured_in(fitted, need, i)
    return np.where(kept, accuracy, floors[i])


def case(fitted: Fitted, floors: Floats, i: int, question: str, need: Requirements) -> Case:
    """One federation asked one question."""
    one, here = trial(fitted, need, i), worths(fitted, floors, i, need)
    others = []
    for k in fitted.others(i):
        base = float(from_logit(fitted.levels["accuracy"][k]))
        others.append(worths(fitted, floors, k, asked(base, asked_of(fitted, int(k), base)[question])))
    at = np.unravel_index(int(np.argmax(np.mean(others, axis=0))), here.shape)
    names = [name for name in fitted.references if name in fitted.choices]
    plain = names[-1 if need.server_sees == "sums" else 0] if names else fitted.choices[0]
    first = float(one.reached) if one.kept and one.reached is not None else float(floors[i])
    worth = {
        ANSWER: first,
        MISS: first if one.nearest is None else float(here[one.nearest]),
        SINGLE: float(here[at]),
        FEDAVG: float(here[fitted.choices.index(plain), -1]),
    }
    best = float(here.max()) if one.possible else None
    return Case(
        fitted.data[i] if len(set(fitted.data)) > 1 else str(i), best, worth, one.answered, one.kept, one.deviates
    )


def told(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of one question."""
    fair = [one for one in cases if one.best is not None]
    regret = {name: [float(one.best or 0) - one.worth[name] for one in fair] for name in ADVICE}
    data = [one.data for one in fair]
    beside = np.array(regret[ANSWER]) - np.array(regret[SINGLE])
    return {
        "asked": len(cases),
        "possible": len(fair),
        "answered": sum(one.answered for one in cases),
        "wrong_none": sum(not one.answered for one in fair),
        "kept": sum(one.kept for one in cases),
        "regret": {name: over_data(values, data) for name, values in regret.items()},
        "against_single": over_data(beside.tolist(), data),
        "deviates": sum(one.deviates for one in cases),
        "won": int((beside < -1e-9).sum()),
        "lost": int((beside > 1e-9).sum()),
    }


def kept_share(cases: Sequence[Case]) -> dict[str, float | None]:
    """The share of answers that kept all limits, by data set."""
    found = [one for one in cases if one.answered]
    return over_data([float(one.kept) for one in found], [one.data for one in found])


def over_data(values: Sequence[float], data: Sequence[str]) -> dict[str, float | None]:
    """The mean over data sets of the mean in each, with its bootstrap interval over data sets."""
    if not len(values):
        return {"value": None, "low": None, "high": None}
    names, known = np.array(data), np.array(values)
    each = np.array([known[names == name].mean() for name in sorted(set(data))])
    picks = numpy_stream(0, "contest").integers(len(each), size=(DRAWS, len(each)))
    low, high = np.quantile(each[picks].mean(axis=1), [0.025, 0.975])
    return {"value": float(each.mean()), "low": float(low), "high": float(high)}


def covered(fitted: Fitted) -> dict[str, Any]:
    """quality -> share of left-out settings at or above `low`, and at or below `high`, over all choices and rounds."""
    out = {}
    for quality in fitted.gaps:
        errors, above, below, data = fitted.residuals(quality), [], [], []
        for i in range(len(errors)):
            rest = errors[fitted.others(i)]
            ends = [
                (errors[i, j, r], quantiles(rest[:, j, r], CONFIDENCE)) for j, r in np.argwhere(np.isfinite(errors[i]))
            ]
            if ends:
                above.append(float(np.mean([x >= low for x, (low, _) in ends])))
                below.append(float(np.mean([x <= high for x, (_, high) in ends])))
                data.append(fitted.data[i] if len(set(fitted.data)) > 1 else str(i))
        out[quality] = {"above_low": over_data(above, data), "below_high": over_data(below, data)}
    return out


def percent(found: Mapping[str, float | None]) -> str:
    """A share with its interval."""
    value, low, high = (None if found[key] is None else 100 * found[key] for key in ("value", "low", "high"))  # type: ignore[operator]
    return f"{number(value, 2)} ({number(low, 2)} to {number(high, 2)})"


def show_contest(found: Mapping[str, Any]) -> str:
    """The figures as tables."""
    head = f"Study {found['study']}: {found['settings']} federations of {found['data_sets']} data sets, "
    head += f"{len(found['choices'])} choices; the recommender predicts by {found['way']}."
    lines = [head, "Regret in points of accuracy, by data set."]
    rows = [
        [question, *(percent(one["regret"][name]) for name in ADVICE), percent(one["against_single"])]
        for question, one in found["questions"].items()
    ]
    lines += ["", markdown(["asked", *ADVICE, "answer less single"], rows)]
    keys = ("asked", "possible", "answered", "kept", "wrong_none", "deviates", "won", "lost")
    rows = [[question, *(str(one[key]) for key in keys)] for question, one in found["questions"].items()]
    lines += ["", markdown(["question", *(key.replace("_", " ") for key in keys)], rows)]
    lines += ["", f"Answers that kept all limits: {percent(found['kept'])} %."]
    rows = [
        [quality, percent(one["above_low"]), percent(one["below_high"])] for quality, one in found["coverage"].items()
    ]
    lines += ["", markdown(["response", "at or above low, %", "at or below high, %"], rows)]
    return "\n".join(lines)
