"""What answers from numbers only are worth: part of `recommender.py`.

Each data set of a study is left out in turn with its relatives, the predictors are fitted again on the rest, and its federations ask
the six requirement files of `questions`. Its own costs are given, which an experiment's dry run computes. An answer counts as what it
costs whoever follows it:

- found: the accuracy measured there; that of always naming one class (the floor) where a limit breaks or it did not finish;
- not known: the same of the choice that it says to measure first, whose one run tells whether the limits hold;
- none: the floor, where something measured fits. Where nothing does, the question is not counted.

Regret is what an answer lacks of the best that fits, in accuracy. The unit is the data set: figures are means over data sets of the
mean over their federations, with Student's interval over data sets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from table import OverData, interval, over_data, table

from fedatlas.config import parse
from fedatlas.data.sources import load_dataset, read_once
from fedatlas.recommender.answer import answer_for, forecast_at, outside
from fedatlas.recommender.contest import Fitted, from_logit, quantiles
from fedatlas.recommender.requirements import Requirements, requirements
from fedatlas.recommender.shipped import Basis, refitted
from fedatlas.recommender.track_record import measured_in, with_seconds
from fedatlas.recommender.twins import barred_twins, with_twins
from fedatlas.study.measurements import Floats

CONFIDENCE = 0.9
WORSE = 0.2  # points: the upper bound of the regret beyond that of the best single choice
SLACK = 0.05  # limits are kept in at least the confidence asked for less this
WRONG_NONE = 0.2  # share of the questions in which something fits that may be answered none
COVERED = 0.85  # the least mean of the coverage, whose interval has to contain the confidence
ANSWER, SINGLE, FEDAVG = ADVICE = ("the answer", "best single choice", "FedAvg, picked rate")
FAMILIES = ({"breast_cancer_wdbc", "breast_cancer_original"}, {"digits", "mnist"})
Ask = dict[str, Any]


def relatives(name: str) -> set[str]:
    """A data set and those of the same patients or digits."""
    return next((family for family in FAMILIES if name in family), {name})


def without(basis: Basis, names: set[str]) -> Basis:
    """A study as if some data sets had not been measured: its features scaled, its predictors fitted and picked again."""
    fitted = basis.fitted
    kept = [i for i, data in enumerate(fitted.data) if data not in names]
    if len(kept) == len(fitted.data):
        return basis
    place = {i: k for k, i in enumerate(kept)}

    def rows(values: dict[str, Floats]) -> dict[str, Floats]:
        return {key: x[kept] for key, x in values.items()}

    smaller = fitted._replace(
        settings=[fitted.settings[i] for i in kept],
        data=[fitted.data[i] for i in kept],
        x=fitted.x[kept],
        finishes=fitted.finishes[kept],
        **{key: rows(getattr(fitted, key)) for key in ("gaps", "levels", "costs", "by_setting", "by_data")},
    )
    return refitted(
        basis._replace(
            fitted=smaller,
            picked={(place[i], c): x for (i, c), x in basis.picked.items() if i in place},
            configurations={(place[i], c): x for (i, c), x in basis.configurations.items() if i in place},
            apart=basis.apart[kept],
            masked=None if basis.masked is None else basis.masked[kept],
        )
    )


def questions(base: float, bytes_: float, seconds: float) -> dict[str, Ask]:
    """The limits asked for in a federation whose baseline reaches ``base`` and whose FedAvg costs so much."""
    return {
        "free": {},
        "sums only": {"at_least": {"accuracy": base - 0.05}, "privacy": {"server_sees": "sums"}},
        "bytes": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"bytes": bytes_ / 2}},
        "seconds": {"at_least": {"accuracy": 0.85 * base}, "at_most": {"cpu_seconds": seconds / 2}},
        "epsilon": {"at_least": {"accuracy": 0.8 * base}, "at_most": {"epsilon": 500.0}},
        "worst client": {"at_least": {"client_accuracy_p10": 0.7 * base}},
    }


def asked_of(fitted: Fitted, i: int) -> dict[str, Requirements]:
    """Question -> what one federation asks, which knows what its baseline reaches."""
    base = float(np.clip(from_logit(fitted.levels["accuracy"][i]), 0.001, 0.999))
    plain = fitted.choices.index(fitted.references[0]) if fitted.references else 0
    costs = (float(np.nanmax(fitted.costs[cost][i, plain])) for cost in ("bytes", "cpu_seconds"))
    nodes, rows, h, classes = map(float, fitted.x[i])
    facts = {
        "nodes": np.exp(nodes),
        "rows": np.exp(nodes + rows),
        "heterogeneity": h,
        "classes": classes,
    }
    federation = {"nodes": 2, "rows": 100, "heterogeneity": 0.0, "centralised": base}
    return {
        question: requirements({"confidence": CONFIDENCE, "federation": federation, **limits})._replace(**facts)
        for question, limits in questions(base, *costs).items()
    }


class Case(NamedTuple):
    """One federation asked one question."""

    data: str
    answer: str  # "found", "not known", "none"
    best: float | None  # accuracy of the best candidate that keeps all limits; None: there is none
    worth: dict[str, float]  # advice -> accuracy
    kept: bool  # the choice named first finished and kept all limits
    deviates: bool  # it is not the best single choice


class Side(NamedTuple):
    """A study, whole and without a data set and its relatives."""

    whole: Basis
    rest: Basis

    def case(self, floors: Floats, i: int, question: str, need: Requirements) -> Case:
        """Federation ``i`` of the whole study, asked of the rest."""
        fitted, rest = self.whole.fitted, self.rest.fitted
        barred = barred_twins(self.rest, rest.nearest(fitted.x[i]), need.nodes)
        answer = answer_for(rest, need, computed=costs_of(fitted, rest, i), barred=barred, track=False)
        here = worths(fitted, floors, i, need)
        _, fits = measured_in(fitted, need, i)
        single = self.single(floors, question)
        names = [name for name in fitted.references if name in fitted.choices]
        plain = names[-1 if need.server_sees == "sums" else 0] if names else fitted.choices[0]
        named = None
        if answer["top"]:
            first = answer["top"][0]
            named = fitted.choices.index(first["choice"]), fitted.rounds.index(first["rounds"])
        worth = {
            ANSWER: float(floors[i]) if named is None else float(here[named]),
            SINGLE: float(here[single]),
            FEDAVG: float(here[fitted.choices.index(plain), -1]),
        }
        return Case(
            fitted.data[i],
            answer["answer"],
            float(here[fits].max()) if fits.any() else None,
            worth,
            named is not None and bool(fits[named]),
            named is not None and named[0] != single[0],
        )

    def single(self, floors: Floats, question: str) -> tuple[int, int]:
        """The choice and rounds that are worth most on average over the data sets that are left."""
        fitted = self.whole.fitted
        others = [i for i, name in enumerate(fitted.data) if name in set(self.rest.fitted.data)]
        worth = [worths(fitted, floors, i, asked_of(fitted, i)[question]) for i in others]
        j, r = np.unravel_index(int(np.argmax(np.mean(worth, axis=0))), worth[0].shape)
        return int(j), int(r)


def costs_of(fitted: Fitted, rest: Fitted, i: int) -> dict[str, Floats]:
    """Cost -> (J, R) of the choices of ``rest`` in setting ``i`` of the whole study."""
    order = [fitted.choices.index(name) for name in rest.choices]
    return {cost: values[order] for cost, values in with_seconds(fitted, i).items()}


def worths(fitted: Fitted, floors: Floats, i: int, need: Requirements) -> Floats:
    """(J, R) what each candidate is worth in setting ``i``: its accuracy, or the floor where it breaks a limit or did not finish."""
    accuracy, kept = measured_in(fitted, need, i)
    return np.where(kept, accuracy, floors[i])


def counted(basis: Basis) -> Floats:
    """(n,) the accuracy of always naming one class, on the test rows of each setting."""
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


def numbers(basis: Basis, floors: Floats) -> dict[str, Any]:
    """All figures of a study; ``floors`` (n,): the accuracy of always naming one class."""
    cases: dict[str, list[Case]] = {}
    covered: list[tuple[str, float, float]] = []
    for family in families(basis.fitted.data):
        plain = Side(basis, without(basis, family))
        masked = Side(with_twins(basis), with_twins(plain.rest))
        for i in [i for i, name in enumerate(basis.fitted.data) if name in family]:
            if not np.isfinite(basis.fitted.levels["accuracy"][i]):
                continue
            if not outside(plain.rest.fitted, basis.fitted.x[i]):  # else no interval is given
                covered.append((basis.fitted.data[i], *covers(plain, i)))
            for question, need in asked_of(basis.fitted, i).items():
                side = masked if need.server_sees == "sums" else plain
                cases.setdefault(question, []).append(side.case(floors, i, question, need))
    return {"questions": {question: told(found) for question, found in cases.items()}, **overall(cases, covered)}


def families(data: Sequence[str]) -> list[set[str]]:
    """The data sets of a study, those that are relatives together."""
    found: list[set[str]] = []
    for name in sorted(set(data)):
        family = relatives(name) & set(data)
        found += [] if family in found else [family]
    return found


def covers(side: Side, i: int) -> tuple[float, float]:
    """The share of choices and rounds of setting ``i`` whose accuracy is at or above `low`, and at or below `high`."""
    fitted = side.whole.fitted
    level = float(from_logit(fitted.levels["accuracy"][i]))
    spread = forecast_at(side.rest.fitted, fitted.x[i], level).spread["accuracy"]
    true = from_logit(fitted.levels["accuracy"][i] + fitted.gaps["accuracy"][i])
    hits = []
    for j, r in np.argwhere(np.isfinite(true)):
        low, high = quantiles(spread[:, j, r], CONFIDENCE)
        hits.append((true[j, r] >= low, true[j, r] <= high))
    above, below = np.mean(hits, axis=0)
    return float(above), float(below)


def told(cases: Sequence[Case]) -> dict[str, Any]:
    """The figures of one question."""
    fair = [one for one in cases if one.best is not None]
    regret = {name: [float(one.best or 0) - one.worth[name] for one in fair] for name in ADVICE}
    data = [one.data for one in fair]
    beside = np.array(regret[ANSWER]) - np.array(regret[SINGLE])
    apart = np.array([one.deviates for one in fair], bool)
    return {
        "asked": len(cases),
        "possible": len(fair),
        **{kind: sum(one.answer == kind for one in cases) for kind in ("found", "not known", "none")},
        "wrong_none": sum(one.answer == "none" for one in fair),
        "regret": {name: over_data(values, data)._asdict() for name, values in regret.items()},
        "against_single": over_data(beside.tolist(), data)._asdict(),
        "by_data": {name: over_data([x for x, d in zip(beside, data, strict=True) if d == name]).value for name in sorted(set(data))},
        "deviates": int(apart.sum()),
        "won": int((beside < -1e-9)[apart].sum()),
        "lost": int((beside > 1e-9)[apart].sum()),
    }  # fmt: skip


def overall(cases: Mapping[str, Sequence[Case]], covered: Sequence[tuple[str, float, float]]) -> dict[str, Any]:
    """The figures over all questions."""
    limited = [one for question, found in cases.items() if question != "free" for one in found]
    found = [one for one in limited if one.answer == "found"]
    likeliest = [one for one in limited if one.answer == "not known"]
    fair = [one for one in limited if one.best is not None]
    data = [name for name, _, _ in covered]

    def share(of: Sequence[Case], hits: Sequence[bool]) -> dict[str, Any]:
        return {"of": len(of), **over_data([float(x) for x in hits], [one.data for one in of])._asdict()}

    return {
        "kept": share(found, [one.kept for one in found]),
        "likeliest_kept": share(likeliest, [one.kept for one in likeliest]),
        "wrong_none": {"of": len(fair), "value": sum(one.answer == "none" for one in fair) / max(len(fair), 1)},
        "none": {"of": sum(one.answer == "none" for one in limited)},
        "above_low": over_data([x for _, x, _ in covered], data)._asdict(),
        "below_high": over_data([x for _, _, x in covered], data)._asdict(),
    }


def percent(found: Mapping[str, float | None]) -> str:
    """A share with its interval."""
    return interval(OverData(*(found[key] for key in OverData._fields)), 100.0)


def gates(found: Mapping[str, Any]) -> dict[str, bool]:
    """Gate -> whether it is kept."""
    out = {
        f"{question}: at most {WORSE} points worse than the best single choice": one["against_single"]["high"] is None
        or 100 * one["against_single"]["high"] <= WORSE
        for question, one in found["questions"].items()
    }
    out[f"limits kept in {100 * (CONFIDENCE - SLACK):.0f}% of at least 100 answers"] = (
        found["kept"]["of"] >= 100 and found["kept"]["value"] >= CONFIDENCE - SLACK
    )
    out[f"none although something fits in at most {100 * WRONG_NONE:.0f}%"] = found["wrong_none"]["value"] <= WRONG_NONE
    for key in ("above_low", "below_high"):
        one = found[key]
        out[f"coverage, {key}"] = one["value"] >= COVERED and one["low"] <= CONFIDENCE <= one["high"]
    return out


def show(found: Mapping[str, Any]) -> str:
    """The figures as tables, and the gates."""
    rows = [
        [question, *(percent(one["regret"][name]) for name in ADVICE), percent(one["against_single"])]
        for question, one in found["questions"].items()
    ]
    lines = ["Regret in points of accuracy, over data sets:", "", table(["asked", *ADVICE, "answer less single"], rows)]
    keys = ("asked", "possible", "found", "not known", "none", "wrong_none", "deviates", "won", "lost")
    rows = [[question, *(str(one[key]) for key in keys)] for question, one in found["questions"].items()]
    lines += ["", table(["question", *(key.replace("_", " ") for key in keys)], rows), ""]
    for key in ("kept", "likeliest_kept", "above_low", "below_high"):
        many = f" of {found[key]['of']}" if "of" in found[key] else ""
        lines.append(f"{key}: {percent(found[key])} %{many}")
    lines.append(f"wrong_none: {100 * found['wrong_none']['value']:.1f} % of {found['wrong_none']['of']}")
    lines += [f"gate {name}: {'kept' if passed else 'missed'}" for name, passed in gates(found).items()]
    return "\n".join(lines)
