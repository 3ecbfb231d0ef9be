"""Faults of methods that weigh or rescale clients: a divisor left out, a score turned over."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from torch import Tensor

from fedatlas.algorithm import Algorithm, Facts, Message, State, Update, Work
from fedatlas.algorithms import ALGORITHMS
from fedatlas.tree import Tree
from mutations import Build, Mutation, oracle, patched, with_task

# The package names the builders as their files are called.
hwfedavg, moon = (import_module(f"fedatlas.algorithms.{name}") for name in ("hwfedavg", "moon"))
SCORE, CONTRAST = hwfedavg.raw_weight, moon.contrast
MOMENTUM: dict[str, Any] = {"problem": {"momentum": 0.9, "lr": 0.02}}


def divided_by(count_of: Any) -> Build:
    """FedNova with another divisor of a client's move."""

    def finish(w_k: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        a = count_of(work)
        return {"d": (message["model"] - w_k) / a, "a": a}, client

    return with_task(ALGORITHMS["fednova"], finish=finish)


def turned_over(counts: Tensor, P: Tensor, score: str) -> Tensor:
    found: Tensor = 1 / SCORE(counts, P, score)
    return found


def without_the_whole(counts: Tensor, P: Tensor, score: str) -> Tensor:
    found: Tensor = SCORE(counts, P * 0 + 1 / len(P), score)
    return found


def swapped(z: Tensor, z_g: Tensor, z_p: Tensor, tau: Tensor) -> Tensor:
    found: Tensor = CONTRAST(z, z_p, z_g, tau)
    return found


def multiplied(z: Tensor, z_g: Tensor, z_p: Tensor, tau: Tensor) -> Tensor:
    found: Tensor = CONTRAST(z, z_g, z_p, 1 / tau)
    return found


def keeps_the_first(**parameters: Any) -> Algorithm:
    """MOON whose clients remember that they were seen, and not what they had learnt."""

    def finish(w_k: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        return {"model": w_k}, {"previous": client["previous"], "seen": client["seen"] * 0 + 1}

    return with_task(ALGORITHMS["moon"], finish=finish)(**parameters)


MUTATIONS = [
    Mutation("fednova", "moves not divided by their steps", divided_by(lambda work: 1.0), (oracle("fednova"),)),
    Mutation(
        "fednova",
        "momentum left out of the divisor",
        divided_by(lambda work: float(work.steps)),
        (oracle("fednova", **MOMENTUM),),
    ),
    Mutation(
        "hwfedavg",
        "concentrated clients weigh more",
        ALGORITHMS["hwfedavg"],
        (oracle("hwfedavg"),),
        patched(hwfedavg, "raw_weight", turned_over),
    ),
    Mutation(
        "hwfedavg",
        "classes weighed alike instead of by all rows",
        ALGORITHMS["hwfedavg"],
        (oracle("hwfedavg"),),
        patched(hwfedavg, "raw_weight", without_the_whole),
    ),
    Mutation(
        "moon",
        "drawn to its own past, away from the global model",
        ALGORITHMS["moon"],
        (oracle("moon"),),
        patched(moon, "contrast", swapped),
    ),
    Mutation(
        "moon",
        "multiplied by the temperature",
        ALGORITHMS["moon"],
        (oracle("moon"),),
        patched(moon, "contrast", multiplied),
    ),
    Mutation("moon", "last local model never stored", keeps_the_first, (oracle("moon"),)),
]
