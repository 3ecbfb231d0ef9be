"""Several schemes over several seeds: pairs by Holm's rule, and a ranking that tells which pairs are not told apart."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from fedatlas.metrics.intervals import over_seeds
from fedatlas.metrics.quality import Floats
from fedatlas.verdict.evidence import LEVEL, SEEDS, Difference, chance, of_draws, of_seeds
from fedatlas.verdict.rule import Ends, ends
from fedatlas.wording import bytes_text, count, listed, number, seconds_text

SAME_BYTES, SAME_SECONDS = 1.01, 1.25  # times the least up to which costs count as equal; measured seconds vary
FEW_SECONDS = 5.0  # a difference too small to matter
MANY_SEEDS = 1000  # more seeds than anybody runs


class SeedDraws(NamedTuple):
    """A figure in draws of its test rows, the same draws for every scheme."""

    values: Floats  # (1 + draws,), first on all rows
    rows: int


class SeedFigure(NamedTuple):
    """A scheme's figure in one seed."""

    value: float
    judged_on: str  # fingerprint of the test rows
    resampled: SeedDraws | None = None  # needed only if all seeds share their test rows


class SchemeCost(NamedTuple):
    """The cost of a scheme, on average over its seeds."""

    bytes: float | None  # None if it is not told
    seconds: float
    plainest: bool = False  # FedAvg, which is chosen if costs are equal


class Pair(NamedTuple):
    """Two schemes, the better one first."""

    one: str
    other: str
    seeds: int  # those that both have, judged on the same rows
    difference: Ends | None  # None for fewer than three seeds
    p: float | None  # after Holm's rule
    apart: bool
    ahead: int = 0  # seeds in which the first is the better one
    shared: bool = False  # whether all seeds have the same test rows
    needed: int | None = (
        None  # seeds that would tell them apart, if all were like these; None if no number would, or these do
    )

    @property
    def may_tell(self) -> bool:
        """Whether all seeds agree on the better one, and more seeds may tell the two apart."""
        return self.agreed and self.needed is not None

    @property
    def agreed(self) -> bool:
        """Whether all seeds agree on the better one, although the two are not told apart."""
        return self.p is not None and not self.apart and self.ahead == self.seeds

    def plain(self) -> dict[str, Any]:
        """Return the pair as plain values: the difference with its interval, p after Holm's rule, and the seeds in which it is ahead."""
        gap = None if self.difference is None else self.difference._asdict()
        return {**self._asdict(), "difference": gap, "may_tell": self.may_tell}


class SchemeRanking(NamedTuple):
    """Schemes from best to worst."""

    order: Sequence[str]
    means: Mapping[str, float]
    pairs: Sequence[Pair]

    def unclear(self, one: str) -> list[str]:
        """Return the schemes that cannot be told apart from this one."""
        return [p.other if p.one == one else p.one for p in self.pairs if one in (p.one, p.other) and not p.apart]

    def alike(self) -> list[str]:
        """Return the best scheme and those that seeds cannot tell apart from it; only the best without a verdict over seeds."""
        best = self.order[:1]
        return [*best, *(p.other for p in self.pairs if [p.one] == best and p.p is not None and not p.apart)]


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values after Holm's step-down rule (1979)."""
    out, least = [1.0] * len(ps), 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        least = max(least, min(1.0, (len(ps) - rank) * ps[i]))
        out[i] = least
    return out


def rank(
    schemes: Mapping[str, Mapping[int, SeedFigure]], *, lower_is_better: bool = False, drawn: float = 0.0
) -> SchemeRanking:
    """Rank schemes by their means over the seeds that all have. ``drawn`` as in `of_seeds`."""
    sign = -1.0 if lower_is_better else 1.0
    shared = set.intersection(*(set(found) for found in schemes.values())) if schemes else set()
    means = {
        name: over_seeds([f.value for seed, f in found.items() if not shared or seed in shared]).mean
        for name, found in schemes.items()
    }
    known = {name: mean for name, mean in means.items() if mean is not None}
    order = sorted(known, key=lambda name: -sign * known[name])
    made = [_pair(schemes, one, other, sign, drawn) for one, other in combinations(order, 2)]
    known_gaps = [found for _, found in made if found is not None]
    ps = [chance(found.difference) for found in known_gaps]
    told = iter(zip(holm(ps), _needed(known_gaps, ps), strict=True))
    pairs = []
    for pair, found in made:
        p, needed = (None, None) if found is None else next(told)
        gap = None if found is None else ends(found.difference)
        pairs.append(pair._replace(difference=gap, p=p, apart=p is not None and p < 1 - LEVEL, needed=needed))
    return SchemeRanking(order, known, pairs)


