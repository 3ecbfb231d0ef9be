"""The label flipping of Tolpegin et al. on CIFAR-10: lost recall of the flipped class by the share of attackers (A4, T11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scipy.stats import spearmanr

from fedatlas.published.gates import (
    Figure,
    FigurePicture,
    Gate,
    GateVerdict,
    Part,
    Runs,
    Target,
    listed,
    mean_of_last,
    points,
)
from fedatlas.study.plain import Plain

NAME = "tolpegin"
ROUNDS, QUICK = 200, 20
CLIENTS, COHORT = 50, 5
SOURCE, TO = 0, 2
PUBLISHED: Mapping[int, float] = {2: 0.0142, 4: 0.0293, 10: 0.102, 20: 0.141, 30: 0.483, 40: 0.73, 50: 0.705}
"""Percent of attackers -> lost recall of the flipped class, as recalled from the paper; shown, but no gate is set on it."""
LEAST, AVERAGED, EVERY = 0.9, 100, 10  # averaged over the last rounds, of which every tenth is evaluated
RECALL = "source_recall"
NOTES = (
    f"{CLIENTS} clients with as many rows each, {COHORT} a round; attackers turn labels {SOURCE} (airplane) into {TO} (bird). One seed.",
    "As in the authors' code: the unweighted mean, SGD with rate 0.01 and momentum 0.5, batches of 10, one pass over the rows a round.",
    "The rate is constant: their schedule halves it for a client after 50 rounds with it, and a client has about 20.",
    "Other than there: LeNet-5 in place of six convolutions with batch norm, so a fraction of the work; logits in place of a softmax",
    "before the cross-entropy; momentum begins at zero in each round; their crops and flips, drawn once for each picture, are left out.",
    "Left out, too: their second data set, Fashion-MNIST, and their other pairs of classes.",
    f"Recall: accuracy on the test rows of class {SOURCE}, averaged over the evaluations of the last {AVERAGED} rounds, because a round",
    "follows the attackers that were drawn for it. Lost: recall without attackers, minus recall with them.",
    "The published figures are recalled from the paper, so they are only shown.",
)


def tolpegin(quick: bool = False, shorter: int | None = None) -> Target:
    """50 clients, five per round, of which 0 to 50 percent turn the labels of one class into another."""
    rounds = shorter or (QUICK if quick else ROUNDS)
    parts = tuple(Part(part_name(level), tables(level, rounds, quick)) for level in (0, *PUBLISHED))
    recall = mean_of_last(max(1, min(AVERAGED, rounds // 2) // EVERY), RECALL)
    said = "Recall of the flipped class by share of attackers"
    points_of = {"recall": [(part_name(level), level) for level in (0, *PUBLISHED)]}
    picture = FigurePicture("recall", said, "attackers (%)", "recall", points_of, recall)
    title = "Label flipping on CIFAR-10: lost recall by share of attackers"
    source = "Tolpegin, Truex, Gursoy, Liu, ESORICS 2020 (T11)"
    kept = ("round", "accuracy", RECALL, "attack_success")
    return Target(NAME, title, source, parts, (loss_gate(recall),), NOTES, pictures=(picture,), keeps=kept)


def part_name(level: int) -> str:
    """Return the part of a share of attackers: 'L-10'."""
    return f"L-{level}"


def tables(level: int, rounds: int, quick: bool) -> Plain:
    """Return the configuration of one share of attackers, in percent; a quick one has a tenth of the rows."""
    attack = {"name": "label_flip", "share": level / 100, "pairs": [[SOURCE, TO]], "kind": "flip"}
    return {
        "rounds": rounds,
        "data": {"name": "cifar10", "limit": 5000 if quick else 0},
        "partition": {"name": "iid", "clients": CLIENTS},
        "cohort": {"size": COHORT},
        "model": {"name": "lenet5"},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "local": {"epochs": 1, "batch_size": 10, "lr": 0.01, "momentum": 0.5},
        "evaluation": {"every": EVERY},
        "checkpoint": {"every": 10},
        "attack": [attack],  # also with nobody, so that the recall is measured
    }


def loss_gate(recall: Figure) -> Gate:
    """Return the gate that the lost recall rises with the share of attackers."""
    levels = [f"{level}%" for level in PUBLISHED]

    def check(runs: Runs) -> GateVerdict:
        kept = runs[part_name(0)].mean(recall)
        lost = [kept - runs[part_name(level)].mean(recall) for level in PUBLISHED]
        rho = rank_correlation(lost)
        return GateVerdict(f"Spearman {rho:.2f}: {listed(levels, lost, points)}", rho >= LEAST)

    said = listed(levels, [*PUBLISHED.values()], points)
    parts = tuple(part_name(level) for level in (0, *PUBLISHED))
    return Gate("lost recall against L", said, f"Spearman >= {LEAST}", parts, check)


def rank_correlation(values: Sequence[float]) -> float:
    """Return Spearman's correlation of values with their order; -1 if all are equal, so that a flat curve fails."""
    return float(spearmanr(range(len(values)), values).statistic) if len(set(values)) > 1 else -1.0
