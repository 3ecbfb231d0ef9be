"""Attacks of a party without the label on the row sets of trees: they rank rows by a class, and their AUC is told.

The party follows the protocol, and uses only what it was told (`told`). Four rules, each strong for its simplicity:

first tree   ranks the rows by the share of the class at their node of the first tree of which it was told rows, drawn
             rows and others apart. The shares are the true ones, so this bounds what any outside knowledge of this tree
             can give.
rows         knows the labels of a few rows. A row's score is how much oftener it is at a node with known rows of the
             class than with the other known rows, over all trees and levels.
draws        knows the labels of the same few rows, and counts in how many rounds a row was drawn (GOSS). The known rows
             tell whether many draws speak for the class.
both         adds to "rows", at every node, whether rows that are drawn there are rather of the class: where few rows
             are of the class, those of it have large gradients; where most are, the others have.

The AUC is over the training rows whose labels the party does not know; 0.5 is chance. Of several classes it is the mean
over classes, each against the others; of numbers the class is "above the median".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.quality import auc
from fedatlas.rng import numpy_stream
from fedatlas.vertical.boosting.settings import MODES, PASSIVE_DEPTH, SecureBoost
from fedatlas.vertical.boosting.told import RoundTold, rounds_told
from fedatlas.vertical.letters import Letter
from fedatlas.vertical.parties import Floats, Whole
from fedatlas.vertical.scheme import KnownRows, LabelAttack

KNOWN = 10  # rows of the class, and as many others, whose labels the party knows
TIMES = 10  # draws of them; figures are means
TREES = 10  # that are grown to measure with
Flags = NDArray[np.bool_]
CHANCE = 0.5


def first_tree(rounds: Sequence[RoundTold], y: Flags, train: Whole) -> float:
    """Return the AUC of the shares of the class among rows that the first tree told does not tell apart; 0.5 if there is none.

    ``y`` (training rows,): whether a row is of the class; ``train``: their places.
    """
    for at, one in ((own, each) for each in rounds for own in each.trees):
        nodes, place = np.unique(2 * at[train] + drawn(one, train).astype(np.int64), return_inverse=True)
        if len(nodes) > 1:
            return measured(np.bincount(place, y)[place] / np.bincount(place)[place], y)
    return CHANCE


def by_rows(rounds: Sequence[RoundTold], y: Flags, train: Whole, known: Whole) -> Floats:
    """Return (training rows,), how much oftener a row is with known rows of the class than with the others.

    ``known``: positions in ``train`` of the rows with known labels.
    """
    sides = _sides(y, known)
    return _sum(len(train), (_voted(nodes, known, sides) for one in rounds for nodes in levels(one, train)))


def by_draws(rounds: Sequence[RoundTold], y: Flags, train: Whole, known: Whole) -> Floats:
    """Return (training rows,), in how many rounds a row was drawn, with the sign that the known rows speak for."""
    count = _sum(len(train), (drawn(one, train) for one in rounds))
    return count if count[known] @ _sides(y, known) >= 0 else -count


def by_both(rounds: Sequence[RoundTold], y: Flags, train: Whole, known: Whole) -> Floats:
    """Return (training rows,), the scaled sum of two votes of the known rows: by nodes, and by draws at each node."""
    sides, votes = _sides(y, known), list[Floats]()
    for one in rounds:
        more = drawn(one, train)
        more = more - more.mean()
        groups = [np.zeros(len(train), np.int64), *levels(one, train)]
        votes += [more * _voted(nodes, known, sides * more[known]) for nodes in groups]
    return scaled(by_rows(rounds, y, train, known)) + scaled(_sum(len(train), votes))


def levels(one: RoundTold, train: Whole) -> list[Whole]:
    """Return the nodes (training rows,) of each tree and level below the root, from 0; rows stay where their branch ends."""
    found = list[Whole]()
    for at in (own[train] for own in one.trees):
        depth = np.frexp(at.astype(np.float64))[1]  # 1: the root
        nodes = (at >> np.maximum(depth - level, 0) for level in range(2, int(depth.max(initial=1)) + 1))
        found += [np.unique(each, return_inverse=True)[1] for each in nodes]
    return found


def drawn(one: RoundTold, train: Whole) -> Floats:
    """Return (training rows,), 1 for a row that the tree is grown on, else 0."""
    return np.ones(len(train)) if one.rows is None else np.isin(train, one.rows).astype(np.float64)


def scaled(score: Floats) -> Floats:
    """Return a score with mean 0 and deviation 1; 0 if all rows have the same."""
    found: Floats = (score - score.mean()) / (score.std() or 1.0)
    return found


def measured(score: Floats, y: Flags) -> float:
    """Return the AUC of a score; 0.5 if all rows are of one class."""
    found = auc(score, y.astype(np.int64))
    return CHANCE if found is None else float(found)


def _sides(y: Flags, known: Whole) -> Floats:
    """Return (known rows,), the weight of each: those of the class have 1 together, the others -1."""
    of = y[known]
    found: Floats = of / max(of.sum(), 1) - ~of / max((~of).sum(), 1)
    return found


def _voted(nodes: Whole, known: Whole, votes: Floats) -> Floats:
    """Return (rows,), the sum of the votes of known rows at a row's node."""
    by_node = np.bincount(nodes[known], votes, int(nodes.max(initial=0)) + 1).astype(np.float64)
    found: Floats = by_node[nodes]
    return found


