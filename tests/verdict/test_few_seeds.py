"""Three seeds: intervals stay within what a figure can be, and the answer says how little such seeds tell."""

from __future__ import annotations

import math

import pytest

from fedatlas.verdict.answer import Answer, Asked, decided, over
from fedatlas.verdict.evidence import student
from fedatlas.verdict.rule import Ends, PartyVerdict, bonferroni, possible
from fedatlas.verdict.sentences import text

ASKED = Asked("FedAvg", "accuracy", "accuracy", party="hospital")
WIDE = Ends(0.07, -1.462, 1.606, 0.1)


def test_no_interval_goes_beyond_what_the_figure_can_be():
    assert possible(WIDE, "accuracy") == Ends(0.07, -1.0, 1.0, 0.1)
    assert possible(WIDE, "rmse") == WIDE, "an error has no such bound"
    assert possible(None, "auc") is None


def seed(number: int, gains: list[float]) -> Answer:
    parties = [
        PartyVerdict(k, f"Hospital {k}", 40, "not told apart", Ends(g, g - 0.2, g + 0.2, 0.1), 0.8 + g, 0.8)
        for k, g in enumerate(gains)
    ]
    return decided(
        Answer(
            ASKED,
            "yes",
            [number],
            [f"rows {number}"],
            320,
            960,
            True,
            0.85,
            0.8,
            None,
            Ends(0.05, 0.01, 0.09, 0.02),
            None,
            parties,
        )
    )


def test_three_seeds_say_how_much_narrower_five_would_be():
    """Bonferroni over eight: t of 99.6875% is 12.6 with two degrees of freedom (a table), and 5.26 with four."""
    spread = [[0.3 * math.sin(3 * k + 2 * s) for k in range(8)] for s in range(3)]
    found = over([seed(s, gains) for s, gains in enumerate(spread)], None, same_parties=True)
    gains = [p.gain for p in found.parties if p.gain is not None]
    assert len(gains) == 8
    assert all(g.low >= -1 and g.high <= 1 for g in gains)
    assert any(g.high == 1 for g in gains), "one of them would have gone beyond"
    assert "3 seeds say little about single hospitals: 5 would make their intervals about 0.4 times as wide" in text(
        found
    )
    assert "say little" not in text(over([seed(s, spread[0]) for s in range(5)], None, same_parties=True))


def test_the_widths_that_the_documentation_gives():
    """A quarter of the rows in the test: a third as many test rows as training rows."""
    for level, ratio in ((0.95, 0.6), (bonferroni(8), 0.4)):
        three, five = (student((1 + level) / 2, n - 1) * math.sqrt(1 / n + 1 / 3) for n in (3, 5))
        assert five / three == pytest.approx(ratio, abs=0.05)
