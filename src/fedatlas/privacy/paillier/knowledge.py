"""Proofs that somebody knows the plaintexts of the ciphertexts that it sends.

Anybody can multiply ciphertexts. Where a sum is opened, a client that helps the server could otherwise send the inverse of all others'
ciphertexts but one's, and the sum would be that one's update. One proof serves a whole batch c_i = (1 + m_i n) h^(s_i), i = 1 .. N:

    a = (1 + x n) h^sigma for random x and sigma,    rho_1 .. rho_N of 128 bits from SHAKE-256 of the statement and a
    z = x + sum rho_i m_i mod n,                     S = sigma + sum rho_i s_i over the whole numbers
    it holds if (1 + z n) h^S = a prod c_i^rho_i mod n^2

Somebody who can answer for enough lists of rho knows every m_i modulo n, since differences of the rho are units; a proof without that
knowledge holds with a chance of 2^-128. x hides the m_i, and sigma, of 128 bits more than the sum, hides the s_i. The statement says who
proves it for which sum, so a proof is valid for no other.

A Schnorr proof for many ciphertexts at once, made without a dialogue after Fiat and Shamir, CRYPTO 1986 (hash functions as random oracles).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier.batches import Batch, number, raw
from fedatlas.privacy.paillier.encryption import Base
from fedatlas.privacy.paillier.keys import PublicKey
from fedatlas.privacy.paillier.primes import gmp

CHALLENGE = 16  # bytes of a rho
SLACK = 128  # bits by which sigma is longer than the sum that it hides
MOST = 32  # bits of the longest batch
FEW = 64  # so few bases are raised one by one
FALSE = "a proof that a client knows the plaintexts of its ciphertexts does not hold."


@dataclass(frozen=True, repr=False)
class Witness:
    """The secrets whose knowledge a proof shows: plaintexts, and the exponent of each."""

    messages: Sequence[int]
    exponents: Sequence[int]


def witness(messages: Sequence[int], base: Base) -> Witness:
    """Draw the exponents for the encryption of these plaintexts."""
    return Witness(messages, [secret.integer_below(1 << base.bits) for _ in messages])


def proof(public: PublicKey, known: Witness, statement: bytes, base: Base) -> dict[str, Tensor]:
    """Return a proof for the batch that was encrypted with these exponents. ``statement`` names the batch, its sender and its use."""
    square = gmp().mpz(public.n) ** 2
    x, sigma = secret.integer_below(public.n), secret.integer_below(1 << _longest(base))
    a = _wide(int((1 + x * public.n) * gmp().powmod(base.h, sigma, square) % square), public.width)
    rho = _challenges(statement, a, len(known.messages))
    each = [int.from_bytes(rho[i : i + CHALLENGE], "big") for i in range(0, len(rho), CHALLENGE)]
    z = (x + sum(r * m for r, m in zip(each, known.messages, strict=True))) % public.n
    answer = sigma + sum(r * s for r, s in zip(each, known.exponents, strict=True))
    return {"a": _tensor(a), "z": _tensor(_wide(z, public.width)), "s": _tensor(_wide(answer, _width(base)))}


def check(public: PublicKey, batch: Batch, found: Any, statement: bytes, base: Base) -> None:
    """Raise ProtocolError unless a proof holds for these ciphertexts and this statement. They must pass `received` first."""
    g = gmp()
    n = g.mpz(public.n)
    square, data = n * n, raw(public, batch)
    widths = {"a": public.width, "z": public.width, "s": _width(base)}
    text = {name: _bytes(found, name, width) for name, width in widths.items()}
    a, z, s = (g.mpz.from_bytes(text[name], "big") for name in widths)
    if not (0 < a < square and z < n and g.gcd(a, n) == 1):
        raise ProtocolError(FALSE)
    rho = _challenges(statement, text["a"], len(batch))
    product = product_of_powers([number(data, i, public.width) for i in range(len(batch))], rho, square)
    if (1 + z * n) * g.powmod(base.h, s, square) % square != a * product % square:
        raise ProtocolError(FALSE)


def product_of_powers(bases: Sequence[Any], exponents: bytes, modulus: Any) -> Any:
    """Return prod bases[i]^e_i, e_i the i-th 16 bytes of ``exponents`` big-endian, by Pippenger's buckets: byte by byte for all bases."""
    g = gmp()
    product: Any = g.mpz(1)
    if len(bases) < FEW:
        for i, b in enumerate(bases):
            e = int.from_bytes(exponents[i * CHALLENGE : (i + 1) * CHALLENGE], "big")
            product = product * g.powmod(b, e, modulus) % modulus
        return product
    for place in range(CHALLENGE):
        for _ in range(8):
            product = product * product % modulus
        buckets: list[Any] = [None] * 256
        for b, digit in zip(bases, exponents[place::CHALLENGE], strict=True):
            buckets[digit] = b if buckets[digit] is None else buckets[digit] * b % modulus
        above = total = g.mpz(1)
        for bucket in reversed(buckets[1:]):
            above = above if bucket is None else above * bucket % modulus
            total = total * above % modulus
        product = product * total % modulus
    return product


def _challenges(statement: bytes, a: bytes, count: int) -> bytes:
    about = b"knowledge" + len(statement).to_bytes(8, "big") + statement + a
    return hashlib.shake_256(about).digest(CHALLENGE * count)


def _longest(base: Base) -> int:
    """Return the bits of sigma."""
    return base.bits + 8 * CHALLENGE + MOST + SLACK


def _width(base: Base) -> int:
    """Return the bytes of S."""
    return _longest(base) // 8 + 1


def _wide(x: int, width: int) -> bytes:
    return x.to_bytes(width, "big")


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(found: Any, name: str, width: int) -> bytes:
    x = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(x, Tensor) or x.dtype != torch.uint8 or tuple(x.shape) != (width,):
        raise ProtocolError(FALSE)
    return x.cpu().numpy().tobytes()
