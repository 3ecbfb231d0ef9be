"""The noise of running sums by a binary tree: release t of a tree holds one node per binary digit of t that is 1.

    t = 6 = 110b:   x_1 + ... + x_6 + noise of (0, 4] + noise of (4, 6]

A node (a, t] is the sum of the releases a + 1, ..., t, and its length is the largest power of two that divides t. Release t draws
the noise of the node that ends with it, and drops the noises of the shorter nodes inside it. So one node ends with each release, and
a client of one release lies in at most floor(log2 T) + 1 of the nodes of T releases. What leaves is the difference to the release
before, x_t + (new noise) - (dropped noises): sums of differences are the noisy running sums.

A noise is drawn again when it is dropped, so it has to be the same numbers. Under "os" the memory holds its key; whoever has it can take
the noise off. Under "seed" the noise follows from the seed and the node.

Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021; B16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.privacy.mechanism import Noise
from fedatlas.privacy.noise import gaussian


class Node(NamedTuple):
    """The releases after ``after`` up to ``end`` of a tree."""

    after: int
    end: int


def nodes(t: int) -> list[Node]:
    """Return the nodes of the running sum of t releases, the longest first."""
    ends = [t >> digit << digit for digit in reversed(range(t.bit_length())) if t >> digit & 1]
    return [last(end) for end in ends]


def last(t: int) -> Node:
    """Return the node that ends with release t."""
    return Node(t & (t - 1), t)


class Grown(NamedTuple):
    """A tree's memory after a release, and the noise of the release: that of its new node minus those that were dropped."""

    memory: dict[str, Any]
    noise: Tensor


def start() -> dict[str, Any]:
    """Return the memory before the first round: the round in which the tree began, who was asked since, keys of the nodes in use."""
    return {"began": 0, "asked": [], "keys": torch.zeros(0, secret.KEY, dtype=torch.uint8)}


def entered(memory: Mapping[str, Any], began: int, asked: Sequence[int]) -> dict[str, Any]:
    """Return the memory with one more release, of these clients. It is a new tree's if that one began in another round."""
    held = memory if memory["began"] == began else {**start(), "began": began}
    return {**held, "asked": [*held["asked"], sorted(asked)]}


def visits(memory: Mapping[str, Any], node: Node) -> Counter[int]:
    """Return how often each client was asked for the releases of a node."""
    return Counter(k for asked in memory["asked"][node.after : node.end] for k in asked)


def grown(memory: Mapping[str, Any], n: int, std: float, noise: Noise) -> Grown:
    """Return the tree of an entered release with the key of its new node, and the noise of the release: n numbers, float64."""
    t = len(memory["asked"])
    before, new, secretly = nodes(t - 1), last(t), noise.source == "os"
    kept = [node for node in before if node.end <= new.after]
    keys = [bytes(key.tolist()) for key in memory["keys"]]
    fresh = [*keys[: len(kept)], secret.key()] if secretly else []

    def drawn(node: Node, key: bytes) -> Tensor:
        own = noise._replace(secret=secret.Secret(key))
        return gaussian(n, std, own, "dp_ftrl", memory["began"], node.after, node.end)

    total = drawn(new, fresh[-1] if secretly else b"")
    for i in range(len(kept), len(before)):
        total = total - drawn(before[i], keys[i] if secretly else b"")
    held = (
        torch.frombuffer(bytearray(b"".join(fresh)), dtype=torch.uint8) if fresh else torch.zeros(0, dtype=torch.uint8)
    )
    return Grown({**memory, "keys": held.reshape(-1, secret.KEY)}, total)
