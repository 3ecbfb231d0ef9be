"""FedMA: layer by layer, the clients' units are matched, and only corresponding units are averaged.

====  ===========================================  =======  =====================================================
W_l   layer l of L, of the global model            pi_k     global unit of each of client k's units of a layer
w_kl  layer l of client k's local model            n_kc     rows of class c that client k holds
J     clients of the cohort                        E_re     ``retrain_epochs``, 0: as many as ``local.epochs``
====  ===========================================  =======  =====================================================

    every client: its sub-network of the global model -> local training -> w_k1
    l = 1 .. L-1:  pi_k of all clients from their units in w_kl (`matching`);  W_l: mean of the members of each global unit
                   client: W_l in place of its own; inputs of w_k,l+1 renamed by pi_k, zero for units it lacks; layers up to l
                   frozen, the others trained for E_re epochs -> w_k,l+1
    l = L:         W_L: row of class c = sum_k n_kc / (sum_j n_jc) times client k's

A unit's vector is its incoming weights and biases (convolution: its filter; LSTM: those of its four gates). Hidden-to-hidden weights are
renamed on both sides and averaged after matching. In the next round a client takes its own units of the new model, so that local work
keeps its size.

Source: Wang, Yurochkin, Sun, Papailiopoulos, Khazaeni, ICLR 2020, with communication. H13. Deviations: all clients begin at
one initial model; a client that missed the round before takes the units with most members; a row of hidden-to-hidden weights is
averaged over its unit's members, as its other weights are; gamma = 1, with which identical units always become one (the authors: 7);
counts and growth are not capped.

sigma2: variance of clients' units around their global unit, in squared weights.
sigma0_2: variance of global units around their prior mean, in squared weights.
gamma: readiness to add global units; up to 1, identical units always become one.
mu0_bias: prior mean mu0 of the biases of global units; that of their weights is 0.
sweeps: most times that each client is taken out and rematched after the first matching.
averaging: a global unit: the mean of its members, or that mean drawn towards the prior mean.
retrain_epochs: E_re, epochs in which clients train the later layers after each one is matched; 0 = as in [local].
retrain_lr: learning rate of that training, in multiples of local.lr; unused with a single hidden layer.
last_lr: learning rate of the last layer's training, in multiples of local.lr.
last_epochs: epochs of the last layer's training; 0 = as retrain_epochs.
last_weight_decay: weight decay of the last layer's training; left out = local.weight_decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import (
    Algorithm,
    Answered,
    Ask,
    Batch,
    Card,
    Data,
    Demands,
    Facts,
    Finished,
    Local,
    Message,
    Models,
    Network,
    Question,
    Round,
    RoundGenerator,
    RoundMaker,
    Route,
    ServerFacts,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms.matching import Prior, matched
from fedatlas.grammar import Asks, Form
from fedatlas.layers import Layer, from_rows, parsed, picked, plain, put, rows, vectors, widened, width
from fedatlas.registry import Count, Positive, Rate
from fedatlas.rng import numpy_stream
from fedatlas.rounds import cast_like
from fedatlas.tree import Tensors, Tree

ASKS = Asks(
    (
        Form("train", "each"),
        Form("retrain", "each", most="layers"),
        Form("counts", "sum"),
        Form("last", "sum"),
        Form("train", "sum"),  # of a network without hidden layers
    )
)
IDLE = "algorithm.retrain_lr = {:g} is not used: after one hidden layer, only the last is retrained."

Averaging = Literal["mean", "map"]
Merge = Callable[[Layer, Mapping[int, Tree], np.random.Generator], tuple[Tree, dict[int, Tensor]]]
"""(layer, client -> its tensors, draws) -> the global layer, client -> global unit of each of its units."""


def fedma(
    *,
    sigma2: Positive = 1.0,
    sigma0_2: Positive = 1.0,
    gamma: Positive = 1.0,
    mu0_bias: Rate = 0.1,
    sweeps: Count = 5,
    averaging: Averaging = "mean",
    retrain_epochs: Count = 0,
    retrain_lr: Positive = 1.0,
    last_lr: Positive = 0.1,
    last_epochs: Count = 0,
    last_weight_decay: Rate | None = None,
) -> Algorithm:
    """Matches the units of clients' networks before averaging them, layer by layer: for networks trained apart."""

    def merge(layer: Layer, local: Mapping[int, Tree], rng: np.random.Generator) -> tuple[Tree, dict[int, Tensor]]:
        one = next(iter(local.values()))
        bias = {p.name: mu0_bias if one[p.name].dim() == 1 else 0.0 for p in layer.parts}
        mu0 = vectors({name: torch.full_like(x, bias[name]) for name, x in one.items()}, layer)[0]
        prior = Prior(sigma2, sigma0_2, gamma, mu0.double().numpy())
        found = matched([vectors(w, layer).double().numpy() for w in local.values()], prior, sweeps, rng)
        pi = {k: torch.from_numpy(names).to(torch.int32) for k, names in zip(local, found, strict=True)}
        ratio = sigma2 / sigma0_2 if averaging == "map" else 0.0
        return averaged(layer, local, pi, ratio, bias), pi

    epochs = retrain_epochs or None
    retrain = Task(later_layers, count_rows, loss_behind_frozen, finish=send_next, shows=("model",), reshapes=True)
    return Algorithm(
        "fedma",
        rounds=layer_by_layer(merge),
        asks=ASKS,
        tasks={
            "train": Task(start=own_units, survey=count_rows, finish=send_first, shows=("model",)),
            "retrain": retrain._replace(options=Local(epochs=epochs, lr_scale=retrain_lr)),
            "last": retrain._replace(
                options=Local(epochs=last_epochs or epochs, lr_scale=last_lr, weight_decay=last_weight_decay), shows=()
            ),
            "counts": Question(send_counts, tells_labels=True),
        },
        server_init=begin,
        client_init=lambda params, facts: {"layers": [], "model": Tree(), "pi": {}},
        broadcast=what_is_new,
        demands=Demands(layered=True),
        refuses={
            "compression": "a layer is matched by its weights, which are not a change of the model that the client received"
        },
        card=Card(
            "matching",
            keeps="the global model's hidden layers and which of their units are its own",
            leaves="the local model's hidden layers, which the server sees client by client; class counts and the last layer in "
            "sums (summed, not yet masked)",
            figures=growth,
            notices=partial(unused_rate, retrain_lr),
        ),
    )


