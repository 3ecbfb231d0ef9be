"""Central differential privacy: a trusted server clips what clients send and adds noise to the sum.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  z      noise multiplier
q    probability with which a client takes part        K      clients in all, a public number
===  ================================================  =====  ==============================================

    cohort: each client with probability q, by itself, in secret        (q = 1: all clients, nothing is sampled)
    w <- w + (sum over the cohort of clip(Delta_k, S) + N(0, (z S)^2 I)) / (q K)

The denominator is fixed, the weights are equal, and an empty cohort gets its noise. So adding or removing one client moves the
sum by S at most, and the result shows neither who came nor how many. The accountant then needs only z and q of a round. The sum
is computed in `clipped_sum`.
Unit: a client, by adding or removing it. The guarantee holds against all who see models. The server sees the updates.

Source: McMahan, Ramage, Talwar, Zhang 2018, P3.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.privacy.central_dp.masked import over_masks
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import (
    WHO_CAME,
    Asked,
    Extra,
    Learns,
    Limits,
    Mechanism,
    Noising,
    Protection,
    Small,
    Source,
    Words,
    Work,
    drawn_by,
)
from fedatlas.privacy.reasons import CLIENT_LEVEL
from fedatlas.registry import Positive, Rate

LEARNS = Learns(
    "every update in the clear, and who sent it: the server has to be trusted",
    "whether a client takes part at all, no better than epsilon and delta allow",
    "clients together learn no more than one of them; with the server, every update",
)
DONE = (
    "<b>Differential privacy at the server.</b> No client could change the model by more than a length of {clip:g}, and "
    "noise {noise_multiplier:g} times as strong was added to the sum of a round. Epsilon says how well that hides who took part."
)
TRUSTED = "The server saw every update in the clear and has to be trusted; protected are clients from whoever sees the models."


def central_dp(
    *, clip: Positive, noise_multiplier: Rate = 1.0, delta: Small | None = None, noise: Source = "os"
) -> Mechanism:
    """A trusted server limits what one client can change and adds noise, so that participation stays hidden.

    clip: S, the longest change of a client (Euclidean norm over all parts together); a longer one is shortened to it.
    noise_multiplier: z: the noise on the sum has standard deviation z S; 0 = no noise and no privacy.
    delta: the delta at which epsilon is stated; left out = K^-1.1 for K clients.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """

    def stated(how: Protection) -> float:
        return usual_delta(max(how.K, 2)) if delta is None else delta

    def released(how: Protection, round: int, clients: Sequence[int]) -> Event:
        """Return the ledger's line for a sum of clipped changes, which one client moves by S."""
        z, at, q = noise_multiplier, stated(how), how.fraction
        return Event("central_dp", round, "gaussian", z, clip, "client", "add or remove", at, q, source=noise)

    def work() -> Work:
        from fedatlas.privacy.central_dp.clipped_sum import clipped_sum, mean_of, shortened

        return Work(
            update=lambda changes, how, doing: shortened(changes, clip),
            total=lambda transform: clipped_sum(clip, transform),
            release=lambda value, how, place, clients, algorithm: mean_of(
                value, noise_multiplier * clip, how, place, algorithm
            ),
        )

    return Mechanism(
        name="central_dp",
        keys={"clip": clip, "noise_multiplier": noise_multiplier, "delta": delta, "noise": noise},
        place=3,
        trust="server",
        learns=LEARNS,
        work=work,
        words=Words(
            DONE,
            (TRUSTED,),
            () if noise_multiplier else ("'central_dp': noise_multiplier = 0 adds no noise, and no privacy.",),
        ),
        noise=Noising(noise, released, stated, secret_cohort=True),
        hides=("train_loss", "weights", "steps", *WHO_CAME),
        limits=Limits(
            alone="its server clips what each client sent, and no further noise is in its account",
            why_not=CLIENT_LEVEL,
            refuses=unsound_cohort,
            extras=(Extra("dp_accounting", "dp", sampled=True), *drawn_by(noise)),
        ),
        under={"secagg": over_masks},
    )


def usual_delta(clients: int) -> float:
    """Return K^-1.1, which is below 1/K."""
    return float(clients**-1.1)


def unsound_cohort(asked: Asked) -> str:
    """Return why a cohort has no sound account; "" if it is all clients, or clients drawn independently."""
    if asked.sampling == "poisson":
        return (
            "" if asked.fraction else "cohort.fraction = 0: under 'central_dp' nobody would ever take part; raise it."
        )
    all_take_part = asked.fraction == 1 if asked.size is None else not asked.clients or asked.size >= asked.clients
    if all_take_part:
        return ""
    return (
        "[[privacy]] 'central_dp': a cohort of a set size has no sound account here; write cohort.sampling = \"poisson\" with "
        "cohort.fraction, or cohort.fraction = 1."
    )
