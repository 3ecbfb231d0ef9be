"""A random forest that tells two kinds of rows apart: the worst-case attack (A5), and the blind player of a game.

The worst-case attack knows the truth of some rows and learns from the model's sorted probabilities of them, as `WorstCaseAttack` of
sacroml 2 (MIT) does, with its settings. The blind player sees the rows but no model: where it wins, the game is unfair.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedatlas.metrics.quality import Floats
from fedatlas.metrics.resampling import under_roc
from fedatlas.rng import derive, numpy_stream

SETTINGS = {"min_samples_split": 20, "min_samples_leaf": 10, "max_depth": 5}
MOST = 10_000  # rows that the blind player is given
UNFAIR = 3.0  # standard deviations of an AUC by chance: one fair game in 700 is called unfair


def sorted_probabilities(p: Floats) -> Floats:
    """Return probabilities (n, classes), the largest first."""
    return -np.sort(-p, axis=1)


def told_apart(x: Floats, first: np.ndarray, other: Floats, seed: int) -> Floats:
    """Return the probability of each row of ``other`` to be of the first kind, by a forest trained on ``x`` and ``first`` (n,)."""
    from sklearn.ensemble import RandomForestClassifier  # takes a second to load

    forest = RandomForestClassifier(random_state=seed, **SETTINGS).fit(x, first)
    known = list(forest.classes_)
    return forest.predict_proba(other)[:, known.index(True)] if True in known else np.zeros(len(other))


class Blind(NamedTuple):
    """The result of a player without the model."""

    auc: float
    chance: float  # the largest AUC that still counts as chance

    @property
    def unfair(self) -> bool:
        """Whether the rows give away by themselves which of them are members."""
        return self.auc > self.chance


def played_blind(x: np.ndarray, member: np.ndarray, seed: int) -> Blind:
    """Return the AUC of a player without the model: each half of the rows by a forest trained on the other half."""
    order = numpy_stream(seed, "attack", "blind").permutation(len(member))[:MOST]
    parts, flat = np.array_split(order, 2), x.reshape(len(x), -1)
    found, spread = [], 0.0
    for train, test in (parts, parts[::-1]):
        m, n = int(member[test].sum()), int((~member[test]).sum())
        if not (m and n):
            return Blind(0.5, 0.5)
        score = told_apart(flat[train], member[train], flat[test], derive(seed, "attack", "forest") % 2**32)
        found.append(float(under_roc(score, member[test], np.ones(len(test)))(np.ones((1, len(test))))[0]))
        spread += (m + n + 1) / (12 * m * n) / 4
    return Blind(sum(found) / 2, 0.5 + UNFAIR * math.sqrt(spread))