# ------------------------------------------------------------------------------------------------ the server


def begin(models: Models, facts: ServerFacts) -> State:
    """Return the server's state with the initial model, of which nobody holds units yet.

    ``members``: number of members of each hidden unit; ``there``: clients of the last round.
    """
    layers, w = facts["chain"], models["global"]
    by_class = layers[-1].units == facts["classes"]  # otherwise a number, or one output for two classes
    return {
        "model": w,
        "layers": plain(layers),
        "members": {layer.name: torch.zeros(layer.units, dtype=torch.int32) for layer in layers[:-1]},
        "there": [],
        "classes": facts["classes"] if by_class else 0,
        "size": w.size(),
    }


def what_is_new(server: State, client_id: int) -> Message:
    """Return the message for a client: the last layer, if it took part in the last round.

    Other clients get the units with most members.
    """
    layers = parsed(server["layers"])
    if client_id in server["there"]:
        return {"last": tensors(server["model"], layers[-1])}
    most = {
        layer.name: server["members"][layer.name].argsort(descending=True, stable=True)[: layer.units].sort().values
        for layer in layers[:-1]
    }
    return {"model": picked(server["model"], layers, most), "layers": server["layers"]}


def layer_by_layer(merge: Merge) -> RoundMaker:
    """Return a RoundMaker with an exchange for each hidden layer, then sums of class counts and of the last layers.

    The last layers are summed by each client's share of a class.
    """

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        layers, who, what = parsed(server["layers"]), round.cohort, "train"
        told = {k: algorithm.broadcast(server, k) for k in who}
        model, members = Tree(), {}
        for at, layer in enumerate(layers[:-1]):
            again = Route(visits=dict.fromkeys(who, at))
            replies = yield Ask(who, what, told, "each", budgets=round.budgets, route=again)
            if not replies.clients:
                return broken_off(server, who)
            local = {k: Tree(replies.each[k]["model"]) for k in replies.clients}
            W, mine = merge(layer, local, numpy_stream(round.seed, "matching", round.number, at))
            model, who, what = Tree({**model, **W}), replies.clients, "retrain"
            members[layer.name] = held_by(mine)
            told = {k: {"at": at, "W": W, "pi": mine[k]} for k in who}
        counts = yield Ask(who, "counts", {k: {"classes": server["classes"]} for k in who}, "sum")
        if counts.value is None:
            return broken_off(server, who if len(layers) > 1 else ())
        who, total = counts.clients, {"total": counts.value["counts"], "J": len(counts.clients)}
        again = Route(visits=dict.fromkeys(who, len(layers) - 1))
        told = {k: {**told[k], **total} for k in who}
        what = "last" if len(layers) > 1 else "train"
        replies = yield Ask(who, what, told, "sum", budgets=round.budgets, route=again)
        # The shares of the last layer add up to one over all clients that gave their counts.
        if replies.value is None or replies.clients != who:
            return broken_off(server, who if len(layers) > 1 else ())
        model = cast_like(Tree({**model, **replies.value["model"]}), server["model"])
        model = Tree({name: model[name] for name in server["model"]})
        return {**server, "model": model, "members": members, "there": list(replies.clients)}

    return rounds


def broken_off(server: State, begun: tuple[int, ...]) -> State:
    """Keep the model (C11); clients that may have begun hold half of a new one, and get all of it next time."""
    return {**server, "there": [k for k in server["there"] if k not in begun]}


