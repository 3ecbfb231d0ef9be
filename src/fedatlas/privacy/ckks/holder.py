"""A key holder's work by TenSEAL: keys, encryption, decryption. The only import of `tenseal`.

Keys encrypt symmetrically, as all who encrypt hold the secret key. SEAL seeds each encryption from the operating system. A message
holds residues only: they are taken out of the bytes that TenSEAL writes, and TenSEAL reads only bytes that are built here around
residues. So nothing that another party sends is ever decompressed or parsed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedatlas import secret
from fedatlas.errors import ConfigError
from fedatlas.privacy.ckks.parameters import DEGREE, PRIMES, SCALE, SLOTS
from fedatlas.privacy.encrypted import residues
from fedatlas.privacy.encrypted.residues import Residues, ServerKey

Reals = NDArray[np.float64]
SHAPE = (2, len(PRIMES) - 1, DEGREE)
FRESH = 8 * 2 * (len(PRIMES) - 1) * DEGREE  # bytes of a ciphertext's residues as SEAL writes them
OUTER, VARIANT = 16, 5  # bytes of SEAL's outer header; where it names the compression
RAW = 0  # kind of a block of a zstd frame that holds its bytes as they are

KEPT = 8  # keys made ready in a process


def tenseal() -> Any:
    """Return the module tenseal. ConfigError if it is not installed."""
    try:
        import tenseal as library
    except ImportError as error:
        raise ConfigError('CKKS encryption needs tenseal (Python 3.11 to 3.13): pip install "fedatlas[he]".') from error
    return library


class Holder(NamedTuple):
    """A key made ready."""

    server: ServerKey
    context: Any
    before: bytes  # of a vector as TenSEAL writes it: up to SEAL's header
    outer: bytes  # SEAL's header
    inner: bytes  # up to the residues
    after: bytes


def generate() -> tuple[str, bytes]:
    """Return a new key: its name and its secret."""
    library = tenseal()
    made = library.context(
        library.SCHEME_TYPE.CKKS,
        DEGREE,
        coeff_mod_bit_sizes=list(PRIMES),
        encryption_type=library.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
    )
    made.global_scale = SCALE
    kept = made.serialize(save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False)
    return secret.random_bytes(16).hex(), bytes(kept)


def primes() -> tuple[int, ...]:
    """Return the primes of a fresh ciphertext."""
    import tenseal.sealapi as api

    return tuple(one.value() for one in api.CoeffModulus.Create(DEGREE, list(PRIMES)))[:-1]


@lru_cache(maxsize=KEPT)
def holder(name: str, key: bytes) -> Holder:
    """Return the key made ready. A process keeps a few; workers that are forked later share them."""
    library = tenseal()
    context = library.context_from(key, n_threads=1)
    data = library.ckks_vector(context, [0.0] * SLOTS).serialize()
    at = data.index(b"\x5e\xa1\x10")  # SEAL's magic number and the length of its header
    body, end = stored(data, at + OUTER)
    before, length = data[:at], len(varint(end - at))
    server = ServerKey(name, DEGREE, primes())
    return Holder(server, context, before[:-length], data[at : at + OUTER], body[:-FRESH], data[end:])


def stored(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the content of the zstd frame that begins at a place, and where it ends. Random residues are stored as they are.

    ConfigError if a block is compressed, which this version cannot read.
    """
    described = data[at + 4]
    single = described >> 5 & 1
    at += 5 + (not single) + (0, 1, 2, 4)[described & 3] + (single, 2, 4, 8)[described >> 6]
    out, last = [], False
    while not last:
        head = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        if kind != RAW:
            raise ConfigError("this build of tenseal compresses its ciphertexts: install tenseal 0.3.18.")
        out.append(data[at + 3 : at + 3 + size])
        at += 3 + size
    return b"".join(out), at


def varint(number: int) -> bytes:
    """Return a number as Protocol Buffers write lengths."""
    out = []
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def encrypt(keys: Holder, numbers: Reals) -> list[Tensor]:
    """Return packed ciphertexts of numbers (n,), N / 2 to each, the last filled up with zeros."""
    library, out = tenseal(), []
    for at in range(0, len(numbers), SLOTS):
        row = np.zeros(SLOTS)
        here = numbers[at : at + SLOTS]
        row[: len(here)] = here
        data = library.ckks_vector(keys.context, row).serialize()
        body, _ = stored(data, data.index(keys.outer[:3]) + OUTER)
        found = np.frombuffer(body, dtype="<u8", offset=len(body) - FRESH).reshape(SHAPE).transpose(1, 0, 2)
        out.append(residues.packed(keys.server, found))
    return out


def decrypt(keys: Holder, rows: Tensor) -> Reals:
    """Return the numbers (count N / 2,) of packed ciphertexts, with their errors: they must not leave the holder of the key."""
    out = []
    for row in rows:
        found: Residues = residues.unpacked(keys.server, row).transpose(1, 0, 2)
        body = keys.inner + np.ascontiguousarray(found).tobytes()
        head = keys.outer[:VARIANT] + bytes(3) + (OUTER + len(body)).to_bytes(8, "little")
        data = keys.before + varint(OUTER + len(body)) + head + body + keys.after
        out.append(np.array(tenseal().ckks_vector_from(keys.context, data).decrypt()))
    return np.concatenate(out) if out else np.zeros(0)
