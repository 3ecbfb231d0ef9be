"""What private ridge regression costs: ten owners, a key of 2,048 bits with 16 columns, of 4,096 with 20 and 30; a part of vertical.py.

Core seconds are those of all roles together, the key included; ``linear`` are the same of owners' work in the clear, by rows.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from privacy import processors

from fedatlas import machine
from fedatlas.runs.columns_baselines import trained
from fedatlas.vertical.owners import Side, side_of
from fedatlas.vertical.ridge import PRIVATE_RIDGE
from fedatlas.vertical.ridge.roles import ROLES
from fedatlas.vertical.ridge.scheme import ciphertexts, solved
from fedatlas.vertical.ridge.settings import Ridge, private_ridge

OWNERS, ROWS = 10, 10_000
SHAPES = ((16, 2048), (20, 4096), (30, 4096))  # columns, bits of the key
MANY = (20_000, 40_000, 80_000, 160_000)
LIMIT = 10.0  # seconds of the first shape on two quiet cores


def side(rows: int, columns: int, owners: int = OWNERS) -> tuple[Side, np.ndarray, np.ndarray]:
    """Return owners with drawn rows and the roles apart, and all rows and labels."""
    draw = np.random.default_rng(columns)
    x = draw.normal(size=(rows, columns))
    y = x @ draw.normal(size=columns) + draw.normal(size=rows)
    owned = [(f"owner-{k}", x[at], y[at]) for k, at in enumerate(np.array_split(np.arange(rows), owners))]
    return side_of(owned, ROLES, workers=machine.cores()), x, y


def measured(rows: int, columns: int, how: Ridge) -> dict[str, Any]:
    """Return what one fit took, and its largest difference from the closed form in doubles."""
    held, x, y = side(rows, columns)
    began, work = time.perf_counter(), processors()
    done = trained(held, PRIVATE_RIDGE, how, PRIVATE_RIDGE.fixed, "ridge")
    seconds, work = time.perf_counter() - began, processors() - work
    ridge, due = done.state(0)["ridge"], solved(x, y[:, None], how.l2)
    return {
        "seconds": round(seconds, 1),
        "core_seconds": round(work, 2),
        "MB": round(done.bytes / 1e6, 2),
        "ciphertexts": ciphertexts(OWNERS, columns + 1, 1) if how.encrypted else 0,
        "precision": ridge["plan"]["precision"],
        "bound": f"{ridge['error']:.1e}",
        "difference": f"{np.abs(ridge['coefficients'].numpy() - due).max():.1e}",
    }


def ridge() -> list[dict[str, Any]]:
    """Private ridge regression of ten owners with 10,000 rows, by columns and bits of the key."""
    found = []
    for columns, bits in SHAPES:
        how = private_ridge()._replace(key_bits=bits, encrypted=True)
        one = {"columns": columns, "bits": bits, **measured(ROWS, columns, how)}
        limit = f"<= {LIMIT:g} s on two quiet cores" if bits == SHAPES[0][1] else ""
        found.append({**one, "target": limit})
    return found


def ridge_rows() -> list[dict[str, Any]]:
    """The same in the clear by rows, 16 columns: what the owners do with their rows, with the R^2 of a straight line."""
    found = [{"rows": rows, **measured(rows, SHAPES[0][0], private_ridge())} for rows in MANY]
    r2 = float(np.corrcoef(MANY, [one["core_seconds"] for one in found])[0, 1] ** 2)
    return [{**one, "R2": round(r2, 3)} for one in found]
