"""Encryption and decryption.

    c = (1 + m n) r^n mod n^2,  r uniform among the units

*With the public key alone* this is what is computed. *Key holders* draw the same law at a thirtieth of the cost, with full exponents and
no new assumption: modulo p^2 the n-th residues are the cyclic group of order p - 1 that some h generates, and h^s with s uniform in
[0, p - 1) is a uniform element of it; the same for q; the Chinese remainder theorem joins the two.

h^s comes from a table of h^(256^j d) for every byte d of s at every place j (a fixed-base comb): no squarings. Elements are kept as
u (1 + tau p), u < p: then a product modulo p^2 is the product of the short u, and of the tau only the sum modulo p is needed. The message
joins that sum: 1 + m n = 1 + (m q) p mod p^2.

Decryption (by p and q apart, P10): m mod p = L(c^(p-1) mod p^2) / (-q) mod p with L(x) = (x - 1) / p, because
(1 + n)^(p-1) = 1 + (p - 1) q p = 1 - q p mod p^2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fedatlas import secret
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.paillier.batches import Batch, computed, number, raw
from fedatlas.privacy.paillier.keys import PrivateKey, PublicKey
from fedatlas.privacy.paillier.primes import gmp
from fedatlas.privacy.paillier.spread import spread

BLOCK = 256  # ciphertexts that take each row of the comb together


@dataclass(frozen=True, repr=False)
class Side:
    """Numbers that a key holder computes with modulo one prime's square."""

    p: Any
    square: Any  # p^2
    other: Any  # q
    unlock: Any  # 1 / -q mod p
    residues: list[list[Any]]  # by place and byte: u of h^(256^place byte) = u (1 + tau p)
    logs: list[list[Any]]  # and tau; both are empty where there is no comb


@dataclass(frozen=True, repr=False)
class Holder:
    """A private key made ready for work: a value that a party makes once and keeps."""

    public: PublicKey
    sides: tuple[Side, Side]
    joining: Any  # 1 / q^2 mod p^2
    joining_plain: Any  # 1 / q mod p

    def __repr__(self) -> str:
        return f"Holder of {self.public!r}"


def holder(key: PrivateKey, *, combs: bool = True) -> Holder:
    """The key made ready; without ``combs`` (0.3 s and 30 MB at 2,048 bits) it only decrypts."""
    g = gmp()
    p, q = g.mpz(key.p), g.mpz(key.q)
    sides = (_side(p, q, combs), _side(q, p, combs))
    return Holder(key.public, sides, g.invert(q * q, p * p), g.invert(q, p))


def encrypt(
    public: PublicKey,
    messages: Sequence[int],
    *,
    keys: Holder | None = None,
    r: Sequence[int] | None = None,
    workers: int = 1,
) -> Batch:
    """Ciphertexts of whole numbers m, 0 <= m < n (a negative number stands as n - |m|), each with randomness of its own.

    With the combs of ``keys``, else by the public key alone; ``r`` gives the randomness, for test vectors. PrivacyError for one outside.
    """
    g = gmp()
    n = g.mpz(public.n)
    square = n * n
    if any(not 0 <= m < n for m in messages):
        raise PrivacyError("a plaintext is not between 0 and n: pack values by their layout before they are encrypted.")
    if keys is not None and keys.public != public:
        raise PrivacyError("the private key at hand is not that of the public key to encrypt with: use one pair.")

    def some(places: range) -> Iterator[Any]:
        if keys is not None and keys.sides[0].residues and r is None:
            blocks = (places[at : at + BLOCK] for at in range(0, len(places), BLOCK))
            return chain.from_iterable(_by_combs(keys, [messages[i] for i in block]) for block in blocks)
        return ((1 + messages[i] * n) * g.powmod(_unit(n) if r is None else r[i], n, square) % square for i in places)

    return computed(public, len(messages), workers, some)


def decrypt(keys: Holder, batch: Batch, *, workers: int = 1) -> list[int]:
    """The plaintexts, 0 <= m < n. What comes from elsewhere passes `received` first."""
    data, wide, width = raw(keys.public, batch), keys.public.width, -(-keys.public.bits // 8)

    def work(first: int, end: int) -> bytes:
        return b"".join([_open(keys, number(data, i, wide)).to_bytes(width, "big") for i in range(first, end)])

    opened = spread(work, len(batch), workers)
    return [int.from_bytes(opened[i : i + width], "big") for i in range(0, len(opened), width)]


def powers(side: Side, exponents: Sequence[int], logs: Sequence[Any]) -> list[Any]:
    """h^s (1 + log p) modulo p^2, up to a multiple of it, for each s and log, by the comb.

    Place after place for all of them: a row of the table stays in the processor's cache, the whole table does not.
    """
    places = zip(*(s.to_bytes(len(side.residues), "little") for s in exponents), strict=True)
    rows = zip(side.residues, side.logs, places, strict=True)
    products, square = [1] * len(exponents), side.square
    for us, ts, digits in rows:
        products = [x * us[d] % square for x, d in zip(products, digits, strict=True)]
        logs = [x + ts[d] for x, d in zip(logs, digits, strict=True)]
    return [x + side.p * (x * log % side.p) for x, log in zip(products, logs, strict=True)]


def _by_combs(keys: Holder, messages: Sequence[int]) -> Iterator[Any]:
    def half(side: Side) -> list[Any]:
        order = int(side.p) - 1
        return powers(
            side, [secret.integer_below(order) for _ in messages], [m * side.other % side.p for m in messages]
        )

    first, second = map(half, keys.sides)
    p, q = (side.square for side in keys.sides)
    return (y % q + q * ((x - y % q) * keys.joining % p) for x, y in zip(first, second, strict=True))


def _open(keys: Holder, c: Any) -> Any:
    found = []
    for side in keys.sides:
        opened, rest = gmp().f_divmod(gmp().powmod(c % side.square, side.p - 1, side.square) - 1, side.p)
        if rest:
            raise ProtocolError("a ciphertext shares a factor with n, as no encryption does: it is broken or forged.")
        found.append(opened * side.unlock % side.p)
    m, k = found
    return k + keys.sides[1].p * ((m - k) * keys.joining_plain % keys.sides[0].p)


def _unit(n: Any) -> int:
    while gmp().gcd(r := secret.integer_below(int(n)), n) != 1:
        pass
    return r


def _side(p: Any, q: Any, comb: bool) -> Side:
    residues, logs = _comb(p) if comb else ([], [])
    return Side(p, p * p, q, gmp().invert(-q, p), residues, logs)


def _comb(p: Any) -> tuple[list[list[Any]], list[list[Any]]]:
    """By place j and byte d: u and tau of h^(256^j d) = u (1 + tau p) mod p^2.

    h = x^p mod p^2 for the smallest x that generates the units modulo p: p is a safe prime, so that every non-residue but -1 does.
    tau = ((a - u) / p) / u modulo p for a power a; the inverse of u is a power of the inverse, too.
    """
    g = gmp()
    square = p * p
    x = next(x for x in range(2, int(p) - 1) if g.jacobi(x, p) == -1)
    base = g.powmod(x, p, square)
    residues: list[list[Any]] = []
    logs: list[list[Any]] = []
    for _ in range(-(-p.bit_length() // 8)):
        back = g.invert(base, p)
        a = inverse = g.mpz(1)
        us, taus = [], []
        for _ in range(256):
            high, u = g.f_divmod(a, p)
            us.append(u)
            taus.append(high * inverse % p)
            a, inverse = a * base % square, inverse * back % p
        residues.append(us)
        logs.append(taus)
        base = a  # base^256
    return residues, logs
