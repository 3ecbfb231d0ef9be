"""One local step, in every way we know: ``python benchmarks/step_speed.py [--quick]``.

One process, one thread, the ways in turn over the same batches, medians of many repeats; speeds are ratios within one run,
the tuned loop = 1. Nothing but the step is measured: no shuffling, no rounds. The floor is the time of the step's matrix
products and convolutions alone, each in memory that is there already.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import handwritten
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.engine.compiler import find_compiler
from fedatlas.engine.program import derive
from fedatlas.engine.step import StepSpec, local_copy
from fedatlas.engine.tuned import TunedStep
from fedatlas.models.registry import MODELS
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree

LR, MU = 0.01, 0.1
Step = Callable[[Tensor, Tensor], Tensor]
Way = tuple[Step, Callable[[], AbstractContextManager[Any]]]

DIRECTIONS: dict[str, Callable[[Tree, Tree, Mapping[str, Any]], Tree] | None] = {
    "fedavg": None,
    "fedprox": lambda g, w, i: g + i["mu"] * (w - i["w_t"]),
    "scaffold": lambda g, w, i: g + (i["c"] - i["c_k"]),
}


def loop(module: nn.Module, direction: str, inputs: Mapping[str, Any], *, tuned: bool) -> Step:
    """The loop everyone writes (plain), or with nothing wasted: fused SGD, gradients set to none (tuned)."""
    module = copy.deepcopy(module)
    params = dict(module.named_parameters())
    optimizer = torch.optim.SGD(params.values(), lr=LR, fused=tuned or None, foreach=None if tuned else False)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=tuned)
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        with torch.no_grad():
            for name, p in params.items():
                assert p.grad is not None
                if direction == "fedprox":
                    p.grad.add_(p - inputs["w_t"][name], alpha=MU)
                elif direction == "scaffold":
                    p.grad.add_(inputs["c"][name] - inputs["c_k"][name])
        optimizer.step()
        return loss

    return step


def correction(direction: str, inputs: Mapping[str, Any]) -> handwritten.Correction | None:
    """The direction as the handwritten step takes it."""
    if direction == "fedprox":
        return handwritten.Correction(MU, [*local_copy(-MU * inputs["w_t"]).values()])
    if direction == "scaffold":
        return handwritten.Correction(0.0, [*local_copy(inputs["c"] - inputs["c_k"]).values()])
    return None


def ways(
    model: str, rows: int, direction: str, precisions: list[str]
) -> tuple[dict[str, Way], list[tuple[Tensor, Tensor]]]:
    """Every way to make the step, and the batches."""
    stream = torch_stream(0, "benchmark", model, rows)
    module = MODELS[model]((1, 28, 28), 10)
    params = Tree({name: x.detach().clone() for name, x in module.named_parameters()})
    noise = [Tree({n: 1e-3 * torch.randn(x.shape, generator=stream) for n, x in params.items()}) for _ in range(2)]
    inputs = {"lr": LR, "mu": MU, "w_t": params.clone(), "c": noise[0], "c_k": noise[1]}
    count = 60 if model == "mlp1" else max(4, 80 // rows)
    batches = [
        (torch.randn(rows, 1, 28, 28, generator=stream), torch.randint(10, (rows,), generator=stream))
        for _ in range(count)
    ]

    def loss(params: Tree, buffers: Tree, batch: Batch, inputs: Any) -> Tensor:
        return F.cross_entropy(functional_call(module, {**params, **buffers}, (batch.x,)), batch.y)

    out: dict[str, Way] = {
        name: (loop(module, direction, inputs, tuned=name == "tuned loop"), nullcontext)
        for name in ("plain loop", "tuned loop")
    }
    spec, example = StepSpec(module, loss, DIRECTIONS[direction]), Batch(*batches[0])
    steps = {"tuned step": TunedStep(spec, example), "derived": derive(spec, example, inputs)}
    if model == "mlp1" and find_compiler() and not precisions:
        steps["derived, in C"] = derive(spec, example, inputs, native=True)
    steps |= {f"derived, {p}": derive(spec._replace(precision=p), example, inputs) for p in precisions}
    for name, made in steps.items():
        with made.mode():
            out[name] = made.bind(local_copy(params), None, inputs), made.mode
    with torch.inference_mode():
        write = getattr(handwritten, model)
        by_hand = write(local_copy(params), rows, LR, correction(direction, inputs))
    flat = (lambda x, y: by_hand(x.view(rows, 784), y)) if model == "mlp1" else by_hand
    out["handwritten"] = flat, torch.inference_mode
    return out, batches


def measure(model: str, rows: int, direction: str, repeats: int, precisions: list[str]) -> dict[str, float]:
    """Median seconds a step of each way, taken in turn."""
    made, batches = ways(model, rows, direction, precisions)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for repeat in range(repeats + 1):
        for name, (step, mode) in made.items():
            with mode():
                started = time.perf_counter()
                for x, y in batches:
                    step(x, y)
                if repeat:  # the first is for warming up
                    seconds[name].append((time.perf_counter() - started) / len(batches))
    return {name: statistics.median(values) for name, values in seconds.items()}


def floor(model: str, rows: int, repeats: int) -> float:
    """Seconds of a step's matrix products and convolutions alone."""
    dense = {"mlp1": [(784, 200), (200, 10)], "cnn2": [(3136, 512), (512, 10)]}[model]
    calls: list[Callable[[], Any]] = []
    for first, (inner, outer) in enumerate(dense):
        x, d, w = torch.randn(rows, inner), torch.randn(rows, outer), torch.randn(outer, inner)
        h, dx = torch.empty(rows, outer), torch.empty(rows, inner)
        calls += [lambda x=x, w=w, h=h: torch.mm(x, w.t(), out=h), lambda x=x, w=w, d=d: w.addmm_(d.t(), x, alpha=1e-9)]
        if first or model == "cnn2":
            calls.append(lambda d=d, w=w, dx=dx: torch.mm(d, w, out=dx))
    if model == "cnn2":
        for before, after, side in ((1, 32, 28), (32, 64, 14)):
            x = torch.randn(rows, before, side, side).as_strided(
                (rows, before, side, side), (before * side * side, 1, before * side, before)
            )
            k = torch.randn(after, before, 5, 5).contiguous(memory_format=torch.channels_last)
            d = torch.randn(rows, after, side, side).contiguous(memory_format=torch.channels_last)
            wanted = [before > 1, True, False]
            calls += [
                lambda x=x, k=k: torch.conv2d(x, k, None, 1, 2),
                lambda x=x, k=k, d=d, wanted=wanted: torch.ops.aten.convolution_backward.default(
                    d, x, k, None, [1, 1], [2, 2], [1, 1], False, [0, 0], 1, wanted
                ),
            ]
    seconds = []
    with torch.inference_mode():
        for repeat in range(5 * repeats + 1):
            started = time.perf_counter()
            for call in calls:
                call()
            if repeat:
                seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    """Prints a table for each model, batch size and direction."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--models", nargs="*", default=["mlp1", "cnn2"])
    quick, models = (given := parser.parse_args()).quick, given.models
    torch.set_num_threads(1)
    for model in models:
        for rows in (10, 50):
            repeats = (5 if quick else 25) if model == "mlp1" else (3 if quick else 9)
            for direction in DIRECTIONS:
                low = ["bfloat16"] if model == "cnn2" and direction == "fedavg" else []
                found = measure(model, rows, direction, repeats, low)
                base, hand = found["tuned loop"], found["handwritten"]
                print(f"{model}, batch {rows}, {direction}: floor {1e6 * floor(model, rows, repeats):.0f} us")
                for name, seconds in found.items():
                    print(
                        f"  {name:18s} {1e6 * seconds:9.1f} us  {base / seconds:5.2f} x tuned  {hand / seconds:5.2f} x by hand"
                    )


if __name__ == "__main__":
    main()
