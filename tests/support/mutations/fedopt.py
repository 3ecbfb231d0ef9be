"""Bias correction that the paper's Algorithm 2 does not have, and one that begins a step late."""

from __future__ import annotations

from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from mutations import Mutation, oracle
from test_vectors import bias_correction_starts_at_one, fedadam_steps

RIGHT = ALGORITHMS["fedadam"]


def silent(**parameters: Any) -> Algorithm:
    return RIGHT(**{**parameters, "bias_correction": True})


def one_too_many(**parameters: Any) -> Algorithm:
    made = RIGHT(**parameters)
    return made._replace(server_init=lambda models, facts: {**made.server_init(models, facts), "t": 1})


MUTATIONS = [
    Mutation("fedadam", "silent bias correction", silent, (oracle("fedadam"), fedadam_steps)),
    Mutation(
        "fedadam",
        "bias correction with an exponent one too many",
        one_too_many,
        (oracle("fedadam", bias_correction=True), bias_correction_starts_at_one),
    ),
]
