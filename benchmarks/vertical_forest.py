"""Federated Forest, measured; a part of vertical.py.

``forest``: credit_default_taiwan, 100 trees of depth 10, the columns dealt to two, four and eight parties, beside one party with all of
them (whose forest theirs has to be, bit for bit) and scikit-learn's RandomForest, which draws columns for each split instead of each tree.
``forest-linear``: five trees by rows, four parties, with the R^2 of a straight line.
Core-seconds are those of all parties, in one process; megabytes cross the coordinator, each letter counted up and down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from vertical_boosting import Row, read, training_rows, yes

from boosting_federation import Table, federation_of, parties_of
from fedatlas.federation.start import RoundStart
from fedatlas.metrics.quality import auc
from fedatlas.vertical.forest import FEDERATED_FOREST as SCHEME
from fedatlas.vertical.forest import federated_forest

NAME, FOREST, FEW = "credit_default_taiwan", 100, 5


class Grown(NamedTuple):
    """A forest, and what it took."""

    outputs: np.ndarray  # of the rows that test
    core_seconds: float
    predicting: float  # core-seconds of all rows in one round, of all parties
    megabytes: float
    predicting_megabytes: float


def grown(table: Table, train: np.ndarray, parties: int, trees: int) -> Grown:
    """Grow a forest on columns that are dealt to so many parties, and predict all rows."""
    owners = [one.tolist() for one in np.array_split(np.arange(table.x.shape[1]), parties)]
    how = federated_forest(trees=trees)
    held, server = federation_of(parties_of(table, owners), how, train, scheme=SCHEME)
    began, sent = time.process_time(), 0
    server = held.drive(lambda: SCHEME.begin(how, server), RoundStart(1, 0.0))
    for number in range(1, trees + 1):
        server = held.drive(lambda n=number, s=server: SCHEME.step(how, s, n), RoundStart(1 + number, 0.0))
        sent += held.cost.bytes_up + held.cost.bytes_down
    between = time.process_time()
    held.drive(lambda: SCHEME.predict(how, server), RoundStart(2 + trees, 0.0))
    ended, predicted = time.process_time(), held.cost.bytes_up + held.cost.bytes_down
    outside = np.setdiff1d(np.arange(len(table.y)), train)
    outputs = SCHEME.outputs(held.states.get(0))[outside]
    return Grown(outputs, between - began, ended - between, sent / 1e6, predicted / 1e6)


def forest() -> list[Row]:
    """A whole table, by the number of parties."""
    table = read(NAME)
    train = training_rows(len(table.y))
    test = np.setdiff1d(np.arange(len(table.y)), train)
    found: list[Row] = []
    central = np.zeros(0)
    for parties in (1, 2, 4, 8):
        one = grown(table, train, parties, FOREST)
        central = one.outputs if parties == 1 else central
        found.append(
            {
                "parties": parties,
                "core-seconds": round(one.core_seconds, 1),
                "ms a row and tree": round(1000 * one.core_seconds / len(train) / FOREST, 4),
                "MB": round(one.megabytes, 1),
                "predicting": round(one.predicting, 1),
                "MB of it": round(one.predicting_megabytes, 1),
                "AUC": round(auc(one.outputs, table.y[test]), 5),
                "equal": yes(np.array_equal(one.outputs, central)),
            }
        )
        print(found[-1], flush=True)
    began = time.process_time()
    theirs = RandomForestClassifier(FOREST, max_depth=10, random_state=0).fit(table.x[train], table.y[train])
    spent = time.process_time() - began
    area = auc(theirs.predict_proba(table.x[test])[:, 1], table.y[test])
    other = {"parties": "scikit-learn", "core-seconds": round(spent, 1), "AUC": round(area, 5)}
    return [*found, {**dict.fromkeys(found[0], "-"), **other}]


def linear() -> list[Row]:
    """A few trees, by rows."""
    table = read(NAME)
    rows: Sequence[int] = (4_000, 8_000, 12_000, 16_000, 22_500)
    work = [grown(table, training_rows(len(table.y))[:n], 4, FEW).core_seconds for n in rows]
    r2 = float(np.corrcoef(np.array(rows, float), work)[0, 1] ** 2)
    said = ", ".join(f"{n:,}: {s:.1f}" for n, s in zip(rows, work, strict=True))
    return [{"by": "rows", "R^2": round(r2, 4), ">= 0.95": yes(r2 >= 0.95), "core-seconds": said}]
