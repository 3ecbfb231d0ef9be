"""Sums in rings in seconds: ``python benchmarks/privacy.py bfv [--bits 16 24] [--weights-by client]`` and ``... ckks [--range 4]``.

All weights of the HAR network, eight clients, through the functions that a run calls: from float32 tensors to the float64 mean, with the
check of what arrives. One process. Seconds are medians on the clock; of the processor beside them.
"""

from __future__ import annotations

import argparse
import time
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from table import number, table

from fedatlas.models.registry import find_model
from fedatlas.privacy.bfv import filling as bfv_filling
from fedatlas.privacy.ckks import filling as ckks_filling
from fedatlas.privacy.encrypted import residues
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem
from fedatlas.privacy.encrypted.encrypted_sum import whole_weights
from fedatlas.privacy.numbers import Leaf

PHASES = ("encrypt", "check", "aggregate", "decrypt")
TARGETS = {"bfv": 1.5, "ckks": 4.0}  # seconds
RANGES = {"bfv": 16.0, "ckks": 4.0}


class Spent:
    """Seconds by phase: on the clock, and of the processor."""

    def __init__(self) -> None:
        self.wall, self.work = dict.fromkeys(PHASES, 0.0), dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def phase(self, name: str) -> Any:
        """Adds what passes inside."""
        wall, work = time.perf_counter(), time.process_time()
        yield
        self.wall[name] += time.perf_counter() - wall
        self.work[name] += time.process_time() - work


def systems(given: argparse.Namespace) -> dict[str, tuple[Cryptosystem, Any]]:
    """What is measured: name -> (cryptosystem, the opening of a sum)."""
    if given.what == "ckks":
        how = ckks_filling.Encryption(given.range, "all", given.openings)
        return {
            f"ckks, range {given.range:g}, {given.openings} openings": (ckks_filling.ckks(how), ckks_filling.opened)
        }
    out = {}
    for bits in given.bits:
        for by in given.weights_by:
            how = bfv_filling.Encryption(bits, given.range, "all", by)
            name = f"bfv, {bits} bits, weights by the {by}"
            out[name] = (bfv_filling.bfv(how), partial(bfv_filling.opened, how))
    return out


def measured(system: Cryptosystem, opened: Any, models: list[torch.Tensor], shares: list[float]) -> dict[str, Any]:
    """One round: each client's tensor to the server and the weighted mean back; seconds, bytes and the largest error."""
    spent, begun = Spent(), time.perf_counter()
    keys = system.keys(len(models), "bench", False)
    made = time.perf_counter() - begun
    sessions = [keys.session(k, {}) for k in range(len(models))]
    unit, count = system.unit, len(models[0])
    weights = [*whole_weights(unit, dict(enumerate(shares))).values()] if unit > 1 else [1] * len(models)
    layout = system.layout(False, sum(weights))
    batches, size = [], 0
    for k, model in enumerate(models):
        with spent.phase("encrypt"):
            leaf = Leaf("", "all", model.double(), 1.0 if unit > 1 else shares[k])
            message = system.encrypted(sessions[k], layout, system.codes(leaf, f"client {k}")[0])
        size = message["ciphertexts"].numel()
        with spent.phase("check"):
            batches.append(system.received(keys.public, message, layout, count))
    with spent.phase("aggregate"):
        total = residues.summed(keys.public[0], batches, weights)
    with spent.phase("decrypt"):
        found = system.values(torch.from_numpy(opened(sessions[0], total, layout, count, sum(weights))), unit).numpy()
    exact = sum(w * model.double().numpy() for w, model in zip(shares, models, strict=True))
    return {
        "wall": spent.wall,
        "work": spent.work,
        "keys": made,
        "bytes": size,
        "error": float(np.abs(found - exact).max()),
    }


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Every cell, again and again."""
    stream = np.random.default_rng(0)
    size = given.weights or sum(p.numel() for p in find_model("har4")((561,), 6).parameters())
    models = [torch.from_numpy(stream.normal(0, 0.05, size).astype(np.float32)) for _ in range(given.clients)]
    raw = stream.random(given.clients) + 0.5
    shares = (raw / raw.sum()).tolist()
    cells = {
        name: [measured(system, opened, models, shares) for _ in range(given.repeats)]
        for name, (system, opened) in systems(given).items()
    }
    return {"what": given.what, "clients": given.clients, "weights": size, "cells": cells}


def said(found: dict[str, Any]) -> str:
    """A table, and what was aimed at."""
    rows, lines, target = [], [], TARGETS[found["what"]]
    for name, rounds in found["cells"].items():
        middle = {kind: [float(np.median([r[kind][p] for r in rounds])) for p in PHASES] for kind in ("wall", "work")}
        whole = {kind: float(np.median([sum(r[kind].values()) for r in rounds])) for kind in ("wall", "work")}
        keys, error = float(np.median([r["keys"] for r in rounds])), max(r["error"] for r in rounds)
        cells = [*map(number, (*middle["wall"], whole["wall"], whole["work"], keys))]
        rows.append([name, *cells, f"{rounds[0]['bytes'] / 1e6:.1f}", f"{error:.1e}"])
        met = "met" if whole["wall"] <= target else "MISSED"
        lines.append(f"{name}: {whole['wall']:.2f} s (target {target:g}): {met}.")
    head = ["seconds, medians", *PHASES, "all", "processor", "keys", "MB a client", "largest error"]
    lines.append(f"{found['clients']} clients, {found['weights']:,} weights, one process.")
    return "\n\n".join([table(head, rows), "\n".join(lines)])


def options(parser: argparse.ArgumentParser, what: str) -> None:
    """What can be asked for."""
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--weights", type=int, help="so many instead of the network's")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--range", type=float, default=RANGES[what])
    if what == "ckks":
        parser.add_argument("--openings", type=int, default=100, help="sums that the key has to stand")
        return
    parser.add_argument("--bits", type=int, nargs="+", default=[16, 24])
    parser.add_argument("--weights-by", nargs="+", default=["client", "server"], choices=["client", "server"])
