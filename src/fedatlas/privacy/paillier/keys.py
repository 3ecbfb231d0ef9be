"""Keys: n = p q of exactly the requested length, p and q safe primes of equal length; g = n + 1.

The text form of a private key shows only its length and the public name. The name is 16 hexadecimal digits of SHA-256 of n. It tells
which key a batch belongs to. Keys travel as dicts of bytes (uint8 tensors), numbers big-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier.primes import gmp, plain_prime, safe, safe_prime

LENGTHS = (2048, 3072)  # bits that protect; shorter keys are for tests
LONGEST = 4096  # bits of a key of plain primes: safe ones of that length take minutes


@dataclass(frozen=True)
class PublicKey:
    """A public key, which encrypts and adds up."""

    n: int

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits, {self.name})"

    @property
    def bits(self) -> int:
        """Length of n."""
        return self.n.bit_length()

    @property
    def width(self) -> int:
        """Bytes of a ciphertext, a number below n^2."""
        return -(-2 * self.bits // 8)

    @property
    def name(self) -> str:
        """The name that distinguishes keys."""
        return hashlib.sha256(_bytes(self.n)).hexdigest()[:16]

    def plain(self) -> dict[str, Tensor]:
        """Return the form for a message."""
        return {"n": _tensor(self.n)}


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """A private key, which decrypts. It is not a tuple, so that no encoder mistakes it for a list of numbers."""

    p: int
    q: int

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.bits} bits, of {self.public.name})"

    @property
    def public(self) -> PublicKey:
        """The public half."""
        return PublicKey(self.p * self.q)

    def plain(self) -> dict[str, Tensor]:
        """Return the form for a sealed message between key holders, never for the party that adds up."""
        return {"p": _tensor(self.p), "q": _tensor(self.q)}


def generate(key_bits: int, *, testing: bool = False) -> PrivateKey:
    """Return a new key; 3,072 bits take about five seconds.

    PrivacyError for a length that does not protect. ``testing`` permits other multiples of 16 from 128 bits on.
    """
    _allowed(key_bits, testing)
    half = key_bits // 2
    p = safe_prime(half)
    while (q := safe_prime(half)) == p:
        pass
    return PrivateKey(p, q)


def generate_plain(key_bits: int, *, testing: bool = False) -> PrivateKey:
    """Return a new key of primes that need not be safe, for the lengths of `generate` and 4,096 bits. Otherwise as `generate`.

    Who encrypts under it draws randomness from a public base (`encryption.base`), or as textbooks do; the combs of key holders need
    safe primes.
    """
    _allowed(key_bits, testing, plain=True)
    half = key_bits // 2
    p = plain_prime(half)
    while (q := plain_prime(half)) == p:
        pass
    return PrivateKey(p, q)


def public_key(plain: Any, *, testing: bool = False, plain_primes: bool = False) -> PublicKey:
    """Return the public key in a message. ProtocolError if there is none. ``plain_primes``: also of `generate_plain`."""
    n = _number(plain, "n")
    _allowed(n.bit_length(), testing, plain_primes)
    if n % 2 == 0 or gmp().is_prime(n):
        raise ProtocolError("a Paillier public key arrived whose n is no product of two odd primes: make new keys.")
    return PublicKey(n)


def private_key(plain: Any, *, testing: bool = False) -> PrivateKey:
    """Return the private key in a message. ProtocolError unless its numbers are two different safe primes of equal length."""
    p, q = _number(plain, "p"), _number(plain, "q")
    if p == q or p.bit_length() != q.bit_length() or not (safe(p) and safe(q)):
        raise ProtocolError(
            "a Paillier private key arrived that is not two safe primes of equal length: make new keys."
        )
    _allowed((p * q).bit_length(), testing)
    return PrivateKey(p, q)


def _allowed(key_bits: int, testing: bool, plain: bool = False) -> None:
    lengths = (*LENGTHS, LONGEST) if plain else LENGTHS
    if key_bits not in lengths and not (testing and key_bits >= 128 and key_bits % 16 == 0):
        raise PrivacyError(f"a Paillier key of {key_bits} bits: choose {' or '.join(map(str, lengths))}.")


def _bytes(number: int) -> bytes:
    return number.to_bytes(-(-number.bit_length() // 8), "big")


def _tensor(number: int) -> Tensor:
    return torch.frombuffer(bytearray(_bytes(number)), dtype=torch.uint8)


def _number(plain: Any, key: str) -> int:
    """Return a number of a plain form. ProtocolError if there is none."""
    x = plain.get(key) if isinstance(plain, Mapping) else None
    if not isinstance(x, torch.Tensor) or x.dtype != torch.uint8 or x.ndim != 1 or x.numel() > LONGEST // 8:
        raise ProtocolError(f"a Paillier key arrived without a whole '{key}': send the key's plain form.")
    return int.from_bytes(x.cpu().numpy().tobytes(), "big")
