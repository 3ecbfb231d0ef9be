"""Configuration that the thesis' experiments on CIFAR share (table 5.5)."""

from __future__ import annotations

from fedatlas.study.plain import Plain, Row


def tables(rounds: int, quick: bool, clients: int, alpha: float, algorithm: Row) -> Plain:
    """The experiment on CIFAR-10; a quick one has a tenth of the rows."""
    return {
        "rounds": rounds,
        "data": {"name": "cifar10", "augment": "crop_flip", "limit": 5000 if quick else 0},
        "partition": {"name": "dirichlet_fedseq", "clients": clients, "alpha": alpha},
        "cohort": {"fraction": 0.2},
        "model": {"name": "lenet5"},
        "algorithm": dict(algorithm),
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01, "weight_decay": 4e-4},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 10},
    }
