"""Three seeds: intervals stay within what a figure can be, and the answer says how little such seeds tell."""

from __future__ import annotations

import math

import pytest

from fedatlas.config import parse
from fedatlas.runs.answer import answer_over
from fedatlas.verdict.answer import Answer, Asked, decided, of_plain, over
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


def test_an_end_that_decides_is_not_written_like_what_it_is_beyond():
    """+0.00042 lies above 0, so that the verdict is yes: with three decimals it would be 0.000."""
    found = seed(1, [0.05])._replace(gain=Ends(0.007, 0.00042, 0.0137, 0.003))
    assert "(+0.0070, +0.0004 to +0.0137, one seed" in text(found)
    beside = found._replace(asked=ASKED._replace(margin=0.01), gain=Ends(0.02, 0.01004, 0.03, 0.005), verdict="yes")
    assert "+0.01004 to +0.03000" in text(beside)
    assert "(+0.020, +0.010 to +0.030" in text(beside._replace(asked=ASKED))


def test_a_yes_about_the_mean_says_so_with_the_least_and_the_largest_estimate():
    found = seed(1, [0.01, 0.07, 0.03])
    told = "; this is about the mean of the hospitals (estimates from +0.010 for Hospital 0 to +0.070 for Hospital 1), not told apart"
    assert told in text(found)
    gains = [found.parties[0]._replace(fate="gains"), *found.parties[1:]]
    assert "about the mean" not in text(found._replace(parties=gains))


def test_rows_of_several_seeds_are_those_of_the_same_seeds():
    """Twelve rows, of which 1, 6 and 4 are test rows: 3.67 on average, and 8.33 to train on; 4 and 8 are 12, not 11 and 4."""
    each = []
    for s, test in enumerate((1, 6, 4)):
        one = seed(s, [0.05])
        small = PartyVerdict(0, "Lienz", test, "too few to say", alone_always="nein", train_rows=12 - test)
        each.append(one._replace(parties=[small]))
    found = over(each, None, same_parties=True)
    assert [(p.train_rows, p.test_rows, p.fewest) for p in found.parties] == [(8, 4, 1)]
    assert "Lienz has on average 8 training rows, all 'nein'" in text(found)
    assert "Lienz has 11 training rows" in text(each[0])


@pytest.mark.parametrize(("compared", "bare"), [(3, 2), (2, 0), (5, 0)])
def test_seeds_with_baselines_answer_where_others_have_none(compared: int, bare: int):
    config = parse({"seeds": [*range(5)], "partition": {"name": "natural"}})
    each = []
    for s in range(5):
        one = seed(s, [0.05, 0.06])
        each.append(one if s < compared else decided(one._replace(alone=None, gain=None, compared=False)))
    cost = {"bytes_up": 1.0, "bytes_down": 1.0, "bytes_peer": 0.0}
    summaries = [{"answer": {"text": "", **one.plain()}, "cost": cost} for one in each]
    found = answer_over(summaries, config)
    assert found is not None
    assert (found.bare_seeds, found.compared) == (bare, compared >= 3)
    assert ("2 more seeds without a model alone to compare with are left out." in text(found)) == bool(bare)
    assert of_plain(found.plain()) == found
