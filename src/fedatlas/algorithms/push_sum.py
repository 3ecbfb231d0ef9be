"""Push-sum: nodes push shares of their model along arcs that need not go both ways (single-sided trust).

====  ======================================  ====  ================================================================
x_i   model of node i: z_i / u_i              A     share A_ij of what j pushes that goes to i; columns sum to one
z_i   sum of the shares of models it holds    eta   ``local.lr``
u_i   sum of the shares of weight, 1 at first  g_i   mean gradient of a batch of node i, at x_i
====  ======================================  ====  ================================================================

    z_i <- sum_j A_ij (z_j - eta g_j(x_j));   u_i <- sum_j A_ij u_j;   x_i = z_i / u_i

Every node pushes equal shares to itself and to all that hear it: it need not know the other nodes' hearers, nor answer those it
hears. Source: Kempe, Dobra, Gehrke, FOCS 2003 (the sums); He, Tan, Tang, Qiu, Liu 2019 (with gradient steps).
B20. The objective is (1/K) sum F_k. Deviations: local work may be longer than one step, its move takes
the place of -eta g; the share that would go to an absent node stays with its sender, so that the sums of z and u are kept.
Buffers are averaged as the models x are, with A_ij u_j / u_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedatlas.algorithm import (
    Algorithm,
    Card,
    Facts,
    Finished,
    Message,
    Mixing,
    Models,
    Round,
    ServerFacts,
    State,
    Task,
    Work,
)
from fedatlas.algorithms import graphs
from fedatlas.grammar import Asks, Form
from fedatlas.rounds import gossip
from fedatlas.tree import Tree


def push_sum(
    *,
    graph: Literal["directed_ring", "ring", "torus", "complete", "random", "given"] = "directed_ring",
    probability: graphs.Probability | None = None,
    arcs: graphs.Pairs | None = None,
) -> Algorithm:
    """Nodes average over one-way arcs without a server: for trust in one direction.

    z <- A (z - eta g), u <- A u, x = z / u: averages over one-way arcs without a server.

    graph: the arcs: 0 -> 1 -> ... -> 0 and 0 -> 2 ("directed_ring"), both ways along a closed line, on a closed grid
        or among all, at random, or as given by arcs.
    probability: of each arc of a random graph; left out = 2 ln K / K for K nodes.
    arcs: arcs of a given graph, [[from, to], ...]; nodes count from 0.
    """
    joined = graphs.graph_of(graph, True, probability, arcs)

    def server_init(models: Models, facts: ServerFacts) -> State:
        start = models["global"]
        return {"model": start, "nodes": {str(k): {"z": start, "u": 1.0} for k in range(int(facts["K"]))}}

    def broadcast(server: State, client_id: int) -> Message:
        held = server["nodes"][str(client_id)]
        return {**held, "model": held["z"] / held["u"]}

    def finish(y: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        return {"z": message["z"] + (y - message["model"]), "u": message["u"]}, client

    def mix(server: State, round: Round) -> Mixing:
        A = graphs.among(graphs.out_shares(graphs.hears(joined, round.K, round.seed)), round.cohort)
        u = {k: server["nodes"][str(k)]["u"] for k in round.cohort}
        after = {i: sum(a * u[j] for j, a in row.items()) for i, row in A.items()}
        return {
            i: {j: {"z": a, "u": a, "model": a * u[j] / after[i]} for j, a in row.items()} for i, row in A.items()
        }  # the buffers take their weights from those of "model"

    def describe(K: int, seed: int) -> Mapping[str, Any]:
        found = graphs.hears(joined, K, seed)
        return graphs.describe(joined, found, graphs.out_shares(found))

    return Algorithm(
        "push_sum",
        rounds=gossip(mix),
        asks=Asks((Form("train", "neighbours", via="peer", handed="self"),)),
        tasks={"train": Task(finish=finish)},
        server_init=server_init,
        broadcast=broadcast,
        personal=lambda message, client: Tree(message["model"]),
        serverless=True,
        card=Card(
            "decentralised",
            "decentralised, single-sided trust",
            keeps="its sums of shares of models and of weight",
            leaves="shares of the local model and of its weight, to the nodes that hear it",
            describe=describe,
        ),
    )
