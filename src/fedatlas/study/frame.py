"""The runs of a study as frames: one row per run, or one row per round. Imports nothing from torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedatlas.study.plain import Plain, Row, RunRow
from fedatlas.study.responses import FACTS, columns, merit

if TYPE_CHECKING:
    import pandas

Rows = Callable[[str], Sequence[Row]]
"""run_key -> the rows of that run."""
ENOUGH = 0.95  # share of the baseline's accuracy to which rounds are counted
HEAD = ("run_key", "study", "kind", "status", "reason", "seed", "rounds")
COMPARED = ("gap", "gain", "rounds_to")
WORDS = ("data_set", "server_sees")  # facts that are text
MEASURED = tuple(fact for fact in FACTS if fact not in WORDS)


def columns_of(*, quality: bool) -> list[str]:
    """Return the response columns, of quality or of cost, in every table."""
    return [column for column, one in columns().items() if one.listed and one.quality is quality]


def reserved() -> set[str]:
    """Return the columns of both frames and of the exported table: names that factors may not have."""
    of_runs = {*HEAD, "role", "rates", "baseline", *COMPARED, "censored"}
    return {*of_runs, "round", *columns_of(quality=True), *columns_of(quality=False), *FACTS}


def frame(study: str, factors: Mapping[str, Row], runs: Sequence[RunRow], rows_of: Rows) -> pandas.DataFrame:
    """Return one row per run, refused ones included.

    Columns: ``run_key study kind status reason seed rounds``; one per factor (the level's name; none if a baseline has no level of a
    choice); ``rates`` (those tried, or picked, as JSON); ``baseline`` (its name for a baseline, else none); the responses at the last
    round and the facts of the run's federation (`study.responses`). Further columns are ``gap``: how far the run falls short of the
    centralised baseline of its setting and seed, positive if worse; ``gain``: how far it exceeds each client alone. Both are in
    accuracy (for numbers in RMSE, with the sign reversed). ``rounds_to``: rounds until it had 95% of that baseline's accuracy;
    ``censored`` if it never had, in which case the number is all its rounds.
    """
    import pandas

    settings = {name for name, factor in factors.items() if factor["role"] == "setting"}
    done = [run for run in runs if run["status"] == "done"]
    baselines = {
        (baseline_name(run), *setting_of(run, settings)): run["responses"] for run in done if run["kind"] == "baseline"
    }
    qualities, costs = columns_of(quality=True), columns_of(quality=False)
    rows = []
    for run in runs:
        at = setting_of(run, settings)
        compared = run["kind"] != "tuning" and run["status"] == "done"  # a diverged run has no final value to compare
        pooled, alone = (baselines.get((name, *at), {}) if compared else {} for name in ("centralised", "local_only"))
        level = pooled.get("accuracy")
        reached = rounds_to(rows_of(run["run_key"]), level, run["rounds"]) if level else (None, None)
        rows.append(
            head(study, factors, run)
            | {"rates": json.dumps(run["rates"]) if run["rates"] else None, **values_of(run)}
            | {"gap": better(pooled, run["responses"]), "gain": better(run["responses"], alone, clients=True)}
            | {"rounds_to": reached[0], "censored": reached[1]}
        )
    order = [*HEAD, *factors, "rates", "baseline", *qualities, *COMPARED, "censored", *costs, *FACTS]
    out = pandas.DataFrame(rows, columns=order)
    out.attrs["factors"] = factors
    return out.astype(dict.fromkeys((*qualities, *COMPARED, *costs, *MEASURED), "float64"))


def values_of(run: RunRow) -> Plain:
    """Return column -> value of a run's responses and facts."""
    return {column: math.inf if x == "infinite" else x for column, x in run["responses"].items()}


def head(study: str, factors: Collection[str], run: RunRow) -> Plain:
    """Return the columns that identify a run in either frame."""
    named = {key: run.get(key, study) for key in HEAD} | {name: run["levels"].get(name) for name in factors}
    return named | {"baseline": baseline_name(run)}


def rounds_to(rows: Sequence[Row], level: float, rounds: int) -> tuple[int, bool]:
    """Return (rounds until a run first had `ENOUGH` of the baseline's accuracy, False), or (all its rounds, True) if it never had."""
    for row in rows:
        if row["round"] and row.get("accuracy") is not None and row["accuracy"] >= ENOUGH * level:
            return int(row["round"]), False
    return rounds, True


def curves(study: str, factors: Row, runs: Sequence[RunRow], rows_of: Rows) -> pandas.DataFrame:
    """Return one row per round of each run that has any: its identity, levels, ``round``, quality, and the exact costs so far.

    Rounds without evaluation are left out.
    """
    import pandas

    qualities = [(column, one.row) for column, one in columns().items() if one.quality and one.listed and one.row]
    sums = [(column, one.row) for column, one in columns().items() if one.exact and one.row]
    out = []
    for run in runs:
        named, so_far = head(study, factors, run), dict.fromkeys((column for column, _ in sums), 0.0)
        for row in rows_of(run["run_key"]):
            so_far = {column: so_far[column] + number(read(row)) for column, read in sums}
            if row.get("loss") is not None:
                values = {column: number(read(row)) for column, read in qualities}
                out.append({**named, "round": row["round"], **values, **so_far})
    order = [*HEAD, *factors, "baseline", "round", *(column for column, _ in (*qualities, *sums))]
    return pandas.DataFrame(out, columns=order)


def baseline_name(run: RunRow) -> str | None:
    """Return the baseline's name for a baseline run; None for other runs."""
    return str(run["configuration"]["algorithm"]["name"]) if run["kind"] == "baseline" else None


def setting_of(run: RunRow, settings: Collection[str]) -> tuple[Any, ...]:
    """Return the given part of a run's levels, and its seed."""
    return *sorted((name, level) for name, level in run["levels"].items() if name in settings), run["seed"]


def better(one: Row, other: Row, *, clients: bool = False) -> float:
    """Return how much better one run is than the other (`responses.merit`); nan if either is unknown."""
    first, second = merit(one, clients=clients), merit(other, clients=clients)
    return math.nan if first is None or second is None else first - second


def number(value: Any) -> float:
    """Return a float: nan for an unknown value, infinity for the word."""
    return math.nan if value is None else math.inf if value == "infinite" else float(value)
