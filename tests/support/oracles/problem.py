"""The small non-convex problem that all oracles are run on: a 4-6-3 tanh network with cross entropy, in float64.

A model is a vector of its 51 numbers, in the order of ``start``; `Problem.named` gives it back as named tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

Named = dict[str, Tensor]
Rows = tuple[Tensor, Tensor]

EVERYBODY = -1
"""The party that holds all rows, those of client 0 first; it shuffles with the streams of client 0."""


class Problem(NamedTuple):
    """A federation: who holds what, who takes part when, in which order rows come, and how a local step is made."""

    start: Named  # initial parameters: hidden.weight (6, 4), hidden.bias (6,), head.weight (3, 6), head.bias (3,)
    clients: dict[int, Rows]  # client -> x (n_k, 4), y (n_k,)
    cohorts: list[tuple[int, ...]]  # those who take part in rounds 1, 2, ...
    order: Callable[[int, int, int, int], list[Tensor]]  # (rows, round, client, epoch from 0) -> the rows of each batch
    epochs: int
    lr: float
    weight_decay: float
    momentum: float
    groups: tuple[tuple[int, ...], ...] = ()  # clients that are drawn as one, where the algorithm groups them
    chain: Callable[[int, int, tuple[int, ...], int], list[int]] | None = None  # (round, group, members, pass) -> order

    further: tuple[Tensor, ...] = ()  # more initial models, where the algorithm begins with several
    stream: Callable[..., np.random.Generator] = np.random.default_rng  # (purpose, ...) -> the run's draws
    public: Rows | None = None  # what everybody may see
    shuffled: Callable[[int, int, int, int, int], list[Tensor]] | None = None  # (rows, batch size, round, party, epoch)
    drawn: Callable[[int, int], Tensor] | None = None  # (round, how many) -> this round's public rows
    rarest: Callable[[int, int], Tensor] | None = None  # (round, client) -> as many rows of each class as of its rarest
    aside: Callable[[int, float], Tensor] | None = None  # (round, share) -> public rows that the server judges by
    kinds: Mapping[str, Named] = {}  # initial parameters by architecture, where clients' models differ in their width
    owner: Mapping[int, str] = {}  # client -> its architecture
    work: Mapping[tuple[int, int], int] = {}  # (round, client) -> epochs, where a straggler makes fewer
    decay: float = 1.0  # of the rate, from round to round

    def of(self, client: int) -> Problem:
        """The problem with the network that a client has."""
        return self._replace(start=self.kinds[self.owner[client]]) if self.kinds else self

    @property
    def w0(self) -> Tensor:
        """The initial model as a vector."""
        return torch.cat([x.reshape(-1) for x in self.start.values()])

    @property
    def n(self) -> dict[int, int]:
        """Rows of each client."""
        return {k: len(y) for k, (_, y) in self.clients.items()}

    def epochs_of(self, number: int, client: int) -> int:
        """Epochs of a client's local work in round ``number``."""
        return self.work.get((number, client), self.epochs)

    def rate(self, number: int) -> float:
        """The learning rate of round ``number``; before round 1 it is that of round 1."""
        return self.lr * self.decay ** max(number - 1, 0)

    def rounds(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(number from 1, cohort) of every round."""
        return enumerate(self.cohorts, start=1)

    def rows(self, client: int) -> Rows:
        """A client's rows, or everybody's."""
        held = [self.clients[k] for k in sorted(self.clients)] if client == EVERYBODY else [self.clients[client]]
        return torch.cat([x for x, _ in held]), torch.cat([y for _, y in held])

    def batches(self, number: int, client: int, epochs: int | None = None, first: int = 0) -> Iterator[Rows]:
        """The batches of a client's local work in round ``number``, all its epochs; work in pieces goes on from epoch ``first``."""
        x, y = self.rows(client)
        epochs = self.epochs_of(number, client) if epochs is None else epochs
        for epoch in range(first, first + epochs):
            for batch in self.order(len(x), number, client, epoch):
                yield x[batch], y[batch]

    def named(self, w: Tensor) -> Named:
        """A vector as named tensors."""
        parts = w.split([x.numel() for x in self.start.values()])
        return {name: part.reshape(x.shape) for (name, x), part in zip(self.start.items(), parts, strict=True)}

    def features(self, w: Tensor, x: Tensor) -> Tensor:
        """What the hidden layer makes of the rows, (n, 6)."""
        p = self.named(w)
        return torch.tanh(x @ p["hidden.weight"].T + p["hidden.bias"])

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """The network's outputs, (n, 3)."""
        p = self.named(w)
        return self.features(w, x) @ p["head.weight"].T + p["head.bias"]

    def loss(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross entropy over the rows."""
        logits = self.logits(w, x)
        return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()

    def gradient(self, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the loss at ``w``."""
        return gradient_of(lambda v: self.loss(v, x, y), w)


def gradient_of(f: Callable[[Tensor], Tensor], w: Tensor) -> Tensor:
    """Gradient of any scalar function of a vector, by autograd."""
    leaf = w.detach().clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]