class SeedGap(NamedTuple):
    """A difference over seeds, from which the p-value with more such seeds can be computed."""

    difference: Difference
    sd: float  # between seeds
    drawn: float
    rows_error: float

    def p_with(self, seeds: int) -> float:
        """Return the p-value for this number of seeds, if they had this mean and deviation."""
        error = math.hypot(self.sd * math.sqrt(1 / seeds + self.drawn), self.rows_error)
        return chance(Difference(self.difference.value, error, seeds - 1))


def _needed(gaps: Sequence[SeedGap], ps: Sequence[float]) -> list[int | None]:
    """Return how many seeds would tell each pair apart by Holm's rule, which stops at the first pair that is not told apart."""
    out: list[int | None] = [None] * len(ps)
    most: int | None = 0  # seeds that the earlier pairs need
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        have, level = int(gaps[i].difference.freedom) + 1, (1 - LEVEL) / (len(ps) - rank)
        if most == 0 and ps[i] < level:
            continue
        if most is None or gaps[i].p_with(MANY_SEEDS) >= level:
            most = None
            continue
        enough = bisect_left(range(MANY_SEEDS), True, lo=have, key=lambda n: gaps[i].p_with(n) < level)
        most = out[i] = max(most, enough)
    return out


def _pair(
    schemes: Mapping[str, Mapping[int, SeedFigure]], one: str, other: str, sign: float, drawn: float
) -> tuple[Pair, SeedGap | None]:
    """Return a pair without its p-value, and its difference.

    If all seeds share their test rows, the rows' error stays in it.
    """
    mine, theirs = schemes[one], schemes[other]
    both = [s for s in sorted(mine.keys() & theirs.keys()) if mine[s].judged_on == theirs[s].judged_on]
    gaps = [sign * (mine[s].value - theirs[s].value) for s in both]
    shared = len({mine[s].judged_on for s in both}) == 1
    error = _rows_error([(mine[s].resampled, theirs[s].resampled) for s in both]) if shared else 0.0
    pair = Pair(one, other, len(both), None, None, False, sum(gap > 0 for gap in gaps), shared)
    drawn, sd = 0.0 if shared else drawn, over_seeds(gaps).sd
    found = of_seeds(gaps, drawn, error)
    return pair, None if found is None or sd is None else SeedGap(found, sd, drawn, error)


def _rows_error(both: Sequence[tuple[SeedDraws | None, SeedDraws | None]]) -> float:
    """Return the standard error that test rows cause in a difference, over the seeds.

    Both figures have the same draws.
    """
    known = [of_draws(one.values - other.values, one.rows) for one, other in both if one and other]
    squares = [found.error**2 for found in known if found is not None]
    return math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0


def chosen(found: SchemeRanking, costs: Mapping[str, SchemeCost]) -> str:
    """Return the scheme to take: the cheapest of those not told apart from the best; "" without any.

    Fewest bytes decide, then seconds. If both are about equal, FedAvg is taken, and without it the better mean.
    """
    return min(_cheapest(found, costs), key=lambda name: not costs[name].plainest, default="")


def _cheapest(found: SchemeRanking, costs: Mapping[str, SchemeCost]) -> list[str]:
    """Return the cheapest of those not told apart from the best, from best to worst."""
    alike = found.alike()
    sent = {name: told for name in alike if (told := costs[name].bytes) is not None}
    if len(sent) == len(alike):
        alike = [name for name in alike if sent[name] <= SAME_BYTES * min(sent.values())]
    least = min((costs[name].seconds for name in alike), default=0.0)
    return [name for name in alike if not _slower(costs[name].seconds, least)]


