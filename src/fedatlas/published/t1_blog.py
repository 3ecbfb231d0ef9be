"""T1: the blog post's FedAvg on MNIST, six networks, IID and in shards (X1, T1)."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

from fedatlas.published.gates import (
    Gate,
    GateVerdict,
    Part,
    PartRuns,
    Runs,
    Target,
    at_least,
    best_of_last,
    gate_of_means,
    percent,
)

MODELS = ("mlp1", "mlp2", "cnn1", "resnet1", "cnn2", "resnet2")
SPLITS = ("iid", "shards")
CLIMBED = 10  # the round from which steps are also shown, without the climb of the first rounds
FLOORS = {  # published floors, of the MLPs and of the others: "at least" for the MLPs, "more than" for the others under IID
    "iid": (0.94, 0.98),
    "shards": (0.86, 0.95),
}
NOTES = (
    "The post gives no batch size; batches of 10 are McMahan's for MNIST (H2).",
    "Under shards the best of the last ten rounds counts, because that curve oscillates.",
)


def blog(quick: bool = False, shorter: int | None = None) -> Target:
    """FedAvg on MNIST: 100 clients, 10 per round, 5 epochs, learning rate 0.01, batches of 10, 100 rounds."""
    rounds, clients, seeds, limit = (10, 20, (1,), 6000) if quick else (100, 100, (1, 2, 3), 0)
    pairs = list(itertools.product(MODELS, SPLITS))
    parts = tuple(
        Part(f"{model}-{split}", tables(model, split, shorter or rounds, clients, limit), seeds)
        for model, split in pairs
    )
    gates = [floor(*pair) for pair in pairs] + [gate for model in MODELS for gate in (falling(model), slower(model))]
    title = "FedAvg on MNIST: six networks, IID and shards"
    return Target("blog", title, "blog post on FedAvg for MNIST (seed S4), figure 2", parts, tuple(gates), NOTES)


def tables(model: str, split: str, rounds: int, clients: int, limit: int) -> dict[str, Any]:
    """Return the configuration of one curve."""
    return {
        "rounds": rounds,
        "data": {"name": "mnist", "limit": limit},
        "partition": {"name": split, "clients": clients},
        "cohort": {"size": 10},
        "model": {"name": model},
        "algorithm": {"name": "fedavg"},
        "local": {"epochs": 5, "batch_size": 10, "lr": 0.01},
        "checkpoint": {"every": 5},
    }


def floor(model: str, split: str) -> Gate:
    """Return the gate on the published level: at the last round (IID), or for the best of the last ten (shards)."""
    part, other = f"{model}-{split}", not model.startswith("mlp")
    level, figure = FLOORS[split][other], best_of_last(1 if split == "iid" else 10)

    def text(runs: Runs, found: Any) -> str:
        each = ", ".join(percent(figure(runs[part], seed)) for seed in runs[part].rows)
        return f"{percent(found[0])} ({each})"

    published = f"{'>' if split == 'iid' and other else '>='} {100 * level:.0f}%"
    rule = "floor on the mean over seeds"
    return gate_of_means(f"{model}, {split}", published, rule, [part], figure, at_least(level), text)


def falling(model: str) -> Gate:
    """Return the gate that the training loss decreases: its last tenth is below its first tenth."""
    names = tuple(f"{model}-{split}" for split in SPLITS)

    def check(runs: Runs) -> GateVerdict:
        falls = [tenths_fall(runs[name].known(seed, "train_loss")) for name in names for seed in runs[name].rows]
        return GateVerdict(f"falls in {sum(falls)} of {len(falls)} runs", all(falls))

    return Gate(f"{model}, training loss", "decreases", "mean of the last tenth below the first", names, check)


def tenths_fall(curve: list[tuple[int, float]]) -> bool:
    """Return whether the mean over the last tenth of a curve is below that over the first."""
    known = [x for _, x in curve]
    n = max(1, len(known) // 10)
    return statistics.fmean(known[-n:]) < statistics.fmean(known[:n])


def slower(model: str) -> Gate:
    """Return the gate that shards are slower and more oscillatory than IID."""
    names = (f"{model}-iid", f"{model}-shards")

    def jumps(runs: PartRuns, first: int = 1) -> float:
        curves = [[x for _, x in runs.known(seed)][first:] for seed in runs.rows]
        steps = [[b - a for a, b in itertools.pairwise(curve)] for curve in curves]
        return statistics.fmean(statistics.stdev(c) if len(c) > 1 else math.nan for c in steps)

    def area(runs: PartRuns) -> float:
        return statistics.fmean(x for seed in runs.rows for x in runs.curve(seed, "accuracy")[1:] if x is not None)

    def check(runs: Runs) -> GateVerdict:
        spread, mean = ([figure(runs[name]) for name in names] for figure in (jumps, area))
        late = [100 * jumps(runs[name], CLIMBED) for name in names]
        later = "" if any(map(math.isnan, late)) else f" (from round {CLIMBED} on {late[0]:.2f} | {late[1]:.2f})"
        steps = f"sd of steps {100 * spread[0]:.2f} | {100 * spread[1]:.2f} points{later}"
        text = f"{steps}, mean accuracy {percent(mean[0])} | {percent(mean[1])}"
        return GateVerdict(text, spread[1] > spread[0] and mean[1] < mean[0])

    rule = "larger sd of round-to-round differences, lower mean over rounds"
    return Gate(f"{model}, IID | shards", "shards slower, more oscillatory", rule, names, check)
