"""Round generators, which decide the asks of a round and their order. They do no I/O; `federation.server` drives them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Message,
    Mixing,
    Replies,
    Round,
    RoundGenerator,
    RoundMaker,
    Route,
    State,
    Update,
    Weights,
)
from fedatlas.errors import ProtocolError
from fedatlas.rng import numpy_stream
from fedatlas.tree import Tensors, Tree


def federated(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """Play one round of the FedAvg family: broadcast, local work, weighted mean over those who returned, server step.

    If nobody returns, the round changes nothing (C11). Buffers go down with the message, come back averaged
    by the weights of the models (integers: the maximum) and skip the server step (C9).
    """
    replies = yield Ask(
        round.cohort,
        "train",
        messages(algorithm, server, round.cohort),
        "mean",
        weights_of(algorithm, round),
        round.budgets,
    )
    return updated(algorithm, server, replies, returned(round, replies))


def updated(algorithm: Algorithm, server: State, replies: Replies, round: Round) -> State:
    """Return the server after its step on a mean, with averaged buffers; unchanged without replies.

    Tensors keep the precision that they had in ``server``.
    """
    if replies.value is None:
        return server
    after = algorithm.server_update(server, replies.value, round)
    if "buffers" in replies.value:
        after = {**after, "buffers": replies.value["buffers"]}
    cast: State = cast_like(after, server)
    return cast


class Chain(NamedTuple):
    """Work of a superclient in a round: its clients in the order in which the model visits them."""

    unit: int
    order: tuple[int, ...]  # a client is listed once per pass
    examples: int = 0  # examples of the members that took part, once they are known


Relay = Generator[Ask, Replies, tuple[list[Chain], dict[str, Any]]]


def chained(passes: int = 1, *, anchored: bool = False) -> RoundMaker:
    """Return a RoundMaker in which the model passes along each superclient, and their final models are averaged (G8).

    The algorithm's ``weigh`` and ``server_update`` see a superclient as a client: the cohort, the sizes and K count
    superclients. ``anchored``: the message's model stays the server's, and the one passed on is ``message["start"]``.
    """

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        starts = {unit.number: {"model": server["model"]} for unit in round.units}
        chains, last = yield from relay(algorithm, server, round, starts, passes, anchored=anchored)
        over = of_chains(round, chains)
        unit_of = {chain.order[-1]: chain.unit for chain in chains}

        def weights(answered: tuple[int, ...]) -> Weights:
            by_unit = algorithm.weigh(over._replace(cohort=tuple(unit_of[k] for k in answered)))
            parts = {name: share for name, share in by_unit.items() if isinstance(share, Mapping)}
            if parts:
                return {str(name): {k: share[unit_of[k]] for k in answered} for name, share in parts.items()}
            return {k: by_unit[unit_of[k]] for k in answered}  # type: ignore[index, return-value]

        replies = yield Ask(tuple(unit_of), "train", weights=weights, **last)
        there = tuple(sorted(unit_of[k] for k in replies.clients))
        return updated(algorithm, server, replies, over._replace(cohort=there))

    return rounds


def of_chains(round: Round, chains: list[Chain]) -> Round:
    """Return the round with superclients in place of clients."""
    sizes = {chain.unit: chain.examples for chain in chains}
    return round._replace(cohort=tuple(sorted(sizes)), sizes=sizes, K=round.groups)


def relay(
    algorithm: Algorithm,
    server: State,
    round: Round,
    starts: Mapping[int, Update],
    passes: int,
    *,
    anchored: bool = False,
) -> Relay:
    """Pass the models of ``starts`` (by superclient) along all chains at once, up to the last client of each.

    Return the chains and the fields of the remaining ask; the caller decides its reduction. Shorter chains begin
    later, so that all end in the same ask. A client that leaves on the way is skipped, and its examples do not count. The
    parts that a client sends besides its model reach the next client in ``message["handed"]``, as `Algorithm.hand_on`
    defines; ProtocolError if the algorithm does not define it.
    """
    chains = [chain_of(round, number, members, passes) for number, members in sorted(round.units) if members]
    longest = max((len(chain.order) for chain in chains), default=0)
    given = {chain.unit: handed(algorithm, starts[chain.unit]) for chain in chains}
    there = {chain.unit: {chain.order[-1]} for chain in chains}  # clients that took part, if the last one does
    holder: dict[int, int] = {}  # superclient -> the client that held its model last
    fields: dict[str, Any] = {"messages": {}}
    for hop in range(longest):
        seats, messages, visits, sender, anchors = dict[int, int](), {}, {}, {}, {}
        for unit, order, _ in chains:
            at = hop - (longest - len(order))
            if at < 0:
                continue
            k, (model, buffers, rest) = order[at], given[unit]
            told = {**algorithm.broadcast(server, k), "start" if anchored else "model": model, **rest}
            buffers = buffers or server.get("buffers")
            messages[k] = {**told, "buffers": buffers} if buffers else told
            seats[k], visits[k] = unit, at // (len(order) // passes)
            if unit in holder:
                sender[k], anchors[k] = holder[unit], Tree(starts[unit]["model"])
        route = Route(sender, visits=visits, seats=seats, anchors=anchors)
        fields = {"messages": messages, "budgets": round.budgets, "route": route}
        if hop < longest - 1:
            onwards = {**fields, "route": route._replace(via="peer")}
            replies = yield Ask(tuple(seats), "train", reduce="each", **onwards)
            given |= {seats[k]: handed(algorithm, got) for k, got in replies.each.items()}
            holder |= {seats[k]: k for k in replies.each}
            for k in replies.each:
                there[seats[k]].add(k)
    return [chain._replace(examples=sum(round.sizes[k] for k in there[chain.unit])) for chain in chains], fields


def handed(algorithm: Algorithm, update: Update) -> tuple[Tree, Any, Message]:
    """Return what is passed from client to client: the model, its buffers, and the other parts as message fields."""
    rest = {name: part for name, part in update.items() if name not in {"model", "buffers"}}
    if "model" not in update or (rest and algorithm.hand_on is None):
        sent = ", ".join(f"'{name}'" for name in update if name != "buffers") or "nothing"
        raise ProtocolError(
            f"the clients of a chain of '{algorithm.name}' send {sent}, but a chain passes on one model: define in `hand_on` "
            "what becomes of the other parts, or say in `refuses['chain']` why the algorithm cannot be used in a chain."
        )
    return update["model"], update.get("buffers"), {"handed": rest} if rest else {}


def chain_of(round: Round, number: int, members: tuple[int, ...], passes: int) -> Chain:
    """Return a superclient's members, in a fresh order for every pass."""
    streams = (numpy_stream(round.seed, "chain", round.number, number, turn) for turn in range(passes))
    order = tuple(int(k) for stream in streams for k in stream.permutation(members))
    return Chain(number, order)


