"""Vertical federation, measured: ``python benchmarks/vertical.py [PART ...] [--ids N] [--json FILE]``; without a part, all.

``psi``: two parties with 100,000 ids each (``--ids``), half of them common, matched both ways over the link, in both groups.
``million``: the same with 1,000,000. Seconds are wall-clock time of one process that plays both parties with a thread a core; core
seconds are those of both parties together, and so is the largest memory of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from table import table

from fedatlas import machine
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.start import RoundStart
from fedatlas.vertical import align
from fedatlas.vertical.parties import Columns, order

IDS, MILLION = 100_000, 1_000_000  # ids of each party
LIMITS = {"ristretto255": 220.0, "x25519": 180.0}  # core seconds of both parties for a million ids each
MEMORY = 2.0  # GB, of both parties in one process with a million ids each


def psi(count: int = IDS) -> list[dict[str, Any]]:
    """Private set intersection of two parties, half of whose ids are common."""
    names = ("a", "b")
    ids = [[f"customer-{i:08d}" for i in range(k * count // 2, k * count // 2 + count)] for k in range(2)]
    parties = [
        Columns(k, names[k], 0, names, tuple(ids[k]), np.zeros((count, 1)), ("x",), seed=1, workers=machine.cores())
        for k in range(2)
    ]
    rows = []
    for group, limit in LIMITS.items():
        federation = columns_federation(parties, align.QUESTIONS, name="align")
        how, server = align.Align("psi", group), {"names": list(names), "active": 0}
        began, work = time.perf_counter(), time.process_time()
        state = federation.drive(lambda how=how, server=server: align.align(how, server), RoundStart(0, 1.0))
        seconds, work = time.perf_counter() - began, time.process_time() - work
        assert state is not None
        found = [[ids[k][i] for i in order(federation.states.get(k))] for k in range(2)]
        assert found[0] == found[1]
        assert set(found[0]) == set(ids[0]) & set(ids[1])
        cost, memory = federation.cost, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        a_million = work / count * MILLION
        rows.append(
            {
                "group": group,
                "ids": f"{count:,} x {count:,}",
                "common": state["align"]["rows"],
                "seconds": round(seconds, 1),
                "core_seconds": round(work, 1),
                "core_seconds_a_million": round(a_million),
                "MB": round((cost.bytes_up + cost.bytes_down) / 1e6, 1),
                "memory_GB": round(memory, 2),
                "target": f"<= {limit:g} core seconds a million, {MEMORY:g} GB",
                "holds": "yes" if a_million <= limit and memory <= MEMORY else "no",
            }
        )
    return rows


def parts(ids: int) -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """What can be measured, by name. ``ids``: of each party in ``psi``."""
    import vertical_boosting
    import vertical_forest
    import vertical_ridge
    import vertical_sizes
    import vertical_split

    return {
        "psi": lambda: psi(ids),
        "million": lambda: psi(MILLION),
        "equality": vertical_boosting.equality,
        "xgboost": vertical_boosting.xgboost,
        "credit": vertical_boosting.credit,
        "sizes": vertical_sizes.sizes,
        "linear": vertical_sizes.linear,
        "classes": vertical_boosting.classes,
        "forest": vertical_forest.forest,
        "forest-linear": vertical_forest.linear,
        "split": vertical_split.split,
        "ridge": vertical_ridge.ridge,
        "ridge_rows": vertical_ridge.ridge_rows,
    }


def main() -> None:
    """Measures what is asked for and prints a table each."""
    names = list(parts(IDS))
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", nargs="*", choices=[*names, []], default=names)
    reader.add_argument("--ids", type=int, default=IDS)
    reader.add_argument("--json", type=Path)
    asked = reader.parse_args()
    print(f"{platform.processor() or platform.machine()}, {machine.cores()} cores, load {os.getloadavg()[0]:.1f}")
    known, found = parts(asked.ids), {}
    for name in asked.what or names:
        found[name] = known[name]()
        print(f"\n{name}")
        print(table(list(found[name][0]), [list(map(str, row.values())) for row in found[name]]))
    if asked.json is not None:
        asked.json.write_text(json.dumps({"load": os.getloadavg()[0], **machine.describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
