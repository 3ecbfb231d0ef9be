"""What rules cost and what they are worth: ``python benchmarks/attacks.py rules | cost | sign_flip | inner_product | replacement``.

``membership`` and ``mnist``: what membership attacks find, see `membership`. ``audit``: what an audit says of clean and of faulty runs,
see `audits`. ``epoch``: rows that come back from clients that take several steps, eight clients with digits. ``inversion``: pictures that
come back from gradients of a ConvNet on CIFAR-10, see `inversion_common`.

``rules``: one round's 100 updates of a million weights through each rule, one thread. ``cost``: processor seconds of runs with
``share = 0`` and with attacks that change nothing beside the plain run, in turn (``--pairs 30``, about twenty minutes; a first pair
says how long). ``sign_flip``, ``inner_product``: MNIST, 50 clients alike, MLP1, everybody in every round, a fifth of them sending ten
times the reversed change (of their own; of the honest clients' mean, omniscient); each rule beside its own clean run of the same seed
(``--seeds 1 2 3 4 5``). ``replacement``: after convergence one attacker replaces the model in one round, by the mean and under
``norm_clip``.

Runs lie in the folder ``--out`` and are not done again; ``FEDATLAS_DATA`` is where MNIST is found.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import audits
import inversion_common
import membership
import torch

from fedatlas import attack
from fedatlas.aggregation import PRE, RULES, before
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.published.attack_matrix import NEEDS
from fedatlas.registry import keywords
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked
from fedatlas.tree import Tree
from fedatlas.verdict.evidence import student

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
COSTLY = 11  # rounds of about ten seconds together
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


def cost(out: Path, pairs: int) -> None:
    """Processor seconds of whole runs beside the plain one: pairs of about ten seconds, in turn, with a 95% interval of the mean.

    What is measured is written down after every round of runs, so the command can be stopped and started again.
    """
    kinds: dict[str, list[dict[str, Any]]] = {
        "plain": [],
        "share = 0": [{**HOSTILE, "share": 0}],
        "identity": [{**HOSTILE, "c": -1.0}],
        "identity of a colluder": [{"name": "alie", "clients": [7], "z": 0.0}],
    }
    file = out / "cost.json"
    done: list[dict[str, float]] = json.loads(file.read_text()) if file.exists() else []
    while len(done) < pairs:
        turned = [*kinds][len(done) % len(kinds) :] + [*kinds][: len(done) % len(kinds)]
        done.append({name: seconds_of(out, name, kinds[name]) for name in turned})
        out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(done))
    print(f"plain: {statistics.fmean(one['plain'] for one in done):.2f} s of processor time, {len(done)} pairs")
    for name in list(kinds)[1:]:
        print(f"{name}: {of_mean([POINTS * (one[name] / one['plain'] - 1) for one in done])} % of processor time")


def of_mean(values: list[float]) -> str:
    """The mean of several values with its 95% interval, by Student's law."""
    mean, n = statistics.fmean(values), len(values)
    half = student(0.975, n - 1) * statistics.stdev(values) / n**0.5 if n > 1 else math.nan
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def seconds_of(out: Path, name: str, attack: list[dict[str, Any]]) -> float:
    """Processor seconds of one run, in a folder that is emptied before."""
    folder = out / "cost" / name.replace(" ", "-")
    shutil.rmtree(folder, ignore_errors=True)
    tables = {"rounds": COSTLY, "evaluation": {"every": COSTLY}, "attack": attack, "engine": {"workers": 1}}
    whole = checked(parse({**MNIST, **tables}))
    began = os.times()
    ensure(whole, folder, More(options={"baselines": False}, report=False))
    ended = os.times()
    return sum(ended[:4]) - sum(began[:4])


def struck(out: Path, seeds: list[int], attack: dict[str, Any]) -> None:
    """Accuracy without and with an attack by a fifth of the clients, rule by rule; what is refused is said."""
    for rule in RULES:
        lost = []
        table = {"name": rule, **({"f": 10} if "f" in keywords(RULES[rule]) else {})}
        given = {"aggregation": table, **NEEDS.get(rule, {})}
        for seed in seeds:
            try:
                clean = accuracy(out / "clean" / f"{rule}-{seed}", seed, **given)["accuracy"]
                found = accuracy(out / attack["name"] / f"{rule}-{seed}", seed, attack=[attack], **given)["accuracy"]
            except ConfigError as error:
                print(f"{rule}: {error}", flush=True)
                break
            lost.append(POINTS * (clean - found))
            print(
                f"{rule:16s} seed {seed}: clean {clean:.4f}, attacked {found:.4f}, {lost[-1]:+.1f} points", flush=True
            )
        if len(lost) > 1:
            print(f"{rule:16s} loses {of_mean(lost)} points, paired", flush=True)


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


DIGITS: dict[str, Any] = {
    "rounds": 1,
    "partition": {"name": "iid", "clients": 8},
    "model": {"name": "lenet_sigmoid"},
    "observe": {"roles": ["server"]},
}
EPOCHS = {  # rows of a client: its local work
    2: {"epochs": 1, "batch_size": 1, "lr": 0.1},
    4: {"epochs": 2, "batch_size": 2, "lr": 0.1},
    8: {"steps": 1, "batch_size": 0, "lr": 0.1},
}
KNOWING: list[dict[str, Any]] = [
    {"labels": "known", "batches": "known"},
    {"labels": "known"},
    {},
    {"restarts": 4},
]


def epoch(out: Path) -> None:
    """PSNR of a client's rows from the update of its local work, by what the attacker knows, beside the placebo."""
    for rows, local in EPOCHS.items():
        data = {"name": "digits", "limit": 8 * rows, "scale": "federated"}
        folder = out / "epoch" / str(rows)
        whole = checked(parse({**DIGITS, "data": data, "local": local}))
        ensure(whole, folder, More(options={"baselines": False}, report=False))
        for known in KNOWING:
            found = attack(folder, "inverting_gradients", iterations=300, **known)
            psnr, leak = found["metrics"]["psnr"], found["leaks"]["psnr"]
            said = f"{psnr['value']:.1f} dB, placebo {psnr['placebo']:.1f}, above it {leak['value']:.1f} "
            print(f"{rows} rows, {local}, {known}: {said}[{leak['low']:.1f}, {leak['high']:.1f}]", flush=True)


STRUCK = {
    "sign_flip": HOSTILE,
    "inner_product": {"name": "inner_product", "share": 0.2, "epsilon": 10.0, "knows": "all"},
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=("rules", "cost", *STRUCK, "replacement", "membership", "mnist", "audit", "epoch", "inversion")
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("attacks"))
    inversion_common.options(parser)
    given = parser.parse_args()
    if given.what == "rules":
        rules(given.repeats)
    elif given.what == "cost":
        cost(given.out, given.pairs)
    elif given.what == "membership":
        membership.membership(given.out, given.seeds, given.small)
    elif given.what == "mnist":
        membership.mnist(given.out, given.seeds)
    elif given.what == "audit":
        audits.audit(given.out, given.runs, given.times)
    elif given.what == "epoch":
        epoch(given.out)
    elif given.what == "inversion":
        inversion_common.inversion(given)
    elif given.what == "replacement":
        replacement(given.out, given.seeds)
    else:
        struck(given.out, given.seeds, STRUCK[given.what])


if __name__ == "__main__":
    main()
