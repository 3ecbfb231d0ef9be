"""Top-k with error feedback: only the largest coordinates are sent; the rest is remembered and sent later.

=====  =====================================================  =====  ========================================
Delta  change of a part of the update this round, one vector  d      its coordinates
e      what was not sent yet, kept with the client; 0 first   k      ceil(share d), at least 1
=====  =====================================================  =====  ========================================

    e <- e + Delta;   s = the k coordinates of e largest by |e_i|, 0 elsewhere;   e <- e - s

so that everything sent plus what is remembered is the sum of all changes, and ||x - s(x)||^2 <= (1 - k/d) ||x||^2. Among
equals the first coordinates are sent. Wire, without headers: k (32 + ceil(log2 d)) bits: values in the run's precision (64 bits in
a float64 run), places packed bit by bit. Sources: Stich, Cordonnier, Jaggi 2018; Karimireddy, Rebjock, Stich, Jaggi 2019.
B14. A part that follows a state of the client (SCAFFOLD's control) has no memory: its next change holds
what was left out of the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithm import State, Transform, Update
from fedatlas.errors import ProtocolError, TransportError
from fedatlas.transforms.parts import count, each_tree, layout, opened, pack, restored, unpack
from fedatlas.tree import Tree

Share = Annotated[float, Field(gt=0, le=1)]


def topk(*, share: Share = 0.01) -> Transform:
    """Only the share of coordinates largest in size is sent; the rest stays in memory for later rounds.

    share: k / d, the share of the coordinates of each part of an update that is sent; at least one is.
    """

    def memory_init(update: Update) -> State:
        memory: dict[str, Any] = {}
        each_tree(update, lambda path, tree: memory.setdefault(path, torch.zeros_like(tree.flatten())))
        return memory

    def encode(update: Update, memory: State, rng: torch.Generator) -> tuple[Update, State]:
        after = dict(memory)

        def thinned(path: str, tree: Tree) -> dict[str, Any]:
            delta = tree.flatten()
            e = delta.double()
            if path in memory:
                if len(memory[path]) != len(e):
                    raise ProtocolError(
                        "topk remembers an update of another size: it cannot compress models that change their shape."
                    )
                e = e + memory[path].double()
            places = largest(e, max(1, math.ceil(share * len(e) - 1e-9)))
            values = e[places].to(delta.dtype)
            if path in memory:
                e[places] -= values.double()
                after[path] = e.to(delta.dtype)
            packed = pack(places, (len(e) - 1).bit_length())
            return {"topk": {"places": packed, "values": Tree({"": values}), **layout(tree)}}

        return each_tree(update, thinned), after

    def filled(content: Mapping[str, Any]) -> Tree:
        d, values = count(content), content["values"][""]
        places = unpack(content["places"], (d - 1).bit_length(), len(values))
        if len(places) and int(places.max()) >= d:
            raise TransportError(f"a sealed update names place {int(places.max())}, but has only {d} places.")
        return restored(torch.zeros(d, dtype=values.dtype).index_put((places,), values), content)

    def decode(sealed: Update) -> Update:
        update: Update = opened(sealed, "topk", filled)
        return update

    return Transform("topk", encode, decode, memory_init)


def largest(e: Tensor, k: int) -> Tensor:
    """Return the indices of the k coordinates largest in size, ascending; among equals the first."""
    size = e.abs()
    edge = size.kthvalue(len(e) - k + 1).values
    chosen = size > edge
    equal = (size == edge).nonzero().flatten()[: k - int(chosen.sum())]
    chosen[equal] = True
    return chosen.nonzero().flatten()
