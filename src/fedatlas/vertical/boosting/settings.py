"""The keys of SecureBoost."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from fedatlas.errors import ConfigError
from fedatlas.privacy.paillier.keys import LENGTHS
from fedatlas.registry import Count, Positive, Rate, Whole

Share = Annotated[float, Field(gt=0, le=1)]
Depth = Annotated[int, Field(ge=1, le=20)]
Bins = Annotated[int, Field(ge=2, le=4096)]
Bits = Annotated[int, Field(ge=8, le=40)]
Part = Annotated[float, Field(ge=0, le=1)]
Mode = Literal["default", "mix", "layered"]
MODES: tuple[Mode, ...] = ("default", "mix", "layered")
PASSIVE_DEPTH = 2  # levels of the parties without the label in layered trees, as in FATE


class SecureBoost(NamedTuple):
    """Settings by which the parties grow trees."""

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
    softmax_hess: Literal["xgboost"] | None = None
    square_scale: Literal[2] | None = None
    multi_output: bool | None = None
    mode: Mode = "default"
    passive_depth: int = 0  # levels of the parties without the label; only in layered trees
    goss: tuple[float, float] | None = None
    key_bits: int = 0  # of Paillier's key; 0: gradients are sent in the clear, only in a simulation

    @property
    def encrypted(self) -> bool:
        """Whether the gradients leave the active party encrypted."""
        return self.key_bits > 0

    def forest(self, outputs: int) -> int:
        """Return how many trees a round grows for a model of so many outputs: one, or one for each of three or more classes."""
        return 1 if self.multi_output else outputs

    @property
    def sampled(self) -> bool:
        """Whether a tree is grown on some of the training rows, which are drawn."""
        return self.subsample < 1 or self.goss is not None

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
    softmax_hess: Literal["xgboost"] | None = None,
    square_scale: Literal[2] | None = None,
    multi_output: bool | None = None,
    mode: Mode | None = None,
    passive_depth: Whole | None = None,
    goss: tuple[Part, Part] | None = None,
) -> SecureBoost:
    """Gradient-boosted trees over columns of several parties, one of which has the label (SecureBoost, SecureBoost+).

    trees: number of trees, one per row of metrics.jsonl; for a label of three or more classes the number of rounds. A round is a
        tree for each class; the gradients of all are taken at its beginning.
    depth: largest number of splits on a path.
    bins: largest number of bins of a column, cut at quantiles of its training rows.
    precision: bits after the point of gradients and curvatures, also in the clear.
    learning_rate: nu, by which every leaf's value is multiplied.
    l1: alpha, subtracted from the size of a leaf's sum of gradients.
    l2: lambda, added to a leaf's sum of curvatures.
    min_gain: gamma, the least gain of a split.
    min_leaf: least number of training rows on each side of a split.
    subsample: share of the training rows that a tree is grown on, drawn for each tree or round.
    columns: share of its columns that each party offers a tree, drawn for each tree or round.
    complete_secure: number of first trees or rounds that use only the active party's columns, as their leaves reveal most of the labels.
    pack: put gradient, curvature and count of a row in one ciphertext; off: in two.
    subtract: sum the smaller of two sibling nodes, and compute the other by subtraction from their parent.
    compress: gather several sums in one ciphertext before they are returned.
    softmax_hess: "xgboost" takes 2 p (1 - p) as the curvature of three or more classes, as XGBoost does; left out: p (1 - p).
    square_scale: 2 takes (y - yhat)^2 as the loss of a number, as FATE does, so g and h twice as large; left out: half of it.
    multi_output: grow one tree a round for three or more classes, whose leaves have a number for each and whose gains are sums
        over classes; left out: a tree for each class.
    mode: "default", all columns at every level; "mix", each tree on the columns of one party, in turn by the order of
        [[parties]]; "layered", passive_depth levels on the columns of the parties without the label, and the others on
        those of the party with it; None: "default".
    passive_depth: levels of the parties without the label in layered trees; None: 2, or the depth if that is less.
    goss: [a, b]: a tree is grown on the share a of its rows with the largest gradients and on a share b drawn from the
        others, weighted by (1 - a) / b; parties without the label see which rows these are, and they tell labels.
    """
    given = dict(locals())
    given["mode"], given["passive_depth"] = mode or "default", _levels(mode, passive_depth, depth)
    given["goss"] = _shares(goss)
    return SecureBoost(**given)


def _levels(mode: Mode | None, passive_depth: int | None, depth: int) -> int:
    """Return the levels of the parties without the label in layered trees; 0 in other modes."""
    if mode != "layered":
        if passive_depth is not None:
            raise ConfigError('algorithm.passive_depth is for mode = "layered": remove the key, or set the mode.')
        return 0
    if passive_depth is not None and passive_depth > depth:
        raise ConfigError(
            f"algorithm.passive_depth = {passive_depth} is more than depth = {depth}: give at most {depth}."
        )
    return min(PASSIVE_DEPTH, depth) if passive_depth is None else passive_depth


def _shares(goss: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the shares of GOSS; None if all rows are kept.

    ConfigError if they are more than all rows, or if no row stands for those left out.
    """
    if goss is None:
        return None
    a, b = goss
    if a + b > 1:
        raise ConfigError(f"algorithm.goss = [{a:g}, {b:g}]: the two are shares of the rows, and more than 1 together.")
    if a < 1 and not b:
        raise ConfigError(
            f"algorithm.goss = [{a:g}, 0]: no row stands for the others: give a share b above 0, or a = 1."
        )
    return None if a == 1 else (float(a), float(b))
