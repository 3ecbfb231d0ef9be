"""Central differential privacy: a trusted server clips what clients send and adds noise to the mean.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  z      noise multiplier
q    probability with which a client takes part        K      clients in all, a public number
===  ================================================  =====  ==============================================

    cohort: each client with probability q, by itself, in secret        (q = 1: everybody, nothing is sampled)
    w <- w + (sum over the cohort of clip(Delta_k, S) + N(0, (z S)^2 I)) / (q K)

The denominator is fixed, the weights are equal, and an empty cohort gets its noise, so that adding or removing one client
moves the sum by S at most and the result shows neither who came nor how many. What the accountant needs of a round is then
z and q alone.
Unit: a client, by adding or removing it. It holds against all who see models; the server itself sees the updates.

Source: McMahan, Ramage, Talwar, Zhang 2018, P3. Adaptive clipping: Andrew, Thakkar, McMahan, Ramaswamy 2021, B17.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedatlas.errors import PrivacyError
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.noise import Noise, words


def cohort(clients: Sequence[int], rate: float, noise: Noise, round: int) -> tuple[int, ...]:
    """The clients of a round: each with probability ``rate``, from secret randomness (or the seed's); rate = 1 is everybody. May be nobody.

    Whoever could guess the draw would take the amplification by sampling away.
    """
    if not 0 < rate <= 1:
        raise PrivacyError(f"a client cannot take part with probability {rate}: give a fraction above 0 and up to 1.")
    if rate == 1:
        return tuple(clients)
    below = math.floor(rate * 2**64)
    drawn = words(noise, len(clients), "cohort", round)
    return tuple(k for k, word in zip(clients, drawn.tolist(), strict=True) if word < below)


def coefficient(rate: float, clients: int) -> float:
    """1 / (q K): what each clipped change counts in the mean, whoever came."""
    return 1 / (rate * clients)


def std(clip: float, multiplier: float, rate: float, clients: int) -> float:
    """z S / (q K): standard deviation of the noise on each number of the mean; z = 0 needs no S."""
    return multiplier * clip * coefficient(rate, clients) if multiplier else 0.0


def usual_delta(clients: int) -> float:
    """K^-1.1, below 1/K."""
    return float(clients**-1.1)


def event(round: int, *, clip: float, multiplier: float, rate: float, delta: float, noise: Noise) -> Event:
    """The ledger's line for one round: the sum of clipped changes, which one client moves by S."""
    return Event(
        "central_dp", round, "gaussian", multiplier, clip, "client", "add or remove", delta, rate, source=noise.source
    )


def next_clip(clip: float, share_within: float, quantile: float = 0.5, rate: float = 0.2) -> float:
    """S exp(-eta_C (b - gamma)), B17: b is the noisy share of clients within S, gamma the quantile of norms that S is to find.

    rate: eta_C.
    """
    return clip * math.exp(-rate * (share_within - quantile))


def multiplier_of_sum(multiplier: float, std_of_count: float) -> float:
    """z_Delta = (z^-2 - (2 sigma_b)^-2)^-1/2, B17: the changes' multiplier beside a count with noise sigma_b; both cost what z alone does.

    A count of yes or no, taken from 1/2, moves by 1/2 with a client, which is where 2 sigma_b comes from.
    """
    if 2 * std_of_count <= multiplier:
        least = multiplier / 2
        raise PrivacyError(
            f"a count with noise {std_of_count:g} leaves nothing for the changes at multiplier {multiplier:g}: give it more than {least:g}."
        )
    return float((multiplier**-2 - (2 * std_of_count) ** -2) ** -0.5) if multiplier else 0.0
