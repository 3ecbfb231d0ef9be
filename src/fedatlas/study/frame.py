"""The table of runs as frames: a row a run, or a row a round. Nothing of torch is imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.files import write_text

if TYPE_CHECKING:
    import sqlite3

    import pandas

QUALITY = ("accuracy", "macro_f1", "loss", "client_mean", "client_p10", "client_min")
SPENT = (
    "cpu_seconds",
    "seconds",
    "bytes_up",
    "bytes_down",
    "messages_up",
    "messages_down",
    "flops",
    "memory_mib",
    "epsilon",
)
MEASURED = ("node_count", "train_rows", "h", "class_count", "majority")  # of the run's own federation
NAMED = ("data_set", "server_sees")
ENOUGH = 0.95  # of the baseline's accuracy: the level that rounds are counted to
HEAD = ("run_key", "study", "kind", "status", "reason", "seed", "rounds")


class Table(Protocol):
    """What is needed of `study.table.Table`."""

    path: Path
    db: sqlite3.Connection

    def studies(self) -> list[str]: ...
    def rows(self, run_key: str) -> list[dict[str, Any]]: ...


def which(table: Table, study: str | None) -> str:
    """The study that is meant; ConfigError where there are several, or none of this name."""
    known = table.studies()
    if study is None and len(known) == 1:
        return known[0]
    if study is None:
        raise ConfigError(f"'{table.path}' holds {len(known)} studies ({', '.join(known)}): name one of them.")
    if study not in known:
        raise unknown_name("study", study, known)
    return study


def factors_of(table: Table, study: str) -> dict[str, dict[str, Any]]:
    """factor -> role, scale and names of its levels."""
    found = table.db.execute("SELECT factors FROM studies WHERE study = ?", (study,)).fetchone()
    return dict(json.loads(found[0]))


def members(table: Table, study: str) -> list[dict[str, Any]]:
    """The runs of a study with their levels, in a fixed order."""
    names = ("run_key", "kind", "levels", "rates", "status", "reason", "seed", "rounds", "responses", "configuration")
    found = table.db.execute(
        "SELECT run_key, kind, levels, rates, status, reason, seed, rounds, responses, configuration FROM members"
        " JOIN runs USING (run_key) WHERE study = ? ORDER BY kind, levels, rates, seed",
        (study,),
    )
    rows = [dict(zip(names, row, strict=True)) for row in found]
    for row in rows:
        for key in ("levels", "rates", "configuration"):
            row[key] = json.loads(row[key])
        row["responses"] = json.loads(row["responses"] or "{}")
    return rows


def frame(table: Table, study: str | None = None) -> pandas.DataFrame:
    """A row a run of a study, refused ones too.

    ``run_key study kind status reason seed rounds``; a column a factor (the level's name; none where a baseline has no level of a
    choice); ``rates`` (those tried, or picked, as JSON); ``baseline`` (which one a row is, else none); what the run's federation was
    (`study.responses.facts`); and the responses at the last round: ``gap`` = what the run has less than the centralised baseline of its
    setting and seed, positive where it is worse; ``gain`` = what it has more than each client alone. Both are in accuracy, of numbers in
    RMSE (with the sign turned, so that they mean the same).
    ``rounds_to``: rounds until it had 95% of that baseline's accuracy; ``censored`` where it never had, and the number is all its rounds.
    """
    import pandas

    study = which(table, study)
    factors, found = list(factors_of(table, study)), members(table, study)
    settings = {name for name, factor in factors_of(table, study).items() if factor["role"] == "setting"}
    beside = {
        (baseline_name(row), setting_of(row, settings), row["seed"]): row["responses"]
        for row in found
        if row["kind"] == "baseline" and row["status"] == "done"
    }
    rows = []
    for row in found:
        given, at = row["responses"], (setting_of(row, settings), row["seed"])
        compared = row["kind"] != "tuning" and row["status"] == "done"  # a run that diverged has no end to compare
        gap = better(beside.get(("centralised", *at)), given) if compared else None
        gain = better(given, beside.get(("local_only", *at)), clients=True) if compared else None
        level = (beside.get(("centralised", *at)) or {}).get("accuracy")
        reached, censored = (
            rounds_to(table.rows(row["run_key"]), level, row["rounds"]) if compared and level else (None, None)
        )
        rows.append(
            {key: row.get(key, study) for key in HEAD}
            | {name: row["levels"].get(name) for name in factors}
            | {"rates": json.dumps(row["rates"]) if row["rates"] else None, "baseline": baseline_name(row)}
            | {key: number(given.get(key)) for key in QUALITY}
            | {"gap": number(gap), "gain": number(gain), "rounds_to": number(reached), "censored": censored}
            | {key: number(given.get(key)) for key in (*SPENT, *MEASURED)}
            | {key: given.get(key) for key in NAMED}
        )
    figures = (*QUALITY, "gap", "gain", "rounds_to", *SPENT, *MEASURED)
    columns = [
        *HEAD,
        *factors,
        "rates",
        "baseline",
        *QUALITY,
        "gap",
        "gain",
        "rounds_to",
        "censored",
        *SPENT,
        *MEASURED,
        *NAMED,
    ]
    out = pandas.DataFrame(rows, columns=columns)
    out.attrs["factors"] = factors_of(table, study)
    return out.astype(dict.fromkeys(figures, "float64"))


def rounds_to(rows: Sequence[Mapping[str, Any]], level: float, rounds: int) -> tuple[int, bool]:
    """(rounds until a run first had `ENOUGH` of the baseline's accuracy, False), or (all its rounds, True) where it never had."""
    for row in rows:
        if row["round"] and row.get("accuracy") is not None and row["accuracy"] >= ENOUGH * level:
            return int(row["round"]), False
    return rounds, True


def curves(table: Table, study: str | None = None) -> pandas.DataFrame:
    """A row a round of each run that has any: what it is, its levels, ``round``, quality, and bytes and operations so far.

    Rounds that were not judged are left out.
    """
    import pandas

    study = which(table, study)
    factors, out = list(factors_of(table, study)), []
    for row in members(table, study):
        head = {key: row.get(key, study) for key in HEAD} | {name: row["levels"].get(name) for name in factors}
        head["baseline"] = baseline_name(row)
        so_far: dict[str, float] = dict.fromkeys(("bytes_up", "bytes_down", "flops"), 0.0)
        for each in table.rows(row["run_key"]):
            so_far = {key: value + (float("nan") if each[key] is None else each[key]) for key, value in so_far.items()}
            if each.get("loss") is not None:
                clients = each.get("client_accuracy") or {}
                quality = {key: each.get(key) for key in QUALITY[:3]}
                quality |= {f"client_{key}": clients.get(key) for key in ("mean", "p10", "min")}
                out.append({**head, "round": each["round"], **{k: number(v) for k, v in quality.items()}, **so_far})
    columns = [*HEAD, *factors, "baseline", "round", *QUALITY, "bytes_up", "bytes_down", "flops"]
    return pandas.DataFrame(out, columns=columns)


def baseline_name(row: Mapping[str, Any]) -> str | None:
    """Which baseline a run is; None where it is none."""
    return str(row["configuration"]["algorithm"]["name"]) if row["kind"] == "baseline" else None


def setting_of(row: Mapping[str, Any], settings: set[str]) -> tuple[tuple[str, str], ...]:
    """The part of a run's levels that is given."""
    return tuple(sorted((name, level) for name, level in row["levels"].items() if name in settings))


def better(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, *, clients: bool = False) -> float | None:
    """By how much one is better than the other: in accuracy, or in RMSE with its sign turned; None where one of them is not known.

    ``clients``: by the mean over the clients' own rows where both have it.
    """
    if not one or not other:
        return None
    for key, sign in ((("client_mean", 1.0),) if clients else ()) + (("accuracy", 1.0), ("rmse", -1.0)):
        if one.get(key) is not None and other.get(key) is not None:
            turned = -1.0 if "rmse" in one else sign
            return turned * (float(one[key]) - float(other[key]))
    return None


def number(value: Any) -> float:
    """As a float: not a number where it is not known, infinity for the word."""
    if value is None:
        return float("nan")
    return float("inf") if value == "infinite" else float(value)


def export(table: Table, study: str | None, path: Path) -> int:
    """Writes the frame as CSV, a row a run, with ``role`` saying what each run is for; how many rows there are."""
    if path.suffix != ".csv":
        raise ConfigError(f"--export {path}: name a file that ends with .csv.")
    found = frame(table, study).rename(columns={"kind": "role"})
    write_text(path, found.to_csv(index=False))
    return len(found)
