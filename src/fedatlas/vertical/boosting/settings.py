"""The keys of SecureBoost."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field

from fedatlas.privacy.paillier.keys import LENGTHS
from fedatlas.registry import Count, Positive, Rate, Whole

Share = Annotated[float, Field(gt=0, le=1)]
Depth = Annotated[int, Field(ge=1, le=20)]
Bins = Annotated[int, Field(ge=2, le=4096)]
Bits = Annotated[int, Field(ge=8, le=40)]


class SecureBoost(NamedTuple):
    """How trees are grown between parties."""

    trees: int
    depth: int
    bins: int
    precision: int
    learning_rate: float
    l1: float
    l2: float
    min_gain: float
    min_leaf: int
    subsample: float
    columns: float
    complete_secure: int
    pack: bool
    subtract: bool
    compress: bool
    key_bits: int = 0  # of Paillier's key; 0: gradients are told in the clear, which a simulation alone may do

    @property
    def encrypted(self) -> bool:
        """Whether the gradients leave the active party encrypted."""
        return self.key_bits > 0

    @property
    def testing(self) -> bool:
        """Whether the key is shorter than one that protects."""
        return self.key_bits not in LENGTHS


def secureboost(
    *,
    trees: Whole = 30,
    depth: Depth = 3,
    bins: Bins = 32,
    precision: Bits = 24,
    learning_rate: Positive = 0.3,
    l1: Rate = 0.0,
    l2: Rate = 1.0,
    min_gain: Rate = 0.0,
    min_leaf: Whole = 1,
    subsample: Share = 1.0,
    columns: Share = 1.0,
    complete_secure: Count = 0,
    pack: bool = True,
    subtract: bool = True,
    compress: bool = True,
) -> SecureBoost:
    """Gradient-boosted trees over columns of several parties, of which one knows labels (SecureBoost, with SecureBoost+'s ciphertexts).

    trees: how many are grown, one a row of metrics.jsonl.
    depth: splits one below the other at most.
    bins: a column is cut into so many at most, at quantiles of its training rows.
    precision: bits behind the point of gradients and curvatures, in the clear too.
    learning_rate: nu, by which every leaf's value is multiplied.
    l1: alpha, subtracted from the size of a leaf's sum of gradients.
    l2: lambda, added to a leaf's sum of curvatures.
    min_gain: gamma, what a split has to gain at least.
    min_leaf: training rows on either side of a split at least.
    subsample: share of the training rows that a tree is grown on, drawn anew for each.
    columns: share of its columns that each party offers a tree, drawn anew for each.
    complete_secure: the first so many trees use the active party's columns only, as their leaves tell most of the labels.
    pack: gradient, curvature and count of a row in one ciphertext; off: in two.
    subtract: of two sisters the smaller node is summed up, the other is what their parent has more.
    compress: several sums in one ciphertext before they are returned.
    """
    return SecureBoost(**locals())
