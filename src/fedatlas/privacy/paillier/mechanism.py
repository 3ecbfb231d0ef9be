"""Additively homomorphic encryption (P10, P11): clients hold the key, and one of them opens the sum, or all open the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.encrypted.mechanism import encryption
from fedatlas.privacy.mechanism import OWN_FIGURES, Bits, Extra, Mechanism, Work
from fedatlas.privacy.paillier.words import (
    ALONE,
    CLOSED_DONE,
    CLOSED_LEARNS,
    OWN_NOTICE,
    SHORT,
    SHORT_NOTICE,
    Exponent,
    key_seconds_of,
    key_sentences,
)
from fedatlas.privacy.reasons import CLOSED_MODEL
from fedatlas.registry import Positive

DONE = (
    "<b>Encryption.</b> Every client encrypted {what} with a Paillier key of {key_bits} bits. The server added up what it "
    "could not read, and one client, in turn, opened the sum of the round."
)


def paillier(
    *,
    key_bits: Literal[2048, 3072, 4096] = 2048,
    bits: Bits = 24,
    range: Positive = 16.0,
    encrypt: str | tuple[str, ...] = "all",
    weights_by: Literal["server", "client"] = "server",
    short_exponent: Exponent | None = None,
    reveal: Literal["server", "clients"] | None = None,
) -> Mechanism:
    """Clients encrypt what they send. The server adds ciphertexts without reading any, and one client opens the sum.

    key_bits: length of the key that all clients share; 4096 is for the equations of `algorithm.name = "private_ridge"`.
    bits: a value is one of 2^bits steps across [-range, range).
    range: the largest size of a value that can be sent; a larger one is refused, never clipped.
    encrypt: "all", "output" (the last layer), "outermost:N" (the N layers nearest the output), or names of parameters.
    weights_by: who multiplies an update by its weight: the server, on ciphertexts, or the client, before it encrypts (fewer bytes).
    short_exponent: bits of the random exponents (512 to 1024), for faster encryption under one more assumption; by default full ones.
    reveal: who learns the model: the "server", to which one client tells each sum (the default), or only "clients", to whom it sends a
        ciphertext as the model.
    """
    keys: dict[str, Any] = {"key_bits": key_bits, "bits": bits, "range": range, "encrypt": encrypt}
    keys |= {"weights_by": weights_by, "short_exponent": short_exponent}
    if reveal == "clients":
        return closed({**keys, "reveal": reveal})

    def work() -> Work:
        from fedatlas.privacy.encrypted.encrypted_sum import protocol
        from fedatlas.privacy.paillier.filling import Encryption
        from fedatlas.privacy.paillier.filling import paillier as filling

        return Work(protocol=protocol(filling(Encryption(key_bits, bits, range, encrypt, weights_by, short_exponent))))

    return recorded({**keys, "reveal": reveal}, DONE, work)


def recorded(keys: Mapping[str, Any], done: str, work: Callable[[], Work], *sentences: str) -> Mechanism:
    """Return the record with these keys. ``sentences``: further warnings of the report."""
    extras = (Extra("gmpy2", "he"), Extra("cryptography", "he"))
    short = keys["short_exponent"] is not None
    warnings = (*sentences, SHORT) if short else sentences
    notices = (SHORT_NOTICE.format(name="paillier"),) if short else ()
    made = encryption(paillier, keys, done, work, extras, warnings=warnings, notices=notices, columns=("key_bits",))
    too_long = LONG if keys["key_bits"] == 4096 else ""
    return made._replace(
        limits=made.limits._replace(refuses=lambda asked: too_long),
        preview=lambda trial: {"key": key_seconds_of(keys["key_bits"])},
        words=made.words._replace(preview=key_sentences),
    )


# ------------------------------------------------------------------------------------------------ a closed model

LONG = (
    "privacy.paillier.key_bits = 4096: keys of safe primes of that length take minutes to make; use 3072. Only 'private_ridge', whose key "
    "has other primes, takes 4096."
)
ROOM = 16  # sums for which a slot has room at least: a run may go on for more rounds within a power of two


def closed(keys: Mapping[str, Any], sums: int = ROOM, clients: int = 0) -> Mechanism:
    """Return the record for a server that keeps the model as a ciphertext. ConfigError if ``encrypt`` leaves something out.

    sums: for which a slot has room. clients: in each of them at most, if they weigh.
    """
    if keys["encrypt"] != "all":
        raise ConfigError(
            "privacy.paillier.reveal = 'clients': the server would see what encrypt leaves out; write encrypt = 'all'."
        )

    def work() -> Work:
        from fedatlas.privacy.paillier.closed_model import protocol
        from fedatlas.privacy.paillier.filling import Encryption

        given = {key: x for key, x in keys.items() if key != "reveal"}
        return Work(protocol=protocol(Encryption(**given), sums, clients or sums))

    made = recorded(keys, CLOSED_DONE, work, OWN_FIGURES)
    return made._replace(
        closed=True,
        learns=CLOSED_LEARNS,
        words=made.words._replace(notices=(*made.words.notices, OWN_NOTICE)),
        sized=partial(for_run, keys),
        limits=made.limits._replace(why_not=CLOSED_MODEL, alone=ALONE),
    )


def for_run(keys: Mapping[str, Any], clients: int, sums: int) -> Mechanism:
    """Return the record for a run of so many sums. ConfigError if a slot has no room for all of them."""
    from fedatlas.privacy.paillier.filling import Encryption, layout

    room = max(ROOM, 1 << (sums - 1).bit_length())
    how = Encryption(**{key: x for key, x in keys.items() if key != "reveal"})
    try:
        layout(how, False, room * (1 << how.bits if how.weights_by == "server" else clients))
    except PrivacyError as error:
        raise ConfigError(
            f"privacy.paillier.bits = {how.bits}: with reveal = 'clients' the sums of all rounds are added up, and {error}"
        ) from None
    return closed(keys, room, clients)
