"""Ciphertexts as bytes: a batch is the name of its key and a uint8 tensor (count, bytes of a ciphertext), numbers big-endian.

The width is that of the key for all numbers, so a batch's length reveals nothing. `received` checks batches that come from elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import ProtocolError
from fedatlas.privacy.paillier.keys import PublicKey
from fedatlas.privacy.paillier.primes import gmp
from fedatlas.privacy.paillier.spread import spread


@dataclass(frozen=True, eq=False)
class Batch:
    """Ciphertexts under one key."""

    key: str  # its name
    ciphertexts: Tensor  # (count, width) uint8

    def __len__(self) -> int:
        return len(self.ciphertexts)

    @cached_property
    def numbers(self) -> list[Any]:
        """The ciphertexts as numbers, read once: for a batch that many sums are made of. Processes forked later share them."""
        data, width = _bytes(self), self.ciphertexts.shape[1]
        return [number(data, i, width) for i in range(len(self))]

    def at(self, places: Any) -> Batch:
        """Return the ciphertexts at some places: a slice, or an array of places."""
        return Batch(self.key, self.ciphertexts[places])

    def plain(self) -> dict[str, Any]:
        """Return the form for a message."""
        return {"key": self.key, "ciphertexts": self.ciphertexts}


def received(public: PublicKey, plain: Any, count: int | None = None) -> Batch:
    """Return the batch of a message, with every ciphertext a unit modulo n^2. ProtocolError, with the reason, if one is not.

    A common factor with n is searched for in the product of all. This takes one greatest common divisor instead of ``count``.
    """
    key, x = (plain.get("key"), plain.get("ciphertexts")) if isinstance(plain, Mapping) else (None, None)
    if not isinstance(key, str) or not isinstance(x, torch.Tensor) or x.dtype != torch.uint8 or x.ndim != 2:
        raise ProtocolError("a message holds no batch of ciphertexts where one was due: send a batch's plain form.")
    batch = Batch(key, x)
    check_key(public, batch)
    if count is not None and len(x) != count:
        raise ProtocolError(
            f"a batch of {len(x)} ciphertexts arrived where {count} were due: it is cut short or padded."
        )
    g = gmp()
    n, product = g.mpz(public.n), g.mpz(1)
    square = n * n
    for i, c in enumerate(batch.numbers):
        if not 0 < c < square:
            raise ProtocolError(f"ciphertext {i + 1} of {len(x)} is not between 0 and n^2: it is broken or forged.")
        product = product * c % n
    if len(x) and g.gcd(product, n) != 1:
        raise ProtocolError(
            "a ciphertext shares a factor with n, as no encryption does: the batch is broken or forged."
        )
    return batch


def raw(public: PublicKey, batch: Batch) -> bytes:
    """Return the bytes of a batch. ProtocolError if it belongs to another key."""
    check_key(public, batch)
    return _bytes(batch)


def check_key(public: PublicKey, batch: Batch) -> None:
    """Raise ProtocolError for a batch that belongs to another key."""
    if batch.key != public.name:
        raise ProtocolError(f"ciphertexts of key {batch.key[:16]!r} arrived where key '{public.name}' is in use.")
    if batch.ciphertexts.shape[1] != public.width:
        found = batch.ciphertexts.shape[1]
        raise ProtocolError(
            f"ciphertexts of {found} bytes arrived where this key's have {public.width}: they are cut short."
        )


def _bytes(batch: Batch) -> bytes:
    return batch.ciphertexts.cpu().numpy().tobytes()


def number(data: bytes, i: int, width: int) -> Any:
    """Return number ``i`` of these bytes."""
    return gmp().mpz.from_bytes(data[i * width : (i + 1) * width], "big")


def computed(
    public: PublicKey,
    count: int,
    workers: int,
    some: Callable[[range], Iterable[Any]],
    sizes: Sequence[int] | None = None,
) -> Batch:
    """Return the batch whose ciphertexts at some places are ``some(places)``; ``sizes``: as `spread` takes them."""
    width = public.width

    def work(first: int, end: int) -> bytes:
        return b"".join([c.to_bytes(width, "big") for c in some(range(first, end))])

    data = bytearray(spread(work, count, workers, sizes))
    empty = torch.empty(0, dtype=torch.uint8)
    return Batch(public.name, (torch.frombuffer(data, dtype=torch.uint8) if data else empty).reshape(count, width))
