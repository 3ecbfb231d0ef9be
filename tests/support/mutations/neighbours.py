"""Faults where there is no server, and where models go from client to client."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedatlas import rounds
from fedatlas.algorithm import Message, Round, State
from fedatlas.algorithms import ALGORITHMS, graphs
from fedatlas.rounds import Chain
from mutations import Mutation, oracle, patched, with_fields

WEB: dict[str, Any] = {"graph": "given", "edges": [[0, 1], [0, 2], [0, 3], [0, 4], [1, 2]]}
CHAIN, OVER = rounds.chain_of, rounds.of_chains


def by_each_ones_own_neighbours(found: Any) -> Any:
    """Rows sum to one, columns do not: nodes with many neighbours are heard too much."""
    heard = found | np.eye(len(found), dtype=bool)
    return heard / heard.sum(axis=1, keepdims=True)


def without_itself(found: Any) -> Any:
    heard = found.astype(float)
    return heard / heard.sum(axis=1, keepdims=True)


def never_divided(server: State, client_id: int) -> Message:
    held = server["nodes"][str(client_id)]
    return {**held, "model": held["z"]}


def in_the_order_of_numbers(round: Round, number: int, members: tuple[int, ...], passes: int) -> Chain:
    return CHAIN(round, number, members, passes)._replace(order=tuple(sorted(members)) * passes)


def counting_clients(round: Round, chains: list[Chain]) -> Round:
    return OVER(round, [chain._replace(examples=len(set(chain.order))) for chain in chains])


MUTATIONS = [
    Mutation(
        "gossip",
        "weights by each node's own neighbours alone",
        ALGORITHMS["gossip"],
        (oracle("gossip", **WEB),),
        patched(graphs, "metropolis", by_each_ones_own_neighbours),
    ),
    Mutation(
        "gossip",
        "a node does not hear itself",
        ALGORITHMS["gossip"],
        (oracle("gossip"),),
        patched(graphs, "metropolis", without_itself),
    ),
    Mutation(
        "push_sum",
        "sums never divided by their weight",
        with_fields(ALGORITHMS["push_sum"], broadcast=never_divided),
        (oracle("push_sum"),),
    ),
    Mutation(
        "push_sum",
        "shares by those heard instead of those told",
        ALGORITHMS["push_sum"],
        (oracle("push_sum"),),
        patched(graphs, "out_shares", by_each_ones_own_neighbours),
    ),
    Mutation(
        "fedseq",
        "chains always in the order of their numbers",
        ALGORITHMS["fedseq"],
        (oracle("fedseq", phi="random", group_size=3),),
        patched(rounds, "chain_of", in_the_order_of_numbers),
    ),
    Mutation(
        "fedseq",
        "superclients weighed by clients instead of examples",
        ALGORITHMS["fedseq"],
        (oracle("fedseq", phi="random"),),
        patched(rounds, "of_chains", counting_clients),
    ),
]
