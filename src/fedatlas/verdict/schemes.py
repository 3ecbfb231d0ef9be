"""Several schemes over several seeds: pairs by Holm's rule, and a ranking that says what cannot be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from fedatlas.metrics.intervals import over_seeds
from fedatlas.verdict.evidence import LEVEL, SEEDS, Difference, chance, of_seeds
from fedatlas.verdict.rule import Ends, ends
from fedatlas.wording import listed, number


class SeedFigure(NamedTuple):
    """A scheme's figure in one seed."""

    value: float
    judged_on: str  # fingerprint of the test rows


class Pair(NamedTuple):
    """Two schemes, the better one first."""

    one: str
    other: str
    seeds: int  # those that both have, judged on the same rows
    difference: Ends | None  # None for fewer than three seeds
    p: float | None  # after Holm's rule
    apart: bool


class SchemeRanking(NamedTuple):
    """Schemes from best to worst."""

    order: Sequence[str]
    means: Mapping[str, float]
    pairs: Sequence[Pair]

    def unclear(self, one: str) -> list[str]:
        """Return the schemes that cannot be told apart from this one."""
        return [p.other if p.one == one else p.one for p in self.pairs if one in (p.one, p.other) and not p.apart]


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
    ps = iter(holm([chance(found) for *_, found in made if found is not None]))
    pairs = []
    for one, other, seeds, found in made:
        p = None if found is None else next(ps)
        pairs.append(Pair(one, other, seeds, ends(found), p, p is not None and p < 1 - LEVEL))
    return SchemeRanking(order, known, pairs)


def _pair(
    schemes: Mapping[str, Mapping[int, SeedFigure]], one: str, other: str, sign: float, drawn: float
) -> tuple[str, str, int, Difference | None]:
    mine, theirs = schemes[one], schemes[other]
    both = [s for s in sorted(mine.keys() & theirs.keys()) if mine[s].judged_on == theirs[s].judged_on]
    return one, other, len(both), of_seeds([sign * (mine[s].value - theirs[s].value) for s in both], drawn)


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
    if worse := [name for name in found.order[1:] if name not in unclear]:
        out.append(f"{best} is better than {listed(worse)}.")
    rest = [f"{p.one} and {p.other}" for p in found.pairs if not p.apart and best not in (p.one, p.other)]
    if rest:
        out.append(f"Nor can these be told apart: {'; '.join(rest)}.")
    return " ".join(out)
