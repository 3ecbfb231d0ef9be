"""The rule, small samples, seeds and schemes, with numbers worked by hand; and the sentences."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from support.judged_offices import ASKED, SHARES, office_rows

from fedatlas.metrics.resampling import of_mean
from fedatlas.verdict.answer import Answer, PartyEvidence, answer, of_plain
from fedatlas.verdict.evidence import (
    Difference,
    Evidence,
    chance,
    drawn_figures,
    mean_gap,
    of_draws,
    of_figure,
    of_seeds,
)
from fedatlas.verdict.noise import last_swing, matters
from fedatlas.verdict.rule import Ends, PartyVerdict, bonferroni, ends, fate, federate
from fedatlas.verdict.schemes import SchemeCost, SeedDraws, SeedFigure, choice_text, chosen, holm, rank, ranking_text
from fedatlas.verdict.sentences import text

UP, DOWN, ROUND = Ends(0.05, 0.02, 0.08, 0.01), Ends(-0.05, -0.08, -0.02, 0.01), Ends(0.01, -0.02, 0.04, 0.01)


@pytest.mark.parametrize(
    ("mean", "fates", "trivial", "margin", "expected"),
    [
        (UP, ["gains", "not told apart"], UP, 0.0, "yes"),
        (UP, ["gains", "loses"], UP, 0.0, "yes, but"),
        (UP, [], UP, 0.02, "cannot tell"),  # the interval begins at the margin
        (ROUND, [], UP, 0.0, "cannot tell"),
        (DOWN, [], UP, 0.0, "no"),
        (ROUND, [], UP, 0.05, "no"),  # it lies below the margin
        (UP, ["gains"], ROUND, 0.0, "cannot tell"),  # not told apart from the trivial model
        (UP, ["gains"], DOWN, 0.0, "cannot tell"),
        (UP, ["gains"], None, 0.0, "cannot tell"),  # too few rows to compare with it
        (None, ["gains"], UP, 0.0, "cannot tell"),
    ],
)
def test_the_rule(mean, fates, trivial, margin, expected):
    assert federate(mean, fates, trivial, margin) == expected


def test_the_fate_of_a_party():
    assert [fate(one) for one in (UP, DOWN, ROUND, None)] == ["gains", "loses", "not told apart", "too few to say"]
    assert fate(UP, 0.03) == fate(DOWN, 0.03) == "not told apart"
    assert bonferroni(5) == pytest.approx(0.99)
    assert bonferroni(0) == 0.95


def test_seeds_are_compared_by_students_t_and_a_longer_variance_where_they_draw_their_rows():
    """0.1, 0.2, 0.3: mean 0.2, sd 0.1; t of 97.5% with two degrees of freedom is 4.303 (a table)."""
    found = of_seeds([0.1, 0.2, 0.3])
    assert found is not None
    assert (found.value, found.error, found.freedom) == pytest.approx((0.2, 0.1 / math.sqrt(3), 2))
    assert found.ends() == pytest.approx((0.2 - 4.303 * 0.0577350, 0.2 + 4.303 * 0.0577350), abs=1e-4)
    drawn = of_seeds([0.1, 0.2, 0.3], drawn=0.25)
    assert drawn is not None
    assert drawn.error == pytest.approx(0.1 * math.sqrt(1 / 3 + 0.25))
    shared = of_seeds([0.1, 0.2, 0.3], rows_error=0.3)
    assert shared is not None
    assert shared.error == pytest.approx(math.sqrt(0.01 / 3 + 0.09))
    assert of_seeds([0.1, 0.2]) is None
    assert chance(found) == pytest.approx(0.0742, abs=1e-3)  # t = 3.464: between 0.05 and 0.1 in a table


def test_holms_rule():
    """0.01 x 3, then 0.02 x 2, then 0.9 x 1; never smaller than the one before."""
    assert holm([0.02, 0.9, 0.01]) == pytest.approx([0.04, 0.9, 0.03])
    assert holm([0.02, 0.021, 0.03]) == pytest.approx([0.06, 0.06, 0.06])
    assert holm([]) == []


def scheme(*values: float, judged: str = "rows") -> dict[int, SeedFigure]:
    return {seed: SeedFigure(value, f"{judged} {seed}") for seed, value in enumerate(values)}


def test_a_ranking_says_what_cannot_be_told_apart():
    found = rank({"scaffold": scheme(0.5, 0.51, 0.49, 0.5), "fedavg": scheme(0.9, 0.92, 0.91, 0.9),
                  "fedprox": scheme(0.91, 0.91, 0.92, 0.9)})  # fmt: skip
    assert found.order == ["fedprox", "fedavg", "scaffold"]
    assert [(p.one, p.other, p.apart) for p in found.pairs] == [
        ("fedprox", "fedavg", False),
        ("fedprox", "scaffold", True),
        ("fedavg", "scaffold", True),
    ]
    assert ranking_text(found, "AUC") == (
        "By mean AUC: fedprox 0.910, fedavg 0.907, scaffold 0.500. fedprox cannot be told apart from fedavg. "
        "fedprox and fedavg are better than scaffold."
    )


def test_a_pair_without_the_best_scheme_that_is_told_apart_is_said():
    """The best swings, so that nothing is told apart from it; the other two never swing against each other."""
    found = rank({"wild": scheme(0.99, 0.5, 0.99, 0.99), "fedavg": scheme(0.8, 0.81, 0.8, 0.81),
                  "fedyogi": scheme(0.7, 0.71, 0.71, 0.7)})  # fmt: skip
    told = ranking_text(found, "AUC")
    assert found.unclear("wild") == ["fedavg", "fedyogi"]
    assert "fedavg is better than fedyogi." in told


def test_seeds_that_all_agree_without_telling_apart_ask_for_more():
    found = rank({"a": scheme(0.91, 0.95, 0.99, 0.9001), "b": scheme(0.9, 0.9, 0.9, 0.9)})
    assert [(p.apart, p.ahead, p.may_tell) for p in found.pairs] == [(False, 4, True)]
    assert "a ahead of b in 4 of 4 seeds. More seeds like these would tell: about 8 for a and b." in ranking_text(
        found, "AUC"
    )
    mixed = rank({"a": scheme(0.91, 0.95, 0.99, 0.89), "b": scheme(0.9, 0.9, 0.9, 0.9)})
    assert "would" not in ranking_text(mixed, "AUC")


def test_test_rows_that_all_seeds_share_leave_their_error_in_a_pair():
    """Differences 0.04, 0.05, 0.06: by seeds alone t = 5 / (1 / sqrt 3) = 8.66; the rows' error of 0.03 makes it 1.64."""
    draws = np.array([0.0, 0.03, -0.03] * 100)

    def shared(*values: float, rows: bool, moved: float) -> dict[int, SeedFigure]:
        found = SeedDraws(np.concatenate([[0.0], moved * draws]), 1_000_000) if rows else None
        return {seed: SeedFigure(value, "all", found) for seed, value in enumerate(values)}

    for rows, apart in ((False, True), (True, False)):
        one, other = shared(0.94, 0.95, 0.96, rows=rows, moved=1.0), shared(0.9, 0.9, 0.9, rows=rows, moved=0.0)
        (pair,) = rank({"one": one, "other": other}, drawn=0.25).pairs
        assert (pair.apart, pair.shared) == (apart, True)
    assert pair.difference is not None
    assert pair.difference.error == pytest.approx(math.sqrt(0.0001 / 3 + 0.0009 * 2 / 3), rel=1e-3)
    assert "More seeds like these would tell: about" in ranking_text(rank({"one": one, "other": other}), "AUC")


