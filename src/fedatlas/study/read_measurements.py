"""From the table of runs to `study.measurements`. Imports nothing from torch.

The reference choice (FedAvg, then FedAvg under masks) and the pairs of equal quality by construction (the same algorithm, masked)
are derived from the configurations that were run.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.errors import DataError
from fedatlas.privacy.mechanisms import MECHANISMS, made
from fedatlas.study.frame import number, values_of
from fedatlas.study.measurements import ROUNDS, Measurements, Setting, measurements_of
from fedatlas.study.plain import Plain, Row
from fedatlas.study.responses import FACTS, columns
from fedatlas.study.table import Table
from fedatlas.study.test_rows import JUDGED_ON, RIGHT, right_rows

JUDGED = ("metric", "trivial", "judged_on", "judged")  # of a summary: how a run was judged
OWN = ("privacy", "checkpoint", "observe", "engine", "seed")  # of a run, in addition to its rates
Examples = Mapping[str, Mapping[Setting, Row]]
"""choice -> setting -> one of its runs."""


def measured(table: Table, study: str | None = None) -> Measurements:
    """Return the measurements of a study's runs; DataError if none of its cells has finished."""
    study = table.name_of(study)
    factors, found = table.factors(study), table.members(study)
    given = [(run_of(table, row), row["kind"] == "baseline" and algorithm(row) == "local_only") for row in found]
    runs, single = ([run for run, other in given if other is x] for x in (False, True))
    if not any(run["kind"] == "cell" and run["status"] == "done" for run in runs):
        raise DataError(
            f"no cell of the study '{study}' has finished: run it first (fedatlas study --status shows its progress)."
        )
    if all(run.get("accuracy") is None for run in runs):
        raise DataError(
            f"the study '{study}' predicts a number: this version analyses only classes (--export writes its table)."
        )
    settings, choices = ([name for name in factors if factors[name]["role"] == role] for role in ("setting", "choice"))
    plain = measurements_of(runs, settings, choices, name=study, alone=single)
    examples: dict[str, dict[Setting, Row]] = {}
    for row in found:
        if row["kind"] == "cell":
            examples.setdefault(plain.choice_of(row), {}).setdefault(plain.setting_of(row), row)
    return plain._replace(references=references(examples), twins=twins(examples))


def run_of(table: Table, row: Row) -> Plain:
    """Return a run as `study.measurements` describes it."""
    told = {FACTS.get(column, column): x for column, x in values_of(row).items()}
    out = {**row, **dict.fromkeys(FACTS.values()), **told}
    if row["status"] == "done" and row["kind"] in ("cell", "baseline"):
        summary = table.summary(row["run_key"]) or {}
        out["judged"] = {key: summary[key] for key in JUDGED if key in summary}
        if row["kind"] == "cell":
            out["curves"] = curves_of(table.rows(row["run_key"]), summary)
            out |= {RIGHT: right_rows(summary), JUDGED_ON: summary.get(JUDGED_ON)}
    return out


def curves_of(rows: Sequence[Row], summary: Row) -> dict[str, list[list[float]]]:
    """Return column -> [round, value] at `ROUNDS`: predicted qualities, sums so far if every row has its part, and the ledger's curve."""
    out = {}
    for column, one in columns().items():
        told: Sequence[Any] = one.curve(summary) if one.curve is not None else ()
        if told:
            out[column] = [[r, next((number(x) for at, x in told if at >= r), number(told[-1][1]))] for r in ROUNDS]
        elif one.row is not None and (one.forecast == "gap" or one.over == "sum"):
            values = [one.row(row) for row in rows]
            if one.over == "sum":
                values = [] if None in values else list(itertools.accumulate(values))
            pairs = [[row["round"], x] for row, x in zip(rows, values, strict=False) if row["round"] in ROUNDS]
            out[column] = [pair for pair in pairs if pair[1] is not None]
    return {column: pairs for column, pairs in out.items() if pairs}


def algorithm(row: Row) -> str:
    """Return the name of a run's algorithm."""
    return str(row["configuration"].get("algorithm", {}).get("name", ""))


def protected(row: Row) -> set[str]:
    """Return the mechanisms of a run."""
    return {str(table.get("name")) for table in row["configuration"].get("privacy") or ()}


def masked_only(row: Row) -> bool:
    """Return whether a run is protected, and only by mechanisms that show the server sums without noise, which leave quality unchanged."""
    known = [made(name) if name in MECHANISMS else None for name in protected(row)]
    return bool(known) and all(one is not None and one.sums_only and one.noise is None for one in known)


def unprotected(row: Row) -> Plain:
    """Return a run's configuration without protection, picked rates and seed, which is equal for its unprotected twin."""
    out = copy.deepcopy({key: value for key, value in row["configuration"].items() if key not in OWN})
    for key in row["rates"]:
        *tables, last = key.split(".")
        inner: Any = out
        for name in tables:
            inner = inner.get(name, {})
        inner.pop(last, None)
    return out


def references(examples: Examples) -> tuple[str, ...]:
    """Return FedAvg, then FedAvg under masks only, if the choices include them."""
    found = {name: next(iter(rows.values())) for name, rows in sorted(examples.items())}
    found = {
        name: row
        for name, row in found.items()
        if algorithm(row) == "fedavg" and not row["configuration"].get("compression")
    }
    plain = [name for name, row in found.items() if not protected(row)]
    masked = [name for name, row in found.items() if masked_only(row)]
    return (*plain[:1], *masked[:1])


def twins(examples: Examples) -> dict[str, str]:
    """Return choice -> the one with the same quality by construction: the same without masks, in every setting that both have."""
    plain = [name for name, rows in sorted(examples.items()) if not any(protected(row) for row in rows.values())]
    out = {}
    for name, rows in examples.items():
        if all(map(masked_only, rows.values())):
            for other in plain:
                both = rows.keys() & examples[other].keys()
                if both and all(unprotected(rows[at]) == unprotected(examples[other][at]) for at in both):
                    out[name] = other
                    break
    return out
