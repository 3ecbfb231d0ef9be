"""Flower's simulation as a contestant: ``python flower_sim.py PIPE plain|tuned``, with Flower's own interpreter.

Its own FedAvg strategy and Ray back end, one core for each client so that two train at a time, and no evaluation. The
*plain* client trains as everyone writes it; the *tuned* one by the tuned loop.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from loops import train, train_tuned
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from workload import Data, Workload, network, serve

CLIENTS = 100
client = ClientApp()
server = ServerApp()


@cache
def data(path: str) -> Data:
    """The rows, once for each of Ray's workers."""
    return Data(path)


@cache
def loader(path: str, k: int, batch: int) -> DataLoader:  # type: ignore[type-arg]
    """A client's DataLoader, kept by the worker that made it."""
    return DataLoader(TensorDataset(*data(path).client(k)), batch_size=batch, shuffle=True)


@client.train()
def fit(message: Message, context: Context) -> Message:
    """A client's local work."""
    config, k = message.content["config"], int(context.node_config["partition-id"])
    path, batch, epochs, lr = config["data"], config["batch"], config["epochs"], config["lr"]
    model = network(config["model"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    if config["client"] == "plain":
        train(model, loader(path, k, batch), epochs, lr)
    else:
        torch.set_num_threads(1)
        train_tuned(model, *data(path).client(k), batch, epochs, lr)
    answer = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": len(data(path).clients[k])}),
    }
    return Message(content=RecordDict(answer), reply_to=message)


class Flower:
    """Rounds of Flower's own strategy, one at a time."""

    def __init__(self, grid: Grid, workload: Workload, kind: str) -> None:
        self.grid, self.workload, self.kind = grid, workload, kind
        self.note = f"{len(os.sched_getaffinity(0))} Ray workers"
        self.arrays = ArrayRecord(network(workload.model, Data(workload.data).initial).state_dict())

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        """As many clients as the cohort has; Flower draws which."""
        work = self.workload
        strategy = FedAvg(
            fraction_train=len(cohort) / CLIENTS, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=CLIENTS
        )
        keys = {"data": work.data, "model": work.model, "batch": work.batch, "epochs": epochs, "lr": work.lr}
        config = ConfigRecord({**keys, "client": self.kind})
        self.arrays = strategy.start(self.grid, self.arrays, num_rounds=1, train_config=config).arrays

    def parameters(self) -> list[Tensor]:
        return list(self.arrays.to_torch_state_dict().values())

    def close(self) -> None:
        """Flower ends when its server app does."""


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Flower's server: rounds as the benchmark asks for them."""
    serve(lambda workload: Flower(grid, workload, sys.argv[2]))


if __name__ == "__main__":
    import flower_sim  # as a module: Ray's workers find its functions by name

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        flower_sim.server,
        flower_sim.client,
        CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": cores}},
    )
