"""Stacked clients against the same clients one by one: ``python benchmarks/stacked_speed.py [--quick]``.

Dense networks of growing size, ten clients, whole batches, one thread; microseconds for one step of one client, all the
driver's work included (batches cut and stacked, losses summed), and the ratio. `fedatlas.engine.stacked.worth_stacking`
is the rule that this table justifies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.engine.program import StepProgram, derive
from fedatlas.engine.stacked import StackedProgram, derive_stacked, worth_stacking
from fedatlas.engine.stacked_training import Member, train_together
from fedatlas.engine.step import StepSpec, batch_arguments, local_copy
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree

CLIENTS, STEPS = 10, 24
NETWORKS = [
    (64, 10),
    (64, 32, 10),
    (64, 64, 10),
    (784, 16, 10),
    (784, 32, 10),
    (784, 64, 10),
    (561, 128, 6),
    (784, 200, 10),
]


def network(widths: tuple[int, ...]) -> nn.Module:
    """A dense network with ReLU between its layers."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batches(x: Tensor, y: Tensor, rows: int) -> Iterator[Batch]:
    """The rows, cut."""
    for at in range(0, len(x), rows):
        yield Batch(x[at : at + rows], y[at : at + rows])


def one_by_one(program: StepProgram, params: Tree, inputs: Any, data: list[tuple[Tensor, Tensor]], rows: int) -> None:
    """Each client alone."""
    for x, y in data:
        with program.mode():
            step, total = program.bind(local_copy(params), None, inputs), torch.zeros((), dtype=torch.float64)
            for batch in batches(x, y, rows):
                total.add_(step(*batch_arguments(batch)), alpha=rows)


def stacked(
    program: StackedProgram, alone: StepProgram, params: Tree, inputs: Any, data: list[tuple[Tensor, Tensor]], rows: int
) -> None:
    """All clients in one stack."""
    members = [Member(params, Tree(), inputs, batches(x, y, rows)) for x, y in data]
    train_together({rows: program}, lambda size: alone, members)


def compare(widths: tuple[int, ...], rows: int, repeats: int) -> str:
    """One line of the table."""
    module, stream = network(widths), torch_stream(0, "benchmark", *widths, rows)
    params = Tree({name: x.detach().clone() for name, x in module.named_parameters()})

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        return F.cross_entropy(functional_call(module, dict(params), (batch.x,)), batch.y)

    spec, inputs = StepSpec(module, loss), {"lr": 0.01}
    data = [
        (
            torch.randn(STEPS * rows, widths[0], generator=stream),
            torch.randint(widths[-1], (STEPS * rows,), generator=stream),
        )
        for _ in range(CLIENTS)
    ]
    example = next(batches(*data[0], rows))
    alone, program = derive(spec, example, inputs), derive_stacked(spec, example, inputs)
    seconds: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for kind in (0, 1):
            started = time.perf_counter()
            if kind:
                stacked(program, alone, params, inputs, data, rows)
            else:
                one_by_one(alone, params, inputs, data, rows)
            if repeat:
                seconds[kind].append(time.perf_counter() - started)
    each, together = (1e6 * statistics.median(s) / (CLIENTS * STEPS) for s in seconds)
    count, rule = sum(x.numel() for x in params.values()), worth_stacking(params, rows)
    name = "-".join(map(str, widths))
    return f"{name:12s} {count:8d} {rows:4d} {each:9.1f} {together:9.1f} {each / together:7.2f}  {'stack' if rule else 'one by one'}"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print("network      parameters rows  alone us stacked us  ratio  the rule says")
    for widths in NETWORKS:
        for rows in (8, 10, 32, 64):
            print(compare(widths, rows, 3 if quick else 15), flush=True)


if __name__ == "__main__":
    main()
