"""Robust rules: combine the clients' changes so that a few hostile ones have limited effect. `fedatlas list rules` prints this table.

================  ===========================================================================  ===========================
mean              sum p_k x_k: one hostile client can move it arbitrarily far                  C3
krum              the change with the smallest sum of squares to its n - f - 2 nearest ones    B1, Blanchard et al. 2017
multi_krum        the mean of the q changes with the smallest such sums                        B2, as Krum
trimmed_mean      of each coordinate the mean without its f largest and f smallest values      B3, Yin et al. 2018
median            of each coordinate the middle value, or the mean of the middle two           B4, as the trimmed mean
geometric_median  near the point with the smallest sum of p_k times the distance to x_k        B5, Pillutla et al. 2022
fltrust           the mean of changes as long as g_0, weighted by max(0, cos(x_k, g_0))        B6, Cao et al. 2021
norm_clip         the mean of changes shortened to a length M                                  B7, Sun et al. 2019
================  ===========================================================================  ===========================

``x_k`` is the change of client k, n the number of changes, f how many of them are assumed hostile, g_0 the change of the server's own
rows. All arithmetic is in float64. Only ``mean``, ``geometric_median`` and ``norm_clip`` use weights, which a hostile client could
choose. Coordinate-wise rules treat each coordinate separately; the others make one selection, or use one length, for all parts
together. ``pre`` puts ``nnm``, ``bucketing`` or ``arc`` before a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.aggregation.changes import Changes, finite, flat, rebuilt, shape_of
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.registry import Count, Positive, Whole

SHARE = 0.2  # share of the changes assumed hostile if f is omitted

START = 0.1  # least distance in the geometric median's first step, as a part of the median one


class RuleResult(NamedTuple):
    """The outcome of a rule."""

    value: Tensor  # one change, float64, (d,)
    weights: tuple[float, ...]  # of each change in it; for a coordinate-wise rule equal shares
    chosen: tuple[int, ...] | None = None  # the changes taken, if others were left out entirely


Judge = Callable[[Changes, Tensor, int], RuleResult]
"""(changes, weights that sum to one, f) -> verdict."""


class Rule(NamedTuple):
    """A rule for combining changes."""

    name: str
    said: str  # what the server did, for the report
    judge: Judge
    f: int | None = None  # number assumed hostile; None: floor(0.2 n)
    fewest: Callable[[int], int] = lambda f: 1  # fewest changes needed for f
    needs: str = ""  # the same in words
    weighted: bool = False  # whether it uses the weights
    rooted: bool = False  # whether it needs the change of the server's own rows, `Changes.root`
    pre: str = ""  # what is done to the changes first (`before_rule.py`)
    bucket: int = 1  # changes that reach the judge as one

    @property
    def judges(self) -> bool:
        """Return whether it is more than the weighted mean, so that it needs all changes at once."""
        return self.name != "mean" or bool(self.pre)

    @property
    def by_length(self) -> bool:
        """Return whether hostile changes are found by lengths or directions, not at each coordinate."""
        coordinates = {"median", "trimmed_mean"} if self.pre == "arc" else {"median", "trimmed_mean", "mean"}
        return self.pre == "nnm" or self.name not in coordinates

    @property
    def counts_on_f(self) -> bool:
        """Return whether it leaves out or shortens nothing where f is 0."""
        return self.name in {"multi_krum", "trimmed_mean"} or self.pre == "nnm" or self.title == "arc and mean"

    @property
    def title(self) -> str:
        """Return its name, with what comes before it."""
        return f"{self.pre} and {self.name}" if self.pre else self.name

    def tolerated(self, n: int) -> int:
        """Return the f assumed for n changes."""
        return math.floor(SHARE * n + 1e-9) if self.f is None else self.f

    def refusal(self, n: int) -> str:
        """Return why n changes are too few; "" if they are enough."""
        f, rows = self.tolerated(n), math.ceil(n / self.bucket)
        said = f"{rows}, in buckets of {self.bucket}: {n}" if self.bucket > 1 else str(n)
        return (
            ""
            if rows >= self.fewest(f)
            else f"'{self.title}' with f = {f} needs {self.needs or 'one change'}, not {said}"
        )

    def combine(
        self,
        changes: Sequence[Any] | Mapping[Any, Any],
        weights: Sequence[float] | Mapping[Any, float] | None = None,
        *,
        root: Any = None,
        seed: int = 0,
    ) -> Any:
        """Combine many changes to one, in float64: ``changes`` are trees (or updates: parts by name), ``weights`` one number each.

        ``root``: the change of the server's own rows, for ``fltrust``. ``seed``: of the draw of buckets.

        Weights are finite, 0 or more, not all 0, and are normalised to sum to one; by default they are equal. Those of changes
        by name may be given by the same names. ConfigError for other weights, and if f is too large for the number of changes;
        ProtocolError for changes with different names or shapes, and for numbers that are not finite.
        """
        given = list(changes.values()) if isinstance(changes, Mapping) else list(changes)
        if not given:
            raise ConfigError("a rule needs at least one change.")
        if isinstance(weights, Mapping):
            if not isinstance(changes, Mapping) or weights.keys() != changes.keys():
                raise ConfigError("weights by name need changes by the same names.")
            weights = [weights[name] for name in changes]
        if weights is not None:
            if len(weights) != len(given):
                raise ConfigError(f"{len(given)} changes need as many weights, not {len(weights)}.")
            if not all(math.isfinite(w) and w >= 0 for w in weights) or not any(weights):
                raise ConfigError("weights are finite numbers of 0 or more, and at least one is above 0.")
        if why := self.refusal(len(given)):
            raise ConfigError(f"{why}.")
        if self.rooted != (root is not None):
            raise ConfigError(
                f"'{self.name}' {'needs root, the change of the server' if self.rooted else 'takes no root'}."
            )
        if any(shape_of(each) != shape_of(given[0]) for each in (*given, *([] if root is None else [root]))):
            raise ProtocolError("the changes differ in their names or shapes: a rule combines changes of one model.")
        held = Changes(root=None if root is None else flat(root), seed=seed)
        for each in given:
            held.add(flat(each))
        if not held.finite() or (held.root is not None and not finite(held.root)):
            raise ProtocolError("a change holds numbers that are not finite: leave it out.")
        found = self.judge(held, shares(weights, len(given)), self.tolerated(len(given)))
        return rebuilt(found.value, given[0])


def shares(weights: Sequence[float] | None, n: int) -> Tensor:
    """Return weights that sum to one."""
    given = torch.ones(n, dtype=torch.float64) if weights is None else torch.tensor(weights, dtype=torch.float64)
    return given / given.sum()


# ---------------------------------------------------------------------- the mathematics


def squares(changes: Changes) -> Tensor:
    """Return ||x_i - x_j||^2 of all pairs, (n, n)."""
    gram = changes.gram()
    own = gram.diagonal()
    return (own[:, None] + own[None, :] - 2 * gram).clamp_(min=0.0)


def closeness(changes: Changes, f: int) -> Tensor:
    """Return Krum's score of each change: the sum of its n - f - 2 smallest squared distances to others. Smaller is better."""
    found = squares(changes)
    found.fill_diagonal_(math.inf)  # no change is its own neighbour
    return found.sort(dim=1).values[:, : len(changes) - f - 2].sum(dim=1)


