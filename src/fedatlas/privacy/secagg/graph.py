"""The sparse graph of masks for large cohorts (Bell, Bonawitz, Gascón, Lepoint, Raykova, CCS 2020), against a server that keeps the rules.

Each of m clients shares masks and secrets with k others only: its neighbours to either side of a circle in random order, so that all have
k. Of a secret's k holders t rebuild it. Let c clients collude with the server and d leave, both chosen without knowledge of the circle.
Then, with X ~ hypergeometric(m - 1, c or d, k) marked neighbours of one client,

    secrecy fails   with at most  m P[X_c >= t]  (a client's holders all collude)
                                + m prod_{i < k/2} (c + d - i) / (m - i)  (k/2 in a row are gone: the rest may fall into two sums)
    opening fails   with at most  m P[X_d > k - t]  (too few holders of a secret stay)

`smallest` finds the smallest k, with its t, for which neither exceeds 2^-40, computed exactly in whole numbers. A server that breaks the
rules may choose the circle and is not covered.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction
from functools import lru_cache
from math import comb
from typing import NamedTuple

COLLUDING = Fraction(1, 10)  # share of the clients asked that may help the server
FAILS = Fraction(1, 2**40)  # largest chance that a session fails in either way


class Chances(NamedTuple):
    """Bounds on the chances that a session fails: its secrecy, and its opening."""

    secrecy: Fraction
    opening: Fraction

    @property
    def small(self) -> bool:
        """Whether neither exceeds 2^-40."""
        return max(self) <= FAILS


class Degree(NamedTuple):
    """Neighbours of each client, and how many of them rebuild its secrets."""

    neighbours: int
    needed: int


def at_least(total: int, marked: int, drawn: int, least: int) -> Fraction:
    """Return P[X >= least] of a hypergeometric X: how many of ``drawn`` out of ``total`` are among the ``marked`` ones."""
    ways = sum(comb(marked, x) * comb(total - marked, drawn - x) for x in range(max(least, 0), min(marked, drawn) + 1))
    return Fraction(ways, comb(total, drawn))


def in_a_row(total: int, marked: int, run: int) -> Fraction:
    """Return a bound on the chance that ``run`` neighbours in a row are marked, anywhere in a circle of ``total``."""
    chance = Fraction(total)
    for i in range(run):
        chance *= Fraction(max(marked - i, 0), total - i)
    return chance


def colluding(clients: int) -> int:
    """Return how many of the clients asked may collude with the server."""
    return int(COLLUDING * clients)


@lru_cache(1 << 12)
def chances(clients: int, leaving: int, degree: Degree) -> Chances:
    """Return the chances of failure if ``leaving`` clients leave and a tenth collude."""
    k, t, c = *degree, colluding(clients)
    alone = clients * at_least(clients - 1, c, k, t)
    return Chances(
        alone + in_a_row(clients, c + leaving, k // 2), clients * at_least(clients - 1, leaving, k, k - t + 1)
    )


@lru_cache(1 << 8)
def degree_of(clients: int, leaving: int, neighbours: int) -> Degree:
    """Return the degree with these neighbours and the fewest holders that keep secrets secret; more than half if none do."""
    each = (Degree(neighbours, t) for t in range(1, neighbours + 1))
    secret = (degree for degree in each if chances(clients, leaving, degree).secrecy <= FAILS)
    return next(secret, Degree(neighbours, neighbours // 2 + 1))


@lru_cache(1 << 8)
def smallest(clients: int, leaving: int) -> Degree | None:
    """Return the smallest degree with which a session fails with a chance of at most 2^-40; None if only the full graph would do."""
    degrees = (degree_of(clients, leaving, k) for k in range(2, clients - 1, 2))
    return next((degree for degree in degrees if chances(clients, leaving, degree).small), None)


@lru_cache(8)
def circles(seed: str, clients: int, neighbours: int) -> tuple[tuple[int, ...], ...]:
    """Return for each position its neighbours and itself, ascending. The order of the circle follows from the seed, in hexadecimal."""
    raw = bytes.fromhex(seed)
    order = sorted(range(clients), key=lambda v: hashlib.sha256(b"circle" + raw + v.to_bytes(4, "little")).digest())
    steps = range(-(neighbours // 2), neighbours // 2 + 1)
    near = {v: tuple(sorted(order[(place + step) % clients] for step in steps)) for place, v in enumerate(order)}
    return tuple(near[v] for v in range(clients))
