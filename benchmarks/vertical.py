"""Vertical federation, measured: ``python benchmarks/vertical.py [psi equality xgboost credit classes] [--json FILE]``.

``psi``: two parties with 100,000 ids each, half of them common, matched both ways over the link, in the prime-order group and on x25519.
Seconds are wall-clock time of one process with a thread a core; the targets are those of two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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

IDS, LIMIT = 100_000, 40.0  # ids of each party; seconds in the prime-order group


def psi(count: int = IDS) -> list[dict[str, Any]]:
    """Private set intersection of two parties, half of whose ids are common."""
    names = ("a", "b")
    ids = [[f"customer-{i:08d}" for i in range(k * count // 2, k * count // 2 + count)] for k in range(2)]
    parties = [
        Columns(k, names[k], 0, names, tuple(ids[k]), np.zeros((count, 1)), ("x",), seed=1, workers=machine.cores())
        for k in range(2)
    ]
    rows = []
    for group in ("ed25519", "x25519"):
        federation = columns_federation(parties, align.QUESTIONS, name="align")
        how, server = align.Align("psi", group), {"names": list(names), "active": 0}
        began, work = time.perf_counter(), time.process_time()
        state = federation.drive(lambda how=how, server=server: align.align(how, server), RoundStart(0, 1.0))
        seconds, work = time.perf_counter() - began, time.process_time() - work
        assert state is not None
        found = [[ids[k][i] for i in order(federation.states.get(k))] for k in range(2)]
        assert found[0] == found[1]
        assert set(found[0]) == set(ids[0]) & set(ids[1])
        cost = federation.cost
        rows.append(
            {
                "group": group,
                "ids": f"{count:,} x {count:,}",
                "common": state["align"]["rows"],
                "seconds": round(seconds, 1),
                "core_seconds": round(work, 1),
                "MB": round((cost.bytes_up + cost.bytes_down) / 1e6, 1),
                "target": f"<= {LIMIT:g} s" if group == "ed25519" else "",
                "holds": "yes" if group != "ed25519" or seconds <= LIMIT or count != IDS else "no",
            }
        )
    return rows


def parts() -> dict[str, Callable[[], list[dict[str, Any]]]]:
    """What can be measured, by name."""
    import vertical_boosting

    return {
        "psi": psi,
        "equality": vertical_boosting.equality,
        "xgboost": vertical_boosting.xgboost,
        "credit": vertical_boosting.credit,
        "classes": vertical_boosting.classes,
    }


def main() -> None:
    """Measures what is asked for and prints a table each."""
    known = parts()
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("what", nargs="*", choices=[*known, []], default=list(known))
    reader.add_argument("--json", type=Path)
    asked = reader.parse_args()
    print(f"{platform.processor() or platform.machine()}, {machine.cores()} cores, load {os.getloadavg()[0]:.1f}")
    found = {}
    for name in asked.what or list(known):
        found[name] = known[name]()
        print(f"\n{name}")
        print(table(list(found[name][0]), [list(map(str, row.values())) for row in found[name]]))
    if asked.json is not None:
        asked.json.write_text(json.dumps({"load": os.getloadavg()[0], **machine.describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
