"""Attacks of a party without the label on the gradients that it is sent: they rank rows by a class, and their AUC is told.

The party follows the protocol. It knows which row each gradient belongs to. Two rules of Li, Sun, Yang et al., "Label leakage
and protection in two-party split learning", ICLR 2022:

length      ranks the rows by the length of their gradients: those of the rarer class are longer. It knows which one is rarer.
direction   knows the labels of a few rows, and ranks the others by how much more their gradients point where those of the
            class do than where the others' do.

The AUC is over the training rows whose labels the party does not know; 0.5 is chance. Of several classes it is the mean
over classes, each against the others; of numbers the class is "above the median". Scores are sums over rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.quality import auc
from fedatlas.rng import numpy_stream
from fedatlas.vertical.letters import Letter
from fedatlas.vertical.networks.letter_kinds import CUT
from fedatlas.vertical.networks.network import batches
from fedatlas.vertical.networks.settings import CutNetworks
from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.scheme import KnownRows, LabelAttack

KNOWN = 10  # rows of the class, and as many others, whose labels the party knows
TIMES = 10  # draws of them; figures are means
ROUNDS = 5  # that are trained to measure with
Flags = NDArray[np.bool_]


def gradients_told(how: CutNetworks, party: int, letters: Sequence[Letter], rows: KnownRows) -> list[Floats]:
    """Return, by round, (training rows, width): the gradient of each row's own loss that a party was sent."""
    found: list[Floats] = []
    came = [one for one in letters if one["topic"] == CUT and party in one["to"]]
    for letter in came:
        if letter["step"] == 1:
            plan = batches(rows.train, how.batch_size, rows.seed, len(found) + 1)
            found.append(np.zeros((len(rows.train), how.width)))
        at = np.searchsorted(rows.train, plan[letter["step"] - 1])
        found[-1][at] = len(at) * letter["content"]["rows"].numpy()  # the loss is the mean over the batch
    return found


def by_length(rounds: Sequence[Floats], y: Flags) -> float:
    """Return the AUC of the length of the gradients, of rows of the class if it is the rarer one, else of the others."""
    sign = 1.0 if y.mean() <= 0.5 else -1.0
    return measured(sign * sum((np.linalg.norm(one, axis=1) for one in rounds), np.zeros(len(y))), y)


def by_direction(rounds: Sequence[Floats], y: Flags, known: Whole) -> float:
    """Return the AUC of how much more a row's gradients point where those of known rows of the class do."""
    score = np.zeros(len(y))
    for one in rounds:
        unit = one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        sides = [unit[known[y[known] == side]] for side in (True, False)]
        toward, away = (some.mean(axis=0) if len(some) else np.zeros(one.shape[1]) for some in sides)
        score += unit @ (toward - away)
    rest = np.setdiff1d(np.arange(len(y)), known)
    return measured(score[rest], y[rest])


def measured(score: Floats, y: Flags) -> float:
    """Return the AUC of a score; 0.5 if all rows are of one class."""
    found = auc(score, y.astype(np.int64))
    return 0.5 if found is None else float(found)


def labels_told(how: CutNetworks, party: int, letters: Sequence[Letter], rows: KnownRows) -> dict[str, float]:
    """Return the AUC of each rule for a party with these letters."""
    rounds = gradients_told(how, party, letters, rows)
    y = rows.y if rows.task == "classes" else (rows.y > np.median(rows.y)).astype(np.float64)
    classes = np.unique(y)
    found = [_of_class(rounds, y == one, rows.seed) for one in classes[1 if len(classes) == 2 else 0 :]]
    return {name: float(np.mean([one[name] for one in found])) for name in ATTACK.rules}


def _of_class(rounds: Sequence[Floats], y: Flags, seed: int) -> Mapping[str, float]:
    guessed = []
    for time in range(TIMES):
        stream = numpy_stream(seed, "attack", "labels", time)
        sides = [np.flatnonzero(y == side) for side in (True, False)]
        known = np.concatenate([stream.choice(some, min(KNOWN, len(some) // 2), replace=False) for some in sides])
        guessed.append(by_direction(rounds, y, known))
    return {"length": by_length(rounds, y), "direction": float(np.mean(guessed))}


def cases(how: CutNetworks) -> Mapping[str, CutNetworks]:
    """Return the settings of the run, which has nothing to compare with."""
    return {"this run": how}


ATTACK = LabelAttack(
    cases=cases,
    measure=labels_told,
    rounds=ROUNDS,
    rules={
        "length": "ranks rows by the length of their gradients, which are longer for the rarer class",
        "direction": f"knows the labels of {2 * KNOWN} rows, and ranks the others by where their gradients point",
    },
    told="the gradients at its embeddings",
    title="What the gradients at the cut tell of labels",
)