def gossip(mixing: Callable[[State, Round], Mixing], share: bool = False) -> RoundMaker:
    """Return a RoundMaker without a server: each node works from its own state, then keeps the mix of what it hears.

        node_i <- sum_j W_ij update_j,      W = ``mixing(server, round)`` among the round's cohort

    ``server["nodes"]`` holds the state of every node by its number; only a simulation sees all of them.
    ``server["model"]`` is the uniform mean of the models that the nodes would use (C1), only for evaluation.
    ``broadcast`` sends a node its own state. Absent nodes keep theirs. With ``share``, the nodes exchange
    before they work (task "share"): "train" receives what they heard, and its result stays at the node.
    Buffers are mixed like the models (C9); with ``share``, before the work.
    """

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        before = with_buffers(server)
        mix: Callable[[tuple[int, ...]], Mixing] = lambda who: mixing(before, round._replace(cohort=who))  # noqa: E731
        told = {k: algorithm.broadcast(before, k) for k in round.cohort}
        who = round.cohort
        if share:
            shared = yield Ask(who, "share", told, "neighbours", mixing=mix, **own(who))
            who, mix = shared.clients, unmixed
            told = {
                k: {**told[k], **cast_like(dict(shared.each[k]), {"mixed": told[k]["model"], **told[k]})} for k in who
            }
        replies = yield Ask(who, "train", told, "neighbours", budgets=round.budgets, mixing=mix, **own(who))
        if not replies.clients:
            return server
        mixed = {str(k): update for k, update in replies.each.items()}
        held = {k: {**state, **cast_like(mixed.get(k, {}), state)} for k, state in before["nodes"].items()}
        return with_means(algorithm, {**before, "nodes": held})

    return rounds


