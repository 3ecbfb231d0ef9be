"""The answer of a race on the user's own rows: what is said of each choice, the files, and the one run on the test rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.data.sources import read_once
from fedatlas.race.best import CONFIDENCE, needed_for
from fedatlas.race.course import AskedRun, RaceEnd, RaceWork, race
from fedatlas.race.runs import TIMED, RaceRuns
from fedatlas.race.work import TOLD_ON, ArmCost, ArmWork, tuning_cost
from fedatlas.recommender.answer_files import Say, write_experiment
from fedatlas.recommender.epsilon import stated_at
from fedatlas.recommender.race_arms import COMPUTED, Contender, arm_file, contenders, points_of, race_arms
from fedatlas.recommender.race_limits import chance_kept, changes, measured_here
from fedatlas.recommender.race_page import PAGE, write_page
from fedatlas.recommender.ranking import utility_of
from fedatlas.recommender.requirements import Requirements
from fedatlas.recommender.twins import twin_notes
from fedatlas.recommender.user_experiment import Examined, UserExperiment
from fedatlas.study.front import not_dominated
from fedatlas.study.levels import overridden
from fedatlas.study.local_runs import PARALLEL, Runs
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import count

TABLE = "race"  # folder of the table of runs, in that of the answer
TOP = 3
PILOT = 2  # files for a pilot with partners, where the rows are one party's own
WISHED = 0.005  # margin for which the rows are told that it would need
Z = 1.96


class Raced(NamedTuple):
    """A race that has ended, with what it was about."""

    user: UserExperiment
    found: Mapping[str, Contender]
    runs: RaceRuns
    points: Sequence[Row]
    work: RaceWork
    end: RaceEnd

    def rates(self, name: str) -> Row:
        """Return the rates that were picked for a choice."""
        return self.runs.files[name].points[self.end.picked[name]]


def limit_of(asked: Requirements) -> float | None:
    """Return the most seconds that the race, or one run of it, may take; None if its work is limited instead."""
    return None if asked.work is not None else 60 * asked.minutes


def raced(examined: Examined, out: Path, say: Say, elsewhere: Runs | None) -> tuple[Raced, dict[str, str]]:
    """Race the choices that the requirements allow; return the race, and choice -> why it was left out."""
    user = examined.user
    found, refused = contenders(examined)
    points = points_of(user)
    files = {one.name: arm_file(user, one, points) for one in found}
    asked, seed = user.asked, int(user.base["seed"])
    limit = limit_of(asked)
    runs = RaceRuns(files, seed, out / TABLE, say, seconds=limit, runs=elsewhere)
    with read_once():
        if limit is None or not found:
            work = RaceWork(float(asked.work or 0), {one.name: ArmCost() for one in found})
        else:
            say(f"Timing one round of {len(found)} choices.")
            costs, wrong = runs.costs()
            refused |= wrong
            found = [one for one in found if one.name in costs]
            timing = sum(cost.run(0, TIMED) for cost in costs.values())
            work = RaceWork(PARALLEL * limit, costs, timing)
        if found:
            say(f"Racing {len(found)} choices on your training rows; the test rows are not read.")
        many = max(len(one.points) for one in files.values()) if files else 1
        end = race(race_arms(user, found), many, work, runs.measure, seed)
    return Raced(user, {one.name: one for one in found}, runs, points, work, end), refused


def race_answer(examined: Examined, prior: Plain, out: Path, say: Say, elsewhere: Runs | None = None) -> Plain:
    """Return the answer of a race. ``prior``: what is foreseen from other federations, which it keeps beside.

    ``elsewhere``: makes the runs on other machines, with the same result.
    """
    user = examined.user
    one, refused = raced(examined, out, say, elsewhere)
    entries = [entry_of(one, j, name) for j, name in enumerate(one.end.left)] if one.end.told is not None else []
    mark_front(entries)
    kept = [entry for entry in entries if entry["chance"] >= user.asked.confidence - 1e-12]
    top = [dict(entry) for entry in ordered(one, kept)[:TOP]]
    if user.asked.own_rows:
        top = top[:PILOT]
    for i, entry in enumerate(top):
        write_file(one, out, i, entry)
    tested = final_run(one, top[0], say) if top and not user.asked.own_rows else None
    about = about_race(one, entries, top, tested)
    answer: Plain = {
        "answer": "found" if top else "none" if entries or not one.found else "undecided",
        "top": top,
        "entries": entries,
        "nearest_miss": None if top else nearest_miss(entries, user),
        "refused": [{"choice": name, "reason": reason} for name, reason in sorted(refused.items())],
        "reference": prior["reference"],
        "setting": prior["setting"],
        "quality": "raced",
        "limits": prior["limits"],
        "weights": prior["weights"],
        "race": about,
        "prior": before(prior),
        "notes": [
            *prior["notes"],
            *notes(one),
            *twin_notes(user.basis, user.basis.fitted.nearest(user.at), names_of(top)),
        ],
    }
    if entries:
        answer["page"] = str(write_page(answer, out / PAGE))
    return answer


def entry_of(one: Raced, j: int, name: str) -> Plain:
    """Return what is said of a choice that was left at the end."""
    end, asked = one.end, one.user.asked
    assert end.found is not None
    assert end.told is not None
    assert end.told_here is not None
    rounds = end.rounds[name]
    told_by = [one.runs.responses(AskedRun(name, end.picked[name], fold, rounds)) for fold in TOLD_ON]
    measured = measured_here(end, j, told_by, one.runs.seed)
    if one.found[name].plain != name:
        measured.pop("messages", None)  # masks send more of them
    chance, unknown = chance_kept(asked.limits(), measured)
    draw = {
        key: (value, *np.quantile(draws, [1 - asked.confidence, asked.confidence]))
        for key, (value, draws) in measured.items()
    }
    predicted = {key: {"value": v, "low": float(low), "high": float(high)} for key, (v, low, high) in draw.items()}
    for key in COMPUTED:
        value = float(one.found[name].costs[key][rounds - 1])
        known = None if math.isnan(value) or math.isinf(value) else value
        predicted[key] = {"value": known, "low": known, "high": known}
    for key in ("seconds", "cpu_seconds"):  # of these runs: the dry run's would differ each time it is asked
        if one.found[name].plain == name and all(x.get(key) is not None for x in told_by) and told_by:
            predicted[key] = dict.fromkeys(("value", "low", "high"), float(np.mean([x[key] for x in told_by])))
    return {
        "choice": name,
        "rounds": rounds,
        "rates": dict(one.rates(name)),
        "at_edge": at_edge(one, name),
        "predicted": predicted,
        "chance": chance,
        "not_measured": unknown,
        "among_best": bool(end.told.among[j]),
        "behind_best": float(end.told.margin[j]),
        "among_best_here": bool(end.told_here.among[j]),
        "behind_best_here": float(end.told_here.margin[j]),
        "chance_best": float(end.told.chance[j]),
        "failed_runs": end.failed.get(name, 0),
        "binding": [f"{limit.table}.{limit.response}" for limit in one.found[name].binding],
        "masked": one.found[name].plain if one.found[name].plain != name else None,
    }


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
    what = "for a pilot with your partners: it was" if own else "recommended: it was"
    head = f"{name} for {entry['rounds']} rounds, {what} raced on {'your own rows, dealt out' if own else 'your rows'}."
    write_experiment(out, i, entry, stated_at(values, one.user.asked.delta), head)


def final_run(one: Raced, entry: Row, say: Say) -> Plain:
    """Run the file to take, once, and return what it reaches on the test rows, with a 95% interval for so many rows."""
    say(
        f"The race is over. Running {entry['choice']} on all training rows, and judging it on the test rows for the first time."
    )
    done = one.runs.final(entry["choice"], one.end.picked[entry["choice"]], entry["rounds"])
    accuracy, rows = done.get("accuracy"), done.get("test_rows")
    low, high = (None, None) if accuracy is None or not rows else wilson(accuracy, rows)
    kept = ("status", "reason", "test_rows", "accuracy", "macro_f1", "client_p10", "bytes_up", "bytes_down", "epsilon")
    return {"choice": entry["choice"], **{key: done.get(key) for key in kept}, "low": low, "high": high}


def wilson(share: float, rows: int) -> tuple[float, float]:
    """Return the 95% interval of a share of so many rows (Wilson 1927)."""
    middle, wide = (share + Z**2 / (2 * rows)), Z * math.sqrt(share * (1 - share) / rows + Z**2 / (4 * rows**2))
    return (middle - wide) / (1 + Z**2 / rows), (middle + wide) / (1 + Z**2 / rows)


def about_race(one: Raced, entries: Sequence[Row], top: Sequence[Row], tested: Plain | None) -> Plain:
    """Return the race in plain values."""
    end, asked = one.end, one.user.asked
    per_minute = None if asked.work is not None else 60.0 * PARALLEL
    named = names_of(top[:1] or [entry for entry in entries if entry["among_best"]])
    everything = one.work.timing + sum(
        tuning_cost(ArmWork(arm.most, one.work.costs[name]), max(len(one.points), 1)) for name, arm in one.found.items()
    )
    return {
        "rows_of": "own" if asked.own_rows else "all",
        "minutes": None if asked.work is not None else asked.minutes,
        "work": asked.work,
        "unit": "rounds" if per_minute is None else "minutes",
        "spent": end.spent / (per_minute or 1),
        "needed": (end.needed / (per_minute or 1)) or None,
        "all_tried": 3 * everything / (per_minute or 1),
        "costs": {name: list(cost) for name, cost in one.work.costs.items()} if per_minute else None,
        "tuning_points": max(len(one.points), 1),
        "started": end.started,
        "not_tried": end.not_tried,
        "looks": [look._asdict() for look in end.looks],
        "cut": [cut._asdict() for cut in end.cut],
        "left": end.left,
        "failed": {name: many for name, many in end.failed.items() if many},
        "rounds": end.rounds,
        "rates": {name: dict(one.rates(name)) for name in end.picked},
        "statement": statement(one, entries, top),
        "final": tested,
        "epsilon": epsilon_twice(one, top),
        "changes": [
            line for name in named for line in changes(one.found[name], one.user.basis.fitted, one.user.data_set)
        ],
    }


def statement(one: Raced, entries: Sequence[Row], top: Sequence[Row]) -> Plain | None:
    """Return the end statement; None where the work was up before it."""
    end = one.end
    if end.told is None or end.found is None or end.rows is None or end.found_here is None or end.told_here is None:
        return None
    best = [entry for entry in entries if entry["among_best"]]
    first = (top or ordered(one, best))[0]
    open_to = [entry for entry in best if entry["choice"] in names_of(top)] or best
    times = None
    if first["behind_best_here"] > WISHED and first["among_best_here"]:
        times = needed_for(end.found_here, end.told_here, end.left.index(first["choice"]), WISHED)
    return {
        "confidence": CONFIDENCE,
        "first": first["choice"],
        "margin": first["behind_best"],
        "among": [entry["choice"] for entry in ordered(one, best)],
        "margin_of_all": max(entry["behind_best"] for entry in best),
        "margin_here": first["behind_best_here"],
        "among_here": [entry["choice"] for entry in ordered(one, entries) if entry["among_best_here"]],
        "judged_rows": len(end.rows.weight),
        "drawn_by": end.found.unit,
        "clients": len(np.unique(end.rows.client)),
        "wished": None if times is None else WISHED,
        "rows_for_wished": None if times is None else math.ceil(times.rows * float(one.user.asked.rows or 0)),
        "seeds_for_wished": None if times is None else math.ceil(times.seeds * len(TOLD_ON)),
        "cheapest": min(open_to, key=lambda entry: (bytes_of(entry), entry["choice"]))["choice"],
    }


def epsilon_twice(one: Raced, top: Sequence[Row]) -> Plain:
    """Return epsilon of the run to take, and with the race: none, since the race looked at scores without noise."""
    value = top[0]["predicted"]["epsilon"]["value"] if top else None
    return {"final": value, "with_race": None, "choice_is_private": False}


def nearest_miss(entries: Sequence[Row], user: UserExperiment) -> Plain | None:
    """Return the entry likeliest to keep all limits, and by how much it misses each at the confidence asked for."""
    if not entries:
        return None
    best = max(entries, key=lambda entry: (entry["chance"], entry["predicted"]["accuracy"]["value"]))
    violates = []
    for limit in user.asked.limits():
        reached = best["predicted"].get(limit.response, {}).get("low" if limit.sign > 0 else "high")
        if reached is None or limit.sign * reached < limit.sign * limit.value:
            by = None if reached is None else abs(limit.value - reached)
            violates.append({"limit": limit.response, "by": by})
    return {**best, "violates": violates}


def before(prior: Row) -> Plain:
    """Return what was foreseen from other federations, without what the clock measured."""
    top = [{"choice": x["choice"], "rounds": x["rounds"], "accuracy": x["predicted"]["accuracy"]} for x in prior["top"]]
    return {"answer": prior["answer"], "predicted_by": prior["predicted_by"], "top": top}


def names_of(entries: Sequence[Row]) -> list[str]:
    """Return the names of the choices of some entries."""
    return [entry["choice"] for entry in entries]


def notes(one: Raced) -> list[str]:
    """Return what is to be known about the race, one sentence each."""
    user, local = one.user, one.user.local(one.user.basis.fitted.choices[0])
    out = [
        f"Local work is the study's: {count(local['epochs'], 'epoch')}, batches of {local['batch_size']}; your file's [local] is not used."
    ]
    if "stop" in user.base:
        out.append("[stop] of your file is not used: the race decides on the rounds.")
    if any(weight and not RESPONSES[name].quality for name, weight in user.asked.weights.items()):
        out.append(
            "[weights] on costs order the choices that the race cannot tell apart; the race itself compares accuracy."
        )
    if not user.asked.own_rows:
        out.append("The race is a simulation: it read the training rows of all nodes on this machine.")
    return out
