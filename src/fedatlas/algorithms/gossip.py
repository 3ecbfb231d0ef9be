"""Gossip (D-PSGD): no server; every node trains its own model and mixes it with its neighbours' (mutual trust).

===  =====================================  ====  ==================================================================
x_i  model of node i                        W     mixing matrix: symmetric, rows and columns sum to one
g_i  mean gradient of a batch of node i     eta   ``local.lr``
===  =====================================  ====  ==================================================================

    adapt_first:    x_i <- sum_j W_ij (x_j - eta g_j(x_j))
    combine_first:  x_i <- sum_j W_ij x_j - eta g_i(x_i)
    metropolis:     W_ij = 1 / (1 + max(deg i, deg j)) on edges, the rest of each row on the diagonal
    pairwise:       random disjoint pairs of neighbours per round, W = 1/2 within a pair, 1 without a partner

Source: Lian, Zhang, Zhang, Hsieh, Zhang, Liu, NeurIPS 2017 (its listing is ``combine_first``); pairs: Boyd, Ghosh,
Prabhakar, Shah, IEEE Transactions on Information Theory 2006. B19. The objective is (1/K) sum F_k.
Deviations: local work may be longer than the paper's one step (its move takes the place of -eta g); the weight that would
go to an absent node stays with its sender, so that W stays doubly stochastic; where Boyd et al. wake one pair at a
time, a round wakes as many disjoint pairs as a random order of the edges allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Card,
    Data,
    Facts,
    Finished,
    Message,
    Mixing,
    Models,
    Network,
    Question,
    Round,
    ServerFacts,
    State,
    Task,
    Work,
)
from fedatlas.algorithms import graphs
from fedatlas.grammar import Asks, Form
from fedatlas.rng import numpy_stream
from fedatlas.rounds import gossip as gossip_rounds
from fedatlas.tree import Tree

CARD = Card(
    "decentralised",
    "decentralised, mutual trust",
    keeps="its own model",
    leaves="the local model, to neighbours only",
)
MEAN_OF = 200  # rounds over which the mean of random mixing matrices is described


def gossip(
    *,
    graph: Literal["ring", "torus", "complete", "random", "given"] = "ring",
    probability: graphs.Probability | None = None,
    edges: graphs.Pairs | None = None,
    mixing: Literal["metropolis", "pairwise"] = "metropolis",
    order: Literal["adapt_first", "combine_first"] = "adapt_first",
) -> Algorithm:
    """Neighbours in a graph average their models without a server: for parties that trust each other both ways.

    x_i <- sum_j W_ij (x_j - eta g_j): neighbours average without a server.

    graph: the neighbours: along a closed line, on a closed grid, all, at random, or as given by edges.
    probability: of each edge of a random graph; left out = 2 ln K / K for K nodes.
    edges: pairs of neighbours of a given graph, [[0, 1], [1, 2], ...]; nodes count from 0.
    mixing: W: with all neighbours, weighted by the nodes' numbers of neighbours, or in random disjoint pairs.
    order: nodes train and then mix, or mix their old models and add the change by training.
    """
    joined = graphs.graph_of(graph, False, probability, edges)

    def matrix(K: int, seed: int, number: int, present: tuple[int, ...]) -> graphs.Matrix:
        found = graphs.hears(joined, K, seed)
        if mixing == "metropolis":
            return graphs.metropolis(found)
        return graphs.matching(found, present, numpy_stream(seed, "gossip", number))

    def mix(server: State, round: Round) -> Mixing:
        return graphs.among(matrix(round.K, round.seed, round.number, round.cohort), round.cohort)

    def describe(K: int, seed: int) -> Mapping[str, Any]:
        found = graphs.hears(joined, K, seed)
        if mixing == "metropolis":
            return graphs.describe(joined, found, graphs.metropolis(found))
        drawn = [matrix(K, seed, number, tuple(range(K))) for number in range(1, MEAN_OF + 1)]
        sent = float(np.mean([np.count_nonzero(W) - K for W in drawn]))
        return {**graphs.describe(joined, found, np.mean(drawn, axis=0)), "messages": sent}

    def share(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
        return {"mixed": message["model"], **{k: x for k, x in message.items() if k == "buffers"}}, client, session

    def add_to_mix(y: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        return {"model": message["mixed"] + (y - message["model"])}, client

    first = order == "combine_first"
    heard = tuple(Form(what, "neighbours", via="peer", handed="self") for what in ("share", "train"))
    own: dict[str, Task | Question] = {"share": Question(share), "train": Task(finish=add_to_mix)}
    return Algorithm(
        "gossip",
        rounds=gossip_rounds(mix, share=first),
        asks=Asks(heard if first else heard[1:]),
        tasks=own if first else {"train": Task()},
        server_init=nodes_alike,
        broadcast=lambda server, client_id: server["nodes"][str(client_id)],
        personal=lambda message, client: Tree(message["model"]),
        serverless=True,
        card=CARD._replace(describe=describe),
    )


def nodes_alike(models: Models, facts: ServerFacts) -> State:
    """Return the server's state in which every node begins with the same model."""
    start = models["global"]
    return {"model": start, "nodes": {str(k): {"model": start} for k in range(int(facts["K"]))}}
