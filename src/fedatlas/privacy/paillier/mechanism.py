"""Additively homomorphic encryption (P10, P11): clients hold the key, one of them opens the sum."""

from __future__ import annotations

from typing import Any, Literal

from fedatlas.privacy.encrypted.mechanism import encryption
from fedatlas.privacy.mechanism import Bits, Extra, Mechanism, Work
from fedatlas.privacy.paillier.words import SHORT, SHORT_NOTICE, Exponent, key_seconds_of, key_sentences
from fedatlas.registry import Positive

DONE = (
    "<b>Encryption.</b> Every client encrypted {what} with a Paillier key of {key_bits} bits. The server added up what it "
    "could not read, and one client, in turn, opened the sum of the round."
)


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
    keys: dict[str, Any] = {"key_bits": key_bits, "bits": bits, "range": range, "encrypt": encrypt}
    keys |= {"weights_by": weights_by, "short_exponent": short_exponent}
    short = short_exponent is not None

    def work() -> Work:
        from fedatlas.privacy.encrypted.encrypted_sum import protocol
        from fedatlas.privacy.paillier.filling import Encryption
        from fedatlas.privacy.paillier.filling import paillier as filling

        return Work(protocol=protocol(filling(Encryption(key_bits, bits, range, encrypt, weights_by, short_exponent))))

    extras = (Extra("gmpy2", "he"), Extra("cryptography", "he"))
    warnings = (SHORT,) if short else ()
    notices = (SHORT_NOTICE.format(name="paillier"),) if short else ()
    made = encryption(paillier, keys, DONE, work, extras, warnings=warnings, notices=notices, columns=("key_bits",))
    return made._replace(
        preview=lambda trial: {"key": key_seconds_of(key_bits)}, words=made.words._replace(preview=key_sentences)
    )
