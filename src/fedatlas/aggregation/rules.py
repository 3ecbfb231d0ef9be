"""Rules that resist: of the clients' changes one that a few hostile ones cannot move far. `fedatlas list rules` prints this table.

============  ===============================================================================  ===========================
mean          sum p_k x_k: one hostile client moves it as far as it likes                      C3
krum          the change with the smallest sum of squares to its n - f - 2 nearest ones        B1, Blanchard et al. 2017
multi_krum    the mean of the q changes with the smallest such sums                            B2, as Krum
trimmed_mean  of each coordinate the mean without its f largest and f smallest values          B3, Yin et al. 2018
median        of each coordinate the middle value, or the mean of the middle two               B4, as the trimmed mean
norm_clip     the mean of changes shortened to a length M                                      B7, Sun et al. 2019
============  ===============================================================================  ===========================

``x_k`` is the change of client k, n the number of changes, f how many of them are assumed to be hostile. All arithmetic is in float64.
Only ``mean`` and ``norm_clip`` look at weights: a client would choose its own. Coordinate-wise rules take each coordinate for
itself; the others make one selection, or one length, of all parts together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.aggregation.changes import Changes, flat, rebuilt, shape_of
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.registry import Count, Positive, Whole

SHARE = 0.2  # of the changes that are assumed to be hostile where f is left out


class RuleResult(NamedTuple):
    """The outcome of a rule."""

    value: Tensor  # one change, float64, (d,)
    weights: tuple[float, ...]  # of each change in it; for a coordinate-wise rule one share each
    chosen: tuple[int, ...] | None = None  # the changes that it took, where it left others out whole


Judge = Callable[[Changes, Tensor, int], RuleResult]
"""(changes, weights that sum to one, f) -> verdict."""


class Rule(NamedTuple):
    """How changes become one."""

    name: str
    said: str  # what the server does, for the report
    judge: Judge
    f: int | None = None  # how many are assumed to be hostile; None: floor(0.2 n)
    fewest: Callable[[int], int] = lambda f: 1  # of changes that it needs for f
    needs: str = ""  # the same in words
    weighted: bool = False  # whether it looks at the weights

    def tolerated(self, n: int) -> int:
        """The f that is assumed of n changes."""
        return math.floor(SHARE * n + 1e-9) if self.f is None else self.f

    def refusal(self, n: int) -> str:
        """Why n changes are too few; "" where they are enough."""
        f = self.tolerated(n)
        return "" if n >= self.fewest(f) else f"'{self.name}' with f = {f} needs {self.needs}, not {n}"

    def combine(self, changes: Sequence[Any] | Mapping[Any, Any], weights: Sequence[float] | None = None) -> Any:
        """One change of many, in float64: ``changes`` are trees (or updates: parts by name), ``weights`` one number above 0 each.

        Weights are taken as shares of their sum, equal where left out. ConfigError where f is too large for so many changes;
        ProtocolError for changes of different names or shapes, and for numbers that are not finite.
        """
        given = list(changes.values()) if isinstance(changes, Mapping) else list(changes)
        if not given:
            raise ConfigError("a rule combines one change or more.")
        if weights is not None and (len(weights) != len(given) or not math.fsum(weights) > 0):
            raise ConfigError(f"{len(given)} changes need as many weights, which sum to more than 0.")
        if why := self.refusal(len(given)):
            raise ConfigError(f"{why}.")
        if any(shape_of(each) != shape_of(given[0]) for each in given):
            raise ProtocolError("the changes differ in their names or shapes: a rule combines changes of one model.")
        held = Changes()
        for each in given:
            held.add(flat(each))
        if not held.finite():
            raise ProtocolError("a change holds numbers that are not finite: leave it out.")
        found = self.judge(held, shares(weights, len(given)), self.tolerated(len(given)))
        return rebuilt(found.value, given[0])


def shares(weights: Sequence[float] | None, n: int) -> Tensor:
    """Weights that sum to one."""
    given = torch.ones(n, dtype=torch.float64) if weights is None else torch.tensor(weights, dtype=torch.float64)
    return given / given.sum()


# ---------------------------------------------------------------------- the mathematics


def squares(changes: Changes) -> Tensor:
    """||x_i - x_j||^2 of all pairs, (n, n)."""
    n = len(changes)
    gram = torch.zeros(n, n, dtype=torch.float64)
    for block in changes.blocks():
        gram += block @ block.T
    own = gram.diagonal()
    return (own[:, None] + own[None, :] - 2 * gram).clamp_(min=0.0)


def closeness(changes: Changes, f: int) -> Tensor:
    """Krum's score of each change: the sum of its n - f - 2 smallest squared distances to others. The smaller, the better."""
    found = squares(changes)
    found.fill_diagonal_(math.inf)  # nobody is its own neighbour
    return found.sort(dim=1).values[:, : len(changes) - f - 2].sum(dim=1)


