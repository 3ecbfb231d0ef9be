"""Half precision on the wire: every number of an update's change as a float16.

    x <- float16(x), clipped to +-65,504

Relative error at most 2^-11 for 6.1e-5 <= |x| <= 65,504, absolute error at most 3e-8 below. Wire 16 d bits. The change
is rounded, not the model: a change is small compared with its weight. The rounding error is not kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedatlas.algorithm import State, Transform, Update
from fedatlas.transforms.parts import DTYPES, each_tree, layout, opened
from fedatlas.tree import Tree

LARGEST = torch.finfo(torch.float16).max


def float16() -> Transform:
    """Every number of the change in half precision: half the bytes of a float32 update."""

    def halved(path: str, x: Tree) -> dict[str, Any]:
        half = x.map(lambda part: part.clamp(-LARGEST, LARGEST).to(torch.float16))
        return {"float16": {"values": half, "dtype": layout(x)["dtype"]}}

    def widened(content: Mapping[str, Any]) -> Tree:
        values: Tree = content["values"]
        return values.to(DTYPES[content["dtype"]])

    def encode(update: Update, memory: State, rng: torch.Generator) -> tuple[Update, State]:
        return each_tree(update, halved), memory

    def decode(sealed: Update) -> Update:
        update: Update = opened(sealed, "float16", widened)
        return update

    return Transform("float16", encode, decode)
