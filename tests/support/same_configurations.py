"""Short experiments for same_results.py, with every algorithm and every way through the house: digits, a table, HAR and CIFAR-10."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Table = dict[str, Any]
RULES = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "fedprox", "feddyn", "moon")  # in every version

DIGITS: Table = {
    "rounds": 3,
    "data": {"limit": 500},
    "partition": {"name": "dirichlet", "alpha": 0.5, "clients": 6},
    "model": {"hidden": [16]},
    "local": {"batch_size": 20},
    "engine": {"workers": 1},
}
PUBLIC: Table = {"public": {"from": "test", "per_class": 8}}
MIXED: Table = {
    "models": [{"name": "mlp", "hidden": [12], "share": 0.5}, {"name": "logistic", "share": 0.5}],
    "model": None,
}
NEEDED: Mapping[
    str, Table
] = {  # what an algorithm cannot do without, or with its default would take long or end before it shows
    "fedseq": PUBLIC | {"algorithm": {"pretrain_epochs": 2}},
    "fedseq_inter": PUBLIC | {"algorithm": {"pretrain_epochs": 2}},
    "fedmd": PUBLIC | {"algorithm": {"start_epochs": 2, "private_epochs": 2, "rows": 40}},
    "feddf": PUBLIC | {"algorithm": {"steps": 30, "patience": 10}},
    "cfl": {"algorithm": {"after_round": 1, "eps1": 5.0, "eps2": 0.01}},
    "scaffold": {"local": {"lr": 0.02}},
    "fedsgd": {"local": {"batch_size": None}},
}
FAILING: Table = {"failures": {"dropout": 0.3, "stragglers": 0.5}, "local": {"epochs": 3}, "cohort": {"fraction": 0.7}}
TURNED: Table = {"partition": {"name": "feature_skew", "clients": 4, "rotate": [0, 90], "noise": 0.05, "alpha": None}}
TABLE: Table = {  # of the file that `write_table` writes
    "rounds": 3,
    "data": {"name": "file", "path": "table.csv", "client": "site"},
    "partition": {"name": "natural"},
    "model": {"hidden": [8]},
    "local": {"batch_size": 10},
    "engine": {"workers": 1},
}
BATCH_NORM: Table = {"model": {"norm": "batch"}}


def merged(*tables: Mapping[str, Any]) -> Table:
    """Nested tables, the later ones over the earlier ones; None takes a key away."""
    out: Table = {}
    for table in tables:
        for key, value in table.items():
            if isinstance(value, Mapping):
                held = out.get(key)
                renamed = (
                    isinstance(held, Mapping) and "name" in value and value["name"] != held.get("name", value["name"])
                )
                out[key] = merged(held if isinstance(held, Mapping) and not renamed else {}, value)
            elif value is None:
                out.pop(key, None)
            else:
                out[key] = value
    return out


def of_algorithm(name: str, *tables: Mapping[str, Any], **parameters: Any) -> Table:
    """A short experiment on digits with one algorithm."""
    return merged(DIGITS, NEEDED.get(name, {}), {"algorithm": {"name": name, **parameters}}, *tables)


def digits() -> dict[str, Table]:
    """Every algorithm of the registry, stacked and by step programs, and what takes other ways through the house."""
    from fedatlas.algorithms import ALGORITHMS

    plain = {name: of_algorithm(name) for name in ALGORITHMS}
    programs = {f"{name}_program": of_algorithm(name, {"engine": {"plan": "program"}}) for name in ALGORITHMS}
    return {"default": {}, **plain, **programs, **variants(), **further(), **rules(), **tables()}


def variants() -> dict[str, Table]:
    """Compression, local work, failures and engines beside the defaults."""
    adam = {"local": {"optimizer": "adam", "lr": 0.002}}
    momentum = {"local": {"momentum": 0.9, "lr": 0.02, "epochs": 2, "schedule": {"name": "exponential", "gamma": 0.9}}}
    return {
        "fedavg_topk": of_algorithm("fedavg", {"compression": {"name": "topk", "share": 0.1}}),
        "scaffold_topk": of_algorithm("scaffold", {"compression": {"name": "topk", "share": 0.1}}),
        "fedavg_qsgd": of_algorithm("fedavg", {"compression": {"name": "qsgd"}}),
        "feddyn_qsgd": of_algorithm("feddyn", {"compression": {"name": "qsgd"}}),
        "fedavg_float16": of_algorithm("fedavg", {"compression": {"name": "float16"}}),
        "fedavg_clip": of_algorithm("fedavg", {"compression": {"name": "clip", "norm": 0.1}, "local": {"clip": 1.0}}),
        "fedavg_adam": of_algorithm("fedavg", adam),
        "fedavg_momentum": of_algorithm("fedavg", momentum),
        "fednova_momentum": of_algorithm("fednova", momentum, FAILING),
        "fedavg_cosine": of_algorithm("fedavg", {"local": {"schedule": {"name": "cosine"}, "weight_decay": 1e-3}}),
        "fedavg_steps": of_algorithm("fedavg", {"local": {"steps": 3}, "cohort": {"size": 3}}, weights="uniform"),
        "fedavg_poisson": of_algorithm("fedavg", {"cohort": {"fraction": 0.5, "sampling": "poisson"}}),
        **{
            f"{name}_failing": of_algorithm(name, FAILING)
            for name in ("fedavg", "fednova", "scaffold", "feddyn", "ifca", "fedseq")
        },
        "fedprox_adaptive": of_algorithm("fedprox", FAILING, adaptive=True),
        "fedavg_two_workers": of_algorithm("fedavg", {"engine": {"workers": 2, "plan": "program", "chunk": 2}}),
        "scaffold_two_workers": of_algorithm("scaffold", {"engine": {"workers": 2, "plan": "program"}}),
        "fedavg_loop": of_algorithm("fedavg", {"engine": {"name": "loop", "workers": 0}}),
        "scaffold_loop": of_algorithm("scaffold", {"engine": {"name": "loop", "workers": 0}}),
        "fedavg_float64_tuned": of_algorithm("fedavg", {"engine": {"plan": "tuned", "precision": "float64"}}),
        **({"fedavg_native": of_algorithm("fedavg", {"engine": {"plan": "native"}})} if shutil.which("cc") else {}),
    }


def further() -> dict[str, Table]:
    """Parameters of algorithms, rows held out, batch norm, and networks that differ."""
    own_rows = {"evaluation": {"clients": 0.2, "on": "validation", "validation": 0.1}}
    return {
        "scaffold_one": of_algorithm("scaffold", option="I"),
        "scaffold_fedseq_code": of_algorithm("scaffold", variant="fedseq_code"),
        "feddyn_fedseq_code": of_algorithm("feddyn", variant="fedseq_code"),
        "feddyn_by_size": of_algorithm("feddyn", alpha_by_size=True),
        "fednova_prox": of_algorithm("fednova", mu=0.1),
        "hwfedavg_balanced": of_algorithm("hwfedavg", balance_local=True, exclude_above=2.0),
        "ifca_gradient": of_algorithm("ifca", {"local": {"batch_size": None}}, average="gradient"),
        "ditto_epochs": of_algorithm("ditto", own_rows, personal_epochs=2),
        "fedma_deeper": of_algorithm("fedma", {"model": {"hidden": [12, 10]}}, retrain_epochs=2, last_epochs=2),
        "gossip_random": of_algorithm("gossip", graph="random", probability=0.6),
        "gossip_pairwise": of_algorithm("gossip", mixing="pairwise", order="combine_first"),
        "push_sum_random": of_algorithm("push_sum", graph="random", probability=0.6),
        "fedavg_validation": of_algorithm("fedavg", own_rows),
        "fedavg_drift": of_algorithm("fedavg", {"evaluation": {"drift": True, "every": 2}}),
        "fedavg_feature_skew": of_algorithm("fedavg", TURNED),
        "ifca_feature_skew": of_algorithm("ifca", TURNED),
        **{
            f"{name}_average": of_algorithm(name, BATCH_NORM)
            for name in ("fedavg", "scaffold", "fedadam", "fedseq", "cfl")
        },
        **{
            f"{name}_local": of_algorithm(name, BATCH_NORM, {"model": {"bn": "local"}})
            for name in ("fedavg", "fedprox", "fedadam")
        },
        "fedavg_recalibrate": of_algorithm("fedavg", BATCH_NORM, {"model": {"bn": "recalibrate"}}),
        "fedbn_norm": of_algorithm("fedbn", BATCH_NORM),
        **{f"{name}_mixed": of_algorithm(name, MIXED) for name in ("fedmd", "feddf", "local_only", "centralised")},
        "fedavg_own_network": merged(of_algorithm("fedavg"), {"model": None, "own_network": True}),
        "scaffold_own_network": merged(
            of_algorithm("scaffold"), {"model": None, "own_network": True, "local": {"epochs": 2}}
        ),
        "fedavg_seeds": merged(of_algorithm("fedavg"), {"seeds": [1, 2], "rounds": 1}),
        "fedavg_stopped": of_algorithm("fedavg", {"stop": {"accuracy": 0.3}, "rounds": 5}),
    }


def rules() -> dict[str, Table]:
    """FedSeq with each rule inside a chain, and its other ways to form groups."""
    each = {f"fedseq_{name}_rule": of_algorithm("fedseq", rule={"name": name}) for name in RULES}
    return each | {
        "fedseq_clf": of_algorithm("fedseq", psi="clf", passes=2, anchor="server"),
        "fedseq_kmeans": of_algorithm("fedseq", phi="kmeans", normalise="softmax"),
        "fedseq_random": of_algorithm("fedseq", FAILING, phi="random"),
        "fedseq_inter_never": of_algorithm("fedseq_inter", {"cohort": {"fraction": 0.5}}, period=1),
    }


def tables() -> dict[str, Table]:
    """A table with owners, categories, weights and holes, and users with models of their own: what is learnt of columns before round 1."""
    median = {"data": {"label": "y", "missing": "median", "drop": ["amount"]}}
    amounts = {
        "data": {"label": "amount", "missing": "drop", "weight": "w", "drop": ["y"]},
        "algorithm": {"name": "scaffold"},
    }
    alone = {
        "data": {"label": "y", "missing": "median", "scale": "client", "categories": ["code"]},
        "evaluation": {"clients": 0.2},
    }
    users = {"rounds": 2, "data": {"name": "synthetic", "users": 8, "limit": 600}, "partition": {"name": "natural"}}
    return {
        "table_median": merged(TABLE, median),
        "table_amounts": merged(TABLE, amounts),
        "table_own_scale": merged(TABLE, alone),
        "table_two_workers": merged(TABLE, median, {"engine": {"workers": 2, "plan": "program"}}),
        "synthetic_ditto": merged(users, {"algorithm": {"name": "ditto"}, "engine": {"workers": 1}}),
    }


def write_table(path: Path) -> None:
    """160 rows of four sites: two measures with holes, a word, a code, a weight, a class, an amount; from whole numbers alone."""
    lines = ["a,b,word,code,w,site,y,amount"]
    for i in range(160):
        a = "" if i % 11 == 5 else f"{(37 * i % 101) / 10:g}"
        b = "" if i % 17 == 3 else f"{(53 * i % 89) / 7 - 3:.4f}"
        word, code, site = (
            ("red", "green", "blue", "grey")[i * i % 4],
            i % 5,
            "north east south west".split()[i * 7 % 13 % 4],
        )
        y = ("no", "yes")[int((37 * i % 101) + 10 * code > 60)]
        lines.append(f"{a},{b},{word},{code},{1 + i % 3},{site},{y},{(37 * i % 101) * 1.25 + code:.2f}")
    path.write_text("\n".join(lines) + "\n")


def har() -> dict[str, Table]:
    """Activities from a phone: a control variate at each person, organisations of one main class each, and columns scaled by sums."""
    base: Table = {
        "rounds": 2,
        "data": {"name": "har", "limit": 3000},
        "model": {"name": "har3"},
        "local": {"lr": 0.02},
    }
    people = {"partition": {"name": "natural"}, "data": {"scale": "federated"}}
    return {
        "har_scaffold_natural": merged(base, people, {"algorithm": {"name": "scaffold"}}),
        "har_fedprox_majority": merged(
            base, {"partition": {"clients": 9}, "algorithm": {"name": "fedprox", "mu": 0.1}, "local": {"momentum": 0.9}}
        ),
        "har_fedma": merged(
            base, {"partition": {"name": "iid", "clients": 4}, "algorithm": {"name": "fedma"}, "engine": {"workers": 2}}
        ),
    }


def cifar() -> dict[str, Table]:
    """Objects in colour by LeNet-5: turned and cropped batches with drop-outs, and chains."""
    base: Table = {
        "rounds": 2,
        "data": {"name": "cifar10", "limit": 800, "augment": "crop_flip"},
        "partition": {"name": "dirichlet_fedseq", "alpha": 0.5, "clients": 8},
        "model": {"name": "lenet5"},
        "local": {"batch_size": 32, "lr": 0.02},
        "evaluation": {"every": 2},
    }
    chains = merged(
        base, {"public": {"from": "test", "per_class": 5}, "algorithm": {"name": "fedseq", "pretrain_epochs": 1}}
    )
    return {"cifar_fedavg": merged(base, {"failures": {"dropout": 0.2}}), "cifar_fedseq": chains}


def network() -> Any:
    """A network of one's own for digits, with convolution and dropout, whose weights no stream draws."""
    import torch
    from torch import nn

    made = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(36, 12),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(12, 10),
    )
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.copy_(0.3 * torch.sin((i + 1.7) * torch.arange(p.numel())).reshape(p.shape))
    return made
