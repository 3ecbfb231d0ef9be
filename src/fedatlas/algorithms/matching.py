"""Matching of corresponding units in several clients' layers: MAP under a beta-Bernoulli process (PFNM).

=======  ==============================================  ========  ==================================================
v        a client's unit: its incoming weights, biases   theta_i   global unit (atom) i, N(mu0, sigma0_2) a priori
n_i      members of atom i, of the J clients             Sigma_i   sum of its members / sigma2
gamma    mass of the process: how freely atoms are made  J         clients
=======  ==============================================  ========  ==================================================

    into atom i:    |mu0/sigma0_2 + Sigma_i + v/sigma2|^2 / (1/sigma0_2 + (n_i + 1)/sigma2)
                    - |mu0/sigma0_2 + Sigma_i|^2 / (1/sigma0_2 + n_i/sigma2) + 2 log(n_i / (J - n_i))
    r-th new atom:  |mu0/sigma0_2 + v/sigma2|^2 / (1/sigma0_2 + 1/sigma2) - |mu0|^2 / sigma0_2 - 2 log r + 2 log(gamma / J)

The assignment of a client's units to different atoms with the largest total gain is found by the Hungarian method, one client at a
time, the widest first; then in sweeps, in random order, each client is taken out and rematched.

Source: Yurochkin, Agarwal, Ghosh, Greenewald, Hoang, Khazaeni, ICML 2019. H13. NumPy, float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]
AtomOf = npt.NDArray[np.int64]
"""Atom of each of a client's units."""


class Prior(NamedTuple):
    """The assumptions about the atoms before any client is seen."""

    sigma2: float
    sigma0_2: float
    gamma: float
    mu0: Matrix  # (features,)


class Atoms(NamedTuple):
    """The global units as matched so far. One without members keeps its number until all are renumbered."""

    total: Matrix  # sum of the members' vectors, (atoms, features)
    n: AtomOf  # members


def matched(clients: Sequence[Matrix], prior: Prior, sweeps: int, rng: np.random.Generator) -> list[AtomOf]:
    """Return the atom of every unit (J times (units, features)), numbered by first appearance, clients and units ascending."""
    J, nobody = len(clients), np.empty(0, np.int64)
    found, atoms = [nobody] * J, Atoms(np.empty((0, clients[0].shape[1])), nobody)
    for k in sorted(range(J), key=lambda k: -len(clients[k])):  # a stable sort keeps ties in order
        found[k], atoms = rematched(clients[k], found[k], atoms, J, prior)
    before = found = renumbered(found)
    for _ in range(sweeps):
        atoms, found = summed(clients, before), list(before)
        for k in rng.permutation(J):
            found[k], atoms = rematched(clients[k], found[k], atoms, J, prior)
        found = renumbered(found)
        if all(np.array_equal(a, b) for a, b in zip(before, found, strict=True)):
            break  # no client changed, so further sweeps would not either
        before = found
    return found


def rematched(V: Matrix, mine: AtomOf, atoms: Atoms, J: int, prior: Prior) -> tuple[AtomOf, Atoms]:
    """Take a client out (``mine`` are its atoms so far) and match it to the atoms of all others."""
    total, n = atoms.total.copy(), atoms.n.copy()
    total[mine] -= V[: len(mine)]  # a client's units have different atoms
    n[mine] -= 1
    held = np.flatnonzero(n)
    chosen = assigned(V, total[held], n[held], J, prior)
    names = np.concatenate([held, len(n) + np.arange(len(V))])[chosen]
    fresh = max(int(names.max()) + 1 - len(n), 0)
    total, n = np.pad(total, ((0, fresh), (0, 0))), np.pad(n, (0, fresh))
    total[names] += V
    n[names] += 1
    return names, Atoms(total, n)


def summed(clients: Sequence[Matrix], found: Sequence[AtomOf]) -> Atoms:
    """Return the atoms of an assignment whose numbers have no gaps."""
    n = np.bincount(np.concatenate(found))
    total = np.zeros((len(n), clients[0].shape[1]))
    for V, names in zip(clients, found, strict=True):
        total[names] += V
    return Atoms(total, n)


def assigned(V: Matrix, total: Matrix, n: AtomOf, J: int, prior: Prior) -> AtomOf:
    """Return for each unit of ``V`` (L, features) a known atom (0 .. G-1) or a new one (G, G+1 ...).

    Known atoms have the sums ``total`` and ``n`` members.
    """
    from scipy.optimize import linear_sum_assignment

    if not len(n):
        return np.arange(len(V))
    new = gain_of_new(V, J, prior)
    old = gain_of_old(V, total, n, J, prior)
    r = np.arange(1, new_atoms(old, new) + 1)
    _, chosen = linear_sum_assignment(np.hstack([old, new[:, None] - 2 * np.log(r)]), maximize=True)
    out = np.asarray(chosen, dtype=np.int64)
    made = out >= len(n)  # the numbers r of new atoms are tied: given in the order of the units
    out[made] = len(n) + np.arange(int(made.sum()))
    return out


def new_atoms(old: Matrix, new: Matrix) -> int:
    """Return the most new atoms that can be useful.

    With at least as many atoms as units, a client that makes r new ones leaves r old ones free; the unit of the r-th would have
    moved to one of them unless 2 log r <= its gain as a new atom minus its least gain among the old.
    """
    units, atoms = old.shape
    most = float((new - old.min(1)).max()) / 2
    if atoms < units or most >= math.log(units):
        return len(old)
    return max(1, int(math.exp(most)))


def gain_of_old(V: Matrix, total: Matrix, n: AtomOf, J: int, prior: Prior) -> Matrix:
    """Return the gain of each unit in each atom, (L, G)."""
    s, s0, _, mu0 = prior
    a = mu0 / s0 + total / s
    square = (a * a).sum(1)
    joined = square + 2 * (V @ a.T) / s + (V * V).sum(1)[:, None] / s**2
    out: Matrix = joined / (1 / s0 + (n + 1) / s) - square / (1 / s0 + n / s) + 2 * np.log(n / (J - n))
    return out


def gain_of_new(V: Matrix, J: int, prior: Prior) -> Matrix:
    """Return the gain of each unit as the first new atom, (L,)."""
    s, s0, gamma, mu0 = prior
    a = mu0 / s0 + V / s
    out: Matrix = (a * a).sum(1) / (1 / s0 + 1 / s) - (mu0 * mu0).sum() / s0 + 2 * math.log(gamma / J)
    return out


def renumbered(found: Sequence[AtomOf]) -> list[AtomOf]:
    """Return the same groups, with atoms numbered as they first appear."""
    _, first, place = np.unique(np.concatenate(found), return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return list(np.split(rank[place], np.cumsum([len(x) for x in found])[:-1]))
