"""T11: FedProx with stragglers on synthetic data whose clients differ in model and inputs (H9, T11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedatlas.published.gates import (
    CurvePicture,
    Gate,
    Part,
    Runs,
    Target,
    difference,
    gate_of_means,
    last,
    listed,
    mean_of_last,
    reported,
)
from fedatlas.study.plain import Plain, Row

ROUNDS, SEEDS = 200, (1, 2, 3)
STRAGGLERS = (0, 50, 90)  # per cent of the clients of a round
HARDEST = STRAGGLERS[-1]
METHODS: Mapping[str, tuple[Row, str]] = {  # algorithm, and the treatment of stragglers
    "fedavg": ({"name": "fedavg"}, "drop"),
    "partial": ({"name": "fedprox", "mu": 0.0}, "keep"),
    "fedprox": ({"name": "fedprox", "mu": 1.0}, "keep"),
}
CALLED = {"fedavg": "FedAvg, stragglers dropped", "partial": "FedProx, mu = 0", "fedprox": "FedProx, mu = 1"}
PUBLISHED = 22  # points, the mean of five data sets
NOTES = (
    "Ten of 30 clients a round, batches of 10, rate 0.01, 20 epochs; a straggler runs 1 to 20. Logistic regression.",
    f"The paper's {PUBLISHED} points are the mean of five data sets with 90% stragglers and the best mu of each; this is one of them.",
    "mu = 1 is the value the paper gives for it. The data are drawn anew for each seed: other numbers of the same law.",
)
TAIL = mean_of_last(20)


def fedprox_synthetic(quick: bool = False, shorter: int | None = None) -> Target:
    """Synthetic(1, 1): 30 clients, ten per round, 0, 50 and 90 per cent of them stragglers."""
    rounds, seeds = shorter or (20 if quick else ROUNDS), SEEDS[:1] if quick else SEEDS
    parts = tuple(
        Part(f"{name}-{share}", tables(name, share, rounds), seeds) for share in STRAGGLERS for name in methods(share)
    )
    gates = (
        ahead("fedprox", "fedavg", f"about {PUBLISHED} points, mean of five data sets"),
        ahead("partial", "fedavg", "partial work alone helps"),
        ahead("fedprox", "partial", "the proximal term helps beyond it"),
        *map(ends, STRAGGLERS),
    )
    title = "FedProx: Synthetic(1, 1) with stragglers"
    source = "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, MLSys 2020, figures 1 and 7 and the README of its code (T11)"
    curves = []
    for share in STRAGGLERS:
        lines = {f"{name}-{share}": CALLED[name] for name in methods(share)}
        curves.append(CurvePicture(f"{share}-stragglers", f"{title}: {share}%", lines))
    return Target("fedprox-synthetic", title, source, parts, gates, NOTES, curves=tuple(curves))


def methods(share: int) -> list[str]:
    """Return the methods compared at a share of stragglers; without any, FedProx with mu = 0 is FedAvg."""
    return [name for name in METHODS if share or name != "partial"]


def tables(name: str, share: int, rounds: int) -> Plain:
    """Return the configuration of one curve."""
    algorithm, late = METHODS[name]
    return {
        "rounds": rounds,
        "data": {"name": "synthetic", "alpha": 1.0, "beta": 1.0, "users": 30},
        "partition": {"name": "natural"},
        "cohort": {"size": 10},
        "failures": {"stragglers": share / 100, "straggler_policy": late},
        "model": {"name": "logistic"},
        "algorithm": dict(algorithm),
        "local": {"epochs": 20, "batch_size": 10, "lr": 0.01},
        "checkpoint": {"every": 20},
    }


def ahead(one: str, other: str, published: str) -> Gate:
    """Return the gate on which method ends with the higher accuracy with 90 per cent stragglers."""
    name, rule = (
        f"{CALLED[one]} - {CALLED[other]}, {HARDEST}% stragglers",
        "mean of the last 20 rounds and of the seeds",
    )
    parts = (f"{one}-{HARDEST}", f"{other}-{HARDEST}")
    holds = lambda found: found[0] > found[1]  # noqa: E731
    return gate_of_means(name, published, f"higher accuracy, {rule}", parts, TAIL, holds, difference)


def ends(share: int) -> Gate:
    """Return the gate that reports accuracy and loss at the end."""
    parts = tuple(f"{name}-{share}" for name in methods(share))

    def text(runs: Runs, found: Sequence[float]) -> str:
        loss = listed(parts, [runs[part].mean(last("loss")) for part in parts], "{:.2f}".format)
        return f"{listed(parts, found)}; loss at the end {loss}"

    return gate_of_means(f"{share}% stragglers", "a figure", "reported", parts, TAIL, reported, text)
