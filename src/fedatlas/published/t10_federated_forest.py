"""T10: Federated Forest with two to eight domains: accuracy and training time rise, the time of a prediction does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedatlas.config import parse
from fedatlas.published.gates import (
    FigurePicture,
    Gate,
    GateVerdict,
    Part,
    Runs,
    Target,
    gate_of_means,
    last,
    listed,
    reported,
)
from fedatlas.rng import numpy_stream
from fedatlas.runs.columns_baselines import kept, matched
from fedatlas.runs.columns_times import timed
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked

TABLES = {"cancer": ("breast_cancer_wdbc", 0), "taiwan": ("credit_default_taiwan", 3000)}
"""Their names, and how many rows are drawn; 0: all."""
DOMAINS = (2, 4, 6, 8)
TREES, DEPTH, SEEDS = 100, 10, (1, 2, 3)
RISES, SPREAD = 0.8, 1.5  # rank correlation; longest by shortest time
TIMED = 10  # one tree of so many
NOTES = (
    f"{TREES} trees of depth {DEPTH} on the square root of the columns; a quarter of the rows to test.",
    "Of credit_default_taiwan 3,000 rows are drawn.",
    "The slides show curves without numbers or tables, so their shape is judged. *Joining*: the columns of a table are dealt to eight",
    "domains; the first has the label, and the seed draws in which order the others join, so that more domains have more columns.",
    "*Dealt*: all columns to so many domains, so that the forest is the same. There the time of a prediction is judged, since more columns",
    "also make larger trees. All domains are in one process, and seconds are those of a core. Domains would work side by side: of those",
    f"that are asked at once the slowest counts. Messages take no time. A training is timed in one tree of {TIMED}.",
)


def federated_forest_domains(quick: bool = False, shorter: int | None = None) -> Target:
    """Federated Forest with two to eight domains, which bring more columns, or share all of them."""
    domains, seeds = ((2, 4, 8), (1,)) if quick else (DOMAINS, SEEDS)
    trees = shorter or (6 if quick else TREES)
    parts = []
    for name, (data, limit) in TABLES.items():
        rows = min(limit or 400, 400) if quick else limit
        for d in domains:
            asked = tables(data, rows, trees, max(DOMAINS))
            parts.append(Part(f"{name}-joining-{d}", asked, seeds, measure=measured(asked, d)))
        for d in (1, *domains):
            asked = tables(data, rows, trees, d)
            parts.append(Part(f"{name}-dealt-{d}", asked, measure=measured(asked)))
    source = "Liu et al. 2020 (Federated Forest), as the CSI5340 slides show it (S2)"
    title = "Federated Forest: two to eight domains"
    return Target("federated-forest", title, source, tuple(parts), gates(domains), NOTES, pictures=pictures(domains))


def tables(data: str, limit: int, trees: int, parties: int) -> dict[str, Any]:
    """Return the configuration of all domains. ``limit``: rows drawn of the table; 0: all."""
    return {
        "data": {"name": data, **({"limit": limit} if limit else {})},
        "partition": {"name": "vertical", "parties": parties},
        "algorithm": {"name": "federated_forest", "trees": trees, "depth": DEPTH},
        **({} if parties > 1 else {"align": {"name": "none"}}),
    }


def measured(asked: Mapping[str, Any], domains: int = 0) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of a forest. ``domains``: how many of all join; 0: all of them, in their order."""

    def measure(seed: int) -> list[dict[str, Any]]:
        run = checked(parse({**asked, "seed": seed}))
        every = matched(consortium(run))
        side = kept(every, joining(seed)[:domains]) if domains else every
        return [timed(side, run.of_columns(), run.how, int(asked["algorithm"]["trees"]), TIMED)]

    return measure


def joining(seed: int) -> list[int]:
    """Return the domains in the order in which they join; the first has the label."""
    others = numpy_stream(seed, "reproduce", "domains").permutation(np.arange(1, max(DOMAINS)))
    return [0, *others.tolist()]


def gates(domains: tuple[int, ...]) -> tuple[Gate, ...]:
    """Return the gates of T10."""
    out = []
    up = f"higher with {domains[-1]} domains than with {domains[0]}, rank correlation at least {RISES:g}"
    for name, (data, _) in TABLES.items():
        joining, dealt = ([f"{name}-{how}-{d}" for d in domains] for how in ("joining", "dealt"))
        for title, key in (("accuracy", "accuracy"), ("training time", "training")):
            text = f"{data}, joining: {title}"
            out.append(gate_of_means(text, "up", up, joining, last(key), rises, said_of(domains, key)))
        for title, published, key in (
            ("core seconds of training", "up", "training_core_seconds"),
            ("prediction time", "constant", "prediction"),
        ):
            text = f"{data}, joining: {title}"
            out.append(gate_of_means(text, published, "reported", joining, last(key), reported, said_of(domains, key)))
        rule = f"the longest at most {SPREAD:g} times the shortest"
        text, said = f"{data}, dealt: prediction time", said_of(domains, "prediction")
        out.append(gate_of_means(text, "constant", rule, dealt, last("prediction"), level, said))
        parts = (f"{name}-dealt-1", *dealt)
        out.append(Gate(f"{data}, dealt", "lossless", "equal outputs for every row", parts, same(parts)))
    return tuple(out)


def said_of(domains: tuple[int, ...], key: str) -> Callable[[Runs, Any], str]:
    """Return the words for a figure by the number of domains."""
    text = (lambda x: f"{100 * x:.1f}%") if key == "accuracy" else (lambda x: f"{x:.3g} s")
    return lambda runs, found: listed([f"{d}:" for d in domains], found, text)


def rises(found: Any) -> bool:
    """Return whether figures rise with the number of domains."""
    alike = float(np.corrcoef(np.argsort(np.argsort(found)), np.arange(len(found)))[0, 1])
    return bool(found[-1] > found[0] and round(alike, 9) >= RISES)


def level(found: Any) -> bool:
    """Return whether figures stay as they are."""
    return bool(max(found) <= SPREAD * min(found))


def same(names: tuple[str, ...]) -> Callable[[Runs], GateVerdict]:
    """Return the check that parts say the same of every row."""

    def check(runs: Runs) -> GateVerdict:
        found = [[rows[-1]["outputs"] for rows in runs[name].rows.values()] for name in names]
        equal = all(one == found[0] for one in found)
        return GateVerdict(f"{len(found)} forests, {'all equal' if equal else 'not all equal'}", equal)

    return check


def pictures(domains: tuple[int, ...]) -> tuple[FigurePicture, ...]:
    """Return the pictures: each figure against the number of domains."""
    asked = {
        "accuracy": ("joining", "accuracy on test rows"),
        "training": ("joining", "seconds of training"),
        "prediction": ("dealt", "seconds of predicting all rows"),
    }
    return tuple(
        FigurePicture(
            key,
            f"Federated Forest, {how}: {y}",
            "domains",
            y,
            {data: [(f"{name}-{how}-{d}", float(d)) for d in domains] for name, (data, _) in TABLES.items()},
            last(key),
        )
        for key, (how, y) in asked.items()
    )
