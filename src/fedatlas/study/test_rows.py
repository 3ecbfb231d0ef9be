"""The error of the test rows: which rows each run predicted rightly, and what that leaves open of a difference between choices.

More seeds make the noise between seeds smaller, but not the error of test rows that all seeds share. A table of runs therefore keeps
one bit per test row. Where each seed draws its own test rows, their error is part of the variation between seeds.
"""

from __future__ import annotations

import base64
import itertools
import math
import zlib
from collections.abc import Sequence

import numpy as np

from fedatlas.study.measurements import Bools, Measurements, Setting
from fedatlas.study.plain import Row, RunRow

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


def drawn_shares(study: Measurements) -> dict[Setting, float]:
    """Return setting -> test rows per training row, where seeds draw their own test rows; left out where they share them.

    Training rows of the seeds then overlap, so that the variance of a mean over n seeds is longer by 1/n + test/train over 1/n
    (Nadeau and Bengio 2003), as in a run's answer (`verdict.evidence.of_seeds`).
    """
    cells: dict[Setting, list[RunRow]] = {}
    for run in study.cells():
        if run["status"] == "done" and run.get(JUDGED_ON) is not None:
            cells.setdefault(study.setting_of(run), []).append(run)
    found = dict[Setting, float]()
    for setting, runs in cells.items():
        shares = [rows / run["rows"] for run in runs if run.get("rows") and (rows := _test_rows(run))]
        if shares and len({run[JUDGED_ON] for run in runs}) > 1:
            found[setting] = float(np.mean(shares))
    return found


def _test_rows(run: RunRow) -> int:
    if run.get(RIGHT) is not None:
        return len(run[RIGHT])
    return int((run.get("judged") or {}).get("metric", {}).get("test_rows") or 0)
