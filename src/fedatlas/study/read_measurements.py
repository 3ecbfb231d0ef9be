"""From the table of runs to what the analysis and the recommender work on (`study.measurements`). Nothing of torch is imported.

Which choice is the reference (FedAvg, then FedAvg under masks) and which one has another's quality by construction (the same
algorithm, masked) is read from the configurations that were run.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.errors import DataError
from fedatlas.study.frame import factors_of, members, number, which
from fedatlas.study.measurements import ROUNDS, Study, choice_of, read_study, setting_of
from fedatlas.study.table import Table

MASKING = {"secagg", "paillier"}
OWN = ("privacy", "checkpoint", "observe", "engine", "seed")  # of a run, beside its rates
CURVES = ("accuracy", "macro_f1", "client_p10")
SUMMED = ("bytes_up", "bytes_down", "flops", "seconds")
FACT = {
    "nodes": "node_count",
    "rows": "train_rows",
    "heterogeneity": "h",
    "classes": "class_count",
    "data": "data_set",
    "majority": "majority",
    "server_sees": "server_sees",
}
Examples = Mapping[str, Mapping[tuple[str, ...], Mapping[str, Any]]]
"""choice -> setting -> one of its runs."""
FIGURES: tuple[str, ...] = (
    "accuracy",
    "macro_f1",
    "loss",
    "client_mean",
    "client_p10",
    "client_min",
    "rmse",
    "cpu_seconds",
    "seconds",
)
FIGURES += ("bytes_up", "bytes_down", "messages_up", "messages_down", "flops", "memory_mib", "epsilon")


def measured(table: Table, study: str | None = None) -> Study:
    """What a study's runs measured; DataError where none of its cells has come to its end."""
    study = which(table, study)
    factors, found = factors_of(table, study), members(table, study)
    runs = [run_of(table, row) for row in found if row["kind"] != "baseline" or algorithm(row) == "centralised"]
    if not any(run["kind"] == "cell" and run["status"] == "done" for run in runs):
        raise DataError(
            f"no cell of the study '{study}' has come to its end: run it first (fedatlas study --status says how far it is)."
        )
    if all(run["accuracy"] is None for run in runs):
        raise DataError(
            f"the study '{study}' predicts a number: what it says of accuracy is not in this version (--export has its table)."
        )
    roles = {
        role: [name for name, factor in factors.items() if factor["role"] == role] for role in ("setting", "choice")
    }
    plain = read_study(runs, roles["setting"], roles["choice"], name=study)
    examples: dict[str, dict[tuple[str, ...], Mapping[str, Any]]] = {}
    for row in found:
        if row["kind"] == "cell":
            examples.setdefault(choice_of(plain, row), {}).setdefault(setting_of(plain, row), row)
    return plain._replace(references=references(examples), twins=twins(examples))


def run_of(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A run as `study.measurements` describes it."""
    given = row["responses"]
    out = {key: row[key] for key in ("run_key", "kind", "levels", "status", "reason", "seed", "rounds", "rates")}
    out |= {key: given.get(key) if key != "epsilon" else number(given.get(key, "infinite")) for key in FIGURES}
    out |= {fact: given.get(column) for fact, column in FACT.items()}
    if row["kind"] == "cell" and row["status"] == "done":
        out["curves"] = curves_of(table.rows(row["run_key"]), (table.summary(row["run_key"]) or {}).get("privacy", {}))
    return out


def curves_of(rows: Sequence[Mapping[str, Any]], privacy: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """response -> [round, value] at `ROUNDS`: quality, sums so far where every row tells them, and epsilon by the ledger."""
    out: dict[str, list[list[float]]] = {key: [] for key in CURVES}
    sums = {key: 0.0 for key in SUMMED if all(row.get(key) is not None for row in rows)}
    out |= {key: [] for key in sums}
    for row in rows:
        sums = {key: so_far + row[key] for key, so_far in sums.items()}
        if row["round"] not in ROUNDS:
            continue
        for key, value in {**quality_of(row), **sums}.items():
            if value is not None:
                out[key].append([row["round"], value])
    spent = privacy.get("curve") or []
    if spent:
        out["epsilon"] = [[r, next((number(e) for at, e in spent if at >= r), number(spent[-1][1]))] for r in ROUNDS]
    return {key: pairs for key, pairs in out.items() if pairs}


def quality_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `CURVES` names, of one row."""
    return {
        "accuracy": row.get("accuracy"),
        "macro_f1": row.get("macro_f1"),
        "client_p10": (row.get("client_accuracy") or {}).get("p10"),
    }


def algorithm(row: Mapping[str, Any]) -> str:
    """The name of a run's algorithm."""
    return str(row["configuration"].get("algorithm", {}).get("name", ""))


def protected(row: Mapping[str, Any]) -> set[str]:
    """The mechanisms of a run."""
    return {str(table.get("name")) for table in row["configuration"].get("privacy") or ()}


def unprotected(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a run has in common with its twin without protection: everything but that, its picked rates and its seed."""
    out = copy.deepcopy({key: value for key, value in row["configuration"].items() if key not in OWN})
    for key in row["rates"]:
        *tables, last = key.split(".")
        inner: Any = out
        for name in tables:
            inner = inner.get(name, {})
        inner.pop(last, None)
    return out


def references(examples: Examples) -> tuple[str, ...]:
    """FedAvg, then FedAvg under masks alone, as far as the choices hold them."""
    found = {name: next(iter(rows.values())) for name, rows in sorted(examples.items())}
    found = {
        name: row
        for name, row in found.items()
        if algorithm(row) == "fedavg" and not row["configuration"].get("compression")
    }
    plain = [name for name, row in found.items() if not protected(row)]
    masked = [name for name, row in found.items() if protected(row) and protected(row) <= MASKING]
    return (*plain[:1], *masked[:1])


def twins(examples: Examples) -> dict[str, str]:
    """choice -> the one whose quality it has by construction: the same without the masks, in every setting that both have."""
    plain = [name for name, rows in sorted(examples.items()) if not any(protected(row) for row in rows.values())]
    out = {}
    for name, rows in examples.items():
        if all(protected(row) and protected(row) <= MASKING for row in rows.values()):
            for other in plain:
                both = rows.keys() & examples[other].keys()
                if both and all(unprotected(rows[at]) == unprotected(examples[other][at]) for at in both):
                    out[name] = other
                    break
    return out
