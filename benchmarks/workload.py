"""What every contestant trains on, and how a contestant is spoken to. Needs torch and numpy alone: peers use it, too."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

PACKAGES = ("torch", "numpy", "fedatlas", "flwr", "ray", "pfl")


class Workload(NamedTuple):
    """A federation of ``clients`` equal clients, ``cohort`` of which train for ``epochs`` in a round."""

    model: str
    batch: int
    data: str  # .npz: x, y, test_x, test_y, clients (rows of each client), and the initial parameters p0, p1, ...
    clients: int = 100
    cohort: int = 10
    epochs: int = 5
    lr: float = 0.01
    seed: int = 1


class Data:
    """MNIST as bytes, the rows of each client, and the model that every contestant starts from."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.x, self.y, self.test_x, self.test_y, self.clients = (
                torch.from_numpy(file[name]) for name in ("x", "y", "test_x", "test_y", "clients")
            )
            self.initial = [torch.from_numpy(file[f"p{i}"]) for i in range(len(file.files) - 5)]

    def client(self, k: int) -> tuple[Tensor, Tensor]:
        """Pictures (n, 1, 28, 28) in [0, 1] and labels (n,) of client ``k``."""
        rows = self.clients[k]
        return scaled(self.x[rows]), self.y[rows]


def scaled(x: Tensor) -> Tensor:
    """Bytes -> [0, 1]."""
    return x.float().div_(255)


def network(model: str, parameters: Sequence[Tensor] = ()) -> nn.Sequential:
    """MLP1 or CNN2 (M1, M4) as everyone writes them, with these parameters in their order."""
    if model == "mlp1":
        net = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    else:
        first = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        net = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))
    fill(net, parameters)
    return net


@torch.no_grad()
def fill(net: nn.Module, parameters: Iterable[Tensor]) -> None:
    """Writes ``parameters`` into a network, in the order of its own."""
    for own, given in zip(net.parameters(), parameters, strict=False):
        own.copy_(given)


class Contestant(Protocol):
    """Something that trains federations."""

    @property
    def note(self) -> str:
        """What it turned out to be, such as a plan."""

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        """One round of FedAvg, from the model that the last one left."""

    def parameters(self) -> list[Tensor]:
        """The global model, in the order of the data's; empty where there is none."""

    def close(self) -> None:
        """Ends what it started."""


class Unavailable(Exception):
    """The contestant cannot take part; the message says why."""


@torch.no_grad()
def judge(workload: Workload, parameters: Sequence[Tensor]) -> dict[str, float]:
    """Loss and accuracy on test rows: contestants that do the same work end alike."""
    if not parameters:
        return {}
    data, net = Data(workload.data), network(workload.model, parameters)
    logits = net(scaled(data.test_x))
    accuracy = (logits.argmax(1) == data.test_y).double().mean()
    return {"loss": float(F.cross_entropy(logits, data.test_y)), "accuracy": float(accuracy)}


def serve(make: Callable[[Workload], Contestant]) -> None:
    """A contestant's life: opens workloads and trains rounds as it is told through the pipe that ``argv[1]`` names."""
    pipe = Connection(int(sys.argv[1]))
    contestant: Contestant | None = None
    workload: Workload | None = None
    try:
        while True:
            order = pipe.recv()
            if order["do"] == "open":
                if contestant is not None:
                    contestant.close()
                workload = Workload(**order["workload"])
                contestant = make(workload)
                pipe.send({"note": contestant.note, "versions": versions()})
                continue
            assert contestant is not None
            assert workload is not None
            if order["do"] == "round":
                started = time.perf_counter()
                contestant.round(order["cohort"], order["epochs"])
                pipe.send({"seconds": time.perf_counter() - started, "note": contestant.note})
            elif order["do"] == "judge":
                pipe.send(judge(workload, contestant.parameters()))
    except EOFError:
        pass
    except Unavailable as error:
        pipe.send({"unavailable": str(error)})
    finally:
        if contestant is not None:
            contestant.close()


def versions() -> Mapping[str, Any]:
    """Of Python and what of ours and the peers is installed here."""
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