def test_of_schemes_not_told_apart_the_cheapest_is_taken_and_fedavg_where_costs_are_equal():
    close = {"scaffold": scheme(0.905, 0.91, 0.9), "fedprox": scheme(0.904, 0.9, 0.91),
             "fedavg": scheme(0.9, 0.9, 0.91), "bad": scheme(0.1, 0.11, 0.1)}  # fmt: skip
    costs = {"scaffold": SchemeCost(315e3, 1.0), "fedprox": SchemeCost(161_100, 1.0),
             "fedavg": SchemeCost(161_000, 1.1, plainest=True), "bad": SchemeCost(1.0, 0.1)}  # fmt: skip
    found = rank(close)
    assert found.order[0] == "scaffold"
    assert chosen(found, costs) == "fedavg"
    assert choice_text(found, costs) == (
        "Take fedavg, which cannot be told apart from scaffold: it sends less (161\xa0kB a seed against 315\xa0kB)."
    )
    equal = {**costs, "scaffold": SchemeCost(161_000, 1.0)}
    assert "costs no more and is the plainest" in choice_text(found, equal)
    slow = {**equal, "fedavg": SchemeCost(161_000, 9.0, plainest=True), "scaffold": SchemeCost(161_000, 9.0)}
    assert "takes less time" in choice_text(found, slow)
    short = {name: cost._replace(bytes=1.0, seconds=cost.seconds / 10) for name, cost in slow.items()}
    assert chosen(found, short) == "fedavg"  # 0.9 s are more than 0.1 s, and matter to nobody
    hidden = {name: SchemeCost(None, 1.0) for name in costs}
    assert choice_text(found, hidden) == (
        "Take scaffold: it has the best mean, and none that cannot be told apart from it costs less."
    )
    two = {name: dict(list(each.items())[:2]) for name, each in close.items()}
    assert chosen(rank(two), costs) == "scaffold"  # without a verdict over seeds, nothing says that they are alike


