"""What noise under masks costs: ``python benchmarks/privacy.py noise [--clients 20] [--rounds 5] [--values 1000000]``.

Whole rounds of one federation on digits without protection, under a trusted server's noise (central_dp), the same over masked sums,
masks only, and distributed noise: bytes of a round, and the median of its seconds, on the clock and of the processor. Beside them one
client's work on many values: clipping and rounding, the table of its noise, drawing, masking.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.privacy import skellam_noise
from fedatlas.privacy.clipping import clipped, vector
from fedatlas.privacy.distributed_dp.noisy_sum import within
from fedatlas.privacy.distributed_dp.shares import NoisySum, variance
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.mechanisms import distributed_dp
from fedatlas.privacy.secagg import masks
from fedatlas.privacy.secagg.keys import threshold_of
from fedatlas.tree import Tree

CLIP = 0.5
TABLES: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "central_dp": [{"name": "central_dp", "clip": CLIP, "noise": "seed"}],
    "secagg": [{"name": "secagg"}],
    "central_dp, secagg": [{"name": "central_dp", "clip": CLIP, "noise": "seed"}, {"name": "secagg"}],
    "distributed_dp": [{"name": "distributed_dp", "clip": CLIP, "noise": "seed"}],
}


def round_of(tables: list[dict[str, Any]], clients: int, rounds: int) -> dict[str, float]:
    """Bytes and seconds of a round under these tables; epsilon of all, if there is one."""
    config = {
        "rounds": rounds,
        "partition": {"name": "iid", "clients": clients},
        "algorithm": {"name": "fedavg", "weights": "uniform"},
        "engine": {"workers": 1},
        "privacy": tables,
    }
    with TemporaryDirectory() as folder:
        begun = time.process_time()
        done = run(Experiment(parse(config)), out=Path(folder) / "run", baselines=False)
        spent = time.process_time() - begun
        rows = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()][1:]
        told = json.loads((done.path / "summary.json").read_text()).get("privacy", {})
    own = [row["bytes_up"] + row["bytes_down"] for row in rows if row["bytes_up"] is not None]
    expected = told.get("expected", {})
    size = median(own) if own else sum(expected[key] for key in ("bytes_up", "bytes_down")) / rounds
    return {"bytes": size, "seconds": median(row["seconds"] for row in rows), "work": spent / rounds,
            "epsilon": told.get("epsilon", float("inf"))}  # fmt: skip


def client(clients: int, values: int) -> dict[str, float]:
    """Milliseconds of one client's steps on so many values, of the processor."""
    keys, values_of = NoisySum(**distributed_dp(clip=CLIP).keys), torch.Generator().manual_seed(1)
    update = {"model": Tree(w=torch.randn(values, generator=values_of))}
    share = variance(keys, clients, max(threshold_of(clients, keys.threshold), 3))
    out: dict[str, float] = {}

    def timed(name: str, work: Any, times: int = 5) -> Any:
        spent = []
        for _ in range(times):
            begun = time.process_time()
            found = work()
            spent.append(time.process_time() - begun)
        out[name] = 1e3 * median(spent)
        return found

    whole = timed("clip and round", lambda: within(vector(clipped(update, CLIP)).numpy() / keys.step, keys.steps))
    skellam_noise.table.cache_clear()
    timed("table of the noise, once", lambda: skellam_noise.table(share), 1)
    noise = timed("noise", lambda: skellam_noise.skellam(values, share, Noise("os")))
    streams = [bytes([k]) * 32 for k in range(clients)]
    timed(
        "mask", lambda: masks.added((whole + noise).astype(np.uint32), streams[: clients // 2], streams[clients // 2 :])
    )
    return out


def options(parser: argparse.ArgumentParser) -> None:
    """The keys of the command line."""
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--values", type=int, default=1_000_000)


def measure(given: argparse.Namespace) -> None:
    """Measures and prints."""
    print(f"{given.clients} clients, {given.rounds} rounds, digits, equal weights; epsilon of all rounds\n")
    print("| `[[privacy]]` | kB a round | seconds a round | of the processor | epsilon |\n|---|---|---|---|---|")
    for name, tables in TABLES.items():
        found = round_of(tables, given.clients, given.rounds)
        epsilon = "" if found["epsilon"] == float("inf") else f"{found['epsilon']:.1f}"
        print(f"| {name} | {found['bytes'] / 1e3:,.0f} | {found['seconds']:.2f} | {found['work']:.2f} | {epsilon} |")
    print(f"\n| one client, {given.values:,} values | milliseconds of the processor |\n|---|---|")
    for name, spent in client(given.clients, given.values).items():
        print(f"| {name} | {spent:,.0f} |")
