"""Ciphertexts of ring cryptosystems (BFV, CKKS) as bytes, and their sums.

A ciphertext is a pair of polynomials of N coefficients, each a residue modulo several primes. A message holds the residues only, in as
many half bytes as their prime has, so all ciphertexts have the same length, and nobody parses a foreign file. Sums are sums of
residues: the server needs the primes and no library.

A batch is the name of its key and a uint8 tensor (count, bytes of a ciphertext).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.encrypted.cryptosystem import FEWEST

Residues = NDArray[np.uint64]  # (primes, 2, N)


class ServerKey(NamedTuple):
    """The server's part of a key: its name, and the form of ciphertexts."""

    name: str
    degree: int  # N
    primes: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Bytes of both polynomials modulo each prime."""
        return tuple(self.degree * nibbles(q) for q in self.primes)


def nibbles(prime: int) -> int:
    """Return the half bytes of a residue."""
    return -(-prime.bit_length() // 4)


def packed(public: ServerKey, residues: Residues) -> Tensor:
    """Return residues of one ciphertext as bytes, the lowest first."""
    out: list[NDArray[np.uint8]] = []
    for q, some in zip(public.primes, residues, strict=True):
        whole, half = divmod(nibbles(q), 2)
        octets = np.ascontiguousarray(some.reshape(-1)).astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
        out.append(octets[:, :whole].reshape(-1))
        if half:
            out.append(octets[0::2, whole] | octets[1::2, whole] * np.uint8(16))
    return torch.from_numpy(np.concatenate(out))


def unpacked(public: ServerKey, data: Tensor) -> Residues:
    """Return the residues of one ciphertext. ProtocolError if one is not below its prime."""
    octets, at = data.numpy(), 0
    out = np.empty((len(public.primes), 2, public.degree), dtype=np.uint64)
    for i, (q, length) in enumerate(zip(public.primes, public.lengths, strict=True)):
        whole, half = divmod(nibbles(q), 2)
        here, many = octets[at : at + length], 2 * public.degree
        words = np.zeros((many, 8), dtype=np.uint8)
        words[:, :whole] = here[: many * whole].reshape(many, whole)
        if half:
            above = here[many * whole :]
            words[0::2, whole], words[1::2, whole] = above & 15, above >> 4
        out[i] = words.view("<u8").reshape(2, public.degree)
        if out[i].max() >= q:
            raise ProtocolError("a ciphertext holds a number that is not below its prime: it is broken or forged.")
        at += length
    return out


def plain(public: ServerKey, rows: Sequence[Tensor]) -> dict[str, Any]:
    """Return packed ciphertexts as a batch for a message."""
    empty = torch.empty((0, sum(public.lengths)), dtype=torch.uint8)
    return {"key": public.name, "ciphertexts": torch.stack([*rows]) if rows else empty}


def received(public: ServerKey, sent: Any, count: int) -> Tensor:
    """Return the packed ciphertexts of a batch, each with residues below their primes. ProtocolError, with the reason, if not."""
    key, x = (sent.get("key"), sent.get("ciphertexts")) if isinstance(sent, Mapping) else (None, None)
    if not isinstance(key, str) or not isinstance(x, Tensor) or x.dtype != torch.uint8 or x.ndim != 2:
        raise ProtocolError("a message holds no batch of ciphertexts where one was due: send a batch's plain form.")
    if key != public.name:
        raise ProtocolError(f"ciphertexts of key {key[:16]!r} arrived where key '{public.name}' is in use.")
    if x.shape[1] != sum(public.lengths):
        raise ProtocolError(
            f"ciphertexts of {x.shape[1]} bytes arrived where this key's have {sum(public.lengths)}: they are of other "
            "parameters, or cut short."
        )
    if len(x) != count:
        raise ProtocolError(
            f"a batch of {len(x)} ciphertexts arrived where {count} were due: it is cut short or padded."
        )
    for row in x:
        if not unpacked(public, row)[:, 1].any():
            raise ProtocolError("a ciphertext hides nothing, as no encryption does: the batch is broken or forged.")
    return x


def received_sum(public: ServerKey, sent: Any, count: int) -> Tensor:
    """Return the packed ciphertexts of a `summed` batch. ProtocolError if it is broken, or the server calls it one client's."""
    many = sent.get("of") if isinstance(sent, Mapping) else None
    if not isinstance(many, int) or many < FEWEST:
        raise ProtocolError("a sum of one client's ciphertexts is its update, and is not opened.")
    return received(public, sent, count)


def summed(public: ServerKey, batches: Sequence[Tensor], weights: Sequence[int]) -> dict[str, Any]:
    """Return sum_k weights[k] batches[k] as a batch that also tells how many batches it is ``of``. Weights are whole, 0 or more."""
    if min(weights, default=0) < 0:
        raise PrivacyError("a weight below 0 cannot be applied to a ciphertext here: let the clients weigh.")
    out = []
    for rows in zip(*batches, strict=True):
        total = np.zeros((len(public.primes), 2, public.degree), dtype=np.uint64)
        for row, weight in zip(rows, weights, strict=True):
            one = unpacked(public, row)
            for q, mine, theirs in zip(public.primes, total, one, strict=True):
                mine += times(theirs, weight, q)
                np.minimum(mine, mine - np.uint64(q), out=mine)  # below 0 the words wrap and are the larger ones
        out.append(packed(public, total))
    return {**plain(public, out), "of": len(batches)}


def times(x: Residues, weight: int, prime: int) -> Residues:
    """Return weight x modulo the prime, by pieces of the weight that leave a product below 2^64."""
    if weight == 1:
        return x
    piece, q = 64 - prime.bit_length(), np.uint64(prime)
    product = np.zeros_like(x)
    for at in reversed(range(0, max(weight.bit_length(), 1), piece)):
        part = np.uint64(weight >> at & (1 << piece) - 1)
        product = ((product << np.uint64(piece)) % q + x * part % q) % q
    return product
