"""``summary.json``: a run's results, cost and machine, and the same over several seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from fedatlas import machine
from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Partition
from fedatlas.data.partition import describe as describe_partition
from fedatlas.engine.executors import Plan
from fedatlas.metrics.intervals import mean_last, over_seeds
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.record.fields import RunSummary
from fedatlas.record.fingerprint import judged_on
from fedatlas.record.run_folder import SUMMARY, RunFolder
from fedatlas.record.seed_means import detail_over
from fedatlas.setup.assembly import Holdings, Setup, judged_rows
from fedatlas.setup.canaries import facts

TOTALS = ("bytes_up", "bytes_down", "bytes_peer", "flops", "seconds")
PRIVACY = "bytes_privacy"
FIGURES = ("accuracy", "macro_f1", "weighted_f1", "rmse", "mae", "r2", "loss")


def write_summary(folder: RunFolder, summary: RunSummary) -> None:
    """Write summary.json whole. All summaries are written here."""
    folder.write_json(SUMMARY, summary)


def of_all_runs(config: ExperimentConfig, rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a summary that every run has: those from configuration, rows and machine."""
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
    """Return the summary of one run from its rows."""
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
        **facts(setup.held.canaries),
        "plan": plan.plain(),
        "sha256": {},  # of the model files, once they are written
    }


def models_facts(setup: Setup) -> dict[str, Any]:
    """Map each architecture to its clients and the size of its models."""
    return {
        name: {
            "clients": setup.owned()[name],
            "parameters": model.size,
            "forward_flops": model.flops,
        }
        for name, model in setup.models().initial().items()
    }


def best(rows: Sequence[Mapping[str, Any]], figures: Sequence[str]) -> dict[str, Any]:
    """Return each figure's best value and the round in which it was reached."""
    out = {}
    for key in figures:
        known = [(row[key], row["round"]) for row in rows if row[key] is not None]
        if known:
            value, number = (min if key in LOWER_IS_BETTER else max)(known, key=lambda pair: pair[0])
            out[key] = {"value": value, "round": number}
    return out


def totals(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys to add up; under ``[[privacy]]`` also the bytes of protection."""
    return (*TOTALS, PRIVACY) if PRIVACY in row else TOTALS


def cost(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return totals over the rounds, seconds by phase, and peak memory; a total is None if a row does not tell."""
    phases: dict[str, float] = {}
    for row in rows:
        for phase, seconds in row["seconds_by_phase"].items():
            phases[phase] = phases.get(phase, 0.0) + seconds
    keys = totals(rows[0])
    total = {key: None if any(row[key] is None for row in rows) else sum(row[key] for row in rows) for key in keys}
    return {**total, "seconds_by_phase": phases, "peak_memory_bytes": max(row["peak_memory_bytes"] for row in rows)}


def partition_facts(held: Setup | Holdings) -> dict[str, Any]:
    """Return figures about who holds what: sizes, class counts, distance to the pooled data."""
    return describe_partition(held.partition, held.dataset.train.y.numpy(), held.dataset.classes)


def planted_groups(partition: Partition) -> dict[int, Any]:
    """Map each client to its planted group: ``info["groups"]``, or clients whose pictures are rotated alike.

    {} if there are fewer than two groups.
    """
    known = partition.info.get("groups")
    groups = dict(enumerate(known if known is not None else (spec["rotate"] for spec in partition.feature_skew)))
    return groups if len(set(groups.values())) > 1 else {}


KEPT = (
    "protected",
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
)
SAME = ("weighted", "plan", "versions", "cpu", "system", "commit", "plugins", "module")  # taken from the first seed


def over(summaries: Sequence[Mapping[str, Any]], config_hash: str) -> RunSummary:
    """Return the summary of several seeds: mean, standard deviation and number of each figure and cost."""
    first = summaries[0]

    def spread(part: str, keys: Iterable[str], of: Callable[[Any], Any] = lambda x: x) -> dict[str, Any]:
        held = [s[part] for s in summaries if part in s]
        return {key: over_seeds([of(one[key]) for one in held])._asdict() for key in keys if key in held[0]}

    figures = [key for key in (*FIGURES, "auc") if key in first["final"]]
    found = {
        "final": spread("final", figures),
        "best": spread("best", first["best"], lambda best: best["value"]),
        "mean_last": spread("mean_last", first["mean_last"]),
        "cost": spread("cost", totals(first["cost"])),
    }
    if any("test" in s for s in summaries):  # rows that were not used for any choice
        found["test"] = spread("test", figures)
    names = {s["metric"]["name"] if "metric" in s else None for s in summaries}
    if None not in names and len(names) == 1:  # seeds whose training rows ask for different metrics have no mean
        found |= {part: spread(part, ["value"]) for part in ("metric", "trivial") if part in first}
    means: dict[str, Any] = {part: {key: one["mean"] for key, one in each.items()} for part, each in found.items()}
    for key, value in means["best"].items():
        means["best"][key] = {"value": value, "rounds": [s["best"][key]["round"] for s in summaries]}
    detail = detail_over(summaries)
    means["final"] |= detail.pop("final")
    if "metric" in means:
        means["metric"]["name"] = first["metric"]["name"]
    told = {key: first[key] for key in (*KEPT, *SAME) if key in first}
    if failed := {name: why for s in summaries for name, why in s.get("failed_attacks", {}).items()}:
        told["failed_attacks"] = failed
    seeds = [s["seed"] for s in summaries]
    return cast(
        RunSummary, {**told, "seeds": seeds, **means, **detail, "over_seeds": found, "config_hash": config_hash}
    )
