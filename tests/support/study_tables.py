"""Tables of runs made from stated functions, for the tests of the study's analysis and of the recommender."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.study.execute import begin, best_rates, new_run
from fedatlas.study.outcomes import server_sees
from fedatlas.study.plan import PlannedRun, plan_of
from fedatlas.study.responses import responses
from fedatlas.study.study import Study
from fedatlas.study.table import Outcome, Table

CURVE = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def federations(number: int = 36, data: int = 6, seed: int = 1) -> list[dict[str, Any]]:
    """Settings drawn at random: nodes log-uniform from 3 to 100, h uniform, rows, one of some data sets with their classes and level."""
    stream = np.random.default_rng(seed)
    found = []
    for i in range(number):
        k = i % data
        nodes = round(math.exp(stream.uniform(math.log(3), math.log(100))))
        rows = max(20 * nodes, int(stream.uniform(600, 6000)))
        found.append(
            {
                "federation": f"f{i:03d}", "data": f"data{k}", "nodes": nodes, "rows": rows, "classes": 2 + 2 * k,
                "heterogeneity": float(stream.uniform(0, 1)), "level": 1.5 + 0.3 * k,
            }
        )  # fmt: skip
    return found


Gap = Callable[[str, dict[str, Any]], float]


def runs(
    settings: list[dict[str, Any]], gaps: Gap, choices: list[str], *, noise: float = 0.05, seeds: int = 3, seed: int = 2,
    cost: Callable[[str], float] = lambda choice: 1.0, sees: Callable[[str], str] = lambda choice: "models",
    data_noise: float = 0.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Accuracy sigmoid(level + gap (1 + 3 / round) + noise) after each round; bytes nodes x cost a round, CPU-seconds rows x cost."""
    stream = np.random.default_rng(seed)
    found = []
    shift = {(c, f"data{k}"): stream.normal() * data_noise for c in choices for k in range(20)}
    for at in settings:
        facts = {key: at[key] for key in ("federation", "data", "nodes", "rows", "classes", "heterogeneity")}
        for s in range(seeds):
            base = sigmoid(at["level"] + noise * stream.normal() / 2)
            for choice in ["", *choices]:
                off = gaps(choice, at) + shift[choice, at["data"]] if choice else 0.0
                wobble = noise * stream.normal()
                curve = [
                    [r, sigmoid(at["level"] + off * (1 + 3 / max(r, 0.5)) - 1.5 / max(r, 0.5) + wobble)] for r in CURVE
                ]
                last = curve[-1][1] if choice else base
                price = cost(choice) if choice else 1.0
                found.append(
                    {
                        **facts, "run_key": f"{at['federation']}-{choice}-{s}", "study": "t", "kind": "cell" if choice else "baseline",
                        "scheme": choice or "fedavg", "status": "done", "reason": "", "seed": s + 1, "rounds": 50, "accuracy": last,
                        "macro_f1": 0.98 * last, "client_p10": 0.9 * last, "cpu_seconds": at["rows"] * price * math.exp(0.1 * wobble),
                        "bytes_up": 50 * at["nodes"] * 100 * price, "bytes_down": 50 * at["nodes"] * 100 * price,
                        "messages_up": 50 * at["nodes"], "messages_down": 50 * at["nodes"], "flops": 1e3 * at["rows"] * price,
                        "memory_mib": 100.0, "epsilon": 3.0 if sees(choice) == "noisy_sums" else None, "server_sees": sees(choice),
                        "majority": 0.3, "curves": {"accuracy": curve, "macro_f1": [[r, 0.98 * v] for r, v in curve],
                                                    "client_p10": [[r, 0.9 * v] for r, v in curve]},
                    }
                )  # fmt: skip
    return found


def filled(given: Study, path: Path, reached: Callable[[PlannedRun], float], **facts: Any) -> Path:
    """A table of a study whose runs are planted: each ends with the accuracy stated, nothing is trained."""
    plan, table = plan_of(given.file), Table.open(path, write=True)
    begin(plan, table)
    for job in (*plan.baselines, *(job for one in plan.cells for job in one.trials)):
        table.finish(job.keys.run_key, planted(job, reached(job), facts))
    for one in plan.cells:
        jobs = plan.picked_runs(one.cell, best_rates(table, one.trials) if one.trials else ())
        table.enter(given.file.name, map(new_run, jobs))
        for job in jobs:
            if not job.refused:
                table.finish(job.keys.run_key, planted(job, reached(job), facts))
    table.close()
    return path


def planted(job: PlannedRun, accuracy: float, facts: dict[str, Any]) -> Outcome:
    """The outcome of a run as it would be written, with an accuracy that is halved after each half of its rounds."""
    assert job.config is not None
    rounds, clients = job.config.rounds, job.config.partition.clients
    rows = [
        {"round": r, "accuracy": accuracy * (0.5 + 0.5 * r / rounds), "macro_f1": accuracy * 0.9, "loss": 1.0, "seconds": 0.1,
         "client_accuracy": {"mean": accuracy, "p10": accuracy * 0.8, "min": accuracy * 0.7}, "bytes_up": 1000, "bytes_down": 1000,
         "flops": 10**6}
        for r in range(rounds + 1)
    ]  # fmt: skip
    mechanisms = [table.name for table in job.config.privacy]
    private = {"epsilon": 9.0, "curve": [[r, 9.0] for r in range(1, rounds + 1)]} if "central_dp" in mechanisms else {}
    summary = {"privacy": private} if mechanisms else {}
    found = {**responses(rows, summary), "cpu_seconds": 1.0 + len(mechanisms), "memory_mib": 50.0}
    found |= {
        "messages_up": rounds * clients,
        "messages_down": rounds * clients,
        "node_count": clients,
        "train_rows": 90 * clients,
    }
    found |= {
        "h": 0.3,
        "class_count": 10,
        "data_set": "digits",
        "majority": 0.1,
        "server_sees": server_sees(job.config),
        **{key: x(job) if callable(x) else x for key, x in facts.items()},
    }
    return Outcome("done", "It came to its end.", rows, summary, found)
