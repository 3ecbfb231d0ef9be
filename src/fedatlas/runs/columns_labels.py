"""Labels that parties without them guess from a run's row sets: measured in simulations, in the clear.

The scheme's first rounds are trained again under each of the settings that it names, and every letter of a party is
kept. The scheme ranks the training rows by what such a party can make of its letters (`LabelAttack`). Under encryption
the rows at nodes are the same, so these figures hold for encrypted runs. If labels have noise, the guesses are compared with
the labels as they are, and the run's settings are tried without the noise, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.algorithm import Update
from fedatlas.federation.link import Observer, Request
from fedatlas.runs.columns_baselines import drive, finished, opened, unnoised
from fedatlas.setup.checked import Checked
from fedatlas.vertical.letters import LETTERS, Letter
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import Floats, aligned, order, places, true_labels
from fedatlas.vertical.scheme import How, KnownRows, LabelAttack, Scheme

WITHOUT_NOISE = ", labels without noise"


class LettersHeard(Observer):
    """The letters that each party received and sent, in their order."""

    def __init__(self) -> None:
        self.letters: dict[int, list[Letter]] = {}

    def asked(self, request: Request) -> None:
        """Keep the letters that a party is brought."""
        self._keep(request.client, request.message)

    def replied(self, request: Request, update: Update) -> None:
        """Keep the letters that a party sends."""
        self._keep(request.client, update)

    def _keep(self, party: int, message: Mapping[str, Any]) -> None:
        self.letters.setdefault(party, []).extend(message.get(LETTERS, ()))


def labels_told(path: Path, whole: Checked, said: Callable[[str], None]) -> dict[str, Any] | None:
    """Return ``labels_told`` of the summary; None if the scheme has no attack.

    By settings and party: the AUC of each rule.
    """
    scheme = whole.of_columns()
    if (attack := scheme.attack) is None:
        return None
    done = finished(path, whole)
    own, state = aligned(true_labels(done.active), done.state), done.state
    train, rounds = places(state, "train"), min(done.rounds, attack.rounds)
    assert own.y is not None
    rows = KnownRows(len(order(state)), train, own.y[train], done.active.task, done.active.seed)
    said(f"What the first {rounds} {scheme.words.product(done.active.classes)}s tell of labels ...")
    tried = [(name, how, done.side) for name, how in attack.cases(whole.how).items()]
    if done.noised:
        name, how, side = tried[0]
        tried.insert(1, (f"{name}{WITHOUT_NOISE}", how, unnoised(side)))
    measured = [_measured(side, scheme, attack, how, rounds, rows) for _, how, side in tried]
    return {
        "rounds": rounds,
        "classes": _smaller_and_rest(rows.y) if rows.task == "classes" else [],
        "rules": dict(attack.rules),
        "cases": [{"case": name, "auc": one} for (name, *_), one in zip(tried, measured, strict=True)],
    }


def _smaller_and_rest(y: Floats) -> list[int]:
    """Return how many rows the smallest class has, and how many the others: an AUC by chance spreads most between these."""
    held = np.unique(y, return_counts=True)[1]
    return [int(held.min()), int(held.sum() - held.min())]


def _measured(
    side: Side, scheme: Scheme, attack: LabelAttack, how: How, rounds: int, rows: KnownRows
) -> dict[str, dict[str, float]]:
    """Return the AUC of each rule by party without the label, under these settings."""
    heard, how, active = LettersHeard(), scheme.clear(how), side.parties[0].active
    federation, server, _ = opened(side, scheme, how, "labels", [heard])
    for number in range(1, rounds + 1):
        server = drive(federation, partial(scheme.step, how, server, number), number)
    federation.close()
    passive = [one for one in side.parties if one.party != active]
    return {one.name: dict(attack.measure(how, one.party, heard.letters.get(one.party, ()), rows)) for one in passive}
