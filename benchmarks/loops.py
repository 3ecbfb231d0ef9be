"""Contestants without any framework: the loop that everyone writes, the loop tuned, the best step by hand, the limit.

``python loops.py PIPE NAME``; NAME is a key of `CONTESTANTS`.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import handwritten
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from workload import Contestant, Data, Workload, fill, network, scaled, serve


class PlainLoop:
    """What everyone writes: a DataLoader for each client, a deep copy of the model, the mean of the state dicts."""

    note = "torch's own number of threads"

    def __init__(self, workload: Workload) -> None:
        data = Data(workload.data)
        dataset = TensorDataset(scaled(data.x), data.y)
        self.loaders = [
            DataLoader(Subset(dataset, rows), batch_size=workload.batch, shuffle=True) for rows in data.clients.tolist()
        ]
        self.sizes = [len(rows) for rows in data.clients]
        self.workload, self.model = workload, network(workload.model, data.initial)

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        states, sizes = [], []
        for k in cohort:
            model = copy.deepcopy(self.model)
            train(model, self.loaders[k], epochs, self.workload.lr)
            states.append(model.state_dict())
            sizes.append(self.sizes[k])
        mean = {
            name: sum(n / sum(sizes) * state[name] for n, state in zip(sizes, states, strict=True))
            for name in states[0]
        }
        self.model.load_state_dict(mean)

    def parameters(self) -> list[Tensor]:
        return [x.detach() for x in self.model.parameters()]

    def close(self) -> None:
        """Nothing to release."""


def train(model: nn.Module, loader: Any, epochs: int, lr: float) -> None:
    """Local training as everyone writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


Loss = Callable[[Tensor, Tensor], Tensor]


def train_tuned(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, epochs: int, lr: float, loss: Loss = F.cross_entropy
) -> None:
    """The same with nothing wasted: tensors in memory, one shuffle an epoch, fused SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, fused=True)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for part_x, part_y in zip(x[order].split(batch), y[order].split(batch), strict=True):
            loss(model(part_x), part_y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


class TunedLoop:
    """The best sequential loop over autograd: one model, written over by each client, and a running mean."""

    def __init__(self, workload: Workload, threads: int) -> None:
        torch.set_num_threads(threads)
        self.note = f"{threads} {'thread' if threads == 1 else 'threads'}"
        self.workload = workload
        self.open()

    def open(self) -> None:
        """Where the network, its loss and the clients' rows come from."""
        data = Data(self.workload.data)
        self.model: nn.Module = network(self.workload.model, data.initial)
        self.loss: Loss = F.cross_entropy
        self.rows = data.client

    @torch.no_grad()
    def round(self, cohort: Sequence[int], epochs: int) -> None:
        own: list[Tensor] = list(self.model.parameters())
        start, total, n = [x.clone() for x in own], [torch.zeros_like(x) for x in own], 0
        for k in cohort:
            fill(self.model, start)
            x, y = self.rows(k)
            with torch.enable_grad():
                train_tuned(self.model, x, y, self.workload.batch, epochs, self.workload.lr, self.loss)
            torch._foreach_add_(total, own, alpha=len(x))  # one call for all parameters
            n += len(x)
        fill(self.model, (x / n for x in total))

    def parameters(self) -> list[Tensor]:
        return [x.detach() for x in self.model.parameters()]

    def close(self) -> None:
        """Nothing to release."""


