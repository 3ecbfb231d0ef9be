"""What encrypted trees cost on tables of several sizes; a part of vertical.py.

``sizes``: all of give_me_some_credit (30 trees), all of bank_marketing_full, and drawn numbers in the shape of the card
fraud table of 284,807 rows and 30 columns (5 trees each); the label's party holds the first half of the columns.
``linear``: one tree by rows and by depth, each with the R^2 of a straight line.
Core-seconds are those of all processes; milliseconds are of core, per training row and tree.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from privacy import processors
from vertical_boosting import BINS, DEPTH, KEY, TREES, Row, read, training_rows, yes

from boosting_federation import Table, federation_of, parties_of
from fedatlas import machine
from fedatlas.federation.start import RoundStart
from fedatlas.vertical import boosting

LIMIT = 20 * 60.0  # seconds of give_me_some_credit
FRAUD = (284_807, 30)
SHORT = 5  # trees of the tables that are measured per tree only
PUBLISHED = {"bank_marketing_full": "136 s", "drawn, 284,807 x 30": "106 s"}  # SecretFlow's SGB, by the clock, 16 cores


class Cost(NamedTuple):
    """What some encrypted trees took."""

    seconds: float
    core_seconds: float
    megabytes: float  # over the coordinator, each letter counted up and down


def cost(table: Table, train: np.ndarray, *, trees: int, depth: int = DEPTH, active_columns: int | None = None) -> Cost:
    """Grow trees of two parties under Paillier with full exponents, key generation included."""
    width = table.x.shape[1]
    first = width - width // 2 if active_columns is None else active_columns
    owners = [list(range(first)), list(range(first, width))]
    how = boosting.secureboost(trees=trees, depth=depth, bins=BINS)._replace(key_bits=KEY)
    parties = [each._replace(workers=machine.cores()) for each in parties_of(table, owners)]
    held, server = federation_of(parties, how, train)
    begun, worked, crossed = time.perf_counter(), processors(), 0
    server = held.drive(lambda: boosting.begin(how, server), RoundStart(1, 0.0))
    for number in range(1, trees + 1):
        server = held.drive(lambda n=number, s=server: boosting.grow(how, s, n), RoundStart(1 + number, 0.0))
        crossed += held.cost.bytes_up + held.cost.bytes_down
    return Cost(time.perf_counter() - begun, processors() - worked, crossed / 1e6)


def drawn(rows: int, columns: int) -> Table:
    """Normal numbers, and a rare class (2 in 1,000) that depends on some of them."""
    stream = np.random.default_rng(1)
    x = stream.normal(size=(rows, columns))
    score = x[:, ::5].sum(axis=1) + stream.normal(size=rows)
    return Table(x, (score > np.quantile(score, 0.998)).astype(np.float64), "classes")


def sizes() -> list[Row]:
    """Whole tables under encryption."""
    tables: dict[str, tuple[Callable[[], Table], int]] = {
        "give_me_some_credit": (lambda: read("give_me_some_credit"), TREES),
        "bank_marketing_full": (lambda: read("bank_marketing_full"), SHORT),
        "drawn, 284,807 x 30": (lambda: drawn(*FRAUD), SHORT),
    }
    found = []
    for name, (source, trees) in tables.items():
        table = source()
        train = training_rows(len(table.y))
        load, took = os.getloadavg()[0], cost(table, train, trees=trees)
        found.append(
            {
                "table": name,
                "training rows": len(train),
                "passive columns": table.x.shape[1] // 2,
                "trees": trees,
                "seconds": round(took.seconds, 1),
                "core-seconds": round(took.core_seconds, 1),
                "ms a row and tree": round(1000 * took.core_seconds / len(train) / trees, 3),
                "MB": round(took.megabytes, 1),
                "note": f"load {load:.1f}; "
                + (
                    f"<= {LIMIT:g} s: {yes(took.seconds <= LIMIT)}"
                    if trees == TREES
                    else f"SecretFlow publishes {PUBLISHED[name]} on 16 cores"
                ),
            }
        )
        print(found[-1], flush=True)
    return found


def linear() -> list[Row]:
    """One tree by rows, and by depth."""
    table = read("credit_default_taiwan")
    rows, depths = (4_000, 8_000, 12_000, 16_000, 22_500), (2, 3, 4, 5, 6)
    by_rows = [cost(table, training_rows(len(table.y))[:n], trees=1, active_columns=11) for n in rows]
    some = training_rows(len(table.y))[:8_000]
    by_depth = [cost(table, some, trees=1, depth=d, active_columns=11) for d in depths]
    return [_line("rows", rows, by_rows), _line("depth", depths, by_depth)]


def _line(name: str, along: Sequence[int], found: Sequence[Cost]) -> Row:
    work = np.array([one.core_seconds for one in found])
    r2 = float(np.corrcoef(np.array(along, float), work)[0, 1] ** 2)
    told: dict[str, Any] = {"by": name, "R^2": round(r2, 4), ">= 0.95": yes(r2 >= 0.95)}
    told["core-seconds"] = ", ".join(f"{n:,}: {s:.1f}" for n, s in zip(along, work.tolist(), strict=True))
    return told
