"""Colluders: malicious clients that compare their changes and agree on the one that all of them send (B18).

====================  ============================================================  ============================
alie                  mu - z sigma, for each coordinate                             Baruch et al. 2019
inner_product         -epsilon mu                                                   Xie et al. 2020
mimic                 the change of one honest client                               Karimireddy et al. 2022
min_max               mu - gamma sigma, no further from a known one than any other   Shejwalkar, Houmansadr 2021
====================  ============================================================  ============================

mu and sigma are the mean and the sample deviation of the changes that they know: those of their own honest work, or, if
they are omniscient, those of all honest clients. Either factor can be optimised against the server's rule (`best_factor`).
All arithmetic is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Knows = Literal["own", "coalition", "all"]
"""Whose honest changes an attacker sees: only its own, those of all attackers of its table, or those of every client."""

Aggregate = Callable[[Sequence[Tensor]], Tensor]
"""The server's rule, with its f: changes (d,) of a round -> the change that it takes, (d,)."""


class Scene(NamedTuple):
    """The facts on which colluders agree. Every change is a vector (d,) in float64."""

    own: Mapping[int, Tensor]  # attacker -> the change of its honest work
    others: Mapping[int, Tensor]  # honest client -> its change; empty unless the attackers are omniscient
    n: int  # changes that the server combines, the attackers' included
    aggregate: Aggregate
    stream: torch.Generator

    @property
    def known(self) -> list[Tensor]:
        """The honest changes from which they compute; omniscient attackers use those of the honest clients."""
        return list((self.others or self.own).values())


Craft = Callable[[Scene], Tensor | None]
"""The facts -> the change that every attacker sends; None if each sends its honest one."""

Vector = Callable[[float], Tensor]
"""Factor -> the change that is sent."""


def alie_of(scene: Scene) -> Vector:
    """Return z -> mu - z sigma."""
    known = torch.stack(scene.known)
    mean = known.mean(dim=0)
    deviation = known.std(dim=0) if len(known) > 1 else torch.zeros_like(mean)
    return lambda z: mean - z * deviation


def inner_product_of(scene: Scene) -> Vector:
    """Return epsilon -> -epsilon mu."""
    mean = torch.stack(scene.known).mean(dim=0)
    return lambda epsilon: -epsilon * mean


def min_max_of(scene: Scene) -> Tensor:
    """Return mu - gamma sigma with the largest gamma for which no known change is further from it than two known ones are apart.

    Each known change x_i limits gamma by ||mu - gamma sigma - x_i||^2 <= D^2, whose larger root is taken exactly.
    """
    known, vector = torch.stack(scene.known), alie_of(scene)
    mean, sigma = vector(0.0), vector(0.0) - vector(1.0)
    if not (a := float(sigma @ sigma)):
        return mean
    away = mean - known
    most = max(float((known - one).square().sum(dim=1).max()) for one in known)
    b, c = away @ sigma, (away.square().sum(dim=1) - most).clamp(max=0.0)
    return vector(float(((b + (b.square() - a * c).sqrt()) / a).min()))


def z_max(n: int, f: int) -> float:
    """Return ALIE's factor for f attackers of n: the quantile (n - f - s) / (n - f) of the normal law, s = floor(n / 2) + 1 - f.

    So many honest changes lie further out that a majority seems to support the attackers. s is at least 1; 0 if no honest
    client is left to lie further in.
    """
    honest, supporters = n - f, max(n // 2 + 1 - f, 1)
    if honest <= supporters:
        return 0.0
    return float(torch.special.ndtri(torch.tensor((honest - supporters) / honest, dtype=torch.float64)))


def best_factor(worth: Callable[[float], float], evals: int = 20, step: float = 10.0, ratio: float = 0.8) -> float:
    """Return the factor of 0 or more with the largest worth that a line search finds: byzfl's, with its constants.

    Steps double as long as they gain; after the first that does not, they shrink by ``ratio`` until all trials are used.
    """
    best, most, expanding = 0.0, worth(0.0), True
    for _ in range(evals - 1):
        found = worth(best + step)
        better = found > most
        if better:
            best, most = best + step, found
        expanding = expanding and better
        step *= 2 if expanding else ratio
    return best


SMALL = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Factors below byzfl's first step, tried as well: Krum stops taking ALIE's change somewhere between them."""


def optimised(scene: Scene, vector: Vector) -> float:
    """Return the factor of those tried that moves what the rule takes furthest; the first of equals."""
    worth = damage(scene, vector)
    return max((best_factor(worth), *SMALL), key=worth)


def damage(scene: Scene, vector: Vector) -> Callable[[float], float]:
    """Return factor -> how far the rule's result then is from the mean of the honest changes (Euclidean).

    Attackers that see only their own changes draw the honest ones from a normal law with their mean and deviation.
    """
    honest = [*scene.others.values()] or stand_ins(scene)
    mean, hostile = torch.stack(honest).mean(dim=0), len(scene.own)

    def worth(factor: float) -> float:
        moved = float((scene.aggregate([*honest, *[vector(factor)] * hostile]) - mean).norm())
        return moved if math.isfinite(moved) else -math.inf

    return worth


def stand_ins(scene: Scene) -> list[Tensor]:
    """Draw as many changes as the server gets from honest clients; at least one."""
    own = torch.stack([*scene.own.values()])
    mean, deviation = own.mean(dim=0), own.std(dim=0) if len(own) > 1 else torch.zeros_like(own[0])
    many = max(scene.n - len(own), 1)
    return [mean + deviation * torch.randn(mean.shape, generator=scene.stream, dtype=mean.dtype) for _ in range(many)]
