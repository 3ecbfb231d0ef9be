"""Steps of Opacus on MLP1: for each line "MODE BATCH STEPS" on stdin, milliseconds of processor and wall-clock time a step on stdout.

A step is zero_grad, forward, backward, clipping, noise and SGD on one batch that is there already. Its noise is torch's default
generator's, which is faster than randomness from the operating system. MODE: plain (no Opacus), hooks, functorch, ghost.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLIP, NOISE, LR = 1.0, 1.0, 0.1


def made(mode: str, size: int) -> Callable[[], None]:
    """A function that does one step."""
    torch.manual_seed(0)  # noqa: TID251  (it knows nothing of fedatlas)
    x, y = torch.rand(size, 1, 28, 28), torch.randint(0, 10, (size,))
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=LR), nn.CrossEntropyLoss()
    if mode != "plain":
        loader = DataLoader(TensorDataset(x, y), batch_size=size)
        given = {"module": model, "optimizer": optimizer, "data_loader": loader, "poisson_sampling": False}
        given |= {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "grad_sample_mode": mode}
        if mode == "ghost":
            model, optimizer, criterion, _ = PrivacyEngine().make_private(**given, criterion=criterion)
        else:
            model, optimizer, _ = PrivacyEngine().make_private(**given)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

    return step


def main() -> None:
    """Answers line by line."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known: dict[tuple[str, str], Callable[[], None]] = {}
    for line in sys.stdin:
        mode, size, count = line.split()
        if (mode, size) not in known:
            known[mode, size] = made(mode, int(size))
            known[mode, size]()
        work, wall = time.process_time(), time.perf_counter()
        for _ in range(int(count)):
            known[mode, size]()
        found = [(time.process_time() - work) / int(count), (time.perf_counter() - wall) / int(count)]
        print(json.dumps([1e3 * x for x in found]), flush=True)


main()