def _nearest(changes: Changes, f: int, count: int) -> RuleResult:
    """Return the mean of the ``count`` changes with the smallest scores; among equals the first."""
    n = len(changes)
    order = torch.sort(closeness(changes, f), stable=True).indices[:count]
    chosen = tuple(sorted(int(k) for k in order))
    weights = torch.zeros(n, dtype=torch.float64)
    weights[list(chosen)] = 1 / count
    value = changes.row(chosen[0]) if count == 1 else changes.combined(weights)
    return RuleResult(value, tuple(weights.tolist()), chosen)


def _sorted(changes: Changes) -> Iterator[np.ndarray[Any, Any]]:
    """Yield blocks of coordinates, each coordinate's values ascending, (coordinates, n)."""
    for block in changes.blocks():
        table = np.ascontiguousarray(block.numpy().T)
        table.sort(axis=1)
        yield table


def _middle(changes: Changes, cut: int) -> RuleResult:
    """Return the mean of each coordinate without its ``cut`` largest and ``cut`` smallest values."""
    n = len(changes)
    means = [table[:, cut : n - cut].mean(axis=1) for table in _sorted(changes)]
    value = torch.from_numpy(np.concatenate(means)) if means else torch.zeros(0, dtype=torch.float64)
    return RuleResult(value, (1 / n,) * n)


# ---------------------------------------------------------------------- the rules by name


def mean() -> Rule:
    """The weighted mean: no defence, but the reference for all others."""
    said = "The server took the **weighted mean**, which is no defence: it leaves out only invalid updates."
    return Rule("mean", said, lambda x, p, f: RuleResult(x.combined(p), tuple(p.tolist())), weighted=True)


