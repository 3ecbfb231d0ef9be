"""The leaks to the next client of a chain, beside those to FedAvg's server and client (G8): ``python benchmarks/successor.py --out DIR``.

Pictures: digits, 100 clients with one row each and one step, FedSeq with superclients of two, 6 rounds; the successors of clients 0 to 4
with the model that their predecessor began with, and with the one that they received before. Membership: four clients with 359
digits each, half of them held out, FedSeq and FedAvg, 30 rounds of 5 epochs. Runs and findings lie in DIR and are not made again.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedatlas.attacks.view_attack import is_leak
from fedatlas.config import parse
from fedatlas.errors import ConfigError
from fedatlas.files import write_json
from fedatlas.leakage import attack_view
from fedatlas.published.attack_matrix import CHAINED, MANY_ROWS, TO_ONE
from fedatlas.runs.ensure import ensure
from fedatlas.runs.finish import More
from fedatlas.setup.refusals import checked

ALGORITHMS: Mapping[str, dict[str, Any]] = {
    "fedseq": {"name": "fedseq", "phi": "random", "group_size": 2},
    "fedavg": {"name": "fedavg"},
}
PREDECESSORS = range(5)
SEARCHES: Mapping[str, dict[str, Any]] = {
    "inverting_gradients": {"iterations": 300},
    "dlg": {"iterations": 100, "restarts": 2},
}


def ran(folder: Path, tables: Mapping[str, Any], algorithm: str, roles: list[str], seed: int) -> Path:
    """A finished run whose views are recorded."""
    made = {**tables, "algorithm": ALGORITHMS[algorithm], "observe": {"roles": roles}, "seed": seed}
    ensure(checked(parse(made)), folder, More(report=False))
    return folder


def found(run: Path, name: str, roles: Iterable[str], **keys: Any) -> list[dict[str, Any]]:
    """The records of an attack on several roles; a client that handed nothing on is left out."""
    out = []
    for role in roles:
        try:
            out.append(attack_view(run, name, {"role": role, **keys}))
        except ConfigError as error:
            print(f"{role}: {error}", flush=True)
    return out


def said(title: str, records: list[dict[str, Any]], leak: str) -> None:
    """Print the mean figure, its placebo, and how many leaks may be claimed."""
    figures = [one["metrics"][leak]["value"] for one in records]
    placebos = [one["metrics"][leak]["placebo"] for one in records]
    claimed = sum(is_leak(one["leaks"][leak]) for one in records)
    spread = f"[{min(figures):.3g}, {max(figures):.3g}]"
    print(
        f"{title}: {statistics.fmean(figures):.3f} {spread}, placebo {statistics.fmean(placebos):.3f}, leak in {claimed} of {len(records)}",
        flush=True,
    )


def pictures(out: Path, seeds: list[int]) -> None:
    """PSNR of the pictures that a successor, FedAvg's server and a client of FedAvg get back."""
    constants = out / "constants.json"
    out.mkdir(parents=True, exist_ok=True)
    write_json(constants, TO_ONE)
    tables = {**CHAINED, "data": {**CHAINED["data"], "constants": str(constants)}}
    successors = [f"successor:{k}" for k in PREDECESSORS]
    views = [*successors, *(f"predecessor:{k}" for k in PREDECESSORS)]
    chains = [ran(out / f"pictures-fedseq-{s}", tables, "fedseq", views, s) for s in seeds]
    plain = [ran(out / f"pictures-fedavg-{s}", tables, "fedavg", ["server", "client:0"], s) for s in seeds]
    for name, keys in SEARCHES.items():
        for start in ("true", "last"):
            records = [one for run in chains for one in found(run, name, successors, **keys, start=start)]
            said(f"{name}, successor, start = {start}", records, "psnr")
        for role in ("server", "client:0"):
            records = [one for run in plain for one in found(run, name, [role], **keys, targets=10)]
            said(f"{name}, FedAvg's {role}, 10 targets", records, "psnr")


def members(out: Path, seeds: list[int]) -> None:
    """AUC of membership by loss and by gradient norm: the successor, FedAvg's server and a client of FedAvg."""
    for method in ("loss", "gradnorm"):
        for algorithm, roles in (
            ("fedseq", [f"successor:{k}" for k in range(4)]),
            ("fedavg", ["server", "client:0"]),
        ):
            runs = [ran(out / f"members-{algorithm}-{s}", MANY_ROWS, algorithm, roles, s) for s in seeds]
            groups = [roles] if algorithm == "fedseq" else [[one] for one in roles]
            for group in groups:
                records = [one for run in runs for one in found(run, "membership", group, method=method)]
                said(f"membership by {method}, {algorithm}, {group[0].partition(':')[0]}", records, "auc")


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--out", type=Path, default=Path("successor"))
    asked.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = asked.parse_args()
    pictures(given.out, given.seeds)
    members(given.out, given.seeds)