def own(nodes: tuple[int, ...]) -> dict[str, Any]:
    """Return the fields of an ask whose messages are the nodes' own states."""
    return {"route": Route({k: k for k in nodes}, "peer")}


def unmixed(answered: tuple[int, ...]) -> Mixing:
    """Return the mixing in which every node keeps its own state."""
    return {k: {k: 1.0} for k in answered}


def with_buffers(server: State) -> State:
    """Return the server with separate buffers for every node, if the model has any; at first all are equal."""
    if not server.get("buffers"):
        return server
    nodes = {k: {"buffers": server["buffers"], **state} for k, state in server["nodes"].items()}
    return {**server, "nodes": nodes}


def with_means(algorithm: Algorithm, server: State) -> State:
    """Return the server with model and buffers as uniform means over all nodes, in their order."""
    told = [algorithm.broadcast(server, int(k)) for k in server["nodes"]]
    assert algorithm.personal is not None
    out = {**server, "model": mean_of([algorithm.personal(message, {}) for message in told], server["model"])}
    if server.get("buffers"):
        out["buffers"] = mean_of([message["buffers"] for message in told], server["buffers"])
    return out


def mean_of(trees: Iterable[Tensors], like: Tree) -> Tree:
    """Return the uniform mean, computed in float64, in the precision of ``like``; integers: the maximum (C8, C9)."""
    trees = list(trees)
    total = {name: x.double() if x.is_floating_point() else x for name, x in trees[0].items()}
    for tree in trees[1:]:
        for name, x in tree.items():
            total[name] = total[name] + x.double() if x.is_floating_point() else torch.maximum(total[name], x)
    return Tree({name: (x / len(trees)).to(like[name]) if x.is_floating_point() else x for name, x in total.items()})


def messages(algorithm: Algorithm, server: State, cohort: tuple[int, ...]) -> dict[int, Message]:
    """Return the broadcast for each client, with the model's buffers if it has any."""
    buffers = {"buffers": server["buffers"]} if server.get("buffers") else {}
    return {k: {**algorithm.broadcast(server, k), **buffers} for k in cohort}


def weights_of(algorithm: Algorithm, round: Round) -> Callable[[tuple[int, ...]], Weights]:
    """Return the algorithm's weights as a function of the clients that answered."""
    return lambda answered: algorithm.weigh(round._replace(cohort=answered))


def returned(round: Round, replies: Replies) -> Round:
    """Return the round with only the clients that answered as its cohort."""
    return round._replace(cohort=replies.clients)


def cast_like(value: Any, like: Any) -> Any:
    """Return ``value`` with floating tensors in the precision that they have in ``like`` (means arrive in float64)."""
    if isinstance(value, Tensor):
        return value.to(like.dtype) if isinstance(like, Tensor) and value.dtype != like.dtype else value
    if isinstance(value, dict):
        like = like if isinstance(like, dict) else {}
        cast = {key: cast_like(x, like.get(key)) for key, x in value.items()}
        return Tree(cast) if isinstance(value, Tree) else cast
    return value
