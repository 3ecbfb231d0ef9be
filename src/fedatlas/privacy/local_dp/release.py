"""Local differential privacy: each client clips and noises its own change, and trusts nobody.

===========  ==================================================  ==================================================
S            bound of a client's whole change                    T      releases of one client, one a participation
===========  ==================================================  ==================================================

    Gaussian   x = clip_2(Delta_k, S) + N(0, sigma^2 I),  sigma = 2 S sqrt(T) m(epsilon, delta)
    Laplace    x = clip_1(Delta_k, S) + Lap(b),           b     = 2 S T / epsilon                      (delta = 0)

m(epsilon, delta) is the analytic Gaussian mechanism's sigma / Delta. Unit: a client, by replacing its data, which moves a clipped change
by 2 S at most. epsilon is that of the whole run, of T releases, so the number of rounds is fixed before the first. The
server sees who sends, so sampling clients hides nothing and is not counted.

Source: Balle and Wang 2018 for m; Dwork and Roth 2014. P4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fedatlas.algorithm import Update
from fedatlas.errors import PrivacyError
from fedatlas.privacy.clipping import as_before, clipped
from fedatlas.privacy.gaussian import multiplier_of
from fedatlas.privacy.ledger import Event, Kind
from fedatlas.privacy.noise import Noise, gaussian, laplace, noised


def sensitivity(clip: float) -> float:
    """2 S: one client's data against any other."""
    return 2 * clip


def scale(kind: Kind, *, epsilon: float, delta: float, clip: float, releases: int) -> float:
    """sigma, or Laplace's b, for which so many releases of one client together cost epsilon at delta (Laplace: at 0)."""
    if kind == "gaussian":
        return sensitivity(clip) * multiplier_of(epsilon, delta, releases)
    if not epsilon > 0:
        raise PrivacyError(f"epsilon = {epsilon} cannot be kept by any noise: give a number above 0.")
    return sensitivity(clip) * releases / epsilon


def release(update: Update, kind: Kind, *, clip: float, scale: float, noise: Noise, key: Sequence[int | str]) -> Update:
    """What a client sends, in the precision of its update; ``key`` names the draw: round, client, visit."""
    order: Literal[1, 2] = 2 if kind == "gaussian" else 1
    draw = gaussian if kind == "gaussian" else laplace
    return as_before(noised(clipped(update, clip, order), scale, noise, "local_dp", *key, draw=draw), update)


def event(
    round: int, clients: Sequence[int], kind: Kind, *, clip: float, scale: float, delta: float, noise: Noise
) -> Event:
    """The ledger's line for one round: one release of each of ``clients``."""
    moved, at = sensitivity(clip), delta if kind == "gaussian" else 0.0
    told = tuple(clients)
    return Event(
        "local_dp", round, kind, scale / moved, moved, "client", "replace", at, clients=told, source=noise.source
    )
