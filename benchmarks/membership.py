"""What membership attacks find: ``python benchmarks/attacks.py membership [--seeds 1] [--small]`` and ``mnist``.

``membership``: 200 clients with 20 rows of MNIST each, MLP1. An overfitted model (200 epochs) beside models under DP-SGD (20 epochs),
whose records have epsilon 2, 8 and 30 at delta 1e-4. ``--small``: 60 clients, a table of 20 columns, 4 shadow models.

``mnist``: all of MNIST, half of each client's rows held out, 10 clients, MLP1, 20 epochs; LiRA and RMIA with 16 shadow models, offline
and online, and their seconds of processor time. RMIA uses LiRA's shadow models.

Runs and figures lie in the folder ``--out`` and are not computed again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.leakage.attack_run import attack_view
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

MOST, MOST_OF_FEW, DELTA = 0.05, 0.1, 1e-4  # the largest leak under DP-SGD; of the few rows of ``--small``
NOISE = {2.0: 7.76, 8.0: 2.43, 30.0: 0.903}  # epsilon -> noise_multiplier of 20 steps on all rows
GUESSED, GUESSED_OF_TWO = 0.2, 0.6  # ten and two classes: guessing has accuracies of 0.1 and 0.5
METHODS: dict[str, dict[str, Any]] = {
    "loss": {"method": "loss"},
    "worst case": {"method": "worst_case"},
    "LiRA offline": {"method": "lira"},
    "LiRA online": {"method": "lira", "online": True},
    "RMIA offline": {"method": "rmia"},
    "RMIA online": {"method": "rmia", "online": True},
}
FEW_ROWS: dict[str, Any] = {
    "rounds": 100,
    "data": {"name": "mnist", "limit": 8000},
    "partition": {"name": "iid", "clients": 200},
    "model": {"name": "mlp1"},
    "local": {"epochs": 2, "batch_size": 2, "lr": 0.05},
    "evaluation": {"clients": 0.5, "every": 100},
    "attack": [{"name": "membership"}],
}
SMALL: dict[str, Any] = {
    **FEW_ROWS,
    "rounds": 40,
    "partition": {"name": "iid", "clients": 60},
    "model": {"name": "mlp", "hidden": [256]},
    "local": {"epochs": 5, "batch_size": 2, "lr": 0.1},
    "evaluation": {"clients": 0.5, "every": 40},
}
PRIVATE: dict[str, Any] = {"rounds": 20, "local": {"epochs": 1, "batch_size": 0, "lr": 1.0}}
MNIST: dict[str, Any] = {
    **FEW_ROWS,
    "rounds": 20,
    "data": {"name": "mnist"},
    "partition": {"name": "iid", "clients": 10},
    "local": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "evaluation": {"clients": 0.5, "every": 20},
}


def small_tables(out: Path) -> dict[str, Any]:
    """Write a table whose labels depend on one of its 20 columns and on noise; return the experiment on it."""
    stream = np.random.default_rng(1)
    x = stream.normal(size=(3240, 20))
    y = x[:, 0] + stream.normal(size=len(x)) > 0
    out.mkdir(parents=True, exist_ok=True)
    names = ",".join([*(f"x{i}" for i in range(20)), "y"])
    np.savetxt(out / "table.csv", np.column_stack([x, y]), delimiter=",", header=names, comments="", fmt="%.4f")
    return {**SMALL, "data": {"name": "file", "path": str(out / "table.csv"), "label": "y", "scale": "none"}}


def under_dp(given: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Return the experiment with DP-SGD for single records."""
    noise = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": NOISE[epsilon], "delta": DELTA, "noise": "seed"}
    return {**given, **PRIVATE, "privacy": [noise]}


def played(folder: Path, config: ExperimentConfig, methods: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return accuracy and, by method, the attack's record with the seconds of processor time that it took; kept in the folder."""
    done = ensure(checked(config), folder, More(options={"baselines": False}))
    spent = (done.summary.get("privacy") or {}).get("epsilon")
    out: dict[str, Any] = {"accuracy": done.summary["final"]["accuracy"], "epsilon": spent}
    for name, keys in methods.items():
        kept = folder / f"membership-{name.replace(' ', '-')}.json"
        if not kept.exists():
            before = os.times()
            found = attack_view(folder, "membership", keys)
            after = os.times()
            taken = after.user + after.children_user - before.user - before.children_user
            kept.write_text(json.dumps({**found, "seconds": taken}), encoding="utf-8")
        out[name] = json.loads(kept.read_text(encoding="utf-8"))
        tell(name, out[name])
    return out


def tell(name: str, found: dict[str, Any]) -> None:
    """Print the figures of an attack."""
    auc, low = found["metrics"]["auc"], found["metrics"]["tpr_at_fpr_0.001"]
    text = f"  {name:13s} AUC {auc['value']:.4f} [{auc['low']:.4f}, {auc['high']:.4f}], placebo up to {auc['placebo_high']:.4f}"
    text += f"; accuracy {found['metrics']['accuracy']['value']:.4f}, advantage {found['metrics']['advantage']['value']:+.4f}"
    if low["value"] is not None:
        text += f"; at 0.1% {low['value']:.5f} [{low['low']:.5f}, {low['high']:.5f}], placebo {low['placebo']:.5f}"
    print(f"{text}; {found['targets']} candidates, {found['seconds']:.0f} s", flush=True)


def membership(out: Path, seeds: list[int], small: bool) -> bool:
    """Compare the overfitted model with those under DP-SGD; return whether all that must be shown was."""
    given, shown = small_tables(out) if small else FEW_ROWS, True
    methods = {name: METHODS[name] for name in ("loss", "LiRA online")} if small else METHODS
    if small:
        methods = {name: {**keys, **({} if name == "loss" else {"shadows": 4})} for name, keys in methods.items()}
    for seed in seeds:
        print(f"seed {seed}: overfitted", flush=True)
        kind = "small" if small else "few-rows"
        one = played(out / f"{kind}-overfitted-{seed}", parse({**given, "seed": seed}), methods)
        seen = {name: one[name]["metrics"]["auc"] for name in methods}
        above = [name for name, auc in seen.items() if auc["low"] > auc["placebo_high"]]
        print(
            f"  test accuracy {one['accuracy']:.4f}; above the placebo: {', '.join(above) or 'no method'}", flush=True
        )
        best = 0.0
        for epsilon in NOISE:
            print(f"seed {seed}: epsilon {epsilon:g}", flush=True)
            config = parse({**under_dp(given, epsilon), "seed": seed})
            two = played(out / f"{kind}-epsilon-{epsilon:g}-{seed}", config, methods)
            most = max(two[name]["leaks"]["auc"]["high"] for name in methods)
            best = max(best, two["accuracy"])
            spent = f"epsilon {two['epsilon']:.3f} spent"
            print(f"  test accuracy {two['accuracy']:.4f}; {spent}; the leak ends at {most:+.4f} at most", flush=True)
            shown &= two["epsilon"] <= epsilon
            shown &= epsilon > 2 or most < (MOST_OF_FEW if small else MOST)
        shown &= bool(above) and best > (GUESSED_OF_TWO if small else GUESSED)
    print("shown" if shown else "NOT shown", flush=True)
    return shown


def mnist(out: Path, seeds: list[int]) -> None:
    """Attack MLP1 on all of MNIST."""
    for seed in seeds:
        print(f"seed {seed}", flush=True)
        one = played(out / f"mnist-{seed}", parse({**MNIST, "seed": seed}), METHODS)
        print(f"  test accuracy {one['accuracy']:.4f}", flush=True)
