"""The price of rules without attack: ``python benchmarks/rule_prices.py [--seeds 1 2 3] [--tuning 11 12] [--out rule-prices]``.

Digits, 20 unlike clients of unequal sizes (each class split by Dirichlet 0.3), everybody in every round, f = 4 assumed. First the
free parameters of rules are chosen: of each set the one whose accuracy under its worst attack is best, on the tuning seeds, which deal
the rows to other clients than the seeds of the table. Then each rule, and ``pre`` before it, runs without attack beside the mean of
the same seed. Prints two tables in Markdown. Runs lie in ``--out`` and are not done again.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path
from typing import Any

from fedatlas.aggregation import PRE, RULES
from fedatlas.attacks.poisoning import POISONING
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.registry import keywords
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.assembly import share_out
from fedatlas.setup.refusals import checked
from fedatlas.verdict.evidence import student

Table = dict[str, Any]
F, ROUNDS, POINTS = 4, 20, 100.0
DIGITS: Table = {
    "rounds": ROUNDS,
    "data": {"name": "digits"},
    "partition": {"name": "dirichlet_class", "clients": 20, "alpha": 0.3},
    "model": {"hidden": [32]},
    "local": {"epochs": 2, "batch_size": 10, "lr": 0.02},
    "engine": {"workers": 1},
    "evaluation": {"every": ROUNDS},
    "checkpoint": {"every": ROUNDS},
}
HOSTILE: dict[str, Table] = {
    "label_flip": {"share": 0.2, "pairs": [[3, 5], [0, 8], [1, 7]]},
    "sign_flip": {"share": 0.2, "c": 3.0},
    "gaussian": {"share": 0.2},
    "alie": {"share": 0.2},
    "inner_product": {"share": 0.2},
}
"""Attacks against which parameters are chosen, as far as this version has them."""
CHOICES: dict[str, tuple[Table, ...]] = {
    "multi_krum": ({}, {"q": 12}, {"q": 8}, {"q": 4}),
    "geometric_median": ({}, {"iterations": 1}, {"iterations": 16}),
    "norm_clip": ({}, {"bound": 0.3}, {"bound": 1.0}, {"bound": 3.0}),
}
"""Rule -> sets of parameters; {} is the default. Larger buckets than two would be too few for f."""


def aggregation(rule: str, pre: str, **more: Any) -> Table:
    """Return ``[aggregation]`` of a rule, with f where something assumes it."""
    assumes = "f" in keywords(RULES[rule]) or pre != "none"
    return {"name": rule, **({"pre": pre} if pre != "none" else {}), **({"f": F} if assumes else {}), **more}


def accuracy(out: Path, seed: int, table: Table, attack: str = "") -> float:
    """Return the final accuracy of a run. ConfigError for what is refused."""
    public = {"public": {"from": "test", "per_class": 5}} if table["name"] == "fltrust" else {}
    hostile = {"attack": [{"name": attack, **HOSTILE[attack]}]} if attack else {}
    whole = checked(parse({**DIGITS, **public, **hostile, "aggregation": table, "seed": seed}))
    share_out(whole)  # refusals before a folder is made
    name = "-".join(f"{key}={value}" for key, value in table.items())
    done = ensure(whole, out / f"{name}-{attack or 'nobody'}-{seed}", More(options={"baselines": False}, report=False))
    return float(done.summary["final"]["accuracy"])


def chosen(out: Path, seeds: list[int]) -> dict[str, Table]:
    """Print how each set of parameters does under its worst attack, and return the best set of each rule."""
    attacks, best = [name for name in HOSTILE if name in POISONING], dict[str, Table]()
    print(f"| rule | parameters | worst of {', '.join(attacks)} | accuracy |\n|---|---|---|---|")
    for rule, sets in CHOICES.items():
        scores: list[float] = []
        for given in sets:
            table = aggregation(rule, "none", **given)
            under = {name: statistics.fmean(accuracy(out, seed, table, name) for seed in seeds) for name in attacks}
            worst = min(under, key=lambda name: under[name])
            scores.append(under[worst])
            shown = ", ".join(f"{key} = {value}" for key, value in given.items()) or "default"
            print(f"| {rule} | {shown} | {worst} | {POINTS * under[worst]:.1f} |", flush=True)
        best[rule] = sets[scores.index(max(scores))]
    return best


def price(out: Path, seeds: list[int], table: Table, free: list[float]) -> str:
    """Return accuracy without attack, and points below the mean of the same seeds with a 95% interval; or the refusal."""
    try:
        found = [accuracy(out, seed, table) for seed in seeds]
    except ConfigError as error:
        return f"refused: {str(error).split(';')[0].removeprefix('aggregation: ')}"
    lost = [POINTS * (a - b) for a, b in zip(free, found, strict=True)]
    half = student(0.975, len(lost) - 1) * statistics.stdev(lost) / len(lost) ** 0.5 if len(lost) > 1 else float("nan")
    middle = statistics.fmean(lost)
    return f"{POINTS * statistics.fmean(found):.1f}, {middle:+.1f} [{middle - half:+.1f}, {middle + half:+.1f}]"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tuning", type=int, nargs="+", default=[11, 12])
    parser.add_argument("--out", type=Path, default=Path("rule-prices"))
    given = parser.parse_args()
    if set(given.seeds) & set(given.tuning):
        parser.error("parameters are chosen on other seeds than those of the table.")
    began = os.times()
    best = chosen(given.out, given.tuning)
    free = [accuracy(given.out, seed, {"name": "mean"}) for seed in given.seeds]
    pres = ["none", *PRE]
    print(f"\n| rule | {' | '.join(pres)} |\n|---|{'---|' * len(pres)}")
    for rule in RULES:
        own = best.get(rule, {})
        cells = [price(given.out, given.seeds, aggregation(rule, pre, **own), free) for pre in pres]
        print(f"| {rule} | {' | '.join(cells)} |", flush=True)
    ended = os.times()
    print(f"\n{sum(ended[:4]) - sum(began[:4]):.0f} s of processor time")


if __name__ == "__main__":
    main()