def _nearest(changes: Changes, f: int, count: int) -> RuleResult:
    """The mean of the ``count`` changes with the smallest scores; of equal ones the first."""
    n = len(changes)
    order = torch.sort(closeness(changes, f), stable=True).indices[:count]
    chosen = tuple(sorted(int(k) for k in order))
    weights = torch.zeros(n, dtype=torch.float64)
    weights[list(chosen)] = 1 / count
    value = changes.row(chosen[0]) if count == 1 else _summed(changes, weights)
    return RuleResult(value, tuple(weights.tolist()), chosen)


def _summed(changes: Changes, weights: Tensor) -> Tensor:
    """sum w_k x_k, in the order of the changes."""
    total = torch.zeros(changes.size, dtype=torch.float64)
    for k, weight in enumerate(weights.tolist()):
        if weight:
            total.add_(changes.row(k), alpha=weight)
    return total


def _sorted(changes: Changes) -> Iterator[np.ndarray[Any, Any]]:
    """Blocks of coordinates, each coordinate's values ascending, (coordinates, n)."""
    for block in changes.blocks():
        table = np.ascontiguousarray(block.numpy().T)
        table.sort(axis=1)
        yield table


def _middle(changes: Changes, cut: int) -> RuleResult:
    """Of each coordinate the mean of what is left without the ``cut`` largest and the ``cut`` smallest values."""
    n = len(changes)
    means = [table[:, cut : n - cut].mean(axis=1) for table in _sorted(changes)]
    value = torch.from_numpy(np.concatenate(means)) if means else torch.zeros(0, dtype=torch.float64)
    return RuleResult(value, (1 / n,) * n)


# ---------------------------------------------------------------------- the rules by name


def mean() -> Rule:
    """The weighted mean: no defence, what all others are measured by."""
    said = "The server took the **weighted mean**, which is no defence: it leaves out only what is no update at all."
    return Rule("mean", said, lambda x, p, f: RuleResult(_summed(x, p), tuple(p.tolist())), 0, weighted=True)


def krum(*, f: Count | None = None) -> Rule:
    """One client's change: the one whose nearest others are nearest. On unequal clients it keeps one client's bias.

    f: how many of a round's clients are assumed to be hostile, n >= 2 f + 3; left out = floor(0.2 n).
    """
    said = "The server took one change a round, by **Krum**: the one whose nearest others were nearest."
    return Rule("krum", said, lambda x, p, f: _nearest(x, f, 1), f, _of_krum, "2 f + 3 changes or more")


def multi_krum(*, f: Count | None = None, q: Whole | None = None) -> Rule:
    """The plain mean of the q changes that Krum likes best.

    f: how many of a round's clients are assumed to be hostile, n >= 2 f + 3; left out = floor(0.2 n).
    q: how many changes are taken; left out = n - f.
    """

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        n = len(changes)
        return _nearest(changes, f, min(q or n - f, n))

    said = "The server took the mean of the changes that **Multi-Krum** likes best: those whose nearest others were nearest."
    return Rule("multi_krum", said, judge, f, _of_krum, "2 f + 3 changes or more")


def trimmed_mean(*, f: Count | None = None) -> Rule:
    """Of each coordinate the mean without its f largest and f smallest values.

    f: how many of a round's clients are assumed to be hostile, n > 2 f; left out = floor(0.2 n).
    """
    said = "The server took of each coordinate the **mean without the largest and the smallest values**."
    return Rule("trimmed_mean", said, lambda x, p, f: _middle(x, f), f, _more_than_half, "more than 2 f changes")


def median(*, f: Count | None = None) -> Rule:
    """Of each coordinate the middle value, or the mean of the middle two.

    f: how many of a round's clients are assumed to be hostile, n > 2 f; left out = floor(0.2 n). It is only checked.
    """
    said = "The server took of each coordinate the **median**."
    return Rule(
        "median", said, lambda x, p, f: _middle(x, (len(x) - 1) // 2), f, _more_than_half, "more than 2 f changes"
    )


def norm_clip(*, bound: Positive | None = None) -> Rule:
    """The weighted mean of changes that the server shortens to one length: nobody moves the model further than that.

    bound: M, the longest change that counts whole (Euclidean norm over all parts); left out = the median of the round's lengths.
    """

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        norms = torch.tensor([float(changes.row(k).norm()) for k in range(len(changes))], dtype=torch.float64)
        most = float(norms.quantile(0.5)) if bound is None else bound
        factors = (most / norms.clamp(min=1e-300)).clamp(max=1.0)
        return RuleResult(_summed(changes, weights * factors), tuple(weights.tolist()))

    said = "The server **shortened every change to one length** before it took the weighted mean."
    return Rule("norm_clip", said, judge, 0, weighted=True)


def _of_krum(f: int) -> int:
    return 2 * f + 3


def _more_than_half(f: int) -> int:
    return 2 * f + 1


RULES: Mapping[str, Callable[..., Rule]] = {
    "mean": mean,
    "krum": krum,
    "multi_krum": multi_krum,
    "trimmed_mean": trimmed_mean,
    "median": median,
    "norm_clip": norm_clip,
}

LATER = ("geometric_median", "fltrust")
"""Rules that are planned and not in this version: refused as such."""
