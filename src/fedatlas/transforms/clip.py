"""Norm clipping: no client moves the model further than a given length.

===  ==========================================  =====  ==============
x    change of a part of the update, one vector  M      ``norm``
===  ==========================================  =====  ==============

    x <- x min(1, M / ||x||)

Source: Sun, Kairouz, Suresh, McMahan 2019. B7, without its noise: no privacy is claimed. The norm is
Euclidean, over the trainable tensors of one part together (the model; SCAFFOLD's control separately). A
vector within M is left bit-identical. B7's M is the median of the norms that the server received this round;
here it is a number, since a client that clips itself cannot know the others' norms.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from fedatlas.algorithm import State, Transform, Update
from fedatlas.transforms.parts import each_tree
from fedatlas.tree import Tree

Length = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def clip(*, norm: Length) -> Transform:
    """x <- x min(1, M / ||x||).

    norm: M, the greatest Euclidean length of a part of an update (for the model: in units of weights).
    """

    def clipped(path: str, x: Tree) -> Tree:
        length = x.norm()
        return x if length <= norm else x.map(lambda part: (part.double() * (norm / length)).to(part.dtype))

    def encode(update: Update, memory: State, rng: torch.Generator) -> tuple[Update, State]:
        return each_tree(update, clipped), memory

    return Transform("clip", encode)
