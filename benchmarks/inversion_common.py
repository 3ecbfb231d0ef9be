"""Inverting gradients in the common setting: CIFAR-10, a ConvNet with random weights, one picture per gradient, its label known.

Eight pictures, the first of the test set, each attacked singly: batch norm in evaluation mode, 4,800 steps, one restart. The network is the
ConvNet of Geiping et al. 2020 (width 64, 2.9 million numbers) with torch's initial weights. Its batch norm has the statistics of a new
network, mean 0 and variance 1 (``--statistics fresh``, the common setting), or those of 100 other pictures (``measured``).

Two settings of the attack (``--settings``): "ours", the defaults of `inverting_gradients`; "breaching", that tool's constants brought to
pixels from 0 to 1. With ``--breaching``, the interpreter of an environment with peers/breaching.txt, `breaching` 0.1.2 attacks the same
pictures and weights in a process of its own.

``--prepare`` only writes the case (pictures, weights, the placebo's pictures), which suffices on a machine without CIFAR-10. Pictures that
were found are kept in ``--out``, one file each. ``--device cuda`` attacks all eight together (``--stack 8``).
"""

from __future__ import annotations

import argparse
import os
import subprocess
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from table import table
from torch import Tensor, nn

from fedatlas.attacks.gradient_matching import Problem, invert, unfolded
from fedatlas.attacks.inversion import psnr
from fedatlas.models import init_model
from fedatlas.rng import torch_stream
from fedatlas.tree import Tree, stack

PICTURES, OTHERS, SEED, WIDTH = 8, 100, 1, 64
MEAN, STD = (
    torch.tensor(one).view(3, 1, 1)
    for one in (
        (0.4914672374725342, 0.4822617471218109, 0.4467701315879822),
        (0.24703224003314972, 0.24348513782024384, 0.26158785820007324),
    )
)
SPREAD = float(
    STD.mean()
)  # a step, and a difference of neighbours, of 1 as the network reads pixels is this many pixels
SETTINGS = {
    "ours": {"tv": 1e-4, "lr": 0.1},
    "breaching": {"tv": 0.2 / SPREAD, "lr": 0.1 * SPREAD},
}


def convnet(shape: tuple[int, ...], outputs: int, *, width: int = WIDTH) -> nn.Module:
    """The ConvNet of Geiping et al. 2020: eight 3x3 convolutions with batch norm and ReLU, a pool of 3 after the sixth and the last."""
    layers: list[nn.Module] = []
    before = shape[0]
    for place, times in enumerate((1, 2, 2, 4, 4, 4, 4, 4)):
        after = times * width
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(3)] if place in {5, 7} else []
        before = after
    side = shape[1] // 3 // 3
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side * side, outputs))


def prepare(file: Path, data: Path, width: int, statistics: str) -> None:
    """Write the case: ``pixels`` (8, 3, 32, 32) from 0 to 1, ``labels`` (8,), ``others`` (8, 100, 3, 32, 32) bytes, weights ``w00``...

    Buffers of batch norm: ``b00``...
    """
    test = np.load(data / "cifar10_test.npz")
    x, y = test["d"], test["y"].astype(np.int64)
    later = np.arange(len(y)) >= PICTURES
    others = np.stack([x[(y == label) & later][:OTHERS] for label in y[:PICTURES]])
    module = init_model(convnet, (3, 32, 32), 10, SEED, width=width)
    if statistics == "measured":
        measure(module, torch.from_numpy(others.reshape(-1, 3, 32, 32)[::PICTURES] / np.float32(255)))
    file.parent.mkdir(parents=True, exist_ok=True)
    named = {f"w{number:02d}": p.detach().numpy() for number, p in enumerate(module.parameters())}
    named |= {f"b{number:02d}": b.numpy() for number, b in enumerate(module.buffers())}
    pixels = (x[:PICTURES] / 255).astype(np.float32)
    np.savez(file, pixels=pixels, labels=y[:PICTURES], others=others, width=np.array(width), **named)


def measure(module: nn.Module, pixels: Tensor) -> None:
    """Give batch norm the statistics of these pictures, layer after layer."""
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        module.train()((pixels - MEAN) / STD)


def problem_of(case: Path, device: torch.device) -> tuple[Problem, Tensor, Tensor]:
    """The attacker's problem, and the pictures (8, 3, 32, 32) in pixels with their labels."""
    given = np.load(case)
    module = unfolded(init_model(convnet, (3, 32, 32), 10, SEED, width=int(given["width"]))).to(device)
    names = [name for name, _ in module.named_parameters()]
    params = Tree({name: torch.from_numpy(given[f"w{i:02d}"]).to(device) for i, name in enumerate(names)})
    low, high = (x.expand(3, 32, 32).contiguous().to(device) for x in (-MEAN / STD, (1 - MEAN) / STD))
    pixels, labels = (torch.from_numpy(given[name]).to(device) for name in ("pixels", "labels"))
    kept = [name for name, _ in module.named_buffers()]
    buffers = {name: torch.from_numpy(given[f"b{i:02d}"]).to(device) for i, name in enumerate(kept)}
    return Problem(module, F.cross_entropy, params, buffers, low, high), pixels, labels


