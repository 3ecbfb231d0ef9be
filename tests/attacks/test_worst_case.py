"""The forest of the worst-case attack gives sacroml's stored figures, and a player without the model wins only unfair games."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from fedatlas.attacks.forest import played_blind, sorted_probabilities, told_apart

STORED: dict[str, Any] = json.loads((Path(__file__).parents[1] / "support" / "sacroml.json").read_text())


@pytest.mark.parametrize("repetition", range(3))
def test_the_figures_are_those_of_sacroml(repetition: int):
    """tests/support/sacroml.json says which version, and by which call."""
    x = sorted_probabilities(np.array([*STORED["train"], *STORED["test"]]))
    member = np.arange(len(x)) < len(STORED["train"])
    given, asked = train_test_split(
        np.arange(len(x)), test_size=0.2, stratify=member, random_state=STORED["splits"][repetition]
    )
    score, want = told_apart(x[given], member[given], x[asked], 7), STORED["repetitions"][repetition]
    assert score == pytest.approx(want["member_prob"], abs=1e-9)
    assert roc_auc_score(member[asked], score) == pytest.approx(want["AUC"], abs=1e-8)
    guess, true = score > 0.5, member[asked]
    found, wrong = guess[true].mean(), guess[~true].mean()
    assert [found, wrong, found - wrong] == pytest.approx([want["TPR"], want["FPR"], want["Advantage"]], abs=1e-8)


def test_rows_of_one_kind_are_told_apart_from_nothing():
    x = np.zeros((40, 2))
    assert (told_apart(x, np.zeros(40, bool), x, 1) == 0).all()
    assert not played_blind(x, np.zeros(40, bool), 1).unfair


@pytest.mark.parametrize(("shift", "stretch", "unfair"), [(0.0, 1.0, False), (1.5, 1.0, True), (0.0, 3.0, True)])
def test_a_blind_player_finds_another_place_and_another_spread(shift: float, stretch: float, unfair: bool):
    """The second kind of difference shows to no linear classifier."""
    member = np.arange(400) % 2 == 0
    x = np.random.default_rng(1).normal(size=(400, 2, 4))
    x[member] = x[member] * stretch + shift
    assert played_blind(x, member, 1).unfair is unfair


@pytest.mark.slow
def test_fair_games_are_seldom_called_unfair():
    """Of 60 fair ones 0.1 are expected."""
    member = np.arange(120) % 2 == 0
    wrong = sum(
        played_blind(np.random.default_rng(seed).normal(size=(120, 5)), member, seed).unfair for seed in range(60)
    )
    assert wrong <= 2
