"""Batch norm under any algorithm (``model.bn``): layers that stay with the client, or recalibrated statistics.

``local`` is FedBN (`fedbn.py`, with the same symbols) for another algorithm's rounds. Terms that an algorithm adds to the
gradient (proximal terms, control variates) leave these layers out, since they need not agree across clients.
``recalibrate`` keeps one global model and recomputes its running statistics after every round (B10, C9).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Batch,
    Data,
    Facts,
    Finished,
    Message,
    Network,
    Question,
    Round,
    RoundGenerator,
    State,
    Task,
    Update,
    Work,
    plain_loss,
)
from fedatlas.errors import ConfigError
from fedatlas.grammar import Form
from fedatlas.rounds import cast_like, federated
from fedatlas.tree import Tensors, Tree

MEAN, VAR, COUNT = "running_mean", "running_var", "positions"


def local_norms(algorithm: Algorithm) -> Algorithm:
    """Keep the batch-norm layers with the client (``model.bn = "local"``); ConfigError if the algorithm rules it out."""
    if any(task.stateful and task.objective is not plain_loss for task in trainings(algorithm)):
        raise ConfigError(
            f"model.bn = 'local': '{algorithm.name}' compares its outputs with those of the model it was sent, whose batch-norm "
            "layers would mix the average's weights with one client's statistics; use 'average' or 'recalibrate'."
        )
    begin, told, mine = algorithm.client_init, algorithm.broadcast, algorithm.personal

    def broadcast(server: State, client_id: int) -> Message:
        message = told(server, client_id)
        names = norms(message.get("model", {}), server.get("buffers", {}))
        return {**message, "norms": Tree({name: torch.empty(0) for name in names})} if names else message

    def personal(message: Message, client: State) -> Tree:
        seen = with_own(message, client)
        return Tree({**(Tree(seen["model"]) if mine is None else mine(seen, client)), **client["own"]})

    return algorithm._replace(
        tasks={
            name: kept(task) if isinstance(task, Task) and task.stateful else task
            for name, task in algorithm.tasks.items()
        },
        client_init=lambda params, facts: {**(begin(params, facts) if begin else {}), "own": Tree()},
        broadcast=broadcast,
        personal=personal,
        card=algorithm.card._replace(
            keeps="its batch-norm layers" if begin is None else f"{algorithm.card.keeps}; its batch-norm layers",
            leaves=f"{algorithm.card.leaves}; its batch-norm layers serve clients that are new",
        ),
    )


def trainings(algorithm: Algorithm) -> list[Task]:
    """List the algorithm's tasks that are trainings."""
    return [task for task in algorithm.tasks.values() if isinstance(task, Task)]


def has_own_norms(algorithm: Algorithm) -> bool:
    """Return whether batch-norm layers already stay with the clients."""
    return any(task.sealing.beside is norms_told for task in trainings(algorithm))


def norms_told(message: Message) -> Collection[str]:
    """Return `Sealing.beside` of a task whose batch-norm layers stay with the client."""
    names: Collection[str] = message.get("norms", ())
    return names


def norms(model: Tensors, buffers: Tensors) -> list[str]:
    """List the trainable tensors of the layers that keep running statistics."""
    layers = {name.removesuffix(MEAN) for name in buffers if name.endswith(MEAN)}
    return [name for name in model if name[: name.rfind(".") + 1] in layers]


def with_own(message: Message, client: State) -> Message:
    """Return the message with the client's batch-norm layers in its model."""
    own = client["own"]
    if not own or "model" not in message:
        return message
    return {**message, "model": Tree({name: own.get(name, x) for name, x in message["model"].items()})}


class OwnStatistics:
    """A client's rows, seen with the running statistics that it keeps, if any."""

    def __init__(self, data: Data, own: Tensors) -> None:
        self.data, self.own, self.n, self.classes = data, own, data.n, data.classes

    def pieces(self) -> Sequence[Batch]:
        """Return all rows in pieces, with the client's own buffers."""
        return [self._seen(batch) for batch in self.data.pieces()]

    def batches(self) -> Sequence[Batch]:
        """Return the training batches, with the client's own buffers."""
        return [self._seen(batch) for batch in self.data.batches()]

    def _seen(self, batch: Batch) -> Batch:
        return batch._replace(extra={name: self.own.get(name, x) for name, x in batch.extra.items()})


