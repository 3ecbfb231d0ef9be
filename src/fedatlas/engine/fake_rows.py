"""The work of an attacker that trains on pictures it has drawn, beside its own rows (A2)."""

from __future__ import annotations

import copy
from typing import Protocol

import torch
from torch import Tensor

from fedatlas.algorithm import State
from fedatlas.attacks.fake_class import FakeClass
from fedatlas.data.batches import Rows
from fedatlas.engine import optim
from fedatlas.engine.attackers import Attacker, Begun, Order, own_batches, pretended
from fedatlas.engine.gradient import gradient, with_grad
from fedatlas.engine.model import Network, copied
from fedatlas.tree import Tree


class OwnSteps(Protocol):
    """The parts of ``[local]`` that a step needs."""

    @property
    def optimizer(self) -> optim.Optimizer: ...
    @property
    def clip(self) -> float: ...


def reported(
    attacker: Attacker,
    order: Order,
    begun: Begun,
    state: State,
    params: Tree,
    stream: torch.Generator,
    network: Network,
    local: OwnSteps,
) -> tuple[Tree, State]:
    """Return the model that a malicious client claims to have reached (`pretended`), and what it keeps."""
    if attacker.fakes is None:
        return pretended(attacker, order, begun, params, stream, network), state
    return on_fakes(attacker.fakes, begun, state, local, stream, network)


def on_fakes(
    fakes: FakeClass, begun: Begun, state: State, local: OwnSteps, stream: torch.Generator, network: Network
) -> tuple[Tree, State]:
    """Return where training on the client's rows and drawn pictures ends, and the generator's new state.

    The generator is trained on the processor in float32.
    """
    told = copy.deepcopy(network.module).cpu().float().eval()
    told.load_state_dict({**told.state_dict(), **network.state_dict(begun.params, begun.buffers)})
    pictures, kept = fakes.drawn(told.requires_grad_(False), state, stream)
    params, buffers = begun.params, copied(begun.buffers)  # batch norm writes into them
    memory = optim.start(local.optimizer, params)
    network.module.train()
    for batch in own_batches(begun, with_fakes(begun.rows, pictures, fakes.label)):
        _, grads = gradient(network.loss, with_grad(params), batch._replace(extra={**buffers, **batch.extra}))
        grads = optim.clip(grads + begun.weight_decay * params, local.clip)
        params, memory = optim.step(local.optimizer, params, grads, memory, begun.lr)
    return Tree({name: w.detach() for name, w in params.items()}), kept


def with_fakes(rows: Rows, pictures: Tensor, label: int) -> Rows:
    """Return a client's rows and then the pictures, all of the class ``label``; they weigh 1."""
    n = len(pictures)
    weight = None if rows.weight is None else torch.cat([rows.weight, rows.weight.new_ones(n)])
    return Rows(torch.cat([rows.x, pictures.to(rows.x)]), torch.cat([rows.y, rows.y.new_full((n,), label)]), weight)
