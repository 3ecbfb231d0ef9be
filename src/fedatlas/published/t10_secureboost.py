"""T10, T11: SecureBoost on the papers' two credit tables: as boosting on one table, and time linear in depth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss, roc_auc_score

from fedatlas.config import parse
from fedatlas.machine import one_thread_an_operator
from fedatlas.published.gates import Gate, GateVerdict, Part, PartRuns, Runs, Target
from fedatlas.runs.columns_baselines import drawn_rows, drive, opened
from fedatlas.runs.columns_preview import paired
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.study.plain import Plain, Row

CREDIT = {"taiwan": "credit_default_taiwan", "givemesomecredit": "give_me_some_credit"}
TREES, DEPTH, BINS, RATE = 30, 3, 32, 0.3
NEAR, LINEAR = 0.01, 0.95  # of AUC; R^2
NOTES = (
    "Default of Credit Card Clients (30,000 x 23) and Give Me Some Credit (150,000 x 10);",
    f"{TREES} trees of depth {DEPTH}, {BINS} bins, rate {RATE}; the label and the first half of the columns against the rest, a quarter",
    "of the rows to test. The papers show curves without numbers, so a curve is compared with boosting on one table, not with theirs.",
    "Nor can these be compared: SecureBoost+'s 6 to 35 times less time is that of another program on other machines (this one's",
    "packing is measured in the page on vertical federation), and XGBoost is no dependency (benchmarks/vertical.py compares with it).",
    "Encrypted runs have 2,048 bits; seconds are those of one core.",
)


def secureboost_credit(quick: bool = False, shorter: int | None = None) -> Target:
    """SecureBoost on both credit tables: two parties and one table, encrypted and in the clear, by depth."""
    limit, trees, few, depths = (3000, 10, 300, (1, 2, 3)) if quick else (0, TREES, 2000, (1, 2, 3, 4, 5))
    trees = shorter or trees
    parts = []
    for name, data in CREDIT.items():
        one = tables(data, limit, trees, parties=1)
        parts += [Part(f"{name}-parties", tables(data, limit, trees)), Part(f"{name}-one-table", one)]
        parts.append(Part(f"{name}-boosting", {"on": one}, measure=boosting(one)))
    sample = tables(CREDIT["taiwan"], few, min(trees, 2 if quick else 10))
    sealed = {**sample, "privacy": [{"name": "paillier"}]}
    parts += [Part("sample", sample), Part("sample-encrypted", sealed)]
    for depth in depths:
        asked = tables(CREDIT["taiwan"], few if quick else 10_000, 2, depth=depth)
        asked = {**asked, "privacy": sealed["privacy"], "engine": {"workers": 1}}
        parts.append(Part(f"depth-{depth}", asked, measure=second_tree(asked)))
    source = (
        "Cheng et al. 2021 (SecureBoost) and Chen et al. 2021 (SecureBoost+), also as the CSI5340 slides show them (S2)"
    )
    title = "SecureBoost on two credit tables"
    kept = ("round", "accuracy", "auc", "loss")
    return Target("secureboost", title, source, tuple(parts), gates(depths), NOTES, keeps=kept, of_summary=gains)


def tables(data: str, limit: int, trees: int, parties: int = 2, depth: int = DEPTH) -> dict[str, Any]:
    """Return the configuration of one run. ``limit``: rows drawn of the table; 0: all."""
    return {
        "data": {"name": data, **({"limit": limit} if limit else {})},
        "partition": {"name": "vertical", "parties": parties},
        "align": {"group": "x25519"} if parties > 1 else {"name": "none"},
        "algorithm": {"name": "secureboost", "trees": trees, "depth": depth, "bins": BINS, "learning_rate": RATE},
    }


def gains(summary: Row) -> Plain:
    """Return the gain of each column, whoever holds it: equal only for equal trees."""
    return {"gains": {column: gain for held in summary["importance"].values() for column, gain in held.items()}}


def boosting(asked: Mapping[str, Any]) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of scikit-learn's histogram boosting on the same rows: a row a tree."""

    def measure(seed: int) -> list[dict[str, Any]]:
        with one_thread_an_operator():
            train, test = drawn_rows(checked(parse({**asked, "seed": seed})))
            model = HistGradientBoostingClassifier(
                learning_rate=RATE,
                max_iter=int(asked["algorithm"]["trees"]),
                max_depth=DEPTH,
                max_bins=BINS,
                l2_regularization=1.0,
                min_samples_leaf=1,
                max_leaf_nodes=None,
                early_stopping=False,
            ).fit(*train)
            staged = [p[:, 1] for p in model.staged_predict_proba(test[0])]
        y = test[1]
        return [
            {"round": k, "auc": float(roc_auc_score(y, p)), "loss": float(log_loss(y, p))}
            for k, p in enumerate(staged, start=1)
        ]

    return measure


