"""T5: the formation of superclients, six rules on CIFAR-10 and CIFAR-100 (X9, T5)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from fedatlas.published.fedseq import cifar_tables
from fedatlas.published.gates import (
    CurvePicture,
    Gate,
    Part,
    Target,
    alone,
    apart_at_most,
    gate_of_means,
    last,
    listed,
    near,
    points,
)
from fedatlas.study.plain import Plain, Row

ALPHAS = (0.0, 0.2, 0.5)
TOLERANCE, SPREAD = 0.015, 0.03
RULES: Mapping[str, Row] = {
    "random": {"phi": "random"},
    "clf-kmeans": {"psi": "clf", "phi": "kmeans", "metric": "euclidean"},
    "conf-kmeans": {"psi": "conf", "phi": "kmeans", "metric": "euclidean"},
    "conf-kl": {"psi": "conf", "phi": "greedy", "metric": "kl"},
    "conf-cosine": {"psi": "conf", "phi": "greedy", "metric": "cosine"},
    "clf-cosine": {"psi": "clf", "phi": "greedy", "metric": "cosine"},
}


class PictureSet(NamedTuple):
    """One of the two data sets: rows, rounds, table 5.6 (one row per rule, one column per alpha), and whether it is a stand-in."""

    rows: int
    rounds: int
    published: Mapping[str, tuple[float, float, float]]
    stand_in: bool


SETS: Mapping[str, PictureSet] = {
    "cifar10": PictureSet(
        50_000,
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
    "cifar100": PictureSet(
        20_000,
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
COLUMNS = tuple(itertools.product(SETS, ALPHAS))
NOTES = (
    "Rounds, K and C are not printed in the thesis: 10,000 and 20,000 rounds, K = 500 and C = 0.2 are the official code's.",
    "One seed; accuracy of w_t at the last round, on the test rows without the ten exemplars a class.",
    "CIFAR-100 is a stand-in (20,000 rows, superclients of the published number of clients); it passes no gate.",
)


def fedseq_grouping(quick: bool = False, shorter: int | None = None) -> Target:
    """FedSeq with six grouping rules, 500 clients, a fifth of the superclients per round, alpha 0, 0.2 and 0.5."""
    parts = tuple(
        Part(part_name(data, alpha, rule), tables(data, alpha, rule, quick, shorter))
        for data, alpha in COLUMNS
        for rule in RULES
    )
    title, curves = "FedSeq: how superclients are formed", tuple(picture(*column) for column in COLUMNS)
    return Target("fedseq-grouping", title, "Rizzardi's thesis, table 5.6 (T5)", parts, gates(), NOTES, curves=curves)


def part_name(data: str, alpha: float, rule: str) -> str:
    """Return the part's name: 'cifar10-0.2-conf-kl'."""
    return f"{data}-{alpha:g}-{rule}"


def tables(data: str, alpha: float, rule: str, quick: bool, shorter: int | None) -> Plain:
    """Return the configuration of one cell."""
    one, clients = SETS[data], 50 if quick else 500
    groups = {"min_examples": 8 * (5000 if quick else one.rows) // clients, "max_clients": 11}
    rounds = shorter or (50 if quick else one.rounds)
    out = cifar_tables(rounds, quick, clients, alpha, {"name": "fedseq", **RULES[rule], **groups})
    out["data"]["name"], out["partition"]["min_size"] = data, 0
    # Exemplars are removed under every rule, so that all are judged on the same rows.
    return {**out, "public": {"from": "test", "per_class": 10}}


def column(data: str, alpha: float) -> tuple[str, ...]:
    """Return the parts of one column of the table."""
    return tuple(part_name(data, alpha, rule) for rule in RULES)


def picture(data: str, alpha: float) -> CurvePicture:
    """Return the curves behind one column of the table."""
    one, lines = SETS[data], dict(zip(column(data, alpha), RULES, strict=True))
    published = {part: [(one.rounds, one.published[rule][ALPHAS.index(alpha)])] for part, rule in lines.items()}
    return CurvePicture(f"{data}-{alpha:g}", f"FedSeq on {data}, alpha = {alpha:g}", lines, published)


def gates() -> tuple[Gate, ...]:
    """Return gates on each figure of the table, on the spread between rules, and on the thesis' statements about them."""
    names = list(RULES)
    end = {data: partial(gate_of_means, figure=last(), stand_in=SETS[data].stand_in) for data in SETS}

    def value(data: str, alpha: float, rule: str) -> Gate:
        name, said = part_name(data, alpha, rule), SETS[data].published[rule][ALPHAS.index(alpha)]
        holds, published = near(said, TOLERANCE), f"{100 * said:.2f}%"
        return end[data](name, published, "within 1.5 points", parts=[name], holds=holds, text=alone())

    def spread(data: str, alpha: float) -> Gate:
        return end[data](
            f"{data}, alpha {alpha:g}, spread",
            "small differences",
            "at most 3 points apart",
            parts=column(data, alpha),
            holds=apart_at_most(SPREAD),
            text=lambda runs, found: f"{points(max(found) - min(found))} apart: {listed(names, found)}",
        )

    def below(found: Sequence[float]) -> list[str]:
        return [rule for rule, one in zip(names, found, strict=True) if one < found[0]]

    def informed(data: str) -> Gate:
        return end[data](
            f"{data}, alpha {ALPHAS[-1]:g}, informed rules",
            "every informed rule at least random's level",
            "shape",
            parts=column(data, ALPHAS[-1]),
            holds=lambda found: not below(found),
            text=lambda runs, found: f"below random: {', '.join(below(found)) or 'none'}",
        )

    best = end["cifar100"](
        "cifar100, alpha 0, random",
        "random groups are best",
        "order",
        parts=column("cifar100", 0.0),
        holds=lambda found: found[0] == max(found),
        text=lambda runs, found: f"best: {names[found.index(max(found))]}",
    )
    values = [value(*pair, rule) for pair in COLUMNS for rule in RULES]
    return *values, *(spread(*pair) for pair in COLUMNS), best, *map(informed, SETS)
