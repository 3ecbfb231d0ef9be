"""Attacks on rotated rows: by rows whose values are known (Procrustes), and by independent components.

Known sample: of m rows both u and z = R u + t are known. With both centred, the singular vectors of sum_i z_i u_i^T give the orthogonal
matrix that fits them best, and t follows. p + 1 rows in general position determine R and t of p columns. Independent components: columns
that are independent and not normal can be told up to order, sign and scale from rotated rows alone (FastICA); the figure takes the best
order and signs, as an attacker who knows the columns' distributions would find them.

Source: Schönemann 1966; Hyvärinen and Oja 2000; Chen and Liu 2008 for both as attacks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ROWS, COLUMNS = 2000, 40  # most rows and columns of which independent components are looked for


def procrustes(u: Array, z: Array) -> tuple[Array, Array]:
    """Return R (p, p), orthogonal, and t (p,) that fit z = R u + t best, from m known rows ``u`` and ``z`` (m, p)."""
    at_u, at_z = u.mean(0), z.mean(0)
    left, _, right = np.linalg.svd((z - at_z).T @ (u - at_u))
    R: Array = left @ right
    return R, at_z - R @ at_u


def recovered(z: Array, R: Array, t: Array) -> Array:
    """Return the rows that ``z`` (n, p) was rotated from."""
    out: Array = (z - t) @ R
    return out


def known_sample(u: Array, z: Array, rows: int) -> float:
    """Return the error of all other values, in standard deviations of their column, if the first ``rows`` rows are known."""
    R, t = procrustes(u[:rows], z[:rows])
    spread = u.std(0)
    seen = spread > 0
    error = (recovered(z[rows:], R, t) - u[rows:])[:, seen] / spread[seen]
    return float(np.sqrt((error**2).mean()))


def independent_components(z: Array) -> Array | None:
    """Return (n, p) components of ``z`` (n, p); None if none were found."""
    from sklearn.decomposition import FastICA

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge: its result is judged as it is
        try:
            out: Array = FastICA(random_state=0, whiten="unit-variance", max_iter=500).fit_transform(z)
        except (ValueError, np.linalg.LinAlgError):
            return None
    return out if np.isfinite(out).all() else None


def likeness(u: Array, found: Array) -> float:
    """Return the mean correlation, without sign, of each column with the component that is assigned to it, in the best order."""
    from scipy.optimize import linear_sum_assignment

    p = u.shape[1]
    with np.errstate(invalid="ignore"):
        each = np.nan_to_num(np.abs(np.corrcoef(u.T, found.T)[:p, p:]))
    return float(each[linear_sum_assignment(-each)].mean())


def figures_of(u: Array, z: Array) -> Mapping[str, Any]:
    """Return how well both attacks undo a rotation: rows before, in units of their ranges, and after, (n, p) each.

    ``known_sample``: number of known rows -> error; ``ica`` and ``as_seen``: likeness of independent components, and of the rotated
    columns themselves, to the columns before; None if there are too many columns.
    """
    whole = np.isfinite(u).all(1) & np.isfinite(z).all(1)
    u, z = u[whole], z[whole]
    p = u.shape[1]
    tried = [rows for rows in dict.fromkeys((max(p // 2, 1), p + 1, 2 * (p + 1))) if rows < len(u)]
    found: dict[str, Any] = {"columns": p, "known_sample": {rows: known_sample(u, z, rows) for rows in tried}}
    fits = 1 < p <= COLUMNS and len(u) > 10 * p
    components = independent_components(z[:ROWS]) if fits else None
    ica = None if components is None else likeness(u[:ROWS], components)
    return {**found, "ica": ica, "as_seen": likeness(u[:ROWS], z[:ROWS]) if fits else None}
