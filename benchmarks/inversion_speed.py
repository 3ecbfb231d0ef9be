"""Gradients inverted: how much faster 64 pictures are together than one by one, and what comes back, with and without a mechanism.

``speed``: one step of A10 on 64 pictures of 16 x 16 under ``lenet_sigmoid``, on one thread: one stack against 64 times a step of plain
autograd on one picture (``torch.autograd.grad`` twice). ``figures``: for each seed a federation of 8 clients with one MNIST picture each;
PSNR of A10 from the server's view, MSE of A8; the same under ``local_dp`` (epsilon 8) and from masked vectors, against the placebo.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from table import table
from torch.func import functional_call, grad, vmap

from fedatlas import Experiment, attack, run
from fedatlas.attacks.gradient_matching import Problem, cosine_distance, recorded, total_variation, unfolded
from fedatlas.models import MODELS, init_model
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree

SIDE, PICTURES, CLASSES = 16, 64, 10
FASTER, CLOSE, SMALL, ABOVE = 8.0, 20.0, 1e-3, 1.0  # times; dB; mean squared error; dB above the placebo
CASES: dict[str, dict[str, Any]] = {
    "none": {},
    "local_dp": {"privacy": [{"name": "local_dp", "epsilon": 8.0, "clip": 1.0}]},
    "secagg": {"privacy": [{"name": "secagg"}]},
}


def options(parser: argparse.ArgumentParser) -> None:
    """What can be asked for."""
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--iterations", type=int, default=2400)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--speed-only", action="store_true")
    parser.add_argument("--json", type=Path, help="where the figures go")


def speed(repeats: int) -> dict[str, float]:
    """Seconds of one step on all pictures: in one stack, and one by one."""
    torch.set_num_threads(1)
    rng = torch_stream(1, "attack", "speed")
    x = torch.rand((PICTURES, 1, SIDE, SIDE), generator=rng)
    y = torch.arange(PICTURES) % CLASSES
    module = init_model(MODELS["lenet_sigmoid"], (1, SIDE, SIDE), CLASSES, 1).eval()
    stacked = unfolded(init_model(MODELS["lenet_sigmoid"], (1, SIDE, SIDE), CLASSES, 1))
    params = Tree({name: p.detach() for name, p in stacked.named_parameters()})
    problem = Problem(stacked, F.cross_entropy, params, {}, torch.zeros(1, SIDE, SIDE), torch.ones(1, SIDE, SIDE))
    g = vmap(problem.gradient)(x, y)

    def cost(x: Any, y: Any, g: Any) -> Any:
        return cosine_distance(problem.gradient(x, y), g) + 1e-4 * total_variation(x)

    step = recorded(vmap(grad(cost)), x, y, g)

    def together() -> Any:
        return step(x, y, g)

    def singly() -> Any:
        return torch.stack([single(module, x[i], y[i], {name: v[i] for name, v in g.items()}) for i in range(PICTURES)])

    assert torch.allclose(together(), singly(), atol=1e-4)
    return {"together": timed(together, repeats), "singly": timed(singly, repeats)}


def single(module: torch.nn.Module, x: Any, y: Any, g: dict[str, Any]) -> Any:
    """The slope of the cost of one picture, as plain autograd has it."""
    x = x.clone().requires_grad_(True)
    params = {name: p.detach().requires_grad_(True) for name, p in module.named_parameters()}
    loss = F.cross_entropy(functional_call(module, params, (x[None],)), y[None])
    found = dict(zip(params, torch.autograd.grad(loss, list(params.values()), create_graph=True), strict=True))
    return torch.autograd.grad(cosine_distance(found, g) + 1e-4 * total_variation(x), x)[0]


def timed(work: Any, repeats: int) -> float:
    """The median of the seconds."""
    out = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        out.append(time.perf_counter() - began)
    return median(out)


def figures(case: str, seed: int, clients: int, iterations: int, home: Path) -> dict[str, float]:
    """What comes back of one federation."""
    path = home / f"{case}-{seed}"
    tables = {
        "seed": seed,
        "rounds": 1,
        "data": {"name": "mnist", "side": SIDE, "limit": clients},
        "partition": {"name": "iid", "clients": clients},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "model": {"name": "lenet_sigmoid"},
        "local": {"steps": 1, "lr": 0.1},
        "observe": {"roles": ["server"]},
    }
    run(Experiment.of(**tables, **CASES[case]), out=path, baselines=False)
    found = attack(path, "inverting_gradients", targets=0, iterations=iterations)
    out = {"psnr": found["metrics"]["psnr"]["value"], "leak": found["leaks"]["psnr"]["value"]}
    if case == "none":
        out["first"] = float(np.load(path / "attacks" / "inverting_gradients" / "found.npz")["psnr"][0])
        out["mse"] = attack(path, "dlg", targets=1)["metrics"]["mse"]["value"]
    return out


def measure(given: argparse.Namespace) -> None:
    """Measures and prints."""
    found: dict[str, Any] = {"speed": speed(given.repeats)}
    ratio = found["speed"]["singly"] / found["speed"]["together"]
    lines = [
        (
            f"one step on {PICTURES} pictures: {found['speed']['together'] * 1e3:.1f} ms together, {found['speed']['singly'] * 1e3:.0f} ms "
            f"one by one: {ratio:.1f}x (at least {FASTER:.0f}x): {verdict(ratio >= FASTER)}."
        )
    ]
    if not given.speed_only:
        with tempfile.TemporaryDirectory() as name:
            for case in CASES:
                seeds = range(1, given.seeds + 1)
                found[case] = [figures(case, seed, given.clients, given.iterations, Path(name)) for seed in seeds]
        plain = found["none"]
        good, small = sum(one["first"] > CLOSE for one in plain), sum(one["mse"] < SMALL for one in plain)
        wanted = 0.8 * given.seeds
        lines.append(
            f"A10, first picture above {CLOSE:.0f} dB in {good} of {given.seeds} seeds: {verdict(good >= wanted)}."
        )
        lines.append(f"A8, MSE below {SMALL:g} in {small} of {given.seeds} seeds: {verdict(small >= wanted)}.")
        for case in ("local_dp", "secagg"):
            above = max(one["leak"] for one in found[case])
            lines.append(f"{case}: at most {above:.2f} dB above the placebo: {verdict(above <= ABOVE)}.")
        rows = [
            [case, *(f"{np.mean([one[k] for one in found[case]]):.2f}" for k in ("psnr", "leak"))] for case in CASES
        ]
        lines.append(table(["means over seeds", "PSNR, dB", "above the placebo, dB"], rows))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("\n".join(lines))


def verdict(met: bool) -> str:
    """One word."""
    return "met" if met else "MISSED"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options(parser)
    measure(parser.parse_args())