def averaged(
    layer: Layer, local: Mapping[int, Tree], pi: Mapping[int, Tensor], ratio: float, mu0: Mapping[str, float]
) -> Tree:
    """Return the global layer: (sum of a unit's members + ratio mu0) / (members + ratio).

    ``ratio`` is sigma2 / sigma0_2, or 0 for the mean. Hidden-to-hidden weights, renamed on both sides, are not drawn to a prior.
    """
    n = held_by(pi)
    G, out = len(n), Tree()
    for part in layer.parts:
        own = part.own
        whole = {k: w[part.name] if own is None else put(w[part.name], own, pi[k], G) for k, w in local.items()}
        members = {k: rows(x.double(), part.units) for k, x in whole.items()}
        total = sum(torch.zeros(G, x.shape[1], dtype=x.dtype).index_add_(0, pi[k], x) for k, x in members.items())
        drawn = ratio if own is None else 0.0
        like = next(iter(whole.values()))
        mean: Tensor = (total + drawn * mu0[part.name]) / (n.double() + drawn)[:, None]
        out[part.name] = from_rows(mean, part.units, like).to(like.dtype)
    return out


def held_by(pi: Mapping[int, Tensor]) -> Tensor:
    """Return the number of members of each global unit."""
    return torch.bincount(torch.cat(list(pi.values()))).to(torch.int32)


def unused_rate(retrain_lr: float, server: State, facts: ServerFacts) -> list[str]:
    """Return a notice if the learning rate of retraining is not used."""
    return [IDLE.format(retrain_lr)] if retrain_lr != 1 and len(facts["chain"]) == 2 else []


def growth(server: State) -> Mapping[str, float]:
    """Return the size of the global model relative to the initial one, and the units of each hidden layer."""
    hidden = {f"units of {layer.name}": float(width(server["model"], layer)) for layer in parsed(server["layers"])[:-1]}
    return {"growth": server["model"].size() / server["size"], **hidden}


# ------------------------------------------------------------------------------------------------ a client


def tensors(w: Tensors, layer: Layer) -> Tree:
    """Return a layer's tensors."""
    return Tree({part.name: w[part.name] for part in layer.parts})


def own_units(message: Message, client: State, facts: Facts) -> Tree:
    """Return the sub-network that the server sent, or the client's own units of the model it helped to make."""
    if "model" in message:
        return Tree(message["model"])
    return picked({**client["model"], **message["last"]}, parsed(client["layers"]), client["pi"])


def send_first(w: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Send layer 1."""
    layers = message.get("layers", client["layers"])
    return sent(w, 0, parsed(layers), message, facts), {"layers": layers, "model": w, "pi": {}}


def later_layers(message: Message, client: State, facts: Facts) -> Tree:
    """Return the layers still trained: those after W_l, the first with its inputs renamed by pi_k."""
    layers, at = parsed(client["layers"]), message["at"]
    wide = width(message["W"], layers[at])
    after = widened(client["model"], layers[at + 1], message["pi"], wide)
    return Tree({**after, **{p.name: client["model"][p.name] for layer in layers[at + 2 :] for p in layer.parts}})


def loss_behind_frozen(
    model: Network, w: Tensors, batch: Batch, message: Message, client: State, facts: Facts
) -> Tensor:
    """Return the loss of the whole network; layers up to l are fixed and not among the parameters."""
    return model.loss({**client["model"], **message["W"], **w}, batch)


def send_next(w: Tree, work: Work, message: Message, client: State, facts: Facts) -> Finished:
    """Send layer l + 1."""
    layers, at = parsed(client["layers"]), message["at"]
    state = {
        "layers": client["layers"],
        "model": Tree({**client["model"], **message["W"], **w}),
        "pi": {**client["pi"], layers[at].name: message["pi"]},
    }
    return sent(w, at + 1, layers, message, facts), state


def sent(w: Tree, at: int, layers: tuple[Layer, ...], message: Message, facts: Facts) -> Update:
    """Return a layer to send: unchanged, or for the last one multiplied by the client's share of each class, to be summed."""
    mine = tensors(w, layers[at])
    if "total" not in message:
        return {"model": mine}
    total = message["total"]  # a class without rows: equal shares
    share = torch.where(total > 0, facts.survey["counts"] / total.clamp(min=1), 1 / message["J"])
    return {"model": mine.map(lambda x: x * share.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1)))}


def count_rows(model: Network, data: Data, message: Message, client: State) -> Mapping[str, Any]:
    """Return the rows of each class (of texts: symbols), or the rows, as float64, if the message asks for them."""
    classes = message.get("classes", len(message.get("total", ())))
    if "classes" not in message and "total" not in message:
        return {}
    if classes <= 1:
        return {"counts": torch.tensor([float(data.n)], dtype=torch.float64)}
    counts = torch.zeros(classes, dtype=torch.float64)
    for piece in data.pieces():
        y = piece.y.reshape(-1)
        counts += torch.bincount(y[y >= 0], minlength=classes).double()
    return {"counts": counts}


def send_counts(model: Network, data: Data, message: Message, client: State, session: Any) -> Answered:
    """Send the class counts, to be added to the others'."""
    return count_rows(model, data, message, client), client, session
