"""Central differential privacy: a trusted server clips what clients send and adds noise to the sum.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  z      noise multiplier
q    probability with which a client takes part        K      clients in all, a public number
===  ================================================  =====  ==============================================

    cohort: each client with probability q, by itself, in secret        (q = 1: all clients, nothing is sampled)
    w <- w + (sum over the cohort of clip(Delta_k, S) + N(0, (z S)^2 I)) / (q K)

With clip = "adaptive" S is the server's memory and moves from round to round (`adaptive_clip`).

The denominator is fixed, the weights are equal, and an empty cohort gets its noise. So adding or removing one client moves the
sum by S at most, and the result shows neither who came nor how many. The accountant then needs only z and q of a round. The sum
is computed in `clipped_sum`.
Unit: a client, by adding or removing it. The guarantee holds against all who see models. The server sees the updates.

Source: McMahan, Ramage, Talwar, Zhang 2018, P3; Andrew, Thakkar, McMahan, Ramaswamy 2021, B17.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fedatlas.errors import PrivacyError
from fedatlas.privacy.central_dp.adaptive_clip import WITHIN, Adaptive, bound_told
from fedatlas.privacy.central_dp.masked import over_masks
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import (
    WHO_CAME,
    Asked,
    Extra,
    Learns,
    Limits,
    Mechanism,
    Memory,
    Noising,
    Protection,
    Remembering,
    Small,
    Source,
    Words,
    Work,
    drawn_by,
    from_memory,
    no_noise,
)
from fedatlas.privacy.reasons import CLIENT_LEVEL
from fedatlas.registry import Positive, Rate

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Update
    from fedatlas.privacy.ask_protocol import Place

QUANTILE, CLIP_RATE, FIRST_CLIP = 0.5, 0.2, 0.1  # of an adaptive bound, where the table has none

LEARNS = Learns(
    "every update in the clear, and who sent it: the server has to be trusted",
    "whether a client takes part at all, no better than epsilon and delta allow",
    "clients together learn no more than one of them; with the server, every update",
)
DONE = (
    "<b>Differential privacy at the server.</b> No client could change the model by more than a length of {clip:g}, and "
    "noise {noise_multiplier:g} times as strong was added to the sum of a round. Epsilon says how well that hides who took part."
)
DONE_ADAPTIVE = (
    "<b>Differential privacy at the server, with a bound that adapts.</b> No client could change the model by more than the bound of the "
    "round, which followed the lengths of changes (quantile {quantile:g}, at first {first_clip:g}). The noise on the sum of a round "
    "and on the count of changes within the bound together cost what noise {noise_multiplier:g} times as strong as the bound does. "
    "Epsilon says how well that hides who took part."
)
TRUSTED = "The server saw every update in the clear and has to be trusted; protected are clients from whoever sees the models."
ALONE = "its server clips what each client sent, and no further noise is in its account"


class CentralDP(NamedTuple):
    """The keys of the table, and the values derived from them. ``adaptive``: how the bound moves; None if it is fixed."""

    clip: float  # of the first round
    noise_multiplier: float
    delta: float | None
    noise: Source
    adaptive: Adaptive | None

    def stated(self, how: Protection) -> float:
        """Return the delta at which epsilon is stated."""
        return usual_delta(max(how.K, 2)) if self.delta is None else self.delta

    def event(self, how: Protection, round: int, clip: float) -> Event:
        """Return the ledger's line for a sum of clipped changes, which one client moves by S."""
        z, at, q = self.noise_multiplier, self.stated(how), how.fraction
        return Event("central_dp", round, "gaussian", z, clip, "client", "add or remove", at, q, source=self.noise)

    def released(self, how: Protection, round: int, clients: Sequence[int]) -> Event:  # noqa: ARG002
        """Return the ledger's line of a round under a fixed bound."""
        return self.event(how, round, self.clip)

    def planned(self, how: Protection, rounds: int) -> list[Event]:
        """Return a line per round; the bound of the first stands for those that it moves to."""
        return [self.event(how, number, self.clip) for number in range(1, rounds + 1)]

    def noising(self) -> Noising:
        """Return its noise and what that costs."""
        if self.adaptive is None:
            return Noising(self.noise, self.released, self.stated, secret_cohort=True)
        return Noising(self.noise, from_memory, self.stated, secret_cohort=True, planned=self.planned)

    def work(self) -> Work:
        """Return the work of its clients and its server."""
        from fedatlas.privacy.central_dp.clipped_sum import clipped_sum, counted_sum, mean_of, shortened, within

        fixed = Work(
            update=lambda changes, how, doing: shortened(changes, self.clip),
            total=lambda transform: clipped_sum(self.clip, transform),
            release=lambda value, how, place, clients, algorithm: mean_of(
                value, self.noise_multiplier * self.clip, how, place, algorithm
            ),
        )
        if self.adaptive is None:
            return fixed
        memory = Remembering(
            start=lambda how: {"clip": self.clip},
            enter=lambda memory, how, place, asked: (memory, [self.event(how, place.round, memory["clip"])]),
            release=self.moved,
            word=dict,
            total=lambda memory, transform: counted_sum(memory["clip"], transform),
        )
        return fixed._replace(
            update=lambda changes, how, doing: shortened(changes, bound_told(doing.word)),
            release=None,
            memory=memory,
            beside=lambda changes, how, doing: {WITHIN: within(changes, bound_told(doing.word))},
        )

    def moved(
        self, value: Update, memory: Memory, how: Protection, place: Place, algorithm: Algorithm
    ) -> tuple[Update, Memory]:
        """Return the mean under the bound of this round, and the bound of the next one."""
        from fedatlas.privacy.central_dp.clipped_sum import mean_of

        assert self.adaptive is not None
        clip, expected, z = memory["clip"], how.fraction * how.K, self.noise_multiplier
        changes = {part: x for part, x in value.items() if part != WITHIN}
        mean = mean_of(changes, self.adaptive.multiplier(expected, z) * clip, how, place, algorithm)
        centred = float(value.get(WITHIN, 0.0))
        after = self.adaptive.moved(clip, centred, expected, how.noise, z, place.round, place.number)
        return mean, {"clip": after}

    def refuses(self, asked: Asked) -> str:
        """Return why a cohort has no sound account, or why the counts of an adaptive bound cost too much; "" if neither."""
        if (why := unsound_cohort(asked)) or self.adaptive is None or not asked.clients:
            return why
        expected = asked.clients * (asked.fraction if asked.sampling == "poisson" else 1.0)
        try:
            self.adaptive.multiplier(expected, self.noise_multiplier)
        except PrivacyError as error:
            return f"[[privacy]] 'central_dp': {error}."
        return ""


