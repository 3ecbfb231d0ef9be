"""Whether more seeds would tell two schemes apart: how many, or none, since training rows overlap or test rows are shared."""

from __future__ import annotations

import numpy as np
import pytest

from fedatlas.verdict.evidence import Difference
from fedatlas.verdict.schemes import SeedDraws, SeedFigure, SeedGap, _needed, rank, ranking_text


def scheme(values: list[float], draws: SeedDraws | None = None) -> dict[int, SeedFigure]:
    return {seed: SeedFigure(value, "all" if draws else f"rows {seed}", draws) for seed, value in enumerate(values)}


def like(seeds: int, mean: float, sd: float) -> list[float]:
    """So many values with this mean and deviation."""
    found = np.linspace(-1.0, 1.0, seeds)
    return [*(mean + sd * found / found.std(ddof=1))]


@pytest.mark.parametrize(("sd", "tells"), [(0.005, True), (0.009, False)])
def test_more_seeds_are_hoped_for_only_where_some_number_of_them_tells(sd: float, tells: bool) -> None:
    """Half as many test rows as training rows: over any number of seeds t stays below 0.01 / (sd sqrt(1/2)), 2.83 or 1.57."""
    found = rank({"a": scheme(like(3, 0.91, sd)), "b": scheme([0.9] * 3)}, drawn=0.5)
    (pair,) = found.pairs
    assert (pair.apart, pair.agreed, pair.may_tell) == (False, True, tells)
    said = ranking_text(found, "AUC")
    overlap = (
        "More seeds like these would not tell them apart, since the training rows of all seeds overlap; more rows may."
    )
    assert (overlap in said) is not tells
    assert (f"More seeds like these would tell: about {pair.needed} for a and b." in said) is tells
    for seeds in (pair.needed - 1, pair.needed) if pair.needed is not None else (999,):
        more = rank({"a": scheme(like(seeds, 0.91, sd)), "b": scheme([0.9] * seeds)}, drawn=0.5)
        assert more.pairs[0].apart is (seeds == pair.needed)


def test_where_all_seeds_share_their_test_rows_only_more_of_these_may_tell() -> None:
    """Differences 0.04, 0.05, 0.06; the rows leave an error of 0.03, and 0.05 is 1.7 of these."""
    draws = np.array([0.0, 0.03, -0.03] * 100)
    given = {"a": scheme([0.94, 0.95, 0.96], SeedDraws(np.concatenate([[0.0], 1.225 * draws]), 1_000_000)),
             "b": scheme([0.9] * 3, SeedDraws(np.zeros(301), 1_000_000))}  # fmt: skip
    found = rank(given)
    assert [(p.apart, p.agreed, p.may_tell) for p in found.pairs] == [(False, True, False)]
    said = ranking_text(found, "AUC")
    assert "would not tell them apart, since all seeds share their test rows; more test rows may." in said


def test_pairs_behind_one_that_no_number_of_seeds_tells_stay_untold() -> None:
    """Holm's rule stops at the first pair that it does not tell, also before one that more seeds would tell by itself."""
    never = SeedGap(Difference(0.01, 0.009, 2), 0.01, 0.5, 0.0)
    free = never._replace(drawn=0.0)
    alone = _needed([free], [0.3])[0]
    assert alone is not None
    assert _needed([never, free], [0.2, 0.3]) == [None, None]
    both = _needed([free, free], [0.2, 0.3])
    assert both[0] is not None
    assert both[0] > alone, "at half the level"
    assert both[1] == both[0]
