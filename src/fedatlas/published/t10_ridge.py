"""T10: private ridge regression beside scikit-learn's on two tables and on drawn numbers, by columns and by rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.linear_model import Ridge

from fedatlas.published.gates import Gate, GateVerdict, Part, Runs, Target
from fedatlas.runs.ridge_cost import MeasuredFit, drawn_side, measured_fit, table_side

TABLES = ("power_plant", "concrete_strength")
OWNERS, L2, LINEAR, REPEATS = 10, 1.0, 0.95, 5
NOTES = (
    "Ten owners of rows; Giacomelli, Jha, Joye, Page and Yoon 2018, with a key of 2,048 bits, l2 = 1, and as many bits after the point as",
    "fit. The slides say that the method is faster than other secure linear models; they name none, nor any figure, so nothing is compared",
    "with it: the shape of the cost is. Drawn numbers are normal, 16 columns where nothing else is said. Seconds are those of one core.",
)


def private_ridge_costs(quick: bool = False, shorter: int | None = None) -> Target:
    """Private ridge: coefficients on two tables and drawn numbers, ciphertexts, time by columns and by rows."""
    widths = (2, 4, 6) if quick else (4, 8, 12, 16)
    sizes = (20_000, 40_000, 80_000) if quick else (50_000, 100_000, 200_000, 400_000)
    parts = [Part(name, {"on": name}, measure=on_table(name)) for name in TABLES]
    parts += [Part(f"columns-{p}", {"columns": p}, measure=on_drawn(1000, p, sealed=True)) for p in widths]
    parts += [Part(f"rows-{n}", {"rows": n}, measure=on_drawn(n, 16, sealed=False)) for n in sizes]
    source = "Giacomelli et al. 2018, as the CSI5340 slides tell of private ridge regression (S2)"
    return Target(
        "private-ridge", "Private ridge regression", source, tuple(parts), gates(widths, sizes), NOTES, keeps=KEPT
    )


KEPT = ("round", "away", "bound", "ciphertexts", "counted", "spent")


def on_table(name: str) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of a table."""
    return lambda seed: [row(measured_fit(table_side(name, OWNERS, seed), L2, sealed=True))]


def on_drawn(rows: int, columns: int, *, sealed: bool) -> Callable[[int], list[dict[str, Any]]]:
    """Return the measurement of drawn numbers; in the clear, where a fit takes less than a second, the fastest of several."""

    def measure(seed: int) -> list[dict[str, Any]]:
        side = drawn_side(rows, columns, OWNERS, seed)
        fits = [measured_fit(side, L2, sealed=sealed) for _ in range(1 if sealed else REPEATS)]
        return [row(min(fits, key=lambda fit: fit.core_seconds))]

    return measure


def row(fit: MeasuredFit) -> dict[str, Any]:
    """Return the largest difference from scikit-learn's predictions with the stated bound, ciphertexts and core seconds."""
    due = Ridge(alpha=L2, solver="cholesky").fit(fit.x, fit.y).predict(fit.x)
    away = float(np.abs(fit.x @ fit.coefficients[:-1] + fit.coefficients[-1] - due).max())
    counts = {"ciphertexts": fit.ciphertexts, "counted": fit.due}
    return {"round": 0, "away": away, "bound": fit.bound, **counts, "spent": fit.core_seconds}


def within(name: str) -> Callable[[Runs], GateVerdict]:
    """Return the check that predictions differ from scikit-learn's by no more than the bound that the owners state."""

    def check(runs: Runs) -> GateVerdict:
        away, bound = (runs[name].mean(lambda part, seed, key=key: part.at(seed, -1, key)) for key in ("away", "bound"))  # type: ignore[misc]
        return GateVerdict(f"{away:.1e}, stated {bound:.1e}", away <= bound)

    return check


def counted(names: Sequence[str]) -> Callable[[Runs], GateVerdict]:
    """Return the check that as many ciphertexts cross as the formula says."""

    def check(runs: Runs) -> GateVerdict:
        pairs = [
            (row["ciphertexts"], row["counted"]) for name in names for rows in runs[name].rows.values() for row in rows
        ]
        return GateVerdict(", ".join(f"{one:,}" for one, _ in pairs), all(one == due for one, due in pairs))

    return check


def shape(names: Sequence[str], over: Sequence[int], power: int) -> Callable[[Runs], GateVerdict]:
    """Return the check that core seconds lie on a line over a power of what the parts differ in."""

    def check(runs: Runs) -> GateVerdict:
        seconds = [runs[name].mean(lambda part, seed: part.at(seed, -1, "spent")) for name in names]
        r2 = float(np.corrcoef([float(x) ** power for x in over], seconds)[0, 1] ** 2)
        said = ", ".join(f"{x:,}: {s:.2f} s" for x, s in zip(over, seconds, strict=True))
        return GateVerdict(f"R^2 {r2:.3f} ({said})", r2 >= LINEAR)

    return check


def gates(widths: Sequence[int], sizes: Sequence[int]) -> tuple[Gate, ...]:
    """Return the gates of T10 on ridge regression."""
    columns, rows = [f"columns-{p}" for p in widths], [f"rows-{n}" for n in sizes]
    rule = "predictions for the training rows within the stated bound of scikit-learn's Ridge"
    out = [Gate(f"{name}, exact", "the closed form", rule, (name,), within(name)) for name in (*TABLES, columns[-1])]
    sealed = (*TABLES, *columns)
    formula = "(owners) (p (p + 1) / 2 + p) + p (p + 1), p with the intercept"
    out.append(Gate("ciphertexts", "not stated", formula, sealed, counted(sealed)))
    line = f"R^2 >= {LINEAR:g} of core seconds over"
    out.append(Gate("time over columns", "not stated", f"{line} p^2", tuple(columns), shape(columns, widths, 2)))
    out.append(Gate("time over rows, in the clear", "not stated", f"{line} rows", tuple(rows), shape(rows, sizes, 1)))
    return tuple(out)