def krum(*, f: Count | None = None) -> Rule:
    """One client's change: the one closest to its nearest neighbours. On unequal clients it keeps one client's bias.

    f: number of a round's clients assumed hostile, n >= 2 f + 3; omitted = floor(0.2 n).
    """
    said = "The server took one change per round, by **Krum**: the one closest to its nearest neighbours."
    return Rule("krum", said, lambda x, p, f: _nearest(x, f, 1), f, _of_krum, "2 f + 3 changes or more")


def multi_krum(*, f: Count | None = None, q: Whole | None = None) -> Rule:
    """The plain mean of the q changes with the best Krum scores.

    f: number of a round's clients assumed hostile, n >= 2 f + 3; omitted = floor(0.2 n).
    q: number of changes taken; omitted = n - f.
    """

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        n = len(changes)
        return _nearest(changes, f, min(q or n - f, n))

    said = "The server took the mean of the changes with the best **Multi-Krum** scores: those closest to their nearest neighbours."
    return Rule("multi_krum", said, judge, f, _of_krum, "2 f + 3 changes or more")


def trimmed_mean(*, f: Count | None = None) -> Rule:
    """The mean of each coordinate without its f largest and f smallest values.

    f: number of a round's clients assumed hostile, n > 2 f; omitted = floor(0.2 n).
    """
    said = "The server took the **mean of each coordinate without its largest and smallest values**."
    return Rule("trimmed_mean", said, lambda x, p, f: _middle(x, f), f, _more_than_half, "more than 2 f changes")


def median(*, f: Count | None = None) -> Rule:
    """The middle value of each coordinate, or the mean of the middle two.

    f: number of a round's clients assumed hostile, n > 2 f; omitted = floor(0.2 n). It is only checked.
    """
    said = "The server took the **median** of each coordinate."
    return Rule(
        "median", said, lambda x, p, f: _middle(x, (len(x) - 1) // 2), f, _more_than_half, "more than 2 f changes"
    )


def geometric_median(*, nu: Positive = 1e-6, iterations: Whole = 4) -> Rule:
    """Near the point whose distances to the changes, each times its client's weight, have the smallest sum.

    z = 0; then ``iterations`` times beta_k = p_k / max(nu, ||z - x_k||), z = sum beta_k x_k / sum beta_k (smoothed Weiszfeld). In the
    first step no change counts as nearer than a tenth of the median distance, so that one of (nearly) 0 does not hold z there.

    nu: smallest distance that counts (Euclidean norm over all parts).
    iterations: number of such steps, from no change.
    """

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        z, beta = torch.zeros(changes.size, dtype=torch.float64), weights
        for step in range(iterations):
            far = changes.distances(z)
            beta = weights / far.clamp(min=nu if step else max(nu, START * float(far.median())))
            beta = beta / beta.sum()
            z = changes.combined(beta)
        return RuleResult(z, tuple(beta.tolist()))

    said = (
        "The server took a point near the **geometric median**, whose distances to all changes have the smallest sum."
    )
    return Rule("geometric_median", said, judge, weighted=True)


def fltrust() -> Rule:
    """The mean of the changes that point the way of the server's own, on public rows, and made as long as it."""

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        root, norms = changes.root, changes.norms().clamp(min=1e-300)
        assert root is not None
        length = float(root.norm())
        trust = (changes.products(root) / (norms * max(length, 1e-300))).clamp(min=0.0)
        if not (total := float(trust.sum())):
            return RuleResult(root.clone(), (0.0,) * len(changes), ())
        trust = trust / total
        chosen = tuple(k for k, x in enumerate(trust.tolist()) if x)
        return RuleResult(changes.combined(trust * (length / norms)), tuple(trust.tolist()), chosen)

    said = "The server took the mean of changes **as long as its own and weighted by how much they point its way** (FLTrust)."
    return Rule("fltrust", said, judge, rooted=True)


def norm_clip(*, bound: Positive | None = None) -> Rule:
    """The weighted mean of changes that the server shortens to one length, so no client moves the model further than that.

    bound: M, the longest change that counts in full (Euclidean norm over all parts); omitted = the median of the round's lengths.
    """

    def judge(changes: Changes, weights: Tensor, f: int) -> RuleResult:
        norms = changes.norms()
        most = float(norms.quantile(0.5)) if bound is None else bound
        factors = (most / norms.clamp(min=1e-300)).clamp(max=1.0)
        return RuleResult(changes.combined(weights * factors), tuple(weights.tolist()))

    said = "The server **shortened every change to one length** before it took the weighted mean."
    return Rule("norm_clip", said, judge, weighted=True)


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
    "geometric_median": geometric_median,
    "fltrust": fltrust,
    "norm_clip": norm_clip,
}
