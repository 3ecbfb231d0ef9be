"""T1: the blog post's FedAvg on MNIST, six networks, IID and in shards (X1, T1)."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

from fedatlas.published.gates import Gate, Outcome, Outcomes, Part, Study, Verdict, percent

MODELS = ("mlp1", "mlp2", "cnn1", "resnet1", "cnn2", "resnet2")
SPLITS = ("iid", "shards")
CLIMBED = 10  # the round from which on steps are shown, too, without the climb of the first rounds
FLOORS = {  # published floors: "at least" for the MLPs, "more than" for the others under IID
    "iid": {"mlp1": 0.94, "mlp2": 0.94, "cnn1": 0.98, "cnn2": 0.98, "resnet1": 0.98, "resnet2": 0.98},
    "shards": {"mlp1": 0.86, "mlp2": 0.86, "cnn1": 0.95, "cnn2": 0.95, "resnet1": 0.95, "resnet2": 0.95},
}


def blog(quick: bool = False, shorter: int | None = None) -> Study:
    """FedAvg on MNIST: 100 clients, 10 a round, 5 epochs, learning rate 0.01, batches of 10, 100 rounds."""
    rounds, clients, seeds, limit = (10, 20, (1,), 6000) if quick else (100, 100, (1, 2, 3), 0)
    rounds = shorter or rounds
    parts = tuple(
        Part(f"{model}-{split}", tables(model, split, rounds, clients, limit), seeds)
        for model in MODELS
        for split in SPLITS
    )
    floors = tuple(floor(model, split) for model in MODELS for split in SPLITS)
    shapes = tuple(gate for model in MODELS for gate in (falling(model), slower(model)))
    notes = (
        "The post gives no batch size; batches of 10 are McMahan's for MNIST (H2).",
        "Under shards the best of the last ten rounds counts, because that curve oscillates.",
    )
    title = "FedAvg on MNIST: six networks, IID and shards"
    return Study("blog", title, "blog post on FedAvg for MNIST (seed S4), figure 2", parts, floors + shapes, notes)


def tables(model: str, split: str, rounds: int, clients: int, limit: int) -> dict[str, Any]:
    """The configuration of one curve."""
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


def final(outcome: Outcome, split: str) -> Callable[[int], float]:
    """Accuracy at the last round (IID), the best of the last ten (shards)."""
    last = 1 if split == "iid" else 10
    return lambda seed: max(outcome.at(seed, "accuracy", -i) for i in range(1, last + 1))


def floor(model: str, split: str) -> Gate:
    """The published level."""
    part, level = f"{model}-{split}", FLOORS[split][model]

    def check(parts: Outcomes) -> Verdict:
        reached = final(parts[part], split)
        mean = parts[part].mean(reached)
        each = ", ".join(percent(reached(seed)) for seed in parts[part].rows)
        return Verdict(f"{percent(mean)} ({each})", mean >= level)

    strict = split == "iid" and model not in {"mlp1", "mlp2"}
    published = f"{'>' if strict else '>='} {100 * level:.0f}%"
    return Gate(f"{model}, {split}", published, "floor on the mean over seeds", (part,), check)


def falling(model: str) -> Gate:
    """The training loss decreases: its last tenth is below its first tenth."""
    names = tuple(f"{model}-{split}" for split in SPLITS)

    def check(parts: Outcomes) -> Verdict:
        pairs = [ends(parts[name].curve(seed, "train_loss")) for name in names for seed in parts[name].rows]
        text = f"falls in {sum(b < a for a, b in pairs)} of {len(pairs)} runs"
        return Verdict(text, all(b < a for a, b in pairs))

    return Gate(f"{model}, training loss", "decreases", "mean of the last tenth below the first", names, check)


def ends(curve: list[float | None]) -> tuple[float, float]:
    """Means over the first and the last tenth of a curve."""
    known = [x for x in curve if x is not None]
    n = max(1, len(known) // 10)
    return statistics.fmean(known[:n]), statistics.fmean(known[-n:])


def slower(model: str) -> Gate:
    """Shards are slower and more oscillatory than IID."""
    names = (f"{model}-iid", f"{model}-shards")

    def jumps(outcome: Outcome, first: int = 1) -> float:
        curves = [[x for x in outcome.curve(seed, "accuracy") if x is not None] for seed in outcome.rows]
        steps = [[b - a for a, b in itertools.pairwise(c[first:])] for c in curves]
        return statistics.fmean(statistics.stdev(c) if len(c) > 1 else math.nan for c in steps)

    def area(outcome: Outcome) -> float:
        return statistics.fmean(
            x for seed in outcome.rows for x in outcome.curve(seed, "accuracy")[1:] if x is not None
        )

    def check(parts: Outcomes) -> Verdict:
        spread, mean = ([figure(parts[name]) for name in names] for figure in (jumps, area))
        late = [jumps(parts[name], CLIMBED) for name in names]
        later = f" (from round {CLIMBED} on {100 * late[0]:.2f} | {100 * late[1]:.2f})" * (
            not any(map(math.isnan, late))
        )
        text = (
            f"sd of steps {100 * spread[0]:.2f} | {100 * spread[1]:.2f} points{later}, "
            f"mean accuracy {percent(mean[0])} | {percent(mean[1])}"
        )
        return Verdict(text, spread[1] > spread[0] and mean[1] < mean[0])

    rule = "larger sd of round-to-round differences, lower mean over rounds"
    return Gate(f"{model}, IID | shards", "shards slower, more oscillatory", rule, names, check)
