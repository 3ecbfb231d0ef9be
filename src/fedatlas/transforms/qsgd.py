"""QSGD: each coordinate is rounded at random to one of s levels of its bucket's length, without bias.

===  =============================================  =====  =====================================================
v    a bucket: 512 coordinates of the update        s      ``levels``
l    floor(s |v_i| / ||v||)                         d      coordinates of a part of the update
===  =============================================  =====  =====================================================

    Q(v_i) = ||v|| sgn(v_i) (l + 1 with probability s |v_i| / ||v|| - l, else l) / s

E[Q(v)] = v, and per bucket of b coordinates E||Q(v) - v||^2 <= min(b / s^2, sqrt(b) / s) ||v||^2. Wire, without headers:
d (ceil(log2(s + 1)) + 1) + 32 ceil(d / 512) bits: levels and signs packed bit by bit, a float32 length per bucket. Source:
Alistarh, Grubic, Li, Tomioka, Vojnovic, NeurIPS 2017 (its Elias coding is left out). B15. The length is
rounded up to float32, so that no coordinate exceeds it and the mean stays exact. Draws come from the stream (seed,
"compression", round, client, task), one number per coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from fedatlas.algorithm import State, Transform, Update
from fedatlas.transforms.parts import count, each_tree, layout, opened, pack, restored, unpack
from fedatlas.tree import Tree

BUCKET = 512
Levels = Annotated[int, Field(ge=1, le=65535)]


def qsgd(*, levels: Levels = 15) -> Transform:
    """Q(v_i) = ||v|| sgn(v_i) l_i / s with l_i drawn so that E[Q(v)] = v; 5 bits per coordinate at s = 15.

    levels: s, steps from 0 to the length of a bucket of 512 coordinates; a coordinate costs ceil(log2(s + 1)) + 1 bits.
    """
    s, bits = levels, levels.bit_length()  # ceil(log2(s + 1))

    def encode(update: Update, memory: State, rng: torch.Generator) -> tuple[Update, State]:
        def quantised(path: str, tree: Tree) -> dict[str, Any]:
            v = tree.flatten().double()
            norms = bucket_norms(v)
            scaled = (v.abs() * s / spread(norms, len(v))).nan_to_num(0.0)  # 0 / 0 in a bucket of zeros
            low = scaled.floor()
            level = low + (torch.rand(len(v), generator=rng, dtype=torch.float64) < scaled - low)
            codes = level.to(torch.int64) + ((v < 0).to(torch.int64) << bits)
            return {"qsgd": {"norms": norms, "codes": pack(codes, bits + 1), **layout(tree)}}

        return each_tree(update, quantised), memory

    def dequantised(content: Mapping[str, Any]) -> Tree:
        d = count(content)
        codes = unpack(content["codes"], bits + 1, d)
        level = (codes & ((1 << bits) - 1)).double()
        sign = 1.0 - 2.0 * (codes >> bits).double()
        return restored(spread(content["norms"], d) * sign * level / s, content)

    def decode(sealed: Update) -> Update:
        update: Update = opened(sealed, "qsgd", dequantised)
        return update

    return Transform("qsgd", encode, decode)


def bucket_norms(v: Tensor) -> Tensor:
    """Return ||v|| of every 512 coordinates, rounded up to float32."""
    padded = torch.nn.functional.pad(v, (0, -len(v) % BUCKET))
    exact = padded.reshape(-1, BUCKET).norm(dim=1)
    norms = exact.float()
    return torch.where(norms.double() < exact, norms.nextafter(torch.tensor(torch.inf)), norms)


def spread(norms: Tensor, d: int) -> Tensor:
    """Return each coordinate's bucket length, float64 (d,)."""
    return norms.double().repeat_interleave(BUCKET)[:d]
