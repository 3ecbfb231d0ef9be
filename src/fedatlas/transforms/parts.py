"""Helpers shared by transforms: traversal of an update, a tree as one vector and back, small numbers as bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import TransportError
from fedatlas.tree import Tree

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
WORD = 32  # bits of the widest code
PIECE = 1 << 20  # codes converted to bits at once: a multiple of 8, so that each piece ends with a whole byte


def each_tree(value: Mapping[str, Any], act: Callable[[str, Tree], Any], path: str = "") -> dict[str, Any]:
    """Return ``value`` with every non-empty tree of floats replaced by ``act(path, tree)``; all else unchanged."""
    out: dict[str, Any] = {}
    for key, item in value.items():
        here = f"{path}/{key}" if path else key
        if isinstance(item, Tree):
            floats = item.size() and all(x.is_floating_point() for x in item.values())
            out[key] = act(here, item) if floats else item
        else:
            out[key] = each_tree(item, act, here) if isinstance(item, Mapping) else item
    return out


def opened(value: Any, kind: str, act: Callable[[Mapping[str, Any]], Tree]) -> Any:
    """Return ``value`` with everything sealed as ``{kind: content}`` replaced by ``act(content)``."""
    if isinstance(value, Tree) or not isinstance(value, Mapping):
        return value
    if value.keys() == {kind}:
        return act(value[kind])
    return {key: opened(item, kind, act) for key, item in value.items()}


def layout(tree: Tree) -> dict[str, Any]:
    """Return what `restored` needs in addition to the vector: names, shapes, and the common precision of a sealed part."""
    dtype = str(tree.flatten().dtype).removeprefix("torch.")
    return {"shapes": {name: list(x.shape) for name, x in tree.items()}, "dtype": dtype}


def restored(vector: Tensor, content: Mapping[str, Any]) -> Tree:
    """Return the tree whose `layout` is in ``content``, from its numbers in sequence."""
    dtype = DTYPES[content["dtype"]]
    blank = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in content["shapes"].items()}
    return Tree(blank).unflatten(vector)


def count(content: Mapping[str, Any]) -> int:
    """Return d: the number of values that a sealed part represents."""
    return sum(int(np.prod(shape)) for shape in content["shapes"].values())


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack whole numbers 0 <= code < 2^bits into one string of bits, the highest first: uint8, (ceil(n bits / 8),)."""
    words = codes.numpy().astype(">u4").view(np.uint8).reshape(-1, WORD // 8)
    pieces = [words[at : at + PIECE] for at in range(0, len(words), PIECE)]
    strings = [np.packbits(np.unpackbits(piece, axis=1)[:, WORD - bits :]) for piece in pieces]
    return torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *strings]))


def unpack(packed: Tensor, bits: int, n: int) -> Tensor:
    """Return the ``n`` whole numbers packed by `pack`, int64; TransportError if the number of bytes is wrong."""
    if packed.numel() != -(-n * bits // 8):
        raise TransportError(
            f"a sealed update has {packed.numel()} bytes of codes, but {-(-n * bits // 8)} are needed."
        )
    out = np.empty(n, dtype=np.int64)
    for at in range(0, n, PIECE):
        m = min(PIECE, n - at)
        words = np.zeros((m, WORD), dtype=np.uint8)
        string = packed.numpy()[at * bits // 8 :]
        words[:, WORD - bits :] = np.unpackbits(string, count=m * bits).reshape(m, bits)
        out[at : at + m] = np.packbits(words, axis=1).view(">u4").reshape(-1)
    return torch.from_numpy(out)