class ByHand:
    """The best step written by hand (handwritten.py), one client after another in one process and one thread."""

    note = "one process, one thread"

    def __init__(self, workload: Workload) -> None:
        torch.set_num_threads(1)
        self.workload, self.data = workload, Data(workload.data)
        self.model = [x.clone() for x in self.data.initial]
        with torch.inference_mode():
            self.local = {str(i): laid_out(x) for i, x in enumerate(self.model)}
            self.step = getattr(handwritten, workload.model)(self.local, workload.batch, workload.lr)

    @torch.inference_mode()
    def train(self, x: Tensor, y: Tensor, epochs: int) -> None:
        """So many epochs from where the local parameters are; a last short batch is left out."""
        batch, step = self.workload.batch, self.step
        if self.workload.model == "mlp1":
            x = x.flatten(1)
        for _ in range(epochs):
            order = torch.randperm(len(x))
            shuffled_x, shuffled_y = x[order], y[order]
            for at in range(0, len(x) - batch + 1, batch):
                step(shuffled_x[at : at + batch], shuffled_y[at : at + batch])

    @torch.inference_mode()
    def round(self, cohort: Sequence[int], epochs: int) -> None:
        total, n = [torch.zeros_like(x) for x in self.model], 0
        for k in cohort:
            for own, given in zip(self.local.values(), self.model, strict=True):
                own.copy_(given)
            x, y = self.data.client(k)
            self.train(x, y, epochs)
            for mean, own in zip(total, self.local.values(), strict=True):
                mean.add_(own, alpha=len(x))
            n += len(x)
        self.model = [x / n for x in total]

    def parameters(self) -> list[Tensor]:
        return self.model

    def close(self) -> None:
        """Nothing to release."""


def laid_out(x: Tensor) -> Tensor:
    """A copy in the memory order that the step by hand wants."""
    return x.contiguous(memory_format=torch.channels_last).clone() if x.dim() == 4 else x.clone()


class OnBothCores:
    """One process a core, each told what to do in each round; what they do is in `work`."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.cores = len(os.sched_getaffinity(0))
        self.note = f"{self.cores} processes"
        context = multiprocessing.get_context("fork")
        self.pipes, self.processes = [], []
        torch.set_num_threads(1)
        for core in range(self.cores):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=self.live, args=(core, theirs), daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)

    def live(self, core: int, pipe: Any) -> None:
        work = self.begin(core)
        while True:
            pipe.send(work(*pipe.recv()))

    def begin(self, core: int) -> Callable[[Sequence[int], int], None]:
        """Makes ready what one process does in each round."""
        raise NotImplementedError

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        for pipe in self.pipes:
            pipe.send((list(cohort), epochs))
        for pipe in self.pipes:
            pipe.recv()

    def parameters(self) -> list[Tensor]:
        return []

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


class Limit(OnBothCores):
    """Centralised training by hand on as many samples: each core its share of them, nothing exchanged, nothing averaged."""

    def begin(self, core: int) -> Callable[[Sequence[int], int], None]:
        trainer = ByHand(self.workload)

        def work(cohort: Sequence[int], epochs: int) -> None:
            pairs = [trainer.data.client(k) for k in cohort]
            x, y = (torch.cat(parts)[core :: self.cores] for parts in zip(*pairs, strict=True))
            trainer.train(x, y, epochs)

        return work


class Products(OnBothCores):
    """The cores' rate of matrix products: each core multiplies matrices of ``SIDE`` x ``SIDE``."""

    SIDE, COUNT = 1024, 12

    def begin(self, _core: int) -> Callable[[Sequence[int], int], None]:
        a, b, out = (torch.rand(self.SIDE, self.SIDE) for _ in range(3))

        def work(cohort: Sequence[int], epochs: int) -> None:
            for _ in range(self.COUNT):
                torch.mm(a, b, out=out)

        return work

    def round(self, cohort: Sequence[int], epochs: int) -> None:
        super().round(cohort, epochs)
        self.note = f"{2 * self.SIDE**3 * self.COUNT * self.cores} operations"


CONTESTANTS: dict[str, Callable[[Workload], Contestant]] = {
    "plain": PlainLoop,
    "tuned-1": partial(TunedLoop, threads=1),
    "tuned-2": partial(TunedLoop, threads=2),
    "by-hand": ByHand,
    "limit": Limit,
    "products": Products,
}

if __name__ == "__main__":
    serve(CONTESTANTS[sys.argv[2]])