def test_seeds_judged_on_other_rows_are_not_compared():
    found = rank({"a": scheme(0.9, 0.9, 0.8), "b": scheme(0.5, 0.5, 0.5, judged="other")})
    assert [(p.seeds, p.p) for p in found.pairs] == [(0, None)]
    assert "no verdict over seeds" in ranking_text(found, "AUC")
    two = rank({"a": scheme(0.9, 0.9), "b": scheme(0.5, 0.5)})
    assert "Fewer than 3 seeds" in ranking_text(two, "AUC")


def test_small_samples_have_no_interval():
    right = np.repeat([1.0, 0.0], [24, 5])
    mean = of_mean("accuracy", right, np.ones(29))
    assert of_figure(mean, "accuracy", 29, 1, hits=24)[1:3] == (None, None)
    assert of_figure(mean, "accuracy", 29, 1)[1:3] == (None, None)
    wilson = of_figure(mean, "accuracy", 30, 1, hits=24)
    assert wilson[1:3] == pytest.approx((0.6269, 0.9050), abs=1e-4)  # Wilson 1927, of 24 in 30
    assert not Evidence(1000, {}, rarer=9).enough()
    assert Evidence(1000, {}, rarer=10).enough()


def test_the_paired_bootstrap_is_the_standard_error_of_a_mean():
    """Of differences d per row, its square is var(d) / n, with n - 1 in the variance; the draws give it within a tenth."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(2, 200))
    party = Evidence(200, {"together": of_mean("x", one, np.ones(200)), "alone": of_mean("x", other, np.ones(200))})
    drawn = drawn_figures([party], "x", 1)
    found = of_draws((drawn["together"] - drawn["alone"])[:, 0], party.informative("together", "alone"))
    assert found is not None
    assert found.value == pytest.approx((one - other).mean())
    assert found.error == pytest.approx((one - other).std(ddof=1) / math.sqrt(200), rel=0.1)
    assert found.freedom == 199


def test_only_rows_where_two_shares_differ_bear_on_their_difference():
    """All of four differing rows on one side: the chance of that is 1/8 without a difference, and nothing to be sure of."""
    one, other = np.ones(100), np.repeat([1.0, 0.0], [96, 4])
    hits = {"together": one, "alone": other}
    party = Evidence(100, {name: of_mean("accuracy", x, np.ones(100)) for name, x in hits.items()}, None, hits)
    drawn = drawn_figures([party], "accuracy", 1)
    found = ends(of_draws((drawn["together"] - drawn["alone"])[:, 0], party.informative("together", "alone")))
    assert found is not None
    assert found.low < 0 < found.value


def test_a_party_without_the_figure_is_left_out_of_the_mean_of_each_draw():
    gap = mean_gap([np.array([0.1, np.nan, 0.3]), np.array([0.4, 0.4, np.nan])], [1, 2])
    assert gap == pytest.approx([0.3, 0.4, 0.3])


def test_the_same_model_twice_is_not_told_apart():
    assert Difference(0.0, 0.0, 5).ends() == (0.0, 0.0)
    assert fate(ends(Difference(0.0, 0.0, 5))) == "not told apart"


def test_the_answer_of_a_run():
    found = answer(
        SHARES,
        [office_rows(0, 300, 0.95, 0.5), office_rows(1, 200, 0.5, 0.95), office_rows(2, 12, 0.9, 0.1)],
        1,
        "rows",
        2000,
    )
    assert [p.fate for p in found.parties] == ["gains", "loses", "too few to say"]
    assert found.test_rows == 512
    assert found.together is not None
    assert found.alone is not None
    assert found.gain is not None
    assert found.together - found.alone == pytest.approx(found.gain.value)
    assert of_plain(json.loads(json.dumps(found.plain()))) == found


def test_rows_of_a_party_that_the_mean_leaves_out_do_not_make_an_interval():
    """20 rows are too few, however many rows there are on which the figure is undefined."""
    undefined = Evidence(
        300, dict.fromkeys(("together", "alone"), lambda drawn: {"accuracy": np.full(len(drawn), np.nan)})
    )
    parties = [office_rows(0, 20, 0.95, 0.05), PartyEvidence(1, "Tirol", undefined, True)]
    found = answer(SHARES, parties, 1, "rows", 2000)
    assert (found.left_out, found.mean_rows, found.gain, found.verdict) == (1, 20, None, "cannot tell")


def test_one_test_row_of_a_party_leaves_the_interval_of_the_mean_as_it_is():
    """The mean over parties has as many draws as the party with the fewest: without any it would look certain."""
    many = [office_rows(0, 300, 0.7, 0.68), office_rows(1, 200, 0.7, 0.68)]
    known, found = (
        answer(SHARES, parties, 1, "rows", 2000).gain for parties in (many, [*many, office_rows(2, 1, 0.9, 0.1)])
    )
    assert known is not None
    assert found is not None
    assert found.high - found.low == pytest.approx(known.high - known.low, rel=0.05)


def test_a_party_is_named_only_on_test_rows_of_its_own():
    everybody = [office_rows(k, 300, 0.95, 0.5, own=False) for k in range(3)]
    found = answer(SHARES, everybody, 1, "rows", 2000)
    assert (found.verdict, found.parties, found.test_rows) == ("yes", [], 300)
    assert "judged on everybody's rows, so no office is named" in text(found)
    assert "Wien" not in text(found)
    some = answer(SHARES, [office_rows(0, 300, 0.95, 0.5), office_rows(1, 300, 0.1, 0.9, own=False)], 1, "rows", 2000)
    assert [(p.name, p.fate) for p in some.parties] == [("Wien", "gains"), ("Tirol", "too few to say")]
    assert some.test_rows == 300, "the means do not count it"


def whole(**changed) -> Answer:
    names = {"Wien": "gains", "Tirol": "gains", "Kärnten": "not told apart", "Lienz": "too few to say"}
    sizes = {"Wien": 500, "Tirol": 230, "Kärnten": 92, "Lienz": 12}
    parties = [PartyVerdict(k, name, sizes[name], fate) for k, (name, fate) in enumerate(names.items())]
    return Answer(
        ASKED, "yes", [1, 2, 3, 4, 5], ["rows"] * 5, 834, 3300, True, 0.93, 0.88, 0.5, UP, UP, parties
    )._replace(**changed)


def test_the_sentence_of_a_yes():
    assert text(whole()) == (
        "Federate, with FedAvg: together AUC 0.930, alone 0.880 (+0.050, +0.020 to +0.080, 5 seeds), 28.8\xa0kB a training; "
        "certain for Wien and Tirol, not told apart from training alone for Kärnten, too few rows to say for Lienz. "
        "The interval is one of 95%; its unit is the seed. An interval takes 30 test rows in each seed: Lienz has 12. "
        "Always answering 'no' reaches 0.500, and the model is better by +0.050 (+0.020 to +0.080)."
    )


def test_the_sentences_of_other_answers():
    lost = [PartyVerdict(0, "Wien", 100, "gains"), PartyVerdict(1, "Tirol", 100, "loses", DOWN, alone_always="no")]
    but = text(whole(verdict="yes, but", parties=lost, seeds=[1]))
    assert but.startswith("Federate, with FedAvg, but not for Tirol: ")
    assert "(+0.050, +0.020 to +0.080, one seed, 834 test rows), 28.8\xa0kB; certain for Wien. " in but
    assert "of 95% over the test rows of one seed, without the chance of training" in but
    assert "Tirol alone always answers 'no'." in but
    unsure = text(whole(verdict="cannot tell", over_trivial=ROUND))
    assert unsure.startswith("These data cannot tell whether to federate with FedAvg: ")
    assert "not told apart from always answering 'no' (+0.010, −0.020 to +0.040)" in unsure
    few = text(whole(verdict="cannot tell", gain=None, over_trivial=None, seeds=[1], test_rows=20, parties=[]))
    assert "Too few to say: an interval takes 30 test rows." in few
    alone = text(whole(verdict="not compared", compared=False, seeds=[1]))
    assert "--baselines" in alone
    assert "alone 0" not in alone
    assert "(+0.050 less error, +0.020 to +0.080," in text(whole(asked=ASKED._replace(lower_is_better=True)))
    assert "0.010 does not count (evaluation.margin)" in text(whole(asked=ASKED._replace(margin=0.01)))


def test_a_deployed_run_says_what_was_reached_and_answers_nobody():
    """Who judged decides what can be said of how sure it is."""
    asked = ASKED._replace(judge="server", hold="")
    there = whole(asked=asked, verdict="not compared", compared=False, seeds=[1], alone=None, gain=None, parties=[])
    sure = text(there._replace(interval=(0.9, 0.95)))
    assert sure == (
        "With FedAvg, the offices together reach AUC 0.930 (0.900 to 0.950) on 834 test rows, 28.8\xa0kB. "
        "Always answering 'no' reaches 0.500, and the model is better by +0.050 (+0.020 to +0.080). "
        "The intervals are of 95% over the test rows of one seed, without the chance of training. "
        "Whether to federate is not answered: nobody trains alone in a deployed run, so whether any of them would do as well alone was "
        "not measured. Each can measure that by training on its own rows ('fedatlas run') and judging both models on rows that "
        "neither has seen."
    )
    bare = there._replace(over_trivial=None)
    assert "an interval takes 30 test rows, 10 of them" not in text(bare)
    assert "Too few to say how sure that is: an interval takes 10 test rows of the rarer class." in text(bare)
    assert "Too few to say how sure that is: an interval takes 30 test rows." in text(bare._replace(test_rows=20))
    nodes = bare._replace(asked=asked._replace(judge="nodes"), test_rows=0)
    assert "reach AUC 0.930 on the test rows of the nodes, " in text(nodes)
    assert "nodes tell sums, which give AUC no interval; test rows at the server do." in text(nodes)
    holder = text(there._replace(asked=asked._replace(judge="holder", party="party"), trivial=None, over_trivial=None))
    assert "whether the party with the label would do as well alone was not measured. It can" in holder
    assert of_plain(json.loads(json.dumps(there._replace(interval=(0.9, 0.95)).plain()))).interval == [0.9, 0.95]


def test_two_seeds_blame_no_party_s_rows():
    parties = [PartyVerdict(k, name, 500, "too few to say") for k, name in enumerate(("Wien", "Tirol"))]
    two = text(whole(verdict="cannot tell", gain=None, over_trivial=None, seeds=[1, 2], parties=parties))
    assert "too few rows" not in two
    assert "2 seeds are too few for a verdict over seeds: give 3 or more." in two


def test_a_no_is_one_on_average_where_a_party_gains_may_gain_or_cannot_be_judged():
    """The mean says no below the margin; a party whose own interval reaches above it is open."""
    near, wide = Ends(0.0, -0.004, 0.005, 0.002), Ends(0.01, -0.03, 0.05, 0.02)
    parties = [
        PartyVerdict(0, "Wien", 500, "not told apart", near),
        PartyVerdict(1, "Graz", 60, "not told apart", wide),
    ]
    asked = ASKED._replace(margin=0.01)
    small = whole(asked=asked, verdict=federate(near, [], UP, 0.01), gain=near, parties=parties)
    said = text(small)
    assert said.startswith("On average, federation with FedAvg is not worth it: ")
    assert "; open for Graz, who may gain more than that, not told apart from training alone for Wien." in said
    assert "The mean gain is below 0.010, up to which models count as equally good (evaluation.margin)." in said
    assert "does not count" not in said
    assert text(whole(verdict="no", gain=DOWN)).startswith("On average, do not federate with FedAvg: together")
    lost = [PartyVerdict(0, "Wien", 500, "loses", DOWN)]
    assert text(whole(verdict="no", gain=DOWN, parties=lost)).startswith("Do not federate with FedAvg: together")


def test_a_party_that_cannot_be_judged_is_told_why_and_which_share_of_test_rows_would_do():
    lonely = PartyVerdict(0, "Lienz", 2, "too few to say", alone_always="nein", train_rows=10, divided=12)
    small = PartyVerdict(1, "Krems", 12, "too few to say", train_rows=60, divided=72)
    rare = PartyVerdict(2, "Graz", 40, "too few to say", train_rows=360, rarer=4, divided=400)
    asked = ASKED._replace(hold="evaluation.clients = 0.2")
    said = text(whole(asked=asked, parties=[lonely, small]))
    assert (
        "Lienz has on average 10 training rows, all 'nein': alone it always answers 'nein', and its 2 test rows cannot judge any model."
        in said
    )
    assert "An interval takes 30 test rows in each seed: Lienz has 2 and Krems has 12." in said
    assert "evaluation.clients = 0.45 would do for Krems; Lienz needs more rows." in said
    said = text(whole(asked=asked, parties=[rare]))
    assert "30 test rows, 10 of them of the rarer class, in each seed: Graz has 40 (4 of the rarer class)." in said
    assert (
        "evaluation.clients = 0.45 would most likely do for Graz, if the rarer class is as frequent in all rows."
        in said
    )
    assert "evaluation.clients" not in text(whole(parties=[small])), "a node holds out no rows"
    everybody = text(whole(asked=asked, own_rows=False, parties=[]))
    assert "no office is named (evaluation.clients = 0.2 judges each on rows of its own)" in everybody
    undefined = whole(left_out=1, parties=[small._replace(together=0.9, alone=0.8), rare])
    assert "Graz is not in the means, since AUC is undefined on its test rows." in text(undefined)


def test_data_that_cannot_tell_exclude_something_and_say_what_would_settle_it():
    """+0.010 within 0.030: nine times the 834 rows, 7,506, bring the interval clear of 0."""
    said = text(whole(verdict="cannot tell", gain=ROUND, seeds=[1]))
    assert "Excluded are a mean gain above 0.040 and a mean loss above 0.020." in said
    assert "Were the difference as it is here, about 7,600 test rows would settle it." in said
    drawn = whole(verdict="cannot tell", gain=Ends(0.03, -0.01, 0.07, 0.0144), judged_on=list("abcde"))
    assert "about 9 seeds would settle it" in text(drawn)
    same = text(drawn._replace(judged_on=["the rows"] * 5))
    assert "seeds would" not in same, "no number of seeds lessens the error of rows that all share"
    assert "test rows would settle it" in same
    tiny = text(whole(verdict="cannot tell", gain=ROUND._replace(value=1e-4), seeds=[1]))
    assert "so small that more rows would hardly settle it" in tiny


def test_where_no_model_beats_the_constant_that_comes_first():
    level = {"over_trivial": ROUND, "alone_over_trivial": ROUND, "pooled_over_trivial": ROUND, "pooled": 0.51}
    said = text(whole(verdict="cannot tell", **level))
    assert said.startswith(
        "No model, alone, together or pooled, is told apart from always answering 'no': there may be nothing to learn here. "
        "These data cannot tell"
    )
    assert said.count("not told apart from always answering 'no'") == 0
    assert "nothing to learn" not in text(whole(verdict="cannot tell", **{**level, "pooled_over_trivial": UP}))
    assert "nothing to learn" not in text(whole(verdict="cannot tell", **{**level, "pooled_over_trivial": None}))
    assert "No model, alone or together, is better than" in text(
        whole(verdict="no", **{**level, "alone_over_trivial": DOWN, "pooled_over_trivial": None, "pooled": None})
    )


def test_the_figures_of_a_sentence_have_as_many_decimals():
    """Two digits of the largest difference are shown, and what rounding leaves of nothing is 0, without a sign."""
    small = text(whole(gain=Ends(0.003, 0.00042, 0.0056, 0.001), together=0.93, alone=0.927))
    assert "together AUC 0.9300, alone 0.9270 (+0.0030, +0.0004 to +0.0056, 5 seeds)" in small
    none = text(whole(verdict="cannot tell", gain=Ends(2.2e-17, -1e-17, 3e-17, 1e-17)))
    assert "(0.000, 0.000 to 0.000, 5 seeds)" in none
    large = text(whole(gain=Ends(12.34, -5.6, 30.0, 9.0), together=59_317.9, alone=59_305.6))
    assert "together AUC 59,318, alone 59,306 (+12, −6 to +30," in large


def test_a_swing_of_the_last_rounds_is_what_a_straight_line_leaves():
    """0.5, 0.6, 0.5, 0.6, 0.5 leaves 0.1 about its level line; a steady climb leaves nothing."""
    assert last_swing([0.1, 0.5, 0.6, 0.5, 0.6, 0.5]) == pytest.approx(0.1)
    assert last_swing([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(0.0, abs=1e-12)
    assert last_swing([0.1, None, 0.3]) is None
    assert matters(0.1, UP, None)
    assert not matters(0.02, UP, None)
    assert matters(0.1, None, (0.4, 0.5))
    assert not matters(0.04, None, (0.4, 0.5))
    assert not matters(0.04, UP, (0.4, 0.5)), "two standard errors of the figure are no swing"
    assert matters(0.06, UP, (0.4, 0.5))
    swung = text(whole(swing=0.1, cures=["a falling rate", "averaging"]))
    assert swung.endswith(
        "swings by 0.100, so much depends on the round of the end; what calms it: a falling rate, or averaging."
    )


def test_what_a_party_lacks_for_an_interval_is_said_once():
    lonely = PartyVerdict(0, "bank", 1624, "too few to say", rarer=1)
    said = text(whole(verdict="cannot tell", gain=None, over_trivial=None, parties=[lonely], seeds=[1], test_rows=1624))
    assert said.count("an interval takes") + said.count("An interval takes") == 1
    assert "bank has 1,624 (1 of the rarer class)" in said