def _sum(rows: int, scores: Iterable[Floats]) -> Floats:
    return sum(scores, np.zeros(rows))


Rule = Callable[[Sequence[RoundTold], Flags, Whole, Whole], Floats]
RULES: Mapping[str, Rule] = {"rows": by_rows, "draws": by_draws, "both": by_both}


def told_labels(how: SecureBoost, party: int, letters: Sequence[Letter], rows: KnownRows) -> dict[str, float]:
    """Return the AUC of each rule for a party with these letters (`told.rounds_told`)."""
    rounds = rounds_told(how, party, letters, rows.common)
    names = ["first tree", "rows", *(["draws", "both"] if how.sampled else [])]
    y = rows.y if rows.task == "classes" else (rows.y > np.median(rows.y)).astype(np.float64)
    found = [_of_class(rounds, y == one, rows, names) for one in np.unique(y)[-1 if len(np.unique(y)) == 2 else 0 :]]
    return {name: float(np.mean([one[name] for one in found])) for name in names}


def _of_class(rounds: Sequence[RoundTold], y: Flags, rows: KnownRows, names: Sequence[str]) -> dict[str, float]:
    """Return the AUC of each rule for one class."""
    train = rows.train
    out = {"first tree": [first_tree(rounds, y, train)], **{name: [] for name in names[1:]}}
    for time in range(TIMES):
        stream = numpy_stream(rows.seed, "attack", "labels", time)
        sides = [np.flatnonzero(y == side) for side in (True, False)]
        known = np.concatenate([stream.choice(some, min(KNOWN, len(some) // 2), replace=False) for some in sides])
        rest = np.setdiff1d(np.arange(len(y)), known)
        for name in names[1:]:
            out[name].append(measured(RULES[name](rounds, y, train, known)[rest], y[rest]))
    return {name: float(np.mean(some)) for name, some in out.items()}


def cases(how: SecureBoost) -> dict[str, SecureBoost]:
    """Return the settings to compare, by name: this run's first, then each mode without and with ``complete_secure``."""
    found = {named(how): how}
    for mode in MODES:
        depth = (how.passive_depth or min(PASSIVE_DEPTH, how.depth)) if mode == "layered" else 0
        for first in (0, 1):
            one = how._replace(mode=mode, passive_depth=depth, complete_secure=first)
            found[named(one)] = one
    return found


def named(how: SecureBoost) -> str:
    """Return the settings that decide what others are told."""
    levels = f", passive_depth = {how.passive_depth}" if how.mode == "layered" else ""
    goss = "" if how.goss is None else f", goss = [{how.goss[0]:g}, {how.goss[1]:g}]"
    return f"{how.mode}{levels}{f', complete_secure = {how.complete_secure}' if how.complete_secure else ''}{goss}"


ATTACK = LabelAttack(
    cases=cases,
    measure=told_labels,
    rounds=TREES,
    rules={
        "first tree": "ranks rows by the share of the class at their node of the first tree of which the party is told rows, drawn rows "
        "and others apart; the shares are the true ones, so this is a bound",
        "rows": f"knows the labels of {2 * KNOWN} rows, and ranks the others by how often they are at a node with each kind of them",
        "draws": "counts in how many rounds a row was drawn, and takes from the known labels what many draws speak for",
        "both": "joins the two, node by node",
    },
)
