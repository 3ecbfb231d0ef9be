"""DP-SGD: each step's gradient is formed row by row, clipped and noised, so that a model hides every single record.

===  ================================================  =====  ===================================================
S    bound of a row's gradient, all tensors together   z      noise multiplier
B    ``local.batch_size``, at most n_k; 0: n_k         q_k    B / n_k: probability with which a row is in a batch
n_k  rows of client k, a public number                 T_k    noisy steps of a visit: epochs ceil(n_k / B), or steps
===  ================================================  =====  ===================================================

    batch: each row with probability q_k, by itself, in secret
    g <- (sum over the batch of clip(grad l_i(w), S) + N(0, (z S)^2 I)) / B

The loss is taken row by row: what a row adds never depends on the others. A gradient that is not finite counts as zero. Weight decay,
the algorithm's direction, the clip of ``[local]`` and the optimiser come after the noise, and so cost nothing.
Unit: a record, by its gradients counting as zero; row counts are public, and so are T_k, q_k and weights by rows. A record lies with
one client, so its epsilon is that of its client's steps, and the federation's is the largest of its clients'.
Who is drawn comes from the operating system's randomness, since a draw that can be repeated from the seed amplifies nothing.

Source: Abadi et al. 2016; Goodfellow 2015 for the lengths of a dense layer's gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    number,
)
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.reasons import RECORD_LEVEL
from fedatlas.registry import Positive, Rate

if TYPE_CHECKING:
    from fedatlas.algorithm import Budget
    from fedatlas.privacy.dp_sgd.poisson import Poisson
    from fedatlas.tree import Tree

LEARNS = Learns(
    "each client's update, made of noisy steps, and how many rows each has: of a single record no more than epsilon and delta allow",
    "the models, and how many rows each client has: of a single record no more than the server",
    "the server with all other clients learns of a record no more than the server; what all of a client's records share is not hidden",
)
DONE = (
    "<b>Differential privacy of single records.</b> In every local step the gradient of each row was limited to a length of {clip:g}, and "
    "noise {noise_multiplier:g} times as strong was added to their sum. Epsilon says how well that hides any one row; it does not hide a "
    "client, how many rows it has, or what its rows have in common."
)
SECONDS = "The seconds that noise takes are inside training, and not in the price below: --price measures them against a run without."


def dp_sgd(
    *, clip: Positive, noise_multiplier: Rate = 1.0, delta: Small | None = None, noise: Source = "os"
) -> Mechanism:
    """Clients add noise to every local step, so that single records stay hidden from all who see models.

    clip: S, the longest gradient of a row (Euclidean norm over all trained tensors together); a longer one is shortened to it.
    noise_multiplier: z: the noise on a step's sum has standard deviation z S; 0 = no noise and no privacy.
    delta: the delta at which epsilon is stated; left out = n^-1.1 for n rows of all clients together.
    noise: the operating system's randomness for noise and batches, or "seed": repeatable, and protects nobody.
    """
    z = noise_multiplier

    def stated(how: Protection) -> float:
        return float(max(how.training.n if how.training else 2, 2) ** -1.1) if delta is None else delta

    def released(how: Protection, round: int, clients: Sequence[int]) -> list[Event]:
        """Return a line for each client: the noisy steps that its visit takes."""
        from fedatlas.privacy.dp_sgd.schedule import schedule

        if how.training is None:
            return []
        at, lines = stated(how), []
        for k in clients:
            steps, _, q = schedule(how.training.budget_of(k), how.training.sizes[k], how.training.batch_of())
            if steps:
                line = Event("dp_sgd", round, "gaussian", z, clip, "record", "zero out", at, q, (k,), noise, steps)
                lines.append(line)
        return lines

    def batches(how: Protection, doing: Doing, budget: Budget, batch_size: int, params: Tree) -> Poisson:
        from fedatlas.privacy.dp_sgd.poisson import Poisson

        return Poisson(doing, budget, batch_size, params, z * clip, how.noise)

    def work() -> Work:
        from functools import partial

        from fedatlas.privacy.dp_sgd.noisy_gradient import noisy_gradient

        return Work(batches=batches, gradient=partial(noisy_gradient, clip=clip, std=z * clip))

    return Mechanism(
        name="dp_sgd",
        keys={"clip": clip, "noise_multiplier": z, "delta": delta, "noise": noise},
        place=1,
        trust="nobody",
        learns=LEARNS,
        work=work,
        words=Words(
            DONE,
            (SECONDS,),
            no_noise("dp_sgd", z),
            preview=said,
        ),
        noise=Noising(noise, released, stated, unit="record", of_rows=True),
        hides=("train_loss", "steps"),
        figures=by_client,
        limits=Limits(why_not=RECORD_LEVEL, extras=(Extra("dp_accounting", "dp"), *drawn_by(noise))),
    )


def by_client(
    how: Protection, rows: Sequence[Any], sizes: Mapping[int, int], events: Sequence[Event]
) -> Mapping[str, Any]:
    """Return epsilon of each client's records, and the rows whose number is public. The run's own is the largest."""
    from fedatlas.privacy import accountant

    found = accountant.of_clients(events, how.delta())
    return {"epsilon_of_clients": {str(k): number(x) for k, x in found.items()}, "rows": sum(sizes.values())}


def said(found: Mapping[str, Any]) -> Sequence[str]:
    """Return what a dry run says of it."""
    return ("Under 'dp_sgd' epsilon is that of a record of the client that pays most; the numbers of rows are public.",)
