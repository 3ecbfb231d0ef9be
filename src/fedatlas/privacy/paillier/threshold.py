"""Paillier's private key in shares, all of which are needed to decrypt (P17): n of n, shares added over the whole numbers.

A dealer makes a key and d = lambda (1 / lambda mod n), so that d = 0 modulo lambda and d = 1 modulo n. Every party but the last gets a
random d_i from [-B, B), B = 2^(bits of n lambda + 128), the last one what is missing to d. 128 bits more than d can have hide d: any n - 1
shares have the same law for all d, to 2^-128. Afterwards the dealer has to forget p, q and d.

    party i         c_i = c^(d_i) mod n^2                          (a negative power is one of the inverse)
    everybody       prod c_i = c^d = 1 + m n mod n^2,  m = L(prod c_i),  L(u) = (u - 1) / n

A party that is missing, or gives another c_i, leaves nothing to read: L is then no whole number. Nothing proves which party it was, and
nothing proves that a c_i is honest. Which ciphertexts parties give shares of is decided elsewhere (`threshold_paillier`).

Source: Damgard and Jurik, PKC 2001; Fouque, Poupard and Stern, FC 2000; with a dealer and additive shares. Powers do not take constant
time, and a share of a ciphertext costs one power with an exponent of twice the key's length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier.batches import Batch, computed, number, raw
from fedatlas.privacy.paillier.keys import PrivateKey, PublicKey
from fedatlas.privacy.paillier.primes import gmp

MASK = 128  # bits by which a share is longer than what it hides
WRONG = "the shares do not open these ciphertexts: one is missing or false, or was made for others; which one cannot be told."


@dataclass(frozen=True, repr=False)
class KeyShare:
    """One party's share of a private key. It is not a tuple, so that no encoder mistakes it for a list of numbers."""

    public: PublicKey
    d: int

    def __repr__(self) -> str:
        return f"KeyShare(of {self.public.name})"

    def plain(self) -> dict[str, Tensor]:
        """Return the form for the party's own memory: n, the size of d, and its sign."""
        return {
            "n": _tensor(self.public.n),
            "size": _tensor(abs(self.d)),
            "negative": torch.tensor([self.d < 0]),
        }


def key_share(plain: Mapping[str, Tensor]) -> KeyShare:
    """Return the share behind a plain form."""
    n, size = (int.from_bytes(plain[name].numpy().tobytes(), "big") for name in ("n", "size"))
    return KeyShare(PublicKey(n), -size if bool(plain["negative"][0]) else size)


def dealt(key: PrivateKey, parties: int, *, mask: int = MASK) -> tuple[KeyShare, ...]:
    """Return the shares of a key, one per party. The caller forgets the key. PrivacyError for fewer than two parties.

    mask: bits by which a share is longer than n lambda; fewer only in tests.
    """
    if parties < 2:
        raise PrivacyError(f"a key in {parties} shares is no shared key: two parties or more are needed.")
    g = gmp()
    n, order = g.mpz(key.p) * key.q, g.lcm(key.p - 1, key.q - 1)
    d, bound = int(order * g.invert(order, n)), 1 << (int(n * order).bit_length() + mask)
    return tuple(KeyShare(key.public, one) for one in split(d, parties, bound))


def split(d: int, parties: int, bound: int) -> list[int]:
    """Return random whole numbers that add up to d, all but the last from [-bound, bound)."""
    shares = [secret.integer_below(2 * bound) - bound for _ in range(parties - 1)]
    return [*shares, d - sum(shares)]


def partial_decryption(share: KeyShare, batch: Batch, *, workers: int = 1) -> Batch:
    """Return c^d_i of every ciphertext. Batches from elsewhere must pass `received` first."""
    public = share.public
    data, width, square, d = raw(public, batch), public.width, gmp().mpz(public.n) ** 2, gmp().mpz(share.d)
    return computed(
        public,
        len(batch),
        workers,
        lambda places: (gmp().powmod(number(data, i, width), d, square) for i in places),
    )


def combined(public: PublicKey, shares: Sequence[Batch]) -> list[int]:
    """Return the plaintexts, 0 <= m < n, from the partial decryptions of all parties. ProtocolError if they do not open them."""
    if len({len(batch) for batch in shares}) != 1:
        raise ProtocolError("the parties' shares are of different numbers of ciphertexts: they do not belong together.")
    g, rows, width = gmp(), [raw(public, batch) for batch in shares], public.width
    n = g.mpz(public.n)
    square, found = n * n, []
    for i in range(len(shares[0])):
        product: Any = g.mpz(1)
        for data in rows:
            product = product * number(data, i, width) % square
        m, rest = g.f_divmod(product - 1, n)
        if rest:
            raise ProtocolError(WRONG)
        found.append(int(m))
    return found


def _tensor(number: int) -> Tensor:
    return torch.frombuffer(bytearray(number.to_bytes(-(-number.bit_length() // 8) or 1, "big")), dtype=torch.uint8)
