"""Networks in layers of units for FedMA's tests, and rounds in which every client's local model is given instead of trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.algorithm import Algorithm, Batch, State
from fedatlas.data.batches import Rows
from fedatlas.engine.job import Bench, Job, Result
from fedatlas.engine.loop import run_job
from fedatlas.layers import picked
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree
from federation import Federation, federation, play

Build = Callable[..., Algorithm]


class Dense(nn.Module):
    """Two hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Pictures(nn.Module):
    """Two convolutions, flattened into blocks of four pixels a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 5, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 6, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Texts(nn.Module):
    """Embedding, two LSTM layers, outputs at the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.lstm = nn.LSTM(4, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0][:, -1])


class Steps(nn.Module):
    """Embeddings of five steps, flattened one step after another."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(20, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.embedding(x))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {c.__name__.lower(): c for c in (Dense, Pictures, Texts, Steps)}
SHAPES: Mapping[str, tuple[int, ...]] = {"dense": (4,), "pictures": (1, 8, 8), "texts": (5,), "steps": (5,)}
CLASSES = {0: [0, 0, 0, 1], 1: [0, 1, 1], 2: [1, 1, 0, 0, 0]}  # of each client's rows; nobody holds class 2


def holdings(network: str) -> dict[int, Rows]:
    """Rows of three clients."""
    held = {}
    for k, y in CLASSES.items():
        stream, shape = torch_stream(0, "test", k), (len(y), *SHAPES[network])
        tokens = network in {"texts", "steps"}
        x = torch.randint(0, 11, shape, generator=stream) if tokens else torch.randn(shape, generator=stream).double()
        held[k] = Rows(x, torch.tensor(y))
    return held


def layerwise(build: Build, network: str, **parameters: Any) -> Federation:
    """Three clients with such a network."""
    return federation(build(**parameters), holdings(network), NETWORKS[network])


class Given:
    """An executor in which the local model of the first exchange is given and nobody learns (the rate is 0)."""

    def __init__(self, bench: Bench, local: Mapping[int, Tree]) -> None:
        self.bench, self.local = bench, local

    def run(self, jobs: Iterable[Job]) -> Iterator[Result]:
        for job in jobs:
            given = {**job.message, "model": self.local[job.client]} if job.what == "train" else job.message
            yield run_job(self.bench, job._replace(message=given))

    def close(self) -> None:
        pass


def matched(fed: Federation, local: Mapping[int, Tree]) -> tuple[State, dict[int, State]]:
    """The server and the clients after a round in which client k's local model is ``local[k]``."""
    server, host = play(fed, [tuple(local)], make=lambda bench: Given(bench, local), lr=0.0)
    return server, {k: host.states.get(k) or {} for k in local}


def shuffled(fed: Federation, client: int) -> tuple[Tree, dict[str, Tensor]]:
    """The initial model with its hidden units in another order, and which unit stands where."""
    stream = torch_stream(0, "shuffled", client)
    order = {layer.name: torch.randperm(layer.units, generator=stream) for layer in fed.bench.chain[:-1]}
    return picked(fed.params, fed.bench.chain, order), order


def outputs(fed: Federation, params: Mapping[str, Tensor]) -> Tensor:
    """What a model answers to client 0's rows."""
    rows = fed.held[0]
    return fed.bench.network.logits(params, Batch(rows.x, rows.y)).detach()


def copies_are_recovered(build: Build) -> None:
    """FedMA (H13): clients that hold one network with its units in other orders end with this network, and no unit more."""
    for network in NETWORKS:
        fed = layerwise(build, network, gamma=1e-3)
        copies = {k: shuffled(fed, k) for k in (1, 2)}
        server, clients = matched(fed, {0: fed.params, **{k: copy for k, (copy, _) in copies.items()}})
        assert all(server["model"][name].shape == x.shape for name, x in fed.params.items()), network
        for k, (_, order) in copies.items():
            for name, units in order.items():
                assert clients[k]["pi"][name].tolist() == units.tolist(), (network, name)
        assert float((outputs(fed, server["model"]) - outputs(fed, fed.params)).abs().max()) < 1e-12, network