def found(case: Path, out: Path, setting: str, steps: int, device: torch.device, size: int) -> None:
    """Attack the pictures that are not there yet, ``size`` in a stack."""
    problem, pixels, labels = problem_of(case, device)
    out.mkdir(parents=True, exist_ok=True)
    left = [number for number in range(PICTURES) if not (out / f"{number}.npz").exists()]
    for first in range(0, len(left), size):
        these = left[first : first + size]
        g = stack([Tree(problem.gradient(pixels[i], labels[i])) for i in these])
        rng = torch_stream(SEED, "attack", "inversion", these[0])
        began = os.times()
        best = invert(problem, g, labels[these], rng, iterations=steps, **SETTINGS[setting])
        x, cost = best.x.cpu().numpy(), best.cost.cpu().numpy()
        ended = os.times()
        spent = np.array([sum(ended[:2]) - sum(began[:2]), ended[4] - began[4]]) / len(these)
        for place, number in enumerate(these):
            np.savez(out / f"{number}.npz", found=x[place], cost=cost[place], seconds=spent)
        print(f"{setting}, pictures {these}: {spent[0]:.0f} s of processor time each, {spent[1]:.0f} s", flush=True)


def by_breaching(python: str, case: Path, out: Path, steps: int, device: str) -> None:
    """Let `breaching` attack the same pictures."""
    out.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).parent / "peers" / "breaching_pictures.py"
    subprocess.run(
        [python, str(script.resolve()), *map(str, (case.resolve(), out.resolve(), steps, device))], check=True
    )


def figures(case: Path, out: Path, name: str) -> list[str] | None:
    """Name, pictures, median and worst PSNR, those of the placebo, pictures above 20 dB, seconds each; None if nothing is there."""
    given = np.load(case)
    own, chance, seconds = [], [], []
    for number in range(PICTURES):
        file = out / f"{number}.npz"
        if file.exists():
            one = np.load(file)
            x, others = torch.from_numpy(one["found"])[None], torch.from_numpy(given["others"][number] / 255)
            own.append(float(psnr(x, torch.from_numpy(given["pixels"][number])[None])))
            chance.append(float(psnr(x.expand_as(others), others).mean()))
            seconds.append([float(s) for s in one["seconds"]])
    if not own:
        return None
    print(
        f"{name}: PSNR of each, dB: {', '.join(f'{x:.1f}' for x in own)}; placebo {', '.join(f'{x:.1f}' for x in chance)}"
    )
    cpu, wall = (median(each) for each in zip(*seconds, strict=True))
    both = [f"{median(own):.1f}", f"{min(own):.1f}", f"{median(chance):.1f}", f"{max(chance):.1f}"]
    return [name, str(len(own)), *both, str(sum(x > 20 for x in own)), f"{cpu:.0f}", f"{wall:.0f}"]


HEAD = [
    "attack",
    "pictures",
    "PSNR median, dB",
    "worst",
    "placebo median",
    "largest",
    "above 20 dB",
    "CPU s each",
    "s each",
]


def inversion(given: argparse.Namespace) -> None:
    """Attack, measure, print."""
    home: Path = given.out / f"inversion-{given.width}-{given.steps}-{given.statistics}"
    case = home / "case.npz"
    if not case.exists():
        prepare(case, Path(os.environ.get("FEDATLAS_DATA", ".")), given.width, given.statistics)
    if given.prepare:
        print(f"{case}: {case.stat().st_size / 2**20:.1f} MiB")
        return
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    device = torch.device(given.device)
    for setting in given.settings:
        found(
            case,
            home / setting,
            setting,
            given.steps,
            device,
            given.stack or (PICTURES if device.type == "cuda" else 1),
        )
    if given.breaching:
        by_breaching(given.breaching, case, home / "peer", given.steps, given.device)
    rows = [figures(case, home / setting, f"{setting} constants") for setting in SETTINGS]
    rows.append(figures(case, home / "peer", "breaching 0.1.2"))
    where = torch.cuda.get_device_name() if device.type == "cuda" else "one thread of a CPU"
    what = f"ConvNet of width {given.width}, {given.statistics} statistics, {given.steps} steps, one restart"
    print(f"{what}, {where}, torch {torch.__version__}")
    print(table(HEAD, [row for row in rows if row]))


def options(parser: argparse.ArgumentParser) -> None:
    """Options of this measurement."""
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--width", type=int, default=WIDTH, help="of the ConvNet; breaching's is 64")
    parser.add_argument("--statistics", choices=["fresh", "measured"], default="fresh", help="of batch norm")
    parser.add_argument("--settings", nargs="*", choices=[*SETTINGS], default=[*SETTINGS])
    parser.add_argument("--stack", type=int, default=0, help="pictures attacked together; 0: one, and all on a GPU")
    parser.add_argument("--breaching", help="interpreter of an environment with peers/breaching.txt")
    parser.add_argument("--prepare", action="store_true", help="only write the case")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("attacks"))
    options(parser)
    inversion(parser.parse_args())
