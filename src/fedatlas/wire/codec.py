"""Messages, updates and states as bytes and back, bit for bit: no pickles, so that reading cannot run code.

Layout: an 8-byte little-endian length of the head, the head (JSON: the value with every tensor replaced by its dtype, shape and place),
zero bytes up to a multiple of 64, then the tensors one after another, each aligned to 64 bytes so that they can be read without a copy.
Values are dicts with text keys, lists, tensors, numbers, text, True, False and None. Python writes floats so that they read back
exactly; NaN and infinity are allowed.
"""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from torch import Tensor

from fedatlas.errors import TransportError
from fedatlas.tree import Tree

ALIGN = 64
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
    """The JSON form of ``value``; tensors are appended to ``tensors`` and placed from offset ``at``."""
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
    """Length of ``encode(value)`` in bytes, without making them."""
    head, _, body = _head(value)
    return _up(8 + len(head)) + body


def encode_into(value: Any, buffer: memoryview) -> int:
    """Writes the bytes of ``value`` to the front of ``buffer``; returns how many."""
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
    """``value`` as bytes."""
    out = bytearray(size(value))
    encode_into(value, memoryview(out))
    return out


def decode(data: Any, copy: bool = True) -> Any:
    """The value behind ``data`` (bytes, bytearray or memoryview). With ``copy=False`` the tensors are views of ``data``.

    Raises TransportError where the bytes are cut short or are not of this layout.
    """
    view = memoryview(data)
    if view.readonly:
        view, copy = memoryview(bytearray(view)), False
    try:
        length = int.from_bytes(view[:8], "little")
        head = bytes(view[8 : 8 + length])
        if len(view) < 8 or len(head) != length:
            raise ValueError("cut short")
        return _fill(json.loads(head), view, _up(8 + length), copy)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise TransportError(f"these bytes are not a whole message ({error}).") from error


def _fill(value: Any, view: memoryview, start: int, copy: bool) -> Any:
    if isinstance(value, list):
        return [_fill(item, view, start, copy) for item in value]
    if not isinstance(value, dict):
        return value
    if TENSOR in value:
        name, shape, at = value[TENSOR]
        dtype, count = DTYPES[name], math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        if start + at + count * dtype.itemsize > len(view):
            raise ValueError("cut short")
        x = torch.frombuffer(view, dtype=dtype, count=count, offset=start + at).reshape(shape)
        return x.clone() if copy else x
    if TREE in value:
        return Tree({key: _fill(item, view, start, copy) for key, item in value[TREE].items()})
    return {key: _fill(item, view, start, copy) for key, item in value.items()}
