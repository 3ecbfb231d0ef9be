"""What goes wrong between clients and server, whatever the algorithm."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedatlas.algorithm import Algorithm, Ask, Coefficients, Round, RoundGenerator, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.rounds import messages
from invariants import buffers_are_the_mean_of_the_clients, one_seed_one_run, weights_are_shares_of_the_examples
from mutations import Mutation, oracle, with_fields, with_task

RIGHT = ALGORITHMS["fedavg"]
BATCH = 4  # the batch size of the test federation


def by_batches(round: Round) -> Coefficients:
    number = {k: -(-round.sizes[k] // BATCH) for k in round.cohort}
    return {k: b / sum(number.values()) for k, b in number.items()}


def by_everybody(round: Round) -> Coefficients:
    return {k: round.sizes[k] / round.n for k in round.cohort}


def buffers_of_the_first(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    replies = yield Ask(round.cohort, "train", messages(algorithm, server, round.cohort), "each")
    p = algorithm.weigh(round)
    names = server["model"]
    mean = names.map(lambda x: 0 * x)
    for k in round.cohort:
        mean = mean + p[k] * replies.each[k]["model"]
    first = replies.each[round.cohort[0]]
    return {**server, "model": mean, **({"buffers": first["buffers"]} if "buffers" in first else {})}


def only_torch_is_seeded(patch: pytest.MonkeyPatch) -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("fedatlas.") and hasattr(module, "numpy_stream"):
            patch.setattr(module, "numpy_stream", lambda *key: np.random.default_rng())


MUTATIONS = [
    Mutation(
        "fedavg",
        "weights counted in batches instead of examples",
        with_fields(RIGHT, weigh=by_batches),
        (oracle("fedavg"), weights_are_shares_of_the_examples),
    ),
    Mutation(
        "fedavg",
        "weights divided by all clients' examples, as two seeds print it",
        with_fields(RIGHT, weigh=by_everybody),
        (oracle("fedavg"), weights_are_shares_of_the_examples),
    ),
    Mutation(
        "fedavg",
        "buffers of one client taken for all",
        with_fields(with_task(RIGHT, shows=("model",)), rounds=buffers_of_the_first),
        (buffers_are_the_mean_of_the_clients,),
    ),
    Mutation("fedavg", "only torch seeded", RIGHT, (one_seed_one_run,), only_torch_is_seeded),
]
