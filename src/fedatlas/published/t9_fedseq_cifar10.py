"""T9: the curves of the official FedSeq code on CIFAR-10, one class a client (X8, T9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.published.gates import Gate, Outcomes, Part, Picture, Study, Verdict, listed, percent

ALGORITHMS: Mapping[str, Mapping[str, Any]] = {  # in the order in which they are run: the first two decide the gate
    "fedavg": {"name": "fedavg"},
    "fedseq": {
        "name": "fedseq",
        "psi": "conf",
        "phi": "greedy",
        "metric": "kl",
        "min_examples": 800,
        "max_clients": 11,
    },
    "scaffold": {"name": "scaffold", "variant": "fedseq_code"},
    "feddyn": {"name": "feddyn", "alpha": 0.001, "variant": "fedseq_code"},
    "fedprox": {"name": "fedprox", "mu": 0.01},
}
CORRECT: Mapping[str, Mapping[str, Any]] = {  # beside them, without a gate (X8)
    "scaffold-paper": {"name": "scaffold", "weights": "samples"},
    "feddyn-paper": {"name": "feddyn", "alpha": 0.001, "alpha_by_size": True},
}
PUBLISHED = {"fedavg": 0.34, "fedseq": 0.59, "scaffold": 0.38, "feddyn": 0.59, "fedprox": 0.34}
READING = 0.04  # the figure is read to that, error included
ROUND = 500


def fedseq_cifar10(quick: bool = False, shorter: int | None = None) -> Study:
    """500 clients of one class each, a fifth a round, LeNet-5, to round 500."""
    rounds, clients, limit = (100, 50, 5000) if quick else (ROUND, 500, 0)
    rounds = shorter or rounds
    parts = tuple(Part(name, tables(name, rounds, clients, limit), (1,)) for name in {**ALGORITHMS, **CORRECT})
    gates = (floor(rounds), lead(rounds), *(value(name, rounds) for name in ALGORITHMS), correct(rounds))
    notes = (
        f"Accuracy of w_t at round {ROUND}, one seed. FedSeq's exemplars, ten of each class, are taken out of the test images.",
        "SCAFFOLD and FedDyn are the variants that the authors' code runs (fedseq_code), not those of the papers.",
        "The papers' sample-weighted forms stand beside them. FedAvg and the others are judged on all 10,000 test images, FedSeq on 9,900.",
        "Values are read from a figure of the authors' repository, to about 1.5 points.",
    )
    title = "FedSeq on CIFAR-10: 500 clients of one class each"
    published = {name: [(ROUND, level)] for name, level in PUBLISHED.items()}
    curves = (Picture("", title, {name: name for name in {**ALGORITHMS, **CORRECT}}, published),)
    source = "README of the official FedSeq code (T9)"
    return Study("fedseq-cifar10", title, source, parts, gates, notes, "t9", curves)


def tables(name: str, rounds: int, clients: int, limit: int) -> dict[str, Any]:
    """The configuration of one curve."""
    algorithm = dict({**ALGORITHMS, **CORRECT}[name])
    if limit and "min_examples" in algorithm:
        algorithm["min_examples"] = 8 * limit // clients  # groups of the published size, eight clients
    return {
        "rounds": rounds,
        "data": {"name": "cifar10", "augment": "crop_flip", "limit": limit},
        "partition": {"name": "dirichlet_fedseq", "clients": clients, "alpha": 0.0},
        "cohort": {"fraction": 0.2},
        "model": {"name": "lenet5"},
        "algorithm": algorithm,
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01, "weight_decay": 4e-4},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 10},
    }


def reached(name: str, rounds: int) -> Callable[[Outcomes], float]:
    """Mean accuracy at the last round."""
    return lambda parts: parts[name].mean(lambda seed: parts[name].at(seed, "accuracy", rounds))


def floor(rounds: int) -> Gate:
    """FedSeq's level."""

    def check(parts: Outcomes) -> Verdict:
        found = reached("fedseq", rounds)(parts)
        return Verdict(percent(found), found >= 0.53)

    return Gate("FedSeq", "59%", f"at least 53% at round {rounds}", ("fedseq",), check)


def lead(rounds: int) -> Gate:
    """How far FedSeq is ahead of FedAvg."""

    def check(parts: Outcomes) -> Verdict:
        found = reached("fedseq", rounds)(parts) - reached("fedavg", rounds)(parts)
        return Verdict(f"{100 * found:.1f} points", found >= 0.15)

    return Gate("FedSeq - FedAvg", "25 points", "at least 15 points", ("fedseq", "fedavg"), check)


def correct(rounds: int) -> Gate:
    """The papers' forms, reported."""
    names = tuple(CORRECT)
    shown: Callable[[Outcomes], str] = lambda parts: listed(names, [reached(name, rounds)(parts) for name in names])  # noqa: E731
    return Gate("correct forms", "not run", "reported", names, lambda parts: Verdict(shown(parts), None))


def value(name: str, rounds: int) -> Gate:
    """The level read from the figure."""

    def check(parts: Outcomes) -> Verdict:
        found = reached(name, rounds)(parts)
        return Verdict(percent(found), abs(found - PUBLISHED[name]) <= READING)

    return Gate(f"{name}, value", percent(PUBLISHED[name]), "within 4 points", (name,), check)
