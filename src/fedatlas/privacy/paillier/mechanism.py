"""Additively homomorphic encryption (P10, P11): clients hold the key, one of them opens the sum. The protocol is in `encrypted_sum`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fedatlas.privacy.encrypted.choice import check_choice, chosen
from fedatlas.privacy.mechanism import Bits, Extra, Learns, Limits, Mechanism, Words, Work
from fedatlas.privacy.paillier.words import SHORT, SHORT_NOTICE, Exponent, key_seconds_of, key_sentences
from fedatlas.privacy.reasons import HIDING
from fedatlas.registry import Positive

LEARNS = Learns(
    "the sum of a round's updates, which one client opens for it, and how many rows each client has where these are its weight; "
    "what `encrypt` leaves out, client by client",
    "the one that opens learns the sum; all hold the key, and could read an update that they got hold of",
    "the server with any one client reads every update: this is for parties that do not collude",
)
DONE = (
    "<b>Encryption.</b> Every client encrypted {what} with a Paillier key of {{key_bits}} bits. The server added up what it "
    "could not read, and one client, in turn, opened the sum of the round."
)
SHARED = "All clients hold the same key: a client that helps the server, or gets hold of what another one sent, reads every update."
CLEAR = "What was not chosen to be encrypted went in the clear: the server read it, client by client."
NOTICE = "'paillier': what privacy.paillier.encrypt does not name is sent in the clear, and the server reads it."


def paillier(
    *,
    key_bits: Literal[2048, 3072] = 2048,
    bits: Bits = 24,
    range: Positive = 16.0,
    encrypt: str | tuple[str, ...] = "all",
    weights_by: Literal["server", "client"] = "server",
    short_exponent: Exponent | None = None,
) -> Mechanism:
    """Clients encrypt what they send. The server adds ciphertexts without reading any, and one client opens the sum.

    key_bits: length of the key that all clients share.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    encrypt: "all", "output" (the last layer), "outermost:N" (the N layers nearest the output), or names of parameters.
    weights_by: who multiplies an update by its weight: the server, on ciphertexts, or the client, before it encrypts (fewer bytes).
    short_exponent: bits of the random exponents (512 to 1024), for faster encryption under one more assumption; by default full ones.
    """
    check_choice("paillier", encrypt)
    keys: dict[str, Any] = {"key_bits": key_bits, "bits": bits, "range": range, "encrypt": encrypt}
    keys |= {"weights_by": weights_by, "short_exponent": short_exponent}
    wholly, short = encrypt == "all", short_exponent is not None

    def work() -> Work:
        from fedatlas.privacy.encrypted.encrypted_sum import protocol
        from fedatlas.privacy.paillier.filling import Encryption, paillier

        return Work(protocol=protocol(paillier(Encryption(key_bits, bits, range, encrypt, weights_by, short_exponent))))

    def named(parameters: Sequence[str]) -> Mechanism:
        return paillier(**{**keys, "encrypt": chosen("paillier", encrypt, parameters)})

    return Mechanism(
        name="paillier",
        keys=keys,
        place=4,
        trust="clients",
        learns=LEARNS,
        work=work,
        words=Words(
            DONE.format(what="its whole update" if wholly else "a part of its update ({encrypt})"),
            (SHARED, *(() if wholly else (CLEAR,)), *((SHORT,) if short else ())),
            (*(() if wholly else (NOTICE,)), *((SHORT_NOTICE.format(name="paillier"),) if short else ())),
            preview=key_sentences,
        ),
        phase="encrypt",
        preview=lambda trial: {"key": key_seconds_of(key_bits)},
        sums_only="wholly" if wholly else "partly",
        hides=("steps",),
        named=named,
        limits=Limits(
            why_not=HIDING,
            columns=("key_bits",),
            extras=(Extra("gmpy2", "he"), Extra("cryptography", "he")),
        ),
    )
