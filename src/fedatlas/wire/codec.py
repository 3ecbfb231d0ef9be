"""Messages, updates and states as bytes and back, bit for bit. No pickles are used, so reading cannot run code.

Layout: an 8-byte little-endian length of the head; the head; zero bytes up to a multiple of 64; then the tensors one after another. The
head is JSON: the value with every tensor replaced by its dtype, shape and place. Each tensor is aligned to 64 bytes, so that it can be
read without a copy. Values are dicts with text keys, lists, tensors, numbers, text, True, False and None. Python writes floats so that
they read back exactly; NaN and infinity are allowed.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import TransportError
from fedatlas.tree import Tree
from fedatlas.wire.heads import read_head

ALIGN = 64
SIDES, MOST = 32, 1 << 47  # largest number of sides of a tensor's shape, and of elements in it
TREE = "$tree"
TENSOR = "$tensor"
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def _up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _skeleton(value: Any, tensors: list[Tensor], at: int) -> tuple[Any, int]:
    """Return the JSON form of ``value``. Tensors are appended to ``tensors`` and placed from offset ``at``."""
    if isinstance(value, Tensor):
        tensors.append(value)
        entry = {TENSOR: [NAMES[value.dtype], list(value.shape), at]}
        return entry, _up(at + value.numel() * value.element_size())
    if isinstance(value, dict):
        out = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TransportError(f"a message's keys are text, got {key!r}.")
            out[key], at = _skeleton(item, tensors, at)
        return ({TREE: out} if isinstance(value, Tree) else out), at
    if isinstance(value, (list, tuple)):
        items = []
        for item in value:
            entry, at = _skeleton(item, tensors, at)
            items.append(entry)
        return items, at
    if value is None or isinstance(value, (bool, int, float, str)):
        return value, at
    raise TransportError(f"a message holds tensors and plain values, got {type(value).__name__}.")


def _head(value: Any) -> tuple[bytes, list[Tensor], int]:
    tensors: list[Tensor] = []
    skeleton, body = _skeleton(value, tensors, 0)
    return json.dumps(skeleton, separators=(",", ":")).encode(), tensors, body


def size(value: Any) -> int:
    """Return the length of ``encode(value)`` in bytes without building it."""
    head, _, body = _head(value)
    return _up(8 + len(head)) + body


def encode_into(value: Any, buffer: memoryview) -> int:
    """Write the bytes of ``value`` to the front of ``buffer``; return how many."""
    head, tensors, body = _head(value)
    start = _up(8 + len(head))
    if start + body > len(buffer):
        raise TransportError(f"a message of {start + body} bytes does not fit into {len(buffer)}.")
    buffer[:8] = len(head).to_bytes(8, "little")
    buffer[8 : 8 + len(head)] = head
    buffer[8 + len(head) : start] = bytes(start - 8 - len(head))
    at = start
    for x in tensors:
        length = x.numel() * x.element_size()
        if length:
            place = torch.frombuffer(buffer, dtype=x.dtype, count=x.numel(), offset=at)
            place.copy_(x.detach().reshape(-1))
        buffer[at + length : at + _up(length)] = bytes(_up(length) - length)
        at += _up(length)
    return start + body


def encode(value: Any) -> bytearray:
    """Return ``value`` as bytes."""
    out = bytearray(size(value))
    encode_into(value, memoryview(out))
    return out


def decode(data: Any, copy: bool = False, *, own: bool = False) -> Any:
    """Return the value in ``data`` (bytes, bytearray or memoryview). Its tensors are views of ``data``, or copies if ``copy`` is set.

    ``own`` means that this party wrote the bytes, so their head may be of any length. TransportError if they are cut short, do not have
    this layout, or would take memory out of proportion. Every tensor must stand where the writer puts it, so no two share bytes.
    """
    view = memoryview(data)
    if view.readonly:
        view, copy = memoryview(bytearray(view)), False
    try:
        length = int.from_bytes(view[:8], "little")
        if length > len(view) - 8:
            raise ValueError("cut short")
        head = read_head(view[8 : 8 + length], len(view), own=own)
        return _Filling(view, _up(8 + length), copy).filled(head)
    except (ValueError, RecursionError) as error:
        raise TransportError(f"these bytes are not a whole message ({error}).") from error


class _Filling:
    """Fills the tensors into a head, in the order in which they were written."""

    def __init__(self, view: memoryview, start: int, copy: bool) -> None:
        self.view, self.start, self.copy, self.at = view, start, copy, 0

    def filled(self, value: Any) -> Any:
        """Return the value of an entry."""
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if not isinstance(value, dict):
            return value
        if TENSOR in value:
            return self._tensor(_only(value))
        if TREE in value:
            return _tree(self.filled(_only(value)))
        return {key: self.filled(item) for key, item in value.items()}

    def _tensor(self, entry: Any) -> Tensor:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and entry[0] in DTYPES):
            raise ValueError("it has a tensor of no known type")
        (name, shape, at), start = entry, self.start + self.at
        dtype, count = DTYPES[name], _count(shape)
        if type(at) is not int or at != self.at:
            raise ValueError("a tensor is not in its place")
        size = count * dtype.itemsize
        if start + size > len(self.view):
            raise ValueError("cut short")
        self.at = _up(self.at + size)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        x = torch.frombuffer(self.view, dtype=dtype, count=count, offset=start)
        if dtype is torch.bool and int(x.view(torch.uint8).max()) > 1:
            raise ValueError("a tensor of True and False holds something else")
        x = x.reshape(shape)
        return x.clone() if self.copy else x


def _only(value: dict[str, Any]) -> Any:
    if len(value) != 1:
        raise ValueError("its head holds what no writer writes")
    return next(iter(value.values()))


def _tree(value: Any) -> Tree:
    if not isinstance(value, dict) or not all(isinstance(x, Tensor) for x in value.values()):
        raise ValueError("a tree in it holds something else than tensors")
    return Tree(value)


def _count(shape: Any) -> int:
    """Return the number of elements of a shape. ValueError for an impossible shape; the sides of an empty tensor are bounded too."""
    if not isinstance(shape, list) or len(shape) > SIDES or not all(type(n) is int and 0 <= n < MOST for n in shape):
        raise ValueError("it has a tensor of no known shape")
    if math.prod(max(n, 1) for n in shape) >= MOST:
        raise ValueError("it has a tensor of no known shape")
    return math.prod(shape)
