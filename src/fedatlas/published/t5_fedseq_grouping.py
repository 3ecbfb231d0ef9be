"""T5: how superclients are formed, six rules on CIFAR-10 and CIFAR-100 (X9, T5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedatlas.published.gates import Gate, Outcomes, Part, Picture, Study, Verdict, ends, listed, percent

ALPHAS = (0.0, 0.2, 0.5)
TOLERANCE, SPREAD = 0.015, 0.03
RULES: Mapping[str, Mapping[str, Any]] = {
    "random": {"phi": "random"},
    "clf-kmeans": {"psi": "clf", "phi": "kmeans", "metric": "euclidean"},
    "conf-kmeans": {"psi": "conf", "phi": "kmeans", "metric": "euclidean"},
    "conf-kl": {"psi": "conf", "phi": "greedy", "metric": "kl"},
    "conf-cosine": {"psi": "conf", "phi": "greedy", "metric": "cosine"},
    "clf-cosine": {"psi": "clf", "phi": "greedy", "metric": "cosine"},
}


class Pictures(NamedTuple):
    """One of the two data sets: rounds, table 5.6 (a row a rule, a column an alpha), whether the data at hand stand in for it."""

    rounds: int
    published: Mapping[str, tuple[float, float, float]]
    stand_in: bool


SETS: Mapping[str, Pictures] = {
    "cifar10": Pictures(
        10_000,
        {
            "random": (0.8190, 0.8209, 0.8212),
            "clf-kmeans": (0.8230, 0.8178, 0.8248),
            "conf-kmeans": (0.8204, 0.8199, 0.8237),
            "conf-kl": (0.8221, 0.8220, 0.8222),
            "conf-cosine": (0.8209, 0.8185, 0.8271),
            "clf-cosine": (0.7995, 0.8206, 0.8283),
        },
        stand_in=False,
    ),
    "cifar100": Pictures(
        20_000,
        {
            "random": (0.4639, 0.4862, 0.4944),
            "clf-kmeans": (0.4491, 0.4874, 0.4960),
            "conf-kmeans": (0.4355, 0.4943, 0.4979),
            "conf-kl": (0.4597, 0.4956, 0.4982),
            "conf-cosine": (0.4579, 0.4898, 0.4961),
            "clf-cosine": (0.4522, 0.4892, 0.4962),
        },
        stand_in=True,  # a subset whose test rows are partly original training rows
    ),
}


def fedseq_grouping(quick: bool = False, shorter: int | None = None) -> Study:
    """FedSeq with six grouping rules, 500 clients, a fifth of the superclients a round, alpha 0, 0.2 and 0.5."""
    parts = tuple(
        Part(part_name(data, alpha, rule), tables(data, alpha, rule, quick, shorter), (1,))
        for data in SETS
        for alpha in ALPHAS
        for rule in RULES
    )
    values = [value(data, alpha, rule) for data in SETS for alpha in ALPHAS for rule in RULES]
    spreads = [spread(data, alpha) for data in SETS for alpha in ALPHAS]
    notes = (
        "Rounds, K and C are not printed in the thesis: 10,000 and 20,000 rounds, K = 500 and C = 0.2 are the official code's.",
        "One seed; accuracy of w_t at the last round, on the test rows without the ten exemplars a class.",
        "CIFAR-100 is a stand-in (20,000 rows, superclients of the published number of clients); it passes no gate.",
    )
    gates = (*values, *spreads, best_at_zero(), *(informed(data) for data in SETS))
    title = "FedSeq: how superclients are formed"
    curves = tuple(picture(data, alpha) for data in SETS for alpha in ALPHAS)
    source = "Rizzardi's thesis, table 5.6 (T5)"
    return Study("fedseq-grouping", title, source, parts, gates, notes, curves=curves)


def part_name(data: str, alpha: float, rule: str) -> str:
    """'cifar10-0.2-conf-kl'."""
    return f"{data}-{alpha:g}-{rule}"


def tables(data: str, alpha: float, rule: str, quick: bool, shorter: int | None) -> dict[str, Any]:
    """The configuration of one cell."""
    rows = 5000 if quick else 50_000 if data == "cifar10" else 20_000
    clients = 50 if quick else 500
    chosen = dict(RULES[rule])
    public = {
        "public": {"from": "test", "per_class": 10}
    }  # taken out for every rule, so that all are judged on the same rows
    return {
        "rounds": shorter or (50 if quick else SETS[data].rounds),
        "data": {"name": data, "augment": "crop_flip", "limit": 5000 if quick else 0},
        "partition": {"name": "dirichlet_fedseq", "clients": clients, "alpha": alpha, "min_size": 0},
        "cohort": {"fraction": 0.2},
        "model": {"name": "lenet5"},
        "algorithm": {"name": "fedseq", **chosen, "min_examples": 8 * rows // clients, "max_clients": 11},
        "local": {"epochs": 1, "batch_size": 64, "lr": 0.01, "weight_decay": 4e-4},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 10},
        **public,
    }


def column(data: str, alpha: float) -> tuple[str, ...]:
    """The parts of one column of the table."""
    return tuple(part_name(data, alpha, rule) for rule in RULES)


def picture(data: str, alpha: float) -> Picture:
    """The curves behind one column of the table."""
    at, pictures = ALPHAS.index(alpha), SETS[data]
    lines = dict(zip(column(data, alpha), RULES, strict=True))
    published = {part: [(pictures.rounds, pictures.published[rule][at])] for part, rule in lines.items()}
    return Picture(f"{data}-{alpha:g}", f"FedSeq on {data}, alpha = {alpha:g}", lines, published)


def value(data: str, alpha: float, rule: str) -> Gate:
    """One figure of the table."""
    name, said = part_name(data, alpha, rule), SETS[data].published[rule][ALPHAS.index(alpha)]

    def check(parts: Outcomes) -> Verdict:
        (found,) = ends(parts, (name,))
        return Verdict(percent(found), abs(found - said) <= TOLERANCE)

    return Gate(name, f"{100 * said:.2f}%", "within 1.5 points", (name,), check, SETS[data].stand_in)


def spread(data: str, alpha: float) -> Gate:
    """The rules differ little."""
    names = column(data, alpha)

    def check(parts: Outcomes) -> Verdict:
        found = ends(parts, names)
        apart = max(found) - min(found)
        return Verdict(f"{100 * apart:.1f} points apart: {listed(tuple(RULES), found)}", apart <= SPREAD)

    title = f"{data}, alpha {alpha:g}, spread"
    return Gate(title, "small differences", "at most 3 points apart", names, check, SETS[data].stand_in)


def best_at_zero() -> Gate:
    """Random groups win where every client has one class of CIFAR-100."""
    names = column("cifar100", 0.0)

    def check(parts: Outcomes) -> Verdict:
        found = dict(zip(RULES, ends(parts, names), strict=True))
        return Verdict(f"best: {max(found, key=found.__getitem__)}", found["random"] == max(found.values()))

    stand_in = SETS["cifar100"].stand_in
    return Gate("cifar100, alpha 0, random", "random groups are best", "order", names, check, stand_in)


def informed(data: str) -> Gate:
    """Every informed rule is at least level with random groups where clients are most alike."""
    names = column(data, ALPHAS[-1])

    def check(parts: Outcomes) -> Verdict:
        chance, *others = ends(parts, names)
        behind = [rule for rule, found in zip(list(RULES)[1:], others, strict=True) if found < chance]
        return Verdict(f"below random: {', '.join(behind) or 'none'}", not behind)

    title = f"{data}, alpha {ALPHAS[-1]:g}, informed rules"
    return Gate(title, "every informed rule at least random's level", "shape", names, check, SETS[data].stand_in)