def kept(task: Task) -> Task:
    """Return a task whose model has the client's batch-norm layers, before and after."""
    survey, inner, settle = task.survey, task.direction, task.settle

    def start(message: Message, client: State, facts: Facts) -> Tree:
        return Tree({**task.start(with_own(message, client), client, facts), **client["own"]})

    def look(model: Network, data: Data, message: Message, client: State) -> Mapping[str, Any]:
        assert survey is not None
        return survey(model, OwnStatistics(data, client["own"]), with_own(message, client), client)

    def direction(g: Tree, w: Tree, message: Message, client: State, facts: Facts) -> Tree:
        assert inner is not None
        plain = message.get("norms", {})
        return Tree({name: g[name] if name in plain else x for name, x in inner(g, w, message, client, facts).items()})

    def finish(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
        update, state = task.finish(params, work, with_own(message, client), client, facts)
        own = {**{name: params[name] for name in message.get("norms", {}) if work.steps}, **facts.buffers}
        return update, {**state, "own": Tree(own) if own else client["own"]}

    def settled(seen: Update, work: Work, message: Message, client: State, facts: Facts) -> State:
        assert settle is not None
        return {**settle(seen, work, with_own(message, client), client, facts), "own": client["own"]}

    return task._replace(
        settle=settled if settle else None,
        start=start,
        survey=look if survey else None,
        direction=direction if inner else None,
        finish=finish,
        sealing=task.sealing._replace(beside=norms_told),
    )


# ---------------------------------------------------------------------- recalibrate


def recalibrated(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm with statistics recomputed after every round (``model.bn = "recalibrate"``).

    The cohort passes its rows through the new model in batches of up to 1,024. The running statistics become the mean and
    the variance (over n - 1) of all n positions, which are rows times the places of a convolution. Torch would keep the
    same after a pass over all rows with momentum 1, if no earlier layer has statistics. The server sees only sums.
    """
    rounds = algorithm.rounds or federated

    def then_look(made: Algorithm, server: State, round: Round) -> RoundGenerator:
        after = yield from rounds(made, server, round)
        buffers = after.get("buffers")
        if not round.cohort or not buffers:
            return after
        told: Message = {"model": after["model"], "buffers": buffers}
        replies = yield Ask(round.cohort, "statistics", dict.fromkeys(round.cohort, told), "sum")
        if replies.value is None:  # all clients have left: keep the statistics that the round averaged
            return after
        return {**after, "buffers": cast_like(Tree({**buffers, **pooled(replies.value["moments"])}), buffers)}

    look = Question(moments, passes=1.0)
    asks = algorithm.grammar
    asks = asks and asks._replace(round=(*asks.round, Form("statistics", "sum")))
    return algorithm._replace(rounds=then_look, tasks={**algorithm.tasks, "statistics": look}, asks=asks)


def pooled(sums: Tensors) -> dict[str, Tensor]:
    """Return mean and variance (over n - 1) of n positions, from the sums of x, x^2 and 1 over them."""
    found: dict[str, Tensor] = {}
    for layer in [name.removesuffix(COUNT) for name in sums if name.endswith(COUNT)]:
        n, mean = sums[layer + COUNT], sums[layer + MEAN] / sums[layer + COUNT]
        found |= {layer + MEAN: mean, layer + VAR: (sums[layer + VAR] - n * mean**2) / (n - 1)}
    return found


def moments(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Return the sums of x, x^2 and 1 over a client's positions, where x is the input of a layer with running statistics."""
    total, pieces = Tree(), data.pieces()
    for piece in [p for p in pieces if len(p.x) > 1 or len(pieces) == 1]:  # one row has no variance
        seen, positions = model.statistics(message["model"], piece)
        sums = Tree()
        for layer, n in positions.items():
            if layer + VAR in seen:
                mean, var = seen[layer + MEAN].double(), seen[layer + VAR].double()
                both = {layer + MEAN: n * mean, layer + VAR: (n - 1) * var + n * mean**2}
                sums = Tree({**sums, **both, layer + COUNT: torch.tensor([n], dtype=torch.float64)})
        total = total + sums if total else sums
    return {"moments": total}, client, session
