"""Masks: streams of AES-256 in counter mode, each under a separate key, added in the ring of 2^32 or 2^64 (P14).

Every key makes one stream, from a single counter on, so no two streams share a block. The stream is taken from Galois/counter mode,
which encrypts in counter mode from block 2 (NIST SP 800-38D). Its tag is not requested. OpenSSL computes it twice as fast as plain
counter mode if the processor has vector instructions for AES. Words are read little-endian on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BLOCK = 1 << 17  # bytes per stream at a time: a piece of the sum, the stream and zeros stay in the core's cache


def added(words: np.ndarray[Any, Any], plus: Sequence[bytes], minus: Sequence[bytes] = ()) -> np.ndarray[Any, Any]:
    """Return ``words`` + the streams of the keys in ``plus`` - those in ``minus``, modulo 2^32 (uint32) or 2^64 (uint64).

    ``words`` are one row; keys have 32 bytes. All streams are added to one piece before the next piece begins.
    """
    streams = [(np.add, _stream(key)) for key in plus] + [(np.subtract, _stream(key)) for key in minus]
    out, width = words.copy(), words.dtype.itemsize
    step = BLOCK // width
    zeros, room = bytes(BLOCK), bytearray(BLOCK + 15)  # the cipher needs one block less one byte beyond its output
    mask = np.frombuffer(room, words.dtype.newbyteorder("<"), step)
    for begin in range(0, len(out), step):
        piece = out[begin : begin + step]
        text = zeros if len(piece) == step else zeros[: len(piece) * width]
        for add, stream in streams:
            stream.update_into(text, room)
            add(piece, mask[: len(piece)], out=piece)
    return out


def _stream(key: bytes) -> Any:
    """Return a generator of the key's stream. Its input is added to the stream bit by bit, so the input must be zeros."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES256(key), modes.GCM(bytes(12))).encryptor()
