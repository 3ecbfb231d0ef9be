"""Distributed differential privacy: "sums only" and an epsilon of clients together, without a trusted server.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  z      noise multiplier
m    clients asked                                     t      of these, those that have to stay
c    of these, those that may collude                  b      bits: S is 2^b steps of S 2^-b
===  ================================================  =====  ==============================================

    client   y_k = round(clip(Delta_k, S) 2^b / S) + Skellam of variance (z 2^b)^2 / (t - c),  masked as under secagg (P14)
    server   w <- w + (S 2^-b / m) sum over those who stayed of y_k

A sum is opened only if t clients sign for it, at most c of which collude, so it holds the noise of t - c honest ones: a variance of
(z S)^2 at least, whoever leaves. Colluding clients know their own noise. Sums of Skellam numbers are Skellam numbers, so nothing has
to be approximated. The rounded vector has a length of at most 2^b steps (`noisy_sum.within`), in which the ledger states its steps.
Unit: a client, by its change counting as zero: the server and the clients see who takes part, so sampling hides nothing and is not
counted, and a client pays only for the sums that it is in.

Source: Agarwal, Kairouz, Liu, The Skellam Mechanism for Differentially Private Federated Learning, NeurIPS 2021. P16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from fedatlas.privacy.central_dp.mechanism import usual_delta
from fedatlas.privacy.distributed_dp.shares import NoisySum
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import (
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
    no_noise,
)
from fedatlas.privacy.reasons import CLIENT_LEVEL
from fedatlas.privacy.secagg.mechanism import Share, withstood
from fedatlas.registry import Positive, Rate

LEARNS = Learns(
    "the sum of a round's updates with noise, and who stayed to its end: of what a client holds no more than epsilon and delta allow",
    "the models, and who else takes part: no more than epsilon and delta allow",
    "the server with up to `colluding` clients learns no more than epsilon and delta allow; each further one takes its share of the "
    "noise away; single updates, with their small noise, only with a share of the clients of 2 threshold - 1 or more",
)
DONE = (
    "<b>Distributed differential privacy.</b> No client could change the model by more than a length of {clip:g}. Every client added its "
    "share of the noise and covered all with random masks that cancel in the sum of a round. Whoever left, that sum held noise of at "
    "least {noise_multiplier:g} times that length, for a server that up to {colluding} of its clients help, too."
)


def distributed_dp(
    *,
    clip: Positive,
    noise_multiplier: Rate = 1.0,
    delta: Small | None = None,
    threshold: Share = 2 / 3,
    colluding: Annotated[int, Field(ge=1)] = 1,
    bits: Annotated[int, Field(ge=4, le=26)] = 14,
    noise: Source = "os",
) -> Mechanism:
    """Clients share in the noise and mask what they send: an epsilon of clients without a trusted server.

    clip: S, the longest change of a client (Euclidean norm over all parts together); a longer one is shortened to it.
    noise_multiplier: z: the noise on the sum has standard deviation z S or more; 0 = no noise and no privacy.
    delta: the delta at which epsilon is stated; left out = K^-1.1 for K clients.
    threshold: share of the clients asked that have to stay until the sum is opened, above 0.5.
    colluding: clients of a round that may help the server; 1 at least, since every client knows its own noise.
    bits: the clip is 2^bits steps, to which changes are rounded and in which noise is drawn.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    keys = NoisySum(clip, noise_multiplier, delta, threshold, colluding, bits, noise)

    def work() -> Work:
        from fedatlas.privacy.distributed_dp.noisy_sum import protocol

        return Work(protocol=protocol(keys))

    def figures(
        how: Protection, rows: Sequence[Any], sizes: Mapping[int, int], events: Sequence[Event]
    ) -> dict[str, Any]:
        return {"withstood": withstood(rows, threshold)}

    return Mechanism(
        name="distributed_dp",
        keys=keys._asdict(),
        place=5,
        trust="nobody",
        learns=LEARNS,
        work=work,
        words=Words(DONE, (), no_noise("distributed_dp", noise_multiplier)),
        phase="mask",
        sums_only="wholly",
        noise=Noising(noise, partial(released, keys), partial(stated, keys)),
        hides=("train_loss", "weights", "steps", "flops"),
        figures=figures,
        limits=Limits(
            alone="its noise is part of its masks, and no other noise is in its account",
            why_not=CLIENT_LEVEL,
            deployed=True,
            extras=(Extra("cryptography", "he"), *drawn_by(noise)),
        ),
    )


def stated(keys: NoisySum, how: Protection) -> float:
    """Return the delta at which epsilon is stated."""
    return usual_delta(max(how.K, 2)) if keys.delta is None else keys.delta


def released(keys: NoisySum, how: Protection, round: int, clients: Sequence[int]) -> Event | None:
    """Return the ledger's line for a noisy sum, which costs those in it; None for a sum of nobody."""
    if not clients:
        return None
    z, at, who, steps = keys.noise_multiplier, stated(keys, how), tuple(clients), float(keys.steps)
    event = Event("distributed_dp", round, "skellam", z, keys.clip, "client", "zero out", at, clients=who, steps=steps)
    return event._replace(source=keys.noise)