def bounds(
    how: Protection,
    rows: Sequence[Any],
    sizes: Mapping[int, int],
    events: Sequence[Event],
) -> dict[str, Any]:
    """Return the bound of each round, as the ledger has it."""
    return {"clip_by_round": [[event.round, event.sensitivity] for event in events]}


def central_dp(
    *,
    clip: Positive | Literal["adaptive"],
    noise_multiplier: Rate = 1.0,
    delta: Small | None = None,
    noise: Source = "os",
    quantile: Small | None = None,
    clip_rate: Positive | None = None,
    first_clip: Positive | None = None,
    count_noise: Positive | None = None,
) -> Mechanism:
    """A trusted server limits what one client can change and adds noise, so that participation stays hidden.

    clip: S, the longest change of a client (Euclidean norm over all parts together); a longer one is shortened to it. "adaptive":
        the bound follows the lengths of changes, by a noisy count per round of those within it.
    noise_multiplier: z: the noise on the sum has standard deviation z S; 0 = no noise and no privacy. Adaptive: z of sum and count.
    delta: the delta at which epsilon is stated; left out = K^-1.1 for K clients.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    quantile: adaptive: the share of changes that the bound shall leave as they are; left out = 0.5.
    clip_rate: adaptive: how fast the logarithm of the bound moves; left out = 0.2.
    first_clip: adaptive: the bound of the first round; left out = 0.1.
    count_noise: adaptive: standard deviation of the noise on the count; left out = a twentieth of a round's expected clients.
    """
    moving = {"quantile": quantile, "clip_rate": clip_rate, "first_clip": first_clip, "count_noise": count_noise}
    if clip != "adaptive":
        own, used = CentralDP(clip, noise_multiplier, delta, noise, None), {}
    else:
        rule = Adaptive(quantile or QUANTILE, clip_rate or CLIP_RATE, first_clip or FIRST_CLIP, count_noise)
        own = CentralDP(rule.first, noise_multiplier, delta, noise, rule)
        used = {"quantile": rule.quantile, "clip_rate": rule.rate, "first_clip": rule.first}
    idle = [key for key, value in moving.items() if value is not None and own.adaptive is None]

    def refuses(asked: Asked) -> str:
        if idle:
            return f'privacy.central_dp.{idle[0]}: a key of clip = "adaptive"; write that, or remove the key.'
        return own.refuses(asked)

    return Mechanism(
        name="central_dp",
        keys={"clip": clip, "noise_multiplier": noise_multiplier, "delta": delta, "noise": noise, **moving, **used},
        place=3,
        trust="server",
        learns=LEARNS,
        work=own.work,
        words=Words(
            DONE if own.adaptive is None else DONE_ADAPTIVE,
            (TRUSTED,),
            no_noise("central_dp", noise_multiplier),
        ),
        noise=own.noising(),
        hides=("train_loss", "weights", "steps", *WHO_CAME),
        figures=None if own.adaptive is None else bounds,
        limits=Limits(
            alone=ALONE,
            why_not=CLIENT_LEVEL,
            refuses=refuses,
            extras=(Extra("dp_accounting", "dp", sampled=True), *drawn_by(noise)),
        ),
        under={"secagg": over_masks} if own.adaptive is None else {},
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
