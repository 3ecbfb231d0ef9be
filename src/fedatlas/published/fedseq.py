"""The methods compared in the experiments on FedSeq, and their configuration on CIFAR-10 (table 5.5 of the thesis)."""

from __future__ import annotations

from fedatlas.study.plain import Plain, Row

GATED = ("fedavg", "fedseq", "scaffold", "feddyn", "fedprox")
CORRECT = ("scaffold-paper", "feddyn-paper")  # the papers' forms, for comparison and without a gate (X8)


def methods(chains: Row, alpha: float, mu: float) -> dict[str, Plain]:
    """Return the ``[algorithm]`` tables: FedSeq with its grouping ``chains``, FedDyn with ``alpha``, FedProx with ``mu``."""
    return {
        "fedavg": {"name": "fedavg"},
        "fedseq": {"name": "fedseq", "phi": "greedy", **chains},
        "scaffold": {"name": "scaffold", "variant": "fedseq_code"},
        "feddyn": {"name": "feddyn", "alpha": alpha, "variant": "fedseq_code"},
        "fedprox": {"name": "fedprox", "mu": mu},
        "scaffold-paper": {"name": "scaffold", "weights": "samples"},
        "feddyn-paper": {"name": "feddyn", "alpha": alpha, "alpha_by_size": True},
    }


def cifar_tables(rounds: int, quick: bool, clients: int, alpha: float, algorithm: Row) -> Plain:
    """Return the experiment on CIFAR-10, LeNet-5, a fifth of the clients per round; a quick one has a tenth of the rows."""
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