def _slower(seconds: float, least: float) -> bool:
    return seconds > max(SAME_SECONDS * least, least + FEW_SECONDS)


def choice_text(found: SchemeRanking, costs: Mapping[str, SchemeCost]) -> str:
    """Return which scheme to take, and why if it is not the one with the best mean; "" without a verdict over seeds."""
    taken, best = chosen(found, costs), found.order[0] if found.order else ""
    if taken == best:
        if not found.pairs or any(pair.p is None for pair in found.pairs):
            return ""
        cheaper = ", and none that cannot be told apart from it costs less" if len(found.alike()) > 1 else ""
        return f"Take {taken}: it has the best mean{cheaper}."
    mine, first = costs[taken], costs[best]
    if mine.bytes is not None and first.bytes is not None and first.bytes > SAME_BYTES * mine.bytes:
        why = f"it sends less ({bytes_text(mine.bytes)} a seed against {bytes_text(first.bytes)})"
    elif _slower(first.seconds, mine.seconds):
        why = f"it takes less time ({seconds_text(mine.seconds)} a seed against {seconds_text(first.seconds)})"
    else:
        why = "it costs no more and is the plainest"
    return f"Take {taken}, which cannot be told apart from {best}: {why}."


def ranking_text(found: SchemeRanking, words: str) -> str:
    """Return the ranking in sentences. ``words``: the figure's name."""
    if not found.order:
        return "There is no scheme to rank."
    shown = ", ".join(f"{name} {number(found.means[name])}" for name in found.order)
    out = [f"By mean {words}: {shown}."]
    few = [pair for pair in found.pairs if pair.difference is None]
    if few:
        return f"{out[0]} Fewer than {SEEDS} seeds were judged on the same rows, so there is no verdict over seeds."
    if not found.pairs:
        return out[0]
    best = found.order[0]
    unclear = found.unclear(best)
    if unclear:
        out.append(f"{best} cannot be told apart from {listed(unclear)}.")
    out += _better(found)
    rest = [f"{p.one} and {p.other}" for p in found.pairs if not p.apart and best not in (p.one, p.other)]
    if rest:
        out.append(f"Nor can these be told apart: {'; '.join(rest)}.")
    return " ".join([*out, *_more(found)])


def _better(found: SchemeRanking) -> list[str]:
    """Return which schemes are better than which. Schemes that are better than the same ones are named together."""
    beaten = {one: tuple(p.other for p in found.pairs if p.apart and p.one == one) for one in found.order}
    alike: dict[tuple[str, ...], list[str]] = {}
    for one, others in beaten.items():
        if others:
            alike.setdefault(others, []).append(one)
    return [
        f"{listed(ones)} {'is' if len(ones) == 1 else 'are'} better than {listed(others)}."
        for others, ones in alike.items()
    ]


def _more(found: SchemeRanking) -> list[str]:
    """Return what may tell pairs apart on which all seeds agree: a number of seeds, or only more rows."""
    pairs = [p for p in found.pairs if p.agreed]
    if not pairs:
        return []
    said = "; ".join(f"{p.one} ahead of {p.other} in {p.ahead} of {count(p.seeds, 'seed')}" for p in pairs)
    out = [f"All seeds agree, which is not enough to tell these apart: {said}."]
    if some := [p for p in pairs if p.needed is not None]:
        each = listed([f"{p.needed} for {p.one} and {p.other}" for p in some])
        out.append(f"More seeds like these would tell: about {each}.")
    rest = [p for p in pairs if p.needed is None]
    for shared, why in ((True, "all seeds share their test rows"), (False, "the training rows of all seeds overlap")):
        if these := [f"{p.one} and {p.other}" for p in rest if p.shared is shared]:
            whom = "them" if len(these) == len(pairs) else "; ".join(these)
            cure = "more test rows may" if shared else "more rows may"
            out.append(f"More seeds like these would not tell {whom} apart, since {why}; {cure}.")
    return out
