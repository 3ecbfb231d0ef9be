"""Central differential privacy over masked sums: the server sees the sum of a round, adds the noise, and is no adversary of epsilon.

===  ================================================  =====  ==============================================
S    bound of a client's whole change                  d      numbers of a change
K    clients in all, every one of them asked           step   2 range / 2^bits, of the masked sum
===  ================================================  =====  ==============================================

    client   clip(Delta_k, S - K step sqrt(d) / 2) / K, rounded to whole steps and masked (`secagg.fixed`)
    server   w <- w + sum over those who stayed + N(0, (z S / K)^2 I)

Rounding moves a change by K step sqrt(d) / 2 at most, so S bounds the rounded one. Nobody clips after the clients, who are trusted to.
The denominator is K whoever leaves. A sum that cannot be opened is a sum of nothing: its round releases noise only. Neighbours: a
client's change counts as zero, since it is known who takes part.
Source: P3, P14, P16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedatlas.errors import PrivacyError
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Asked, Learns, Mechanism, Protection, Words, Work
from fedatlas.privacy.protocol import Doing
from fedatlas.privacy.steps import step_of

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Update
    from fedatlas.privacy.ask_protocol import Place

LEARNS = Learns(
    "the sum of a round's updates before its noise: epsilon does not hold against the server",
    "of another client's change no more than epsilon and delta allow, as long as all clients clip theirs",
    "the server with clients learns the sum of the others' updates without noise",
)
DONE = (
    "<b>Noise on the masked sum.</b> Every client shortened its change to a length of {clip:g}. The server saw the sum of a round only, "
    "and added noise {noise_multiplier:g} times as strong. Epsilon says how well that hides one client's change from those who see the "
    "models."
)
TRUSTED = (
    "The server saw the sums before it added the noise, and clients are trusted to shorten their changes: protected are clients from "
    "whoever else sees the models."
)
LEAST = 0.5  # share of the clip that rounding has to leave


def over_masks(central: Mechanism, masks: Mechanism) -> Mechanism:
    """Return central differential privacy over the sums of ``masks``."""
    clip, multiplier = central.keys["clip"], central.keys["noise_multiplier"]
    assert central.noise is not None
    stated = central.noise.released

    def released(how: Protection, round: int, clients: Sequence[int]) -> Event:
        event = stated(how, round, clients)
        assert isinstance(event, Event)  # one line a round
        return event._replace(neighbours="zero out", rate=1.0)

    def refuses(asked: Asked) -> str:
        everybody = asked.fraction == 1 if asked.size is None else bool(asked.clients) and asked.size >= asked.clients
        if not everybody:
            return (
                f"[[privacy]] 'central_dp' over '{masks.name}': the server sees who takes part, so drawing clients hides nobody; write "
                "cohort.fraction = 1, or take 'distributed_dp'."
            )
        if clip >= masks.keys["range"]:
            return (
                f"privacy.{masks.name}.range = {masks.keys['range']:g}: a change may be as long as privacy.central_dp.clip = {clip:g}; "
                "raise it."
            )
        return central.limits.refuses(asked)

    def work() -> Work:
        return Work(
            update=lambda changes, how, doing: shortened(changes, clip, how.K, rounding(masks, how.K), doing),
            release=lambda value, how, place, clients, algorithm: noised_mean(
                value, multiplier * clip, how, place, algorithm
            ),
        )

    return central._replace(
        learns=LEARNS,
        work=work,
        words=Words(DONE, (TRUSTED,), central.words.notices),
        noise=central.noise._replace(released=released, secret_cohort=False),
        hides=("train_loss", "weights", "steps", "flops"),
        limits=central.limits._replace(alone="", refuses=refuses),
        under={},
    )


def rounding(masks: Mechanism, clients: int) -> float:
    """Return how far masks may move each number of a client's change by rounding it."""
    return clients * step_of(masks.keys["bits"], masks.keys["range"]) / 2


def shortened(changes: Update, clip: float, clients: int, half: float, doing: Doing) -> Update:
    """Return a client's changes, so short that rounding by ``half`` a number leaves them within the clip.

    PrivacyError if too little of the clip is left.
    """
    from fedatlas.privacy.clipping import clipped, vector

    room = clip - half * math.sqrt(len(vector(changes)))
    if room < LEAST * clip:
        raise PrivacyError(
            f"rounding in a masked sum of {clients} clients could move the change of client {doing.client} by more than half the clip: "
            "take more bits, or a smaller range."
        )
    return clipped(changes, room)


def noised_mean(value: Update, std: float, how: Protection, place: Place, algorithm: Algorithm) -> Update:
    """Return the masked mean over all K with noise of N(0, (std / K)^2 I). PrivacyError if weights follow the data."""
    from fedatlas.privacy.central_dp.clipped_sum import coefficients
    from fedatlas.privacy.noise import noised

    coefficients(how, algorithm)
    return noised(value, std / how.K, how.noise, "central_dp", place.round, place.number)
