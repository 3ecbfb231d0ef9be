"""T9: the curves of the official FedSeq code on CIFAR-10, one class per client (X8, T9)."""

from __future__ import annotations

from functools import partial

from fedatlas.published.fedseq import CORRECT, cifar_tables, methods
from fedatlas.published.gates import (
    CurvePicture,
    Part,
    Target,
    alone,
    at_least,
    at_round,
    difference,
    gate_of_means,
    near,
    percent,
    reported,
)

ALGORITHMS = methods({"psi": "conf", "metric": "kl", "min_examples": 800, "max_clients": 11}, alpha=0.001, mu=0.01)
PUBLISHED = {"fedavg": 0.34, "fedseq": 0.59, "scaffold": 0.38, "feddyn": 0.59, "fedprox": 0.34}
READING = 0.04  # accuracy of reading the figure, error included
ROUND = 500
NOTES = (
    f"Accuracy of w_t at round {ROUND}, one seed. FedSeq's exemplars, ten of each class, are taken out of the test images.",
    "SCAFFOLD and FedDyn are the variants that the authors' code runs (fedseq_code), not those of the papers.",
    "The papers' sample-weighted forms stand beside them. FedAvg and the others are judged on all 10,000 test images, FedSeq on 9,900.",
    "Values are read from a figure of the authors' repository, to about 1.5 points.",
)


def fedseq_cifar10(quick: bool = False, shorter: int | None = None) -> Target:
    """500 clients of one class each, a fifth per round, LeNet-5, to round 500."""
    rounds, clients = shorter or (100 if quick else ROUND), 50 if quick else 500
    parts = tuple(Part(name, cifar_tables(rounds, quick, clients, 0.0, table)) for name, table in ALGORITHMS.items())
    reached = at_round(rounds)
    value = partial(gate_of_means, rule="within 4 points", figure=reached, text=alone())
    gates = (
        gate_of_means("FedSeq", "59%", f"at least 53% at round {rounds}", ["fedseq"], reached, at_least(0.53), alone()),
        gate_of_means(
            "FedSeq - FedAvg",
            "25 points",
            "at least 15 points",
            ("fedseq", "fedavg"),
            reached,
            lambda found: found[0] - found[1] >= 0.15,
            difference,
        ),
        *(
            value(f"{name}, value", percent(level), parts=[name], holds=near(level, READING))
            for name, level in PUBLISHED.items()
        ),
        gate_of_means("correct forms", "not run", "reported", CORRECT, reached, reported),
    )
    title = "FedSeq on CIFAR-10: 500 clients of one class each"
    published = {name: [(ROUND, level)] for name, level in PUBLISHED.items()}
    curves = (CurvePicture("", title, {name: name for name in ALGORITHMS}, published),)
    return Target("fedseq-cifar10", title, "README of the official FedSeq code (T9)", parts, gates, NOTES, "t9", curves)
