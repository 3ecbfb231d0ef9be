"""Six of nine public SCAFFOLDs have one of these."""

from __future__ import annotations

from typing import Any

from fedatlas.algorithm import Facts, Message, Round, State, Update, Work
from fedatlas.algorithms import ALGORITHMS
from fedatlas.tree import Tree
from invariants import controls_learn, server_control_is_the_mean_of_the_clients
from mutations import Mutation, oracle, with_fields, with_task
from test_vectors import scaffold_reaches_the_optimum

RIGHT = ALGORITHMS["scaffold"]


def wrong_sign(g: Tree, y: Tree, message: Message, client: State, facts: Facts) -> Tree:
    return g - message["c"] + client["c_k"]


def never_stored(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
    return client


def by_cohort(round: Round) -> dict[str, Any]:
    return dict.fromkeys(("model", "c"), dict.fromkeys(round.cohort, 1 / round.m))


MUTATIONS = [
    Mutation(
        "scaffold",
        "control variates with the wrong sign",
        with_task(RIGHT, direction=wrong_sign),
        (oracle("scaffold"), scaffold_reaches_the_optimum),
    ),
    Mutation(
        "scaffold",
        "control variates initialised with the weights",
        with_fields(
            RIGHT,
            server_init=lambda models, facts: {"model": models["global"], "c": models["global"].clone()},
            client_init=lambda params, facts: {"c_k": params.clone()},
        ),
        (oracle("scaffold"), server_control_is_the_mean_of_the_clients),
    ),
    Mutation(
        "scaffold",
        "control variates never stored",
        with_task(RIGHT, settle=never_stored),
        (oracle("scaffold"), server_control_is_the_mean_of_the_clients, controls_learn),
    ),
    Mutation(
        "scaffold",
        "server control variate without |S|/N",
        with_fields(RIGHT, weigh=by_cohort),
        (oracle("scaffold"), server_control_is_the_mean_of_the_clients),
    ),
]
