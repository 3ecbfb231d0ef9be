"""SecureBoost, measured; a part of vertical.py.

``equality``: on six tables, two of them with three or more classes, with holes, for two, four and eight parties: the trees under Paillier
of 2,048 bits, those in the clear, and those of the slow booster on the joined table (tests/support/oracles/secureboost.py).
``xgboost``: XGBoost trained on our bin numbers, in an environment of its own (``FEDATLAS_XGBOOST=PYTHON``, see peers/xgb.txt), and with
bins of its own. ``credit``: credit_default_taiwan, encrypted, beside V2's naive form (textbook encryption of g and h apart, no
subtraction, every sum opened), whose parts are timed on samples in the same run. ``classes``: one round of the seven classes of
wine_quality, and of three of credit_default_taiwan (thirds of its first column), encrypted, beside a tree of two classes for each.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "support"))

from privacy import processors  # noqa: E402

from boosting_federation import Table, Trained, federation_of, parties_of, trained  # noqa: E402
from fedatlas import machine, secret  # noqa: E402
from fedatlas.federation.start import RoundStart  # noqa: E402
from fedatlas.metrics.quality import auc  # noqa: E402
from fedatlas.privacy.paillier import cryptosystem as paillier  # noqa: E402
from fedatlas.vertical import boosting  # noqa: E402
from fedatlas.vertical.boosting import active, bins, gains  # noqa: E402
from fedatlas.vertical.parties import aligned  # noqa: E402
from fedatlas.vertical.trees import records  # noqa: E402
from oracles.secureboost import Booster, Settings  # noqa: E402

Row = dict[str, Any]
KEY, LIMIT, NEAR = 2048, 480.0, 1e-4  # bits; seconds; of AUC or of rmse, relative
TREES, DEPTH, BINS = 30, 3, 32

# name -> (label, columns that are no features); bank's and adult's texts become numbers in the order of the alphabet.
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "credit_default_taiwan": ("default_next_month", ("ID",)),
    "give_me_some_credit": ("SeriousDlqin2yrs", ("id",)),
    "breast_cancer_wdbc": ("diagnosis", ("id",)),
    "diabetes_pima": ("outcome", ()),
    "california_housing": ("median_house_value", ()),
    "concrete_strength": ("strength_mpa", ()),
    "auto_mpg": ("mpg", ()),
    "bank_marketing_full": ("y", ()),
    "wine_cultivars": ("class", ()),
    "wine_quality": ("quality", ()),
}
SEVERAL = ("wine_cultivars", "wine_quality")  # three and seven classes
EQUAL = ("breast_cancer_wdbc", "diabetes_pima", "auto_mpg", "concrete_strength", *SEVERAL)


def read(name: str) -> Table:
    """A table of FEDATLAS_DATA as numbers; missing values are nan."""
    import pandas as pd

    label, drop = TABLES[name]
    with gzip.open(Path(os.environ["FEDATLAS_DATA"]) / "tables" / f"{name}.csv.gz", "rt") as file:
        frame = pd.read_csv(file).drop(columns=list(drop))
    for column in frame:
        if frame[column].dtype.kind not in "if":
            frame[column] = frame[column].astype("category").cat.codes
    y = frame.pop(label).to_numpy(np.float64)
    if name in SEVERAL:
        return Table(frame.to_numpy(np.float64), np.unique(y, return_inverse=True)[1].astype(np.float64), "classes")
    return Table(frame.to_numpy(np.float64), y, "classes" if len(np.unique(y)) == 2 else "numbers")


def training_rows(n: int) -> np.ndarray:
    """Three quarters of the rows."""
    return np.sort(np.random.default_rng(0).permutation(n)[: n * 3 // 4])


def equality(rows: int = 300, trees: int = 3) -> list[Row]:
    """Three ways to the same trees."""
    holder = paillier.holder(paillier.generate(KEY))
    found = []
    for name in EQUAL:
        whole, stream = read(name), np.random.default_rng(1)
        some = stream.permutation(len(whole.y))[:rows]
        x = np.where(stream.random((len(some), whole.x.shape[1])) < 0.05, np.nan, whole.x[some])
        table = Table(x, whole.y[some], whole.task)
        train = training_rows(len(table.y))
        for count in (2, 4, 8):
            owners = [list(range(k, x.shape[1], count)) for k in range(count)]
            how = boosting.secureboost(trees=trees)
            plain = trained(table, owners, how, train=train)
            under = encrypted(table, owners, how._replace(key_bits=KEY), train, holder)
            keys = {each: getattr(how, each) for each in Settings._fields}
            slow = Booster(table.x, table.y, table.task, owners, Settings(**keys), train=train)
            found.append(
                {
                    "table": name,
                    "rows": len(train),
                    "columns": x.shape[1],
                    "parties": count,
                    "loss": "squared" if table.task == "numbers" else "softmax" if name in SEVERAL else "logistic",
                    "encrypted = plain": yes(under.trees == plain.trees and alike(under.outputs, plain.outputs)),
                    "plain = joined": yes(
                        plain.outputs.tolist() == slow.outputs and len(slow.trees) == len(plain.trees)
                    ),
                }
            )
    return found


def yes(fact: bool) -> str:
    """For a table."""
    return "yes" if fact else "NO"


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    """Bit for bit."""
    return a.tobytes() == b.tobytes()


def encrypted(table: Table, owners: Any, how: Any, train: np.ndarray, holder: paillier.Holder | None) -> Trained:
    """A training whose active party has this key already."""
    parties = [each._replace(workers=machine.cores()) for each in parties_of(table, owners)]
    held, server = federation_of(parties, how, train)
    if holder is not None:
        held.party.secrets.kept[0] = {active.KEY: holder}  # type: ignore[union-attr]
    server = held.drive(boosting.begin(how, server), RoundStart(1, 0.0))
    for number in range(1, how.trees + 1):
        server = held.drive(boosting.grow(how, server, number), RoundStart(1 + number, 0.0))
    return Trained(held, server, parties)


# ------------------------------------------------------------------------------------------------ XGBoost


def xgboost(names: Any = tuple(name for name in TABLES if name != "bank_marketing_full")) -> list[Row]:
    """AUC, rmse in the standardised target's unit, or log-loss of several classes, of the test rows.

    Ours, XGBoost's on our bins, XGBoost's on its own. With several classes ours takes XGBoost's curvature.
    """
    python = os.environ.get("FEDATLAS_XGBOOST", "")
    if not python:
        return [{"xgboost": "not measured: set FEDATLAS_XGBOOST to the Python of an environment with peers/xgb.txt"}]
    found = []
    for name, one_tree in [(one, way) for one in names for way in ((False, True) if one in SEVERAL else (False,))]:
        table = read(name)
        train = training_rows(len(table.y))
        test = np.setdiff1d(np.arange(len(table.y)), train)
        half = (table.x.shape[1] + 1) // 2
        owners = [list(range(half)), list(range(half, table.x.shape[1]))]
        several = len(np.unique(table.y)) if name in SEVERAL else 0
        keys: dict[str, Any] = {"softmax_hess": "xgboost", "multi_output": one_tree or None} if several else {}
        ours = trained(table, owners, boosting.secureboost(trees=TREES, depth=DEPTH, bins=BINS, **keys), train=train)
        y = table.y
        outputs = ours.outputs
        if table.task == "numbers":
            start, scale = ours.state(0)["boost"]["unit"].tolist()
            y, outputs = (y - start) / scale, (outputs - start) / scale
        numbers = joined_bins(ours)
        theirs = [peer(python, table.task, x, y, train, test, several, one_tree) for x in (numbers, table.x)]
        scores = [quality(table.task, one, y[test]) for one in (outputs[test], *theirs)]
        of_two = table.task == "classes" and not several
        distance = abs(scores[1] - scores[0]) / (1 if of_two else scores[1])
        found.append(
            {
                "table": f"{name}, {'one tree' if one_tree else 'a tree a class'}" if several else name,
                "training rows": len(train),
                "measure": "log-loss" if several else "AUC" if of_two else "rmse",
                "ours": f"{scores[0]:.6f}",
                "XGBoost, our bins": f"{scores[1]:.6f}",
                "distance": f"{distance:.1e}",
                "<= 1e-4": yes(distance <= NEAR),
                "largest gap of an output": f"{np.abs(outputs[test] - theirs[0]).max():.1e}",
                "XGBoost, its own bins": f"{scores[2]:.6f}",
            }
        )
    return found


def joined_bins(ours: Trained) -> np.ndarray:
    """All parties' bin numbers of all rows; missing values stay missing."""
    parts = []
    for one in ours.parties:
        state = ours.state(one.party)
        x = aligned(one, state).x
        parts.append(np.where(np.isnan(x), np.nan, bins.numbered(x, records.column_cuts(state["boost"]))))
    return np.concatenate(parts, axis=1)


