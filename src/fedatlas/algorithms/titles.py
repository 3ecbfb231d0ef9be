"""The names of algorithms and of schemes on columns as their papers write them, for sentences."""

from __future__ import annotations

TITLES = {
    "fedsgd": "FedSGD",
    "fedavg": "FedAvg",
    "fedavgm": "FedAvgM",
    "hwfedavg": "HWFedAvg",
    "nwfedavg": "NWFedAvg",
    "fedadagrad": "FedAdagrad",
    "fedadam": "FedAdam",
    "fedyogi": "FedYogi",
    "fedprox": "FedProx",
    "feddyn": "FedDyn",
    "scaffold": "SCAFFOLD",
    "fedseq": "FedSeq",
    "fedseq_inter": "FedSeqInter",
    "gossip": "gossip",
    "push_sum": "push-sum",
    "moon": "MOON",
    "fednova": "FedNova",
    "fedma": "FedMA",
    "cfl": "CFL",
    "fesem": "FeSEM",
    "ifca": "IFCA",
    "ditto": "Ditto",
    "fedmd": "FedMD",
    "feddf": "FedDF",
    "fedbn": "FedBN",
    "secureboost": "SecureBoost",
    "federated_forest": "Federated Forest",
    "split": "Split learning",
    "hybrid": "Hybrid federation",
    "private_ridge": "private ridge regression",
    "centralised": "training on all rows pooled",
    "local_only": "training alone",
}


def title_of(name: str) -> str:
    """Return the name for a sentence; that of a plug-in is as it stands."""
    return TITLES.get(name, name)
