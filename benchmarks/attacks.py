"""What rules cost and what they are worth: ``python benchmarks/attacks.py rules | cost | sign_flip | replacement [--seeds 1 2 3]``.

``rules``: one round's 100 updates of a million weights through each rule, one thread. ``cost``: seconds of a run with ``share = 0`` and
with an attack that changes nothing beside the plain run, alternating. ``sign_flip``: MNIST, 50 clients alike, MLP1, everybody in every
round, a fifth of them sending ten times the reversed change; each rule beside its own clean run. ``replacement``: after convergence one
attacker replaces the model in one round, by the mean and under ``norm_clip``.

Runs lie in the folder ``--out`` and are not done again; ``FEDATLAS_DATA`` is where MNIST is found.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedatlas.aggregation import PRE, RULES, before
from fedatlas.config import parse
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked
from fedatlas.tree import Tree

ROBUST = ("krum", "multi_krum", "trimmed_mean", "median", "norm_clip")
LIMITS = {"krum": 3.0, "median": 4.0, "trimmed_mean": 4.0}  # seconds
UPDATES, WEIGHTS = 100, 1_000_000
POINTS = 100.0

MNIST: dict[str, Any] = {
    "rounds": 10,
    "data": {"name": "mnist"},
    "partition": {"name": "iid", "clients": 50},
    "model": {"name": "mlp1"},
    "local": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "evaluation": {"every": 5},
    "checkpoint": {"every": 10},
}
HOSTILE = {"name": "sign_flip", "share": 0.2, "c": 10.0}
ONCE = 11  # the round of the attack, after ten in which the model has converged
LONGER = {"epochs": 3, "batch_size": 16, "lr": 0.1}  # so that one round is enough to learn the flipped labels
REPLACED = {
    "name": "model_replacement",
    "clients": [7],
    "pairs": [[5, 3]],
    "rounds": [ONCE, ONCE],
}


def accuracy(folder: Path, seed: int, **tables: Any) -> dict[str, Any]:
    """The final figures of a run, its last row and its seconds."""
    config = parse({**MNIST, **tables, "seed": seed})
    done = ensure(checked(config), folder, More(options={"baselines": False}))
    return {
        **done.summary["final"],
        **{key: one.get("attack_success") for one in done.summary.get("attacks", ()) for key in ("attack_success",)},
    }


def rules(repeats: int) -> None:
    """Seconds of each rule on one round's updates, as the server holds them: of the clock, and of the processor."""
    torch.set_num_threads(1)
    stream = torch.Generator().manual_seed(1)
    updates = [Tree({"w": torch.randn(WEIGHTS, generator=stream)}) for _ in range(UPDATES)]
    kinds = {name: make() for name, make in RULES.items()}
    kinds |= {f"{pre}, {name}": before(pre, RULES[name]()) for pre in PRE for name in ("mean", "krum", "median")}
    for name, rule in kinds.items():
        taken, worked = [], []
        for _ in range(repeats):
            began, spent = time.perf_counter(), time.process_time()
            rule.combine(updates, root=updates[0] if rule.rooted else None)
            taken.append(time.perf_counter() - began)
            worked.append(time.process_time() - spent)
        limit = f", at most {LIMITS[name]:g}" if name in LIMITS else ""
        print(f"{name:17s} {min(taken):6.2f} s best, {statistics.median(taken):6.2f} s median{limit}", end="")
        print(f"; {min(worked):.2f} s of the processor", flush=True)


def cost(out: Path, repeats: int) -> None:
    """Seconds of whole runs beside the plain one, in turn."""
    kinds = {"plain": [], "share = 0": [{**HOSTILE, "share": 0}], "identity": [{**HOSTILE, "c": -1.0}]}
    taken: dict[str, list[float]] = {name: [] for name in kinds}
    for i in range(repeats):
        for name, attack in kinds.items():
            config = parse(
                {**MNIST, "rounds": 4, "evaluation": {"every": 4}, "attack": attack, "engine": {"workers": 1}}
            )
            done = ensure(checked(config), out / "cost" / f"{name}-{i}", More(options={"baselines": False}))
            phases = done.summary["cost"]["seconds_by_phase"]
            taken[name].append(phases["train"])
    plain = statistics.median(taken["plain"])
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        print(f"{name:10s} {middle:7.3f} s of training, {middle / plain - 1:+.1%}", flush=True)


def sign_flip(out: Path, seeds: list[int]) -> None:
    """Accuracy without and with the attack, rule by rule."""
    for rule in ("mean", *ROBUST):
        lost = []
        for seed in seeds:
            table = {"aggregation": {"name": rule, **({"f": 10} if rule not in {"mean", "norm_clip"} else {})}}
            clean = accuracy(out / "sign-flip" / f"{rule}-clean-{seed}", seed, **table)["accuracy"]
            struck = accuracy(out / "sign-flip" / f"{rule}-{seed}", seed, attack=[HOSTILE], **table)["accuracy"]
            lost.append(POINTS * (clean - struck))
            print(
                f"{rule:13s} seed {seed}: clean {clean:.4f}, attacked {struck:.4f}, {lost[-1]:+.1f} points lost",
                flush=True,
            )
        print(f"{rule:13s} loses {min(lost):.1f} to {max(lost):.1f} points", flush=True)


def replacement(out: Path, seeds: list[int]) -> None:
    """Share of the rows of the first class that become the second, after one round in which one client attacks."""
    for rule in ("mean", "norm_clip"):
        for seed in seeds:
            tables = {"rounds": ONCE, "attack": [REPLACED], "aggregation": {"name": rule}, "local": LONGER}
            found = accuracy(out / "replacement" / f"{rule}-{seed}", seed, **tables)
            print(
                f"{rule:10s} seed {seed}: success {found['attack_success']:.3f}, accuracy {found['accuracy']:.4f}",
                flush=True,
            )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rules", "cost", "sign_flip", "replacement"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("attacks"))
    given = parser.parse_args()
    if given.what == "rules":
        rules(given.repeats)
    elif given.what == "cost":
        cost(given.out, given.repeats)
    else:
        {"sign_flip": sign_flip, "replacement": replacement}[given.what](given.out, given.seeds)


if __name__ == "__main__":
    main()
