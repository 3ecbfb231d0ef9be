"""``summary.json``: what came out, what it cost, on which machine; and the same over several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas import machine
from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Partition
from fedatlas.data.partition import describe as describe_partition
from fedatlas.engine.executors import Plan
from fedatlas.metrics.intervals import mean_last, over_seeds
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.record.fingerprint import judged_on
from fedatlas.record.run_folder import SUMMARY, RunFolder
from fedatlas.setup.assembly import Holdings, Setup, judged_rows

TOTALS = ("bytes_up", "bytes_down", "bytes_peer", "flops", "seconds")
PRIVACY = "bytes_privacy"
FIGURES = ("accuracy", "macro_f1", "weighted_f1", "rmse", "mae", "r2", "loss")


def write_summary(folder: RunFolder, summary: Mapping[str, Any]) -> None:
    """Write summary.json, whole; nothing else does."""
    folder.write_json(SUMMARY, summary)


def of_all_runs(config: ExperimentConfig, rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> dict[str, Any]:
    """The entries of a summary that follow from configuration, rows and machine, whatever the parties hold."""
    return {
        "rounds": rows[-1]["round"],
        "seed": config.seed,
        "best": best([row for row in rows if row["loss"] is not None], figures),
        "mean_last": {key: mean_last([row.get(key) for row in rows]) for key in figures},
        "cost": cost(rows),
        "config_hash": config.hash(),
        **machine.describe(),
    }


def summarise(setup: Setup, plan: Plan, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of one run from its rows."""
    last = [row for row in rows if row["loss"] is not None][-1]
    figures = [key for key in FIGURES if key in last]
    data, models = setup.dataset, setup.models().initial().values()
    return {
        **of_all_runs(setup.config, rows, figures),
        "algorithm": setup.algorithm.name,
        "data": data.name,
        "data_facts": dict(data.facts),
        "model": ", ".join(setup.networks) or setup.config.model.name,
        "partition": setup.config.partition.name,
        "clients": len(setup.partition.clients),
        "task": data.task,
        "class_names": list(data.class_names),
        "parameters": max(model.size for model in models),
        "forward_flops": max(model.flops for model in models),
        **({"models": models_facts(setup)} if setup.mixed else {}),
        "final": {
            "round": last["round"],
            **{
                k: last[k]
                for k in (*figures, "per_class_f1", "client_accuracy", "client_rmse", "drift_correlation")
                if k in last
            },
        },
        "partition_facts": partition_facts(setup),
        "judged_on": judged_on(setup),
        "weighted": judged_rows(setup).weight is not None,
        "leaves": setup.algorithm.card.leaves,
        "algorithm_facts": dict(setup.held.algorithm_facts),
        **({"figures": rows[-1]["figures"]} if "figures" in rows[-1] else {}),
        "notices": list(setup.notices),
        "plan": plan.plain(),
        "sha256": {},  # of the model files, once they are written
    }


def models_facts(setup: Setup) -> dict[str, Any]:
    """architecture -> whose models have it, and how large they are."""
    return {
        name: {
            "clients": setup.owned()[name],
            "parameters": model.size,
            "forward_flops": model.flops,
        }
        for name, model in setup.models().initial().items()
    }


def best(rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> dict[str, Any]:
    """Each figure's best value and the round it was reached in."""
    out = {}
    for key in figures:
        known = [(row[key], row["round"]) for row in rows if row[key] is not None]
        if known:
            value, number = (min if key in LOWER_IS_BETTER else max)(known, key=lambda pair: pair[0])
            out[key] = {"value": value, "round": number}
    return out


def totals(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What is added up; under ``[[privacy]]`` its share of the bytes, too."""
    return (*TOTALS, PRIVACY) if PRIVACY in row else TOTALS


def cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Totals over the rounds, seconds by phase, and the peak memory."""
    phases: dict[str, float] = {}
    for row in rows:
        for phase, seconds in row["seconds_by_phase"].items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    keys = totals(rows[0])
    total = {key: None if any(row[key] is None for row in rows) else sum(row[key] for row in rows) for key in keys}
    return {**total, "seconds_by_phase": phases, "peak_memory_bytes": max(row["peak_memory_bytes"] for row in rows)}


def partition_facts(held: Setup | Holdings) -> dict[str, Any]:
    """Who holds what, in figures: sizes, class counts, distance to the whole."""
    return describe_partition(held.partition, held.dataset.train.y.numpy(), held.dataset.classes)


def planted_groups(partition: Partition) -> dict[int, Any]:
    """client -> the group it was planted in: clients whose pictures are turned alike, or ``info["groups"]``; {} if there are none."""
    known = partition.info.get("groups")
    groups = dict(enumerate(known if known is not None else (spec["rotate"] for spec in partition.feature_skew)))
    return groups if len(set(groups.values())) > 1 else {}


def over(summaries: Sequence[Mapping[str, Any]], config_hash: str) -> dict[str, Any]:
    """The summary of several seeds: mean, standard deviation and number for each figure and cost; `best` and `mean_last` too."""
    first = summaries[0]

    def spread_of(values: Sequence[float | None]) -> dict[str, Any]:
        return dict(over_seeds(values)._asdict())

    peaks = {key: spread_of([s["best"][key]["value"] for s in summaries]) for key in first["best"]}
    lasts = {key: spread_of([s["mean_last"][key] for s in summaries]) for key in first["mean_last"]}
    keys = [key for key in FIGURES if key in first["final"]]
    spread = {key: spread_of([s["final"][key] for s in summaries]) for key in keys}
    costs = {key: spread_of([s["cost"][key] for s in summaries]) for key in totals(first["cost"])}
    tests = [s["test"] for s in summaries if "test" in s]  # the rows that no choice was made by
    tested = {key: spread_of([t[key] for t in tests]) for key in keys if tests and key in tests[0]}
    kept = (
        "algorithm",
        "data",
        "data_facts",
        "model",
        "partition",
        "clients",
        "rounds",
        "task",
        "class_names",
        "parameters",
        "weighted",
    )
    tail = ("plan", "versions", "cpu", "system", "commit")
    return {
        **{key: first[key] for key in kept if key in first},
        "seeds": [s["seed"] for s in summaries],
        "final": {key: value["mean"] for key, value in spread.items()},
        "best": {
            key: {"value": value["mean"], "rounds": [s["best"][key]["round"] for s in summaries]}
            for key, value in peaks.items()
        },
        "mean_last": {key: value["mean"] for key, value in lasts.items()},
        **({"test": {key: value["mean"] for key, value in tested.items()}} if tests else {}),
        "over_seeds": {
            "final": spread,
            "best": peaks,
            "mean_last": lasts,
            "cost": costs,
            **({"test": tested} if tests else {}),
        },
        "cost": {key: value["mean"] for key, value in costs.items()},
        "config_hash": config_hash,
        **{key: first[key] for key in (*tail, *(key for key in ("plugins", "module") if key in first))},
    }
