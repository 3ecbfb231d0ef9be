"""The answer for an experiment: that of a race on its rows, or, without one, what the study foresees for them.

Of a race: what is said of each choice, the files, and the one run on the test rows.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.data.sources import read_once
from fedatlas.errors import ConfigError
from fedatlas.metrics.intervals import proportion
from fedatlas.race.best import CONFIDENCE, needed_for
from fedatlas.race.course import AskedRun, RaceEnd, RaceFigures, RaceWork, race
from fedatlas.race.runs import TIMED, RaceRuns
from fedatlas.race.work import PICKED_ON, TOLD_ON, ArmCost, ArmWork, tuning_cost
from fedatlas.recommender.answer import answer_for, violations
from fedatlas.recommender.answer_files import Say, write_experiment
from fedatlas.recommender.race_arms import AllowedChoice, arm_file, contenders, points_of, race_arms
from fedatlas.recommender.race_limits import chance_kept, changes, measured_here
from fedatlas.recommender.race_page import PAGE, write_page
from fedatlas.recommender.ranking import utility_of
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.recommender.user_experiment import (
    Examined,
    UserExperiment,
    completed,
    examined,
    notes_on_twins,
    read_experiment,
    with_baseline,
)
from fedatlas.setup.folds import FEWEST
from fedatlas.study.design import ExecuteTable
from fedatlas.study.execute import runs_there
from fedatlas.study.front import not_dominated
from fedatlas.study.levels import overridden
from fedatlas.study.local_runs import PARALLEL, Runs
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import listed

TABLE = "race"  # folder of the table of runs, in that of the answer
TOP = 3
PILOT = 2  # files for a pilot with partners, where the rows are one party's own
WISHED = 0.005  # margin for which the rows are told that it would need
CLOCKED = ("seconds", "cpu_seconds")


class Raced(NamedTuple):
    """A race that has ended, with what it was about."""

    user: UserExperiment
    found: Mapping[str, AllowedChoice]
    runs: RaceRuns
    points: Sequence[Row]
    work: RaceWork
    end: RaceEnd

    def rates(self, name: str) -> Row:
        """Return the rates that were picked for a choice."""
        return self.runs.files[name].points[self.end.picked[name]]

    @property
    def per_unit(self) -> float:
        """The work of a unit: a round of a run, or a minute of all processes."""
        return 1.0 if self.user.asked.work is not None else 60.0 * PARALLEL


def limit_of(asked: Requirements) -> float | None:
    """Return the most seconds that the race, or one run of it, may take; None if its work is limited instead."""
    return None if asked.work is not None else 60 * asked.minutes


def run_race(found: Examined, out: Path, say: Say, elsewhere: Runs | None) -> tuple[Raced, dict[str, str]]:
    """Race the choices that the requirements allow; return the race, and choice -> why it was left out."""
    user = found.user
    arms, refused = contenders(found)
    points, asked, seed = points_of(user), user.asked, int(user.base["seed"])
    files = {one.name: arm_file(user, one, points) for one in arms}
    limit = limit_of(asked)
    runs = RaceRuns(files, seed, out / TABLE, say, seconds=limit, runs=elsewhere)
    with read_once():
        if limit is None or not arms:
            work = RaceWork(float(asked.work or 0), {one.name: ArmCost() for one in arms})
        else:
            say(f"Timing one round of {len(arms)} choices.")
            costs = runs.timed()
            work = RaceWork(PARALLEL * limit, costs, sum(cost.run(0, TIMED) for cost in costs.values()), runs.costs)
        if arms:
            say(f"Racing {len(arms)} choices on your training rows; the test rows are not read.")
        end = race(race_arms(user, arms), max(len(points), 1), work, runs.measure, seed)
    return Raced(user, {one.name: one for one in arms}, runs, points, work, end), refused


def answered(basis: Basis, asked: Requirements, path: Path, out: Path, say: Say, cluster: str | None = None) -> Plain:
    """Return the answer for the experiment in ``path``; its files are written into ``out``.

    ``cluster``: address of a Ray cluster whose nodes make the runs of a race.
    """
    with read_once():
        user, raced = read_experiment(basis, asked, path), asked.raced
        if raced and max(user.sizes.values()) < FEWEST:
            raise ConfigError(
                f"no client has {FEWEST} training rows, the fewest of which a race takes rows to judge on: give minutes = 0 for what is "
                "known from other federations, or use fewer clients."
            )
        found = examined(user, say)
        user = found.user
        if not raced:
            user = user._replace(asked=with_baseline(user, out, say))
    answer = answer_for(user.basis.fitted, user.asked, computed=found.costs, track=not raced, barred=found.barred)
    if raced:
        with contextlib.ExitStack() as opened:
            how = ExecuteTable(keep="folder", seconds=limit_of(user.asked))
            elsewhere = opened.enter_context(runs_there(cluster, how, say)) if cluster else None
            return race_answer(found, answer, out, say, elsewhere)
    if asked.centralised is None and user.asked.centralised is not None:
        answer["notes"].append(
            "The baseline on all rows was judged once on your test rows; the intervals take it as exact, and are too narrow by its error."
        )
    return completed(user, answer, out)


def race_answer(found: Examined, prior: Plain, out: Path, say: Say, elsewhere: Runs | None = None) -> Plain:
    """Return the answer of a race. ``prior``: the forecast from other federations, which the answer keeps.

    ``elsewhere``: makes the runs on other machines, with the same result.
    """
    user = found.user
    one, refused = run_race(found, out, say, elsewhere)
    entries = (
        [entry_of(one, one.end.figures, j, name) for j, name in enumerate(one.end.left)] if one.end.figures else []
    )
    mark_front(entries)
    kept = ordered(one, [entry for entry in entries if entry["chance"] >= user.asked.confidence - 1e-12])
    if one.end.decided:
        top = [dict(entry) for entry in kept[: PILOT if user.asked.own_rows else TOP]]
    else:  # in no order where they are not told apart
        top = sorted((dict(entry) for entry in kept if entry["among_best"]), key=lambda entry: entry["choice"])
    for i, entry in enumerate(top):
        write_file(one, out, i, entry)
    tested = final_run(one, top[0], say) if top and one.end.decided and not user.asked.own_rows else None
    missed = bool(entries) and not kept
    answer: Plain = {
        "answer": kind_of(one, entries, kept),
        "top": top,
        "entries": entries,
        "nearest_miss": nearest_miss(entries, user) if missed else None,
        "refused": [{"choice": name, "reason": reason} for name, reason in sorted(refused.items())],
        **{key: prior[key] for key in ("reference", "setting", "limits", "weights")},
        "quality": "raced",
        "race": about_race(one, entries, top, tested),
        "prior": before(prior),
        "notes": [*prior["notes"], *notes(one), *notes_on_twins(user, top)],
    }
    if entries:
        answer["page"] = str(write_page(answer, out / PAGE))
    return answer


def kind_of(one: Raced, entries: Sequence[Row], kept: Sequence[Row]) -> str:
    """Return the kind of answer.

    It is "none" only if no choice is likely to keep the limits, also of those that the race did not measure to its end. What was cut
    for its accuracy may keep a limit on another figure.
    """
    end, asked = one.end, one.user.asked
    if entries and not kept:
        measured = [x for x in asked.limits() if x.response not in one.found[end.left[0]].costs]
        cut = end.cut if any((x.table, x.response) != ("at_least", "accuracy") for x in measured) else ()
        likeliest = max(entry["chance"] for entry in entries)
        sure = likeliest < 1 - asked.confidence - 1e-12 and not (end.not_tried or end.given_up or cut)
        return "none" if sure else "not known"
    if not one.found:
        return "none"
    return "found" if end.decided else "undecided"


def entry_of(one: Raced, figures: RaceFigures, j: int, name: str) -> Plain:
    """Return what is said of a choice that was left at the end."""
    end, asked, choice = one.end, one.user.asked, one.found[name]
    rounds, folds = end.rounds[name], TOLD_ON if end.decided else PICKED_ON
    told_by = [one.runs.responses(AskedRun(name, end.picked[name], fold, rounds)) for fold in folds]
    measured = measured_here(figures, j, told_by, one.runs.seed)
    if choice.plain != name and "memory" in measured:
        value, draws = measured.pop("memory")
        if math.isfinite(times := memory_of_masks(one.user, choice)):
            measured["memory"] = times * value, times * draws
    chance, unknown = chance_kept(asked.limits(), measured, choice.costs)
    predicted: dict[str, dict[str, float | None]] = {}
    for key, (value, draws) in measured.items():
        low, high = np.quantile(draws, [1 - asked.confidence, asked.confidence])
        predicted[key] = {"value": value, "low": float(low), "high": float(high)}
    computed = {key: float(costs[rounds - 1]) for key, costs in choice.costs.items()}
    for key in CLOCKED:  # of these runs: the dry run's would differ each time it is asked
        if choice.plain == name and all(x.get(key) is not None for x in told_by):
            computed[key] = float(np.mean([x[key] for x in told_by]))
    for key, value in computed.items():
        predicted[key] = dict.fromkeys(("value", "low", "high"), value if math.isfinite(value) else None)
    return {
        "choice": name,
        "rounds": rounds,
        "rates": dict(one.rates(name)),
        "at_edge": at_edge(one, name),
        "predicted": predicted,
        "chance": chance,
        "not_measured": unknown,
        "among_best": bool(figures.told.among[j]),
        "behind_best": float(figures.told.margin[j]),
        "among_best_here": bool(figures.told_here.among[j]),
        "behind_best_here": float(figures.told_here.margin[j]),
        "chance_best": float(figures.told.chance[j]),
        "failed_runs": end.failed.get(name, 0),
        "binding": [f"{limit.table}.{limit.response}" for limit in choice.binding],
        "masked": choice.plain if choice.plain != name else None,
    }


def memory_of_masks(user: UserExperiment, choice: AllowedChoice) -> float:
    """Return how many times as much memory a choice takes with masks as without, by the nearest setting; nan if not known."""
    fitted = user.basis.fitted
    masked, plain = (fitted.costs["memory"][user.near(choice.name), fitted.choices.index(x)] for x in choice[:2])
    known = (masked / plain)[np.isfinite(masked / plain)]  # after rounds that the study measured
    return float(known[-1]) if len(known) else math.nan


def at_edge(one: Raced, name: str) -> list[str]:
    """Return the keys whose picked value is the smallest or the largest that was tried."""
    out, picked = [], one.rates(name)
    for key, value in picked.items():
        every = {point[key] for point in one.points if isinstance(point.get(key), int | float)}
        if len(every) > 1 and value in (min(every), max(every)):
            out.append(key)
    return out


def ordered(one: Raced, entries: Sequence[Row]) -> list[Row]:
    """Return entries, the first the one to take: the most accurate; with other weights, of those not told apart the most useful."""
    weights, fitted = one.user.asked.weights, one.user.basis.fitted

    def use(entry: Row) -> float:
        values = {key: x["value"] for key, x in entry["predicted"].items()}
        known = {key: np.array([np.nan if values.get(key) is None else values[key]]) for key in weights}
        return float(np.nan_to_num(utility_of(fitted, known, weights)[0], nan=-np.inf))

    by_quality = {name for name, weight in weights.items() if weight} == {"accuracy"}

    def key(entry: Row) -> Any:
        value = entry["predicted"]["accuracy"]["value"]
        return (not entry["among_best"], -value if by_quality else -use(entry), bytes_of(entry), entry["choice"])

    return sorted(entries, key=key)


def bytes_of(entry: Row) -> float:
    """Return the bytes of an entry."""
    return float(entry["predicted"]["bytes"]["value"] or math.inf)


def mark_front(entries: Sequence[Plain]) -> None:
    """Mark the entries that no other beats in accuracy, bytes, seconds and epsilon together."""

    def point(entry: Row) -> list[float]:
        value = entry["predicted"]
        costs = [
            math.inf if value[key]["value"] is None else value[key]["value"] for key in ("bytes", "seconds", "epsilon")
        ]
        return [value["accuracy"]["value"], *(-x for x in costs)]

    if entries:
        for entry, front in zip(entries, not_dominated(np.array([point(one) for one in entries])), strict=True):
            entry["front"] = bool(front)


def write_file(one: Raced, out: Path, i: int, entry: Plain) -> None:
    """Write the experiment file of an entry, which trains on all training rows."""
    name, own = entry["choice"], one.user.asked.own_rows
    values = overridden(one.runs.files[name].file, [one.rates(name), {"rounds": entry["rounds"]}])
    use = "for a pilot with your partners" if own else "recommended" if one.end.decided else "not decided on"
    head = f"{name} for {entry['rounds']} rounds, {use}: it was raced on {'your own rows, dealt out' if own else 'your rows'}."
    write_experiment(out, i, entry, values, head)


def final_run(one: Raced, entry: Row, say: Say) -> Plain:
    """Run the file to take, once, and return what it reaches on the test rows, with a 95% interval for so many rows."""
    say(f"The race is over. Running {entry['choice']} on all training rows, and judging it on the test rows.")
    done = one.runs.final(entry["choice"], one.end.picked[entry["choice"]], entry["rounds"])
    accuracy, rows = done.get("accuracy"), done.get("test_rows")
    low, high = (None, None) if accuracy is None or not rows else proportion(accuracy * rows, rows)
    kept = ("status", "reason", "test_rows", "accuracy", "macro_f1", "client_p10", "bytes_up", "bytes_down", "epsilon")
    return {"choice": entry["choice"], **{key: done.get(key) for key in kept}, "low": low, "high": high}


def about_race(one: Raced, entries: Sequence[Row], top: Sequence[Row], tested: Plain | None) -> Plain:
    """Return the race in plain values."""
    end, asked, by_clock = one.end, one.user.asked, one.user.asked.work is None
    points = max(len(one.points), 1)
    named = names_of(top[:1] if end.decided and top else [entry for entry in entries if entry["among_best"]])
    everything = one.work.timing + sum(
        tuning_cost(ArmWork(arm.most, end.costs[name]), points) for name, arm in one.found.items()
    )
    return {
        "rows_of": "own" if asked.own_rows else "all",
        "minutes": asked.minutes if by_clock else None,
        "work": asked.work,
        "unit": "minutes" if by_clock else "rounds",
        "decided": end.decided,
        "ends": asked.confidence,
        "could_go_on": any(end.rounds[name] < one.found[name].most for name in end.left),
        "spent": end.spent / one.per_unit,
        "foreseen": end.foreseen / one.per_unit,
        "needed": (end.needed / one.per_unit) or None,
        "all_tried": 3 * everything / one.per_unit,
        "costs": {name: list(cost) for name, cost in end.costs.items()} if by_clock else None,
        "tuning_points": points,
        **{key: getattr(end, key) for key in ("started", "not_tried", "given_up", "left", "rounds")},
        "looks": [look._asdict() for look in end.looks],
        "cut": [cut._asdict() for cut in end.cut],
        "failed": {name: many for name, many in end.failed.items() if many},
        "rates": {name: dict(one.rates(name)) for name in end.picked},
        "statement": statement(one, end.figures, entries, top) if end.decided and end.figures else None,
        "final": tested,
        "epsilon": epsilon_twice(top if end.decided else ()),
        "changes": [
            *(
                x
                for name in named
                if end.rounds[name] >= one.found[name].most
                for x in changes(one.user, one.found[name])
            ),
            *(line for entry in top if end.decided for line in clock_lines(one, entry)),
        ],
    }


def clock_lines(one: Raced, entry: Row) -> list[str]:
    """Return where the runs of a choice took more time than a limit that its dry run keeps."""
    out, name = [], entry["choice"]
    for limit in one.user.asked.limits():
        took = entry["predicted"].get(limit.response, {}).get("value")
        if limit.response in CLOCKED and took is not None and limit.sign * took < limit.sign * limit.value:
            foreseen, text = (
                float(one.found[name].costs[limit.response][entry["rounds"] - 1]),
                RESPONSES[limit.response].text,
            )
            out.append(
                f"The runs of {name} took {text(took)} and break the limit {limit.table}.{limit.response} ({text(limit.value)}): the "
                f"dry run, which decides, foresaw {text(foreseen)}."
            )
    return out


def statement(one: Raced, figures: RaceFigures, entries: Sequence[Row], top: Sequence[Row]) -> Plain:
    """Return the end statement."""
    best = [entry for entry in entries if entry["among_best"]]
    first = (top or ordered(one, best))[0]
    open_to = [entry for entry in best if entry["choice"] in names_of(top)] or best
    times = None
    if first["behind_best_here"] > WISHED and first["among_best_here"]:
        place = one.end.left.index(first["choice"])
        times = needed_for(figures.found_here, figures.told_here, place, WISHED)
    return {
        "confidence": CONFIDENCE,
        "first": first["choice"],
        "margin": first["behind_best"],
        "among": [entry["choice"] for entry in ordered(one, best)],
        "margin_of_all": max(entry["behind_best"] for entry in best),
        "margin_here": first["behind_best_here"],
        "among_here": [entry["choice"] for entry in ordered(one, entries) if entry["among_best_here"]],
        "judged_rows": len(figures.rows.weight),
        "drawn_by": figures.found.unit,
        "clients": len(np.unique(figures.rows.client)),
        "wished": None if times is None else WISHED,
        "rows_for_wished": None if times is None else math.ceil(times.rows * float(one.user.asked.rows or 0)),
        "seeds_for_wished": None if times is None else math.ceil(times.seeds * len(TOLD_ON)),
        "cheapest": min(open_to, key=lambda entry: (bytes_of(entry), entry["choice"]))["choice"],
    }


def epsilon_twice(top: Sequence[Row]) -> Plain:
    """Return epsilon of the run to take, and with the race.

    The second is none, also where every run adds noise: a race reads scores of training rows in the clear and shows them.
    """
    value = top[0]["predicted"]["epsilon"]["value"] if top else None
    return {"final": value, "with_race": None, "choice_is_private": False}


def nearest_miss(entries: Sequence[Row], user: UserExperiment) -> Plain:
    """Return the entry likeliest to keep all limits, and by how much it misses each at the confidence asked for."""
    best = max(entries, key=lambda entry: (entry["chance"], entry["predicted"]["accuracy"]["value"]))
    return {**best, "violates": violations(user.asked, best["predicted"], best["chance"])}


def before(prior: Row) -> Plain:
    """Return what was foreseen from other federations, without what the clock measured."""
    top = [{"choice": x["choice"], "rounds": x["rounds"], "accuracy": x["predicted"]["accuracy"]} for x in prior["top"]]
    return {"answer": prior["answer"], "predicted_by": prior["predicted_by"], "top": top}


def names_of(entries: Sequence[Row]) -> list[str]:
    """Return the names of the choices of some entries."""
    return [entry["choice"] for entry in entries]


def notes(one: Raced) -> list[str]:
    """Return what is to be known about the race, one sentence each."""
    user = one.user
    out = [user.local_note()]
    if "stop" in user.base:
        out.append("[stop] of your file is not used: the race decides on the rounds.")
    if any(weight and not RESPONSES[name].quality for name, weight in user.asked.weights.items()):
        out.append(
            "[weights] on costs order the choices that the race cannot tell apart; the race itself compares accuracy."
        )
    if any(limit.response in CLOCKED for limit in user.asked.limits()):
        out.append(
            "The rounds that a limit on seconds allows follow from a timed dry run on this machine: asked again, they may differ."
        )
    masked = [name for name in one.end.started if one.found[name].plain != name]
    if masked:
        out.append(
            f"{listed(masked)} {'was' if len(masked) == 1 else 'were'} raced without masks, which change a result only by rounding; the "
            "files have them."
        )
    if not user.asked.own_rows and one.end.started:
        out.append("The race is a simulation: it read the training rows of all nodes on this machine.")
    return out
