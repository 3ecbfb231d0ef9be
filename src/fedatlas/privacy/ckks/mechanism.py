"""Approximate encryption by CKKS (P12): clients hold the key, one of them opens the sum and adds noise that hides its error."""

from __future__ import annotations

from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.encrypted.mechanism import encryption
from fedatlas.privacy.mechanism import Extra, Mechanism, Work
from fedatlas.registry import Positive

DONE = (
    "<b>Encryption.</b> Every client encrypted {what} by CKKS, at 128 bits of security. The server added up what it "
    "could not read. One client, in turn, opened the sum of the round and handed it on with noise that hides the error of the "
    "decryption."
)
SET_UP = 16  # sums that are opened before round 1 under keys made for that


def ckks(*, range: Positive = 4.0, encrypt: str | tuple[str, ...] = "all") -> Mechanism:
    """Clients encrypt what they send by CKKS. Sums have an error below 1e-5, which noise of the opener makes safe to hand on.

    range: the largest size of a value that can be sent; a larger one is refused, never clipped. The error grows with it.
    encrypt: "all", "output" (the last layer), "outermost:N" (the N layers nearest the output), or names of parameters.
    """
    return _sized(range, encrypt, SET_UP)


def _sized(range: float, encrypt: str | tuple[str, ...], openings: int) -> Mechanism:
    def work() -> Work:
        from fedatlas.privacy.ckks.filling import Encryption
        from fedatlas.privacy.ckks.filling import ckks as filling
        from fedatlas.privacy.encrypted.encrypted_sum import protocol

        return Work(protocol=protocol(filling(Encryption(range, encrypt, openings))))

    def sized(clients: int, openings: int) -> Mechanism:
        from fedatlas.privacy.ckks.parameters import parameters

        try:
            parameters(clients, range, openings)
        except PrivacyError as error:
            raise ConfigError(f"privacy.ckks.range = {range:g}: {error}") from None
        return _sized(range, encrypt, openings)

    keys, extras = {"range": range, "encrypt": encrypt}, (Extra("tenseal", "he"), Extra("cryptography", "he"))
    return encryption(ckks, keys, DONE, work, extras)._replace(sized=sized, draws=True)
