"""When CFL splits a cluster: by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedatlas.algorithm import Replies, Round
from fedatlas.algorithms import clusters as shared
from fedatlas.algorithms.cfl import SplitRule, divided
from fedatlas.tree import Tree


@pytest.mark.parametrize(
    ("eps1", "eps2", "weights", "splits"),
    [
        (0.1, 2.0, "samples", True),
        (0.1, 2.0, "uniform", False),
        (0.04, 2.0, "samples", False),
        (0.1, 3.1, "samples", False),
    ],
)
def test_cfl_asks_for_a_weighted_mean_at_rest_and_one_client_on_the_move(
    eps1: float, eps2: float, weights: Any, splits: bool
) -> None:
    """Updates (3, 0), (-1, 0.2), (-1, -0.2) of 1, 2, 1 rows: the mean by rows has length 0.05, the plain one 1/3; the longest update 3,
    the mean length 1.68.
    """
    told = {"model": Tree({"w": torch.zeros(2)})}
    moves = {0: (3.0, 0.0), 1: (-1.0, 0.2), 2: (-1.0, -0.2)}
    each = {k: {"model": Tree({"w": torch.tensor(move)})} for k, move in moves.items()}
    server = {**shared.first_state([told["model"]]), "splits": [], "cluster": dict.fromkeys("012", "0")}
    drawn = Round(1, (0, 1, 2), 3, 4, {0: 1, 1: 2, 2: 1})
    replies = Replies((0, 1, 2), None, each)
    after = divided(server, "0", [0, 1, 2], replies, drawn, SplitRule(eps1, eps2, 0.0, "single", weights))
    assert len(after["clusters"]) == (2 if splits else 1)
    if splits:
        assert after["cluster"] == {"0": "0", "1": "1", "2": "1"}