def second_tree(asked: Mapping[str, Any]) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of an encrypted tree, in seconds of the core: of the second one, as the first also makes the keys."""

    def measure(seed: int) -> list[dict[str, Any]]:
        whole = checked(parse({**asked, "seed": seed}))
        held, scheme = consortium(whole), whole.of_columns()
        federation, server, _ = opened(paired(held, len(held.parties[0].x)), scheme, whole.how, "depth")
        first = drive(federation, lambda: scheme.step(whole.how, server, 1), 1)
        began = time.process_time()
        drive(federation, lambda: scheme.step(whole.how, first, 2), 2)
        return [{"spent": time.process_time() - began}]

    return measure


def same(names: tuple[str, str]) -> Callable[[Runs], GateVerdict]:
    """Return the check that two parts grew the same trees."""

    def check(runs: Runs) -> GateVerdict:
        one, other = (runs[name] for name in names)
        equal = all(curve(one, seed) == curve(other, seed) for seed in one.rows)
        grown = sum(len(rows) - 1 for rows in one.rows.values())
        return GateVerdict(f"{grown} trees, {'all equal' if equal else 'not all equal'}", equal)

    return check


def curve(runs: PartRuns, seed: int) -> list[Any]:
    """Return the figures after every tree, and the gain of every column."""
    rows = runs.rows[seed]
    return [[row[key] for key in ("auc", "accuracy", "loss")] for row in rows] + [rows[-1]["gains"]]


def beside(names: tuple[str, str]) -> Callable[[Runs], GateVerdict]:
    """Return the check that the last AUC is as near to boosting's as the papers' curves are to each other."""

    def check(runs: Runs) -> GateVerdict:
        mine, other = (runs[name].mean(lambda part, seed: part.at(seed, -1, "auc")) for name in names)
        loss = [runs[name].mean(lambda part, seed: part.at(seed, -1, "loss")) for name in names]
        text = f"AUC {mine:.4f} against {other:.4f}, loss {loss[0]:.4f} against {loss[1]:.4f}"
        return GateVerdict(text, mine >= other - NEAR)

    return check


def linear(depths: tuple[int, ...]) -> Callable[[Runs], GateVerdict]:
    """Return the check that the seconds of a tree lie on a line over its depth."""

    def check(runs: Runs) -> GateVerdict:
        seconds = [runs[f"depth-{d}"].mean(lambda part, seed: float(part.rows[seed][-1]["spent"])) for d in depths]
        r2 = float(np.corrcoef(depths, seconds)[0, 1] ** 2)
        said = ", ".join(f"{d}: {s:.2f} s" for d, s in zip(depths, seconds, strict=True))
        return GateVerdict(f"R^2 {r2:.3f} ({said})", r2 >= LINEAR)

    return check


def gates(depths: tuple[int, ...]) -> tuple[Gate, ...]:
    """Return the gates of T10 and T11."""
    out = []
    rule = "equal loss, AUC and accuracy after every tree, equal gain of every column"
    for name, data in CREDIT.items():
        pair, other = (f"{name}-parties", f"{name}-one-table"), (f"{name}-parties", f"{name}-boosting")
        out.append(Gate(f"{data}, lossless", "as on one table", rule, pair, same(pair)))
        near = f"last AUC at most {NEAR:g} below scikit-learn's histogram boosting on the same rows"
        out.append(Gate(f"{data}, curve", "as non-federated, slightly above on test", near, other, beside(other)))
    pair = ("sample", "sample-encrypted")
    out.append(Gate("encryption", "lossless", rule, pair, same(pair)))
    names = tuple(f"depth-{d}" for d in depths)
    out.append(Gate("time over depth", "linear", f"R^2 >= {LINEAR:g}", names, linear(depths)))
    return tuple(out)
