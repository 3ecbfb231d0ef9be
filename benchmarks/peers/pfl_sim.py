"""Apple's pfl as a contestant: ``python pfl_sim.py PIPE one|two``, with pfl's own interpreter.

Its own FederatedAveraging on its SimulatedBackend, rows as tensors in memory, no evaluation. *one* is one process
with torch's own number of threads; *two* is pfl's distributed simulation: a process a core, one thread each.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from workload import Data, Workload, network, serve

ALWAYS = 1 << 30  # rounds: never reached


def weightless(*_: Any, **__: Any) -> dict[str, Any]:
    """pfl asks for metrics even where nothing is evaluated."""
    return {}


class Trained(nn.Module):
    """The network with its loss, as pfl wants it."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.metrics = net, weightless

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a batch."""
        return F.cross_entropy(self.net(x), y)


class Pfl:
    """Rounds of pfl's FedAvg. pfl's modules look at the environment when they are imported: late, therefore."""

    def __init__(self, workload: Workload) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import get_user_sampler
        from pfl.model.pytorch import PyTorchModel

        self.note, self.workload, self.params = f"{torch.get_num_threads()} threads", workload, NNAlgorithmParams
        data = Data(workload.data)
        self.net = network(workload.model, data.initial)
        server = torch.optim.SGD(self.net.parameters(), lr=1.0)
        self.model = PyTorchModel(Trained(self.net), torch.optim.SGD, server)
        np.random.seed(workload.seed)  # noqa: NPY002, TID251  # pfl draws from numpy's global stream; its processes must agree
        rows = cache(lambda k: PyTorchTensorDataset(data.client(k), user_id=str(k)))
        clients = FederatedDataset(rows, get_user_sampler("minimize_reuse", list(range(len(data.clients)))))
        self.backend = SimulatedBackend(training_data=clients, val_data=clients)
        self.algorithm = FederatedAveraging()
        self.begin_at_one()

    def begin_at_one(self) -> None:
        """pfl evaluates in every round whose number is a multiple of something, 0 among them: round 0 is left out."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "algorithm_checkpoint.json").write_text('{"current_central_iteration": 1}')
            self.algorithm.load(folder)
        self.done = 1

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        """As many users as the cohort has; pfl draws which."""
        from pfl.hyperparam import NNTrainHyperParams

        self.done += 1
        local = NNTrainHyperParams(
            local_batch_size=self.workload.batch, local_num_epochs=epochs, local_learning_rate=self.workload.lr
        )
        params = self.params(
            central_num_iterations=self.done,
            evaluation_frequency=ALWAYS,
            train_cohort_size=len(cohort),
            val_cohort_size=0,
        )
        self.algorithm.run(params, self.backend, self.model, local, send_metrics_to_platform=False)

    def parameters(self) -> list[Tensor]:
        return [x.detach() for x in self.net.parameters()]

    def close(self) -> None:
        """Nothing to release."""


class Distributed:
    """pfl in a process a core: this one and others like it, which are told the same."""

    def __init__(self, workload: Workload) -> None:
        self.others = followers()
        self.tell(do="open", workload=workload._asdict())
        self.first = Pfl(workload)
        self.hear()
        self.note = f"{1 + len(self.others)} processes"

    def tell(self, **order: Any) -> None:
        """The same order to all others."""
        for other in self.others:
            other.send(order)

    def hear(self) -> None:
        """Waits until all others are done."""
        for other in self.others:
            other.recv()

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        self.tell(do="round", cohort=list(cohort), epochs=epochs)
        self.first.round(cohort, epochs)
        self.hear()

    def parameters(self) -> list[Tensor]:
        return self.first.parameters()

    def close(self) -> None:
        """The others stay for the next workload, and end with this process."""


@cache
def followers() -> list[Connection]:
    """Starts the other processes, once; pfl reads from the environment who is who."""
    cores = len(os.sched_getaffinity(0))
    addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(cores))
    torch.set_num_threads(1)
    pipes = []
    for rank in range(1, cores):
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), "follow"]
            subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment_of(rank, addresses))
        pipes.append(Connection(ours.detach()))
    os.environ.update(environment_of(0, addresses))
    return pipes


def environment_of(rank: int, addresses: str) -> dict[str, str]:
    """What tells pfl which of its processes this is."""
    return {**os.environ, "PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses, "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    if sys.argv[2] == "follow":
        torch.set_num_threads(1)
    serve({"one": Pfl, "two": Distributed, "follow": Pfl}[sys.argv[2]])
