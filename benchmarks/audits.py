"""What an audit says of runs whose truth is known: ``python benchmarks/attacks.py audit [--runs 200] [--times 10]``.

Clean runs: digits, four clients, under noise that hides everything (`central_dp`, noise multiplier 50), with a membership game on the
views of the server and of an outsider. How many say "leak seen", of ``--runs``, with the interval of that share.

Faulty runs: 1,000 canary clients, three rounds, a ledger of epsilon 1.99 at delta 1e-5, and one fault in each: noise forgotten, noise
quartered, clipping forgotten, weights by rows. How many of ``--times`` are contradicted, beside runs without a fault.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fedatlas
from fedatlas import Experiment
from fedatlas.aggregation.changes import map_leaves
from fedatlas.algorithm import by_samples
from fedatlas.auditing import LEAK_SEEN, Audited
from fedatlas.metrics.intervals import clopper_pearson
from fedatlas.privacy import noise
from fedatlas.privacy.central_dp import clipped_sum
from fedatlas.weighting import uniform

ROUNDS, FEW = 3, 7  # rounds; up to so many clients a check of weights tries
ONE, EPSILON, DELTA = 2.0028, 1.99, 1e-5  # the noise multiplier of this epsilon in one release
SMALL: dict[str, Any] = {
    "rounds": ROUNDS,
    "algorithm": {"name": "fedavg", "weights": "uniform"},
    "data": {"name": "digits", "limit": 600},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [64]},
    "local": {"steps": 1},
    "engine": {"name": "loop"},
}


def noised(multiplier: float) -> list[dict[str, Any]]:
    """The table of a mechanism, with noise from the seed."""
    return [
        {"name": "central_dp", "clip": 1.0, "noise_multiplier": multiplier, "noise": "seed", "delta": DELTA},
    ]


def audited(folder: Path, seed: int, **tables: Any) -> Audited:
    """The audit of a small run; a run that is there is not done again."""
    if not (folder / "summary.json").exists():
        fedatlas.run(Experiment.of(**SMALL, seed=seed, **tables), out=folder, baselines=False)
    return fedatlas.audit(folder)


def clean(out: Path, runs: int) -> None:
    """The share of clean runs of which an audit says that a leak is seen."""
    game = {"evaluation": {"clients": 0.5}, "attack": [{"name": "membership"}], "observe": {"roles": ["server"]}}
    seen, least = 0, []
    for seed in range(1, runs + 1):
        done = audited(out / "audit" / "clean" / str(seed), seed, privacy=noised(50.0), audit={"min_cell": 1}, **game)
        seen += done.verdict.name == LEAK_SEEN
        least += [one["smallest"] for one in done.record["attacks"]]
    low, high = clopper_pearson(seen, runs, 0.95)
    print(f"clean: {seen} of {runs} say 'leak seen', {seen / runs:.3f} [{low:.3f}, {high:.3f}], at most 0.05 and noise")
    print(f"smallest leak of an AUC that would have been seen with 80% chance: {statistics.median(least):.3f} (median)")


def by_rows(right: Callable[..., Any]) -> Callable[..., Any]:
    """A clipped sum that weighs changes by their rows, in place of equally."""

    def made(clip: float, transform: Any) -> Any:
        plain = right(clip, transform)

        def lift(client: int, update: Any, weight: Any) -> Any:
            return map_leaves(lambda path, x: x * weight * CLIENTS, plain.lift(client, update, weight))

        return plain._replace(lift=lift)

    return made


CLIENTS = 504  # about half of the canaries, and those of the partition
INSIDE = "fedatlas.privacy.central_dp.clipped_sum."
DRAWN = noise._drawn  # noqa: SLF001
FAULTS: dict[str, dict[str, Any]] = {
    "no fault": {},
    "noise forgotten": {"fedatlas.privacy.noise._drawn": lambda *given: DRAWN(*given) * 0},
    "noise quartered": {"fedatlas.privacy.noise._drawn": lambda *given: DRAWN(*given) / 4},
    "clipping forgotten": {INSIDE + "clipped": lambda changes, clip: changes},
    "weights by rows": {
        INSIDE + "clipped_sum": by_rows(clipped_sum.clipped_sum),
        "fedatlas.weighting.uniform": lambda drawn: (by_samples if drawn.m > FEW else uniform)(drawn),
    },
}


def faulty(out: Path, times: int) -> None:
    """How often an audit contradicts a mechanism with a fault, and the bounds that it finds."""
    for fault, patches in FAULTS.items():
        found = list(bounds(out / "audit" / fault.replace(" ", "-"), patches, times))
        flagged = sum(bound > stated for bound, stated in found)
        middle = statistics.median(bound for bound, _ in found)
        print(f"{fault}: {flagged} of {times} contradicted; bound {middle:.2f}, stated {found[0][1]:.2f}", flush=True)


def bounds(out: Path, patches: dict[str, Any], times: int) -> Iterator[tuple[float, float]]:
    """Yield the lower bound of each run, and the epsilon that it is compared with."""
    multiplier = ONE * ROUNDS**0.5
    for seed in range(1, times + 1):
        with ExitStack() as stack:
            for name, fault in patches.items():
                stack.enter_context(patch(name, fault))
            done = audited(out / str(seed), seed, privacy=noised(multiplier), audit={"canaries": 1000})
        (one,) = done.record["accounts"]
        assert abs(one["epsilon"] - EPSILON) < 0.01
        yield one["empirical_epsilon"], one["compared_epsilon"]


def audit(out: Path, runs: int, times: int) -> None:
    """Both."""
    faulty(out, times)
    clean(out, runs)
