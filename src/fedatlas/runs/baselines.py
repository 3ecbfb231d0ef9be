"""The gain of each client: the federation compared with each client alone and with all rows pooled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.progress import Progress
from fedatlas.data.batches import examples_of
from fedatlas.errors import DivergedError
from fedatlas.metrics.fairness import client_summary
from fedatlas.metrics.intervals import differences
from fedatlas.record.judged_rows import Arrays
from fedatlas.record.run_folder import BASELINES, JUDGED, RunFolder, baseline_path
from fedatlas.runs.metric_gain import by_metric
from fedatlas.setup.checked import Checked
from fedatlas.setup.cohort import local_budget
from fedatlas.setup.refusals import checked

CHEAP = 2e12  # floating-point operations: about half a minute on one core from 2020


def baseline_config(config: ExperimentConfig, name: str, rounds: int) -> ExperimentConfig:
    """Return the experiment with a baseline in place of its algorithm, for ``rounds`` rounds.

    Only the first and the last model are evaluated, and few checkpoints are written.
    """
    plain = config.plain()
    if config.local.schedule.name == "cosine":  # the same rates, also where the run was stopped early
        plain["local"]["schedule"].setdefault("rounds", config.rounds)
    plain["rounds"] = rounds
    plain.pop("stop", None)
    plain.pop("observe", None)
    plain.pop("tracking", None)
    plain["algorithm"] = {"name": name}
    plain["cohort"] = {"fraction": 1.0} if name == "local_only" else plain["cohort"]
    plain["failures"] = {} if name == "local_only" else plain["failures"]  # pooled: as many examples as came back (H0)
    for table in (
        "attack",
        "aggregation",
        "compression",
        "privacy",
        "audit",
    ):  # no update is sent to which these could apply
        plain.pop(table, None)
    if config.drift is not None and config.drift.at > rounds:  # the run was stopped before
        plain.pop("drift")
    if config.guard is not None:  # nothing is judged, and nobody trains on its rows here either
        plain["guard"] = {key: plain["guard"][key] for key in ("from", "rows")}
    if name != "local_only":
        plain["engine"].pop("cluster", None)  # it has a single client, which is the union of all
    plain["model"]["bn"] = "average"  # nothing is averaged: each baseline has its own statistics
    plain["evaluation"] = {**plain["evaluation"], "every": max(rounds, 1)}
    plain["evaluation"].pop("rounds", None)
    plain["checkpoint"] = {"every": max(rounds // 4, 1), "keep": 1}
    return parse(plain)


def baseline_key(config: ExperimentConfig) -> str:
    """Return the name under which runs share a baseline: all that decides its result, as its own configuration says it.

    Two runs whose data, partition, seed, model and local work agree have equal baselines, whatever their algorithms.
    """
    return f"{config.algorithm.name}-seed-{config.seed}-{config.rounds}-rounds-{config.hash()[:16]}"


def wanted(config: ExperimentConfig, summary: Mapping[str, Any], asked: bool | None) -> bool:
    """Return whether to train the baselines of a finished run; a run that diverged has no model to compare with."""
    rows = [row["train_rows"] for row in summary["per_client"]]
    judged = sum(row["test_rows"] for row in summary["per_client"])
    return "diverged" not in summary and wants_baselines(config, rows, judged, summary["forward_flops"], asked)


def train(
    path: Path, module: nn.Module | None, progress: Progress, run: Callable[[Checked, Path, Progress], object]
) -> None:
    """Train or continue the baselines of a run, on the same rows and with the same local work (H0).

    ``run`` trains one. A baseline that diverges is left out with a notice.
    """
    folder = RunFolder.open(path)
    for name in BASELINES:
        try:
            with progress.beside(name) as line:
                config = baseline_config(folder.config(), name, folder.rows()[-1]["round"])
                run(checked(config, module), baseline_path(path, name), line)
        except DivergedError as error:
            progress.said(f"Baseline {name} is left out: {error}")


def gain(run: Path) -> dict[str, Any] | None:
    """Return one row per client with its figures alone, federated and pooled, on the same test rows.

    None if no baseline was trained.
    """
    parts = {"federated": RunFolder.open(run).summary()}
    for name in BASELINES:
        folder = baseline_path(run, name)
        if RunFolder(folder).finished():
            parts[name] = RunFolder.open(folder).summary()
    if len(parts) == 1:
        return None
    first_canary = parts["federated"].get("canaries", {}).get("first", math.inf)  # they train in no baseline
    parts["federated"] = {
        **parts["federated"],
        "per_client": [one for one in parts["federated"]["per_client"] if one["client"] < first_canary],
    }
    by_client = {name: {row["client"]: row for row in part["per_client"]} for name, part in parts.items()}
    first = by_client["federated"]
    together, alone = (RunFolder(folder).arrays(JUDGED) for folder in (run, baseline_path(run, "local_only")))
    known = won(together, alone, parts["federated"]) if "local_only" in parts else {}
    rows = [
        {
            **{key: first[k][key] for key in ("client", "train_rows", "test_rows", "own_rows")},
            **_values(by_client, k),
            **({"gain": known[k]} if k in known else {}),
        }
        for k in sorted(first)
    ]
    summary = {name: _summary(part["per_client"], part["task"]) for name, part in parts.items()}
    return {
        "figure": "rmse" if parts["federated"]["task"] == "numbers" else "accuracy",
        "clients": rows,
        "summary": summary,
        **({"metric": by_metric(parts, together, alone)} if all("metric" in part for part in parts.values()) else {}),
    }


def won(together: Arrays, alone: Arrays, summary: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """Map each client to the 95% interval {low, high} of its gain over training alone.

    The gain is accuracy won, or error avoided; bootstrapped over the same test rows for both models. {} if the scores
    of the rows were too many to be kept.
    """
    numbers, seed = summary["task"] == "numbers", summary["seed"]
    clients = [
        row["client"] for row in summary["per_client"] if row["train_rows"] and f"score-{row['client']}" in alone
    ]
    common = [k for k in clients if f"weight-{k}" not in alone]
    out: dict[int, dict[str, float]] = {}
    for group in ([common] if common else []) + [[k] for k in clients if k not in common]:
        own = f"-{group[0]}" if group is not common else ""
        weight = together.get(f"weight{own}")
        if weight is None or np.count_nonzero(weight) < 2:  # not kept, or no two rows that count
            continue
        sides = [
            np.stack([side[f"score-{k}"] for k in group]) if f"score-{group[0]}" in side else side["score"][None]
            for side in (together, alone)
        ]
        one, other = reversed(sides) if numbers else sides
        key = ("gain", group[0]) if own else ("gain",)
        low, high = differences(one, other, weight, seed, *key, root=numbers)
        out |= {k: {"low": float(a), "high": float(b)} for k, a, b in zip(group, low, high, strict=True)}
    return out


def _values(by_client: Mapping[str, Mapping[int, Mapping[str, Any]]], client: int) -> dict[str, Any]:
    return {name: {key: rows[client][key] for key in ("value", "low", "high")} for name, rows in by_client.items()}


def _summary(rows: Sequence[Mapping[str, Any]], task: str) -> dict[str, float | None]:
    """Return {mean, p10, min}; for errors, p10 and min hold the 90th percentile and the largest: the worst values.

    If clients are judged on their own rows, those with too few, judged on the common rows, are not counted.
    """
    sign = -1.0 if task == "numbers" else 1.0
    own = any(row["own_rows"] for row in rows)
    values = [None if row["value"] is None else sign * row["value"] for row in rows]
    found = client_summary(values, [row["test_rows"] if row["own_rows"] or not own else 0 for row in rows])
    return {key: None if value is None else sign * value for key, value in found.items()}


def wants_baselines(
    config: ExperimentConfig, rows: Sequence[int], judged: int, forward: int, asked: bool | None
) -> bool:
    """Return whether to train the baselines: as asked, else if they cost less than `CHEAP`; never for a baseline.

    ``rows``: those of each client; ``judged``: sum over clients of the rows their models are judged on; ``forward``:
    operations of a forward pass of one row.
    """
    if config.algorithm.name in BASELINES:
        return False
    if asked is not None:
        return asked
    passes = (
        2 * 3.0 * examples_alone(config, rows) * config.rounds + 2 * judged
    )  # the clients' models twice: row and end
    return passes * forward < CHEAP


def examples_alone(config: ExperimentConfig, rows: Sequence[int]) -> int:
    """Return the examples of a round in which every client trains."""
    budget, local = local_budget(config), config.local
    return sum(examples_of(budget, n, local.batch_size, merge=local.merges) for n in rows)