def quality(task: str, outputs: np.ndarray, y: np.ndarray) -> float:
    """AUC of two classes, log-loss of more from their log-probabilities, rmse of numbers."""
    if outputs.ndim > 1:
        return float(-np.mean(outputs[np.arange(len(y)), y.astype(int)]))
    if task == "classes":
        found = auc(outputs, y)
        assert found is not None
        return found
    return math.sqrt(float(np.mean((outputs - y) ** 2)))


def peer(
    python: str,
    task: str,
    x: np.ndarray,
    y: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    classes: int = 0,
    one_tree: bool = False,
) -> np.ndarray:
    """XGBoost's outputs on the test rows, from a process of its own; of several classes log-probabilities."""
    with tempfile.TemporaryDirectory() as folder:
        given, taken = Path(folder) / "given.npz", Path(folder) / "taken.npy"
        np.savez(given, x=x[train], y=y[train], test=x[test])
        keys = {"task": task, "trees": TREES, "depth": DEPTH, "rate": 0.3, "l2": 1.0}
        keys |= {"classes": classes, "one_tree": one_tree}
        command = [python, HERE / "peers" / "xgb.py", str(given), str(taken), json.dumps(keys)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": ""})
        found: np.ndarray = np.load(taken)
    return gains.log_softmax(found) if classes else found


# ------------------------------------------------------------------------------------------------ several classes, encrypted


def classes() -> list[Row]:
    """Core-seconds, bytes and ciphertexts of one round under 2,048 bits; one against the rest is a tree of two classes for each."""
    credit_ = read("credit_default_taiwan")
    thirds = np.searchsorted(np.quantile(credit_.x[:, 0], [1 / 3, 2 / 3]), credit_.x[:, 0]).astype(np.float64)
    tables = {
        "wine_quality": read("wine_quality"),
        "credit_default_taiwan": Table(credit_.x[:, 1:], thirds, "classes"),
    }
    holder = paillier.holder(paillier.generate(KEY))
    return [row for name, table in tables.items() for row in one_round(name, table, holder)]


def one_round(name: str, table: Table, holder: paillier.Holder) -> list[Row]:
    """A table's rounds, in each of three ways."""
    half = (table.x.shape[1] + 1) // 2
    owners = [list(range(half)), list(range(half, table.x.shape[1]))]
    train = training_rows(len(table.y))
    how = boosting.secureboost(trees=1, depth=DEPTH, bins=BINS)._replace(key_bits=KEY)
    several = len(np.unique(table.y))
    ways = {
        "a tree for each class": [(table, how)],
        "one tree": [(table, how._replace(multi_output=True))],
        "one class against the rest, for each": [
            (table._replace(y=(table.y == c).astype(np.float64)), how) for c in range(several)
        ],
    }
    found: list[Row] = []
    for way, trainings in ways.items():
        total: Row = {
            "table": name,
            "classes": several,
            "rows": len(train),
            "round": way,
            "core-seconds": 0.0,
            "MB": 0.0,
        }
        total |= {"ciphertexts of rows": 0, "of sums": 0}
        for one, keys in trainings:
            worked = processors()
            done = encrypted(one, owners, keys, train, holder)
            counts, cost = done.server["boost"]["total"], done.federation.cost
            total["core-seconds"] = round(total["core-seconds"] + processors() - worked, 1)
            total["MB"] = round(total["MB"] + (cost.bytes_up + cost.bytes_down) / 1e6, 2)
            total["ciphertexts of rows"] += counts["ciphertexts"] - counts["decryptions"]
            total["of sums"] += counts["decryptions"]
        found.append(total)
    return found


# ------------------------------------------------------------------------------------------------ credit, encrypted


def credit(trees: int = TREES) -> list[Row]:
    """Seconds and bytes of all trees, where what goes from party to party crosses twice; the naive form's from samples."""
    table = read("credit_default_taiwan")
    train = np.sort(np.random.default_rng(0).permutation(len(table.y))[:22_500])
    owners = [list(range(11)), list(range(11, 23))]
    how = boosting.secureboost(trees=trees, depth=DEPTH, bins=BINS)
    parties = [each._replace(workers=machine.cores()) for each in parties_of(table, owners)]
    sealed_how = how._replace(key_bits=KEY)
    held, server = federation_of(parties, sealed_how, train)
    begun, worked, crossed = time.perf_counter(), processors(), 0
    phases: dict[str, float] = {}
    server = held.drive(boosting.begin(sealed_how, server), RoundStart(1, 0.0))
    for number in range(1, trees + 1):
        before = time.perf_counter()
        server = held.drive(boosting.grow(sealed_how, server, number), RoundStart(1 + number, 0.0))
        crossed += held.cost.bytes_up + held.cost.bytes_down
        phases |= {name: phases.get(name, 0.0) + s for name, s in held.cost.seconds.items()}
        print(f"tree {number}: {time.perf_counter() - before:.1f} s", file=sys.stderr, flush=True)
    seconds, work = time.perf_counter() - begun, processors() - worked
    under = Trained(held, server, parties)
    plain = trained(table, owners, how, train=train)
    assert under.trees == plain.trees
    assert alike(under.outputs, plain.outputs)
    holder = held.party.secrets.kept[0][active.KEY]  # type: ignore[union-attr]
    naive = {name: s * trees for name, s in textbook(holder, under, len(train)).items()}
    note = ", ".join(f"{name} {s:.0f} s" for name, s in phases.items())
    counts, width = server["boost"]["total"], holder.public.width
    return credit_rows(
        trees, len(train), counts, note, seconds=seconds, work=work, crossed=crossed, naive=naive, width=width
    )


def credit_rows(
    trees: int,
    train: int,
    counts: dict[str, int],
    note: str,
    *,
    seconds: float,
    work: float,
    crossed: int,
    naive: dict[str, float],
    width: int,
) -> list[Row]:
    """Return the table of `credit`: fedatlas, the naive form and their ratios. ``work``: core-seconds; ``width``: bytes of a ciphertext."""
    cores = min(machine.cores(), 2)
    total = sum(s for name, s in naive.items() if name != "ciphertexts")
    rows = counts["ciphertexts"] - counts["decryptions"]
    returned = naive["ciphertexts"] - 2 * train * trees
    idle = work / cores
    return [
        {
            "form": "fedatlas",
            "seconds": round(seconds, 1),
            "core-seconds": round(work, 1),
            "on idle cores": round(idle, 1),
            "MB over the coordinator": round(crossed / 1e6, 1),
            "ciphertexts of rows": rows,
            "of sums": counts["decryptions"],
            "note": note,
        },
        {
            "form": "V2 naive, from samples",
            "seconds": "",
            "core-seconds": round(total, 1),
            "on idle cores": round(total / cores, 1),
            "MB over the coordinator": round(2 * naive["ciphertexts"] * width / 1e6, 1),
            "ciphertexts of rows": 2 * train * trees,
            "of sums": round(returned),
            "note": ", ".join(f"{name} {s / trees:.0f} s a tree" for name, s in naive.items() if name != "ciphertexts"),
        },
        {
            "form": "ratio",
            "seconds": f"<= {LIMIT:g}: {yes(seconds <= LIMIT)}",
            "core-seconds": f"{total / work:.1f} (>= 6: {yes(total / work >= 6)})",
            "on idle cores": f"<= {LIMIT:g}: {yes(idle <= LIMIT)}",
            "MB over the coordinator": f"{2 * naive['ciphertexts'] * width / crossed:.1f}",
            "ciphertexts of rows": f"{2 * train * trees / rows:.1f}",
            "of sums": f"{returned / counts['decryptions']:.1f}",
            "note": f"load {os.getloadavg()[0]:.1f} on {machine.cores()} cores; limits are those of {TREES} trees",
        },
    ]


def textbook(holder: paillier.Holder, found: Trained, rows: int, sample: int = 40) -> dict[str, float]:
    """Core-seconds and ciphertexts of one tree in V2's naive form: each part timed on a sample, in this process alone.

    2 encryptions a row, r^n by the public key; at each of three levels every row is added to a bin of every column, twice; 2 sums a
    candidate of each of seven nodes are opened (all nodes of a full tree of this depth).
    """
    public = holder.public
    n = gmpy2.mpz(public.n)
    square = n * n
    columns, candidates = len(found.parties[1].names), int(found.state(0)["boost"]["announced"]["1"])
    began = time.process_time()
    made = [(1 + m * n) * gmpy2.powmod(secret.integer_below(public.n), n, square) % square for m in range(sample)]
    encrypting = (time.process_time() - began) / sample
    began, product = time.process_time(), gmpy2.mpz(1)
    for i in range(100 * sample):
        product = product * made[i % sample] % square
    adding = (time.process_time() - began) / (100 * sample)
    batch = paillier.encrypt(public, list(range(sample)), keys=holder)
    began = time.process_time()
    paillier.decrypt(holder, batch)
    opening = (time.process_time() - began) / sample
    nodes = 2**DEPTH - 1
    sums = nodes * candidates * 2
    return {
        "encrypt": 2 * rows * encrypting,
        "add": DEPTH * rows * columns * 2 * adding + sums * adding,
        "open": sums * opening,
        "ciphertexts": 2 * rows + sums,
    }
