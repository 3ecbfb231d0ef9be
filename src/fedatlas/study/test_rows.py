"""The error of the test rows: which rows each run predicted rightly, and what that leaves open of a difference between choices.

More seeds make the noise between seeds smaller, but not the error of test rows that all seeds share. A table of runs therefore keeps
one bit per test row. Where each seed draws its own test rows, their error is part of the variation between seeds, which overlapping
training rows make too small: there the table's numbers of rows correct it (`seed_noise`).
"""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections.abc import Sequence

import numpy as np

from fedatlas.study.measurements import Bools, Floats, Measurements, Setting
from fedatlas.study.plain import Row, RunRow
from fedatlas.study.responses import RESPONSES

RIGHT, JUDGED_ON = "right", "judged_on"  # in a run's summary: `kept` rows, and the fingerprint of the test rows
Errors = dict[tuple[Setting, str, str], float]


def kept(score: np.ndarray, weight: np.ndarray) -> str | None:
    """Return which rows were right, one bit per row, as text; None unless each row is either right or wrong and counts once."""
    right = score == 1
    if not len(score) or not (right | (score == 0)).all() or not (weight == weight[0]).all():
        return None
    return f"{len(score)} {base64.b85encode(zlib.compress(np.packbits(right).tobytes())).decode()}"


def right_rows(summary: Row) -> Bools | None:
    """Return which test rows a run predicted rightly; None if its table did not keep them."""
    if not summary.get(RIGHT):
        return None
    number, packed = str(summary[RIGHT]).split(" ", 1)
    bits = np.frombuffer(zlib.decompress(base64.b85decode(packed)), dtype=np.uint8)
    return np.unpackbits(bits, count=int(number)).astype(bool)


def rows_errors(study: Measurements, chosen: Sequence[str]) -> Errors:
    """Return (setting, choice, other choice) -> standard error of the difference in accuracy that the test rows cause.

    A pair is left out where seeds draw their own rows, or where the rows are not known. The difference is that of the share of
    seeds that were right on a row, and its error the standard deviation over rows, divided by the root of their number.
    """
    cells: dict[Setting, dict[str, list[RunRow]]] = {}
    for run in study.cells():
        if run["status"] == "done" and run.get(RIGHT) is not None:
            cells.setdefault(study.setting_of(run), {}).setdefault(study.choice_of(run), []).append(run)
    found: Errors = {}
    for setting, choices in cells.items():
        if len({run[JUDGED_ON] for runs in choices.values() for run in runs}) > 1:
            continue
        shares = {name: np.mean([run[RIGHT] for run in runs], axis=0) for name, runs in choices.items()}
        for one, other in itertools.permutations([name for name in chosen if name in shares], 2):
            gap = shares[one] - shares[other]
            found[setting, one, other] = float(gap.std(ddof=1)) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
    return found


def numbers_of_rows(run: RunRow) -> tuple[int, int]:
    """Return how many test and training rows a run had; 0 test rows where the table does not keep it."""
    told = run.get("judged", {})
    if kept_of := told.get("judged"):
        rows = [one["rows"] for one in kept_of["parties"]]
        return sum(rows) if kept_of["own"] else max(rows), int(kept_of["train_rows"])
    return int(told.get("metric", {}).get("test_rows") or 0), int(run.get("rows") or 0)


def drawn_shares(study: Measurements, response: str) -> Floats:
    """Return (settings,) test rows per training row where seeds draw their test rows, else 0; 0 for costs, which need no test rows."""
    cells: dict[Setting, list[RunRow]] = {name: [] for name in study.setting_names()}
    for run in study.cells() if RESPONSES[response].quality else ():
        if run["status"] == "done":
            cells[study.setting_of(run)].append(run)
    return np.array([_drawn_share(runs) for runs in cells.values()])


def _drawn_share(runs: Sequence[RunRow]) -> float:
    if len({run.get(JUDGED_ON) or run.get("judged", {}).get(JUDGED_ON) for run in runs}) <= 1:
        return 0.0
    shares = [test / train for test, train in map(numbers_of_rows, runs) if train]
    return sum(shares) / len(shares) if shares else 0.0
