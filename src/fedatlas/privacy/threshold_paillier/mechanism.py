"""Encryption under a key in shares (P17): nobody can decrypt without all clients. The protocol is in `threshold_sum`."""

from __future__ import annotations

from typing import Literal

from fedatlas.privacy.mechanism import Bits, Extra, Learns, Limits, Mechanism, Words, Work
from fedatlas.privacy.paillier.words import SHORT, SHORT_NOTICE, Exponent, key_seconds_of, key_sentences
from fedatlas.privacy.reasons import HIDING
from fedatlas.registry import Positive

LEARNS = Learns(
    "the sum of a round's updates, which all clients open together, and each client's weight in it",
    "each other's weights and ciphertexts, which nobody can read without all clients; the models",
    "the server with clients learns the sum of the others' updates; a single one only with all clients but that one",
)
DONE = (
    "<b>Encryption under a shared-out key.</b> Every client encrypted its update with a Paillier key of {key_bits} bits whose private half "
    "nobody holds: every client has a share, and opening takes all of them. Each client signed its ciphertexts, proved that it knows "
    "what is in them, added up those of all and gave its share of that sum only."
)
DEALER = (
    "The key was made by a dealer, this simulation, which gave out the shares and then dropped the key. The maker of a key could read "
    "every update: between real parties the dealer has to be trusted."
)
HONEST = "Nothing proves that a share is honest. A false one leaves the sum of its round closed, and does not show whose it was."


def threshold_paillier(
    *,
    key_bits: Literal[2048, 3072] = 2048,
    bits: Bits = 24,
    range: Positive = 16.0,
    weights_by: Literal["server", "client"] = "client",
    short_exponent: Exponent | None = None,
) -> Mechanism:
    """Clients encrypt what they send, and nobody holds the key: every client has a share, and only all together open a round's sum.

    All clients take part in every round. A single client that is missing leaves the sum closed.

    key_bits: length of the key.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    weights_by: who multiplies an update by its weight: the client, before it encrypts, or everybody who opens, on ciphertexts (larger).
    short_exponent: bits of the random exponents (512 to 1024), for faster encryption under one more assumption; by default full ones.
    """
    keys = {
        "key_bits": key_bits,
        "bits": bits,
        "range": range,
        "weights_by": weights_by,
        "short_exponent": short_exponent,
    }

    def work() -> Work:
        from fedatlas.privacy.threshold_paillier.cryptosystem import Threshold
        from fedatlas.privacy.threshold_paillier.threshold_sum import protocol

        return Work(protocol=protocol(Threshold(key_bits, bits, range, weights_by, short_exponent)))

    short = short_exponent is not None
    return Mechanism(
        name="threshold_paillier",
        keys=keys,
        place=4,
        trust="nobody",
        learns=LEARNS,
        work=work,
        words=Words(
            DONE,
            (DEALER, HONEST, SHORT) if short else (DEALER, HONEST),
            (SHORT_NOTICE.format(name="threshold_paillier"),) if short else (),
            preview=key_sentences,
        ),
        phase="encrypt",
        preview=lambda trial: {"key": key_seconds_of(key_bits)},
        sums_only="wholly",
        hides=("steps",),
        limits=Limits(why_not=HIDING, extras=(Extra("gmpy2", "he"), Extra("cryptography", "he"))),
    )
