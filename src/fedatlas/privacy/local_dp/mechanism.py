"""Local differential privacy: each client clips and noises its change, and trusts nobody.

===========  ==================================================  ==================================================
S            bound of a client's whole change                    T      releases of one client, one per participation
===========  ==================================================  ==================================================

    Gaussian   x = clip_2(Delta_k, S) + N(0, sigma^2 I),  sigma = 2 S sqrt(T) m(epsilon, delta)
    Laplace    x = clip_1(Delta_k, S) + Lap(b),           b     = 2 S T / epsilon                      (delta = 0)

m(epsilon, delta) is the analytic Gaussian mechanism's sigma / Delta. Unit: a client, by replacing its data, which moves a clipped change
by 2 S at most. epsilon covers the whole run of T releases, so the number of rounds is fixed before the first one. The server sees who
sends, so sampling clients hides nothing and is not counted.

Source: Balle and Wang 2018 for m; Dwork and Roth 2014. P4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedatlas.errors import PrivacyError
from fedatlas.privacy.gaussian import multiplier_of
from fedatlas.privacy.ledger import Continuous, Event
from fedatlas.privacy.mechanism import (
    Learns,
    Limits,
    Mechanism,
    Noise,
    Noising,
    Protection,
    Small,
    Source,
    Words,
    Work,
    drawn_by,
)
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.reasons import CLIENT_LEVEL
from fedatlas.registry import Positive

if TYPE_CHECKING:
    from fedatlas.algorithm import Update

LEARNS = Learns(
    "each update with its client's noise: of what a client holds no more than epsilon and delta allow",
    "the models, made of updates with noise: no more than the server",
    "the server with all other clients learns no more than the server",
)
DONE = (
    "<b>Differential privacy at the clients.</b> Every client limited its update to a length of {clip:g} and added noise "
    "before it left: nobody, the server included, saw an update without noise."
)


def local_dp(
    *, epsilon: Positive, delta: Small = 1e-5, clip: Positive, kind: Continuous = "gaussian", noise: Source = "os"
) -> Mechanism:
    """Every client adds noise to what it sends. Nobody has to be trusted, at a high cost in accuracy.

    epsilon: of the whole run, for a client that takes part in every round.
    delta: of the whole run; Laplace noise has none.
    clip: S, the longest change that a client sends (Euclidean norm; Laplace: sum of sizes) over all parts together.
    kind: the noise: Gaussian, or Laplace.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    moved, stated = (
        2 * clip,
        delta if kind == "gaussian" else 0.0,
    )  # replacing one client's data moves it by at most 2 S

    def scale_of(how: Protection) -> float:
        return scale(kind, epsilon=epsilon, delta=delta, clip=clip, releases=max(how.rounds, 1))

    def released(how: Protection, round: int, clients: Sequence[int]) -> Event | None:
        if not clients:
            return None
        ratio = scale_of(how) / moved
        return Event(
            "local_dp", round, kind, ratio, moved, "client", "replace", stated, clients=tuple(clients), source=noise
        )

    def update(changes: Update, how: Protection, doing: Doing) -> Update:
        key = (doing.round, doing.client, doing.what, doing.visit)
        return release(changes, kind, clip=clip, scale=scale_of(how), noise=how.noise, key=key)

    return Mechanism(
        name="local_dp",
        keys={"epsilon": epsilon, "delta": delta, "clip": clip, "kind": kind, "noise": noise},
        place=2,
        trust="nobody",
        learns=LEARNS,
        work=lambda: Work(update=update),
        words=Words(DONE),
        phase="noise",
        noise=Noising(noise, released, lambda how: stated, for_all_rounds=True, epsilon=epsilon),
        hides=("train_loss", "steps", "flops"),
        limits=Limits(why_not=CLIENT_LEVEL, extras=drawn_by(noise)),
    )


def scale(kind: Continuous, *, epsilon: float, delta: float, clip: float, releases: int) -> float:
    """Return sigma, or Laplace's b, for which so many releases of one client together cost epsilon at delta (Laplace: at 0)."""
    if kind == "gaussian":
        return 2 * clip * multiplier_of(epsilon, delta, releases)
    if not epsilon > 0:
        raise PrivacyError(f"epsilon = {epsilon} cannot be kept by any noise: give a number above 0.")
    return 2 * clip * releases / epsilon


def release(
    update: Update, kind: Continuous, *, clip: float, scale: float, noise: Noise, key: Sequence[int | str]
) -> Update:
    """Return what a client sends, in the precision of its update. ``key`` names the draw: round, client, visit."""
    from fedatlas.privacy.clipping import clipped, in_precision
    from fedatlas.privacy.noise import gaussian, laplace, noised

    gauss = kind == "gaussian"
    bounded = clipped(update, clip, 2 if gauss else 1)
    return in_precision(noised(bounded, scale, noise, "local_dp", *key, draw=gaussian if gauss else laplace), update)
