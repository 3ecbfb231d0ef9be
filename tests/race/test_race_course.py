"""The course of a race with drawn runs: what is tried, tuned, cut and told, and what changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from drawn_races import DrawnRace, arms, enough, flat, known_gain, no_gain, unknown_gain
from fedatlas.race.best import chances, end_statement, needed_for
from fedatlas.race.course import AskedRun, RaceArm, RaceEnd, RaceWork, race
from fedatlas.race.cuts import later_gain
from fedatlas.race.estimates import ArmRows, RaceEstimates, between_seeds, estimated
from fedatlas.race.work import FIRST, LOOKS, ArmCost, ArmWork, furthest, tried

TRUE = {"good": 0.9, "near": 0.89, "poor": 0.6}


def drawn(true: dict[str, float] | None = None, **how: Any) -> DrawnRace:
    return DrawnRace({name: flat(value) for name, value in (true or TRUE).items()}, **{"rows": 300, **how})


class Heard:
    """A measure that notes what it was asked."""

    def __init__(self, inner: DrawnRace) -> None:
        self.inner, self.asked = inner, list[list[AskedRun]]()

    def __call__(self, asked: Sequence[AskedRun]) -> Any:
        self.asked.append(list(asked))
        return self.inner.measure(asked)


def shown(end: RaceEnd) -> Any:
    """Return all that an answer is made of, as plain values."""
    told = None if end.figures is None else [x.tolist() for x in end.figures.told]
    return end.started, end.picked, end.looks, end.cut, end.left, end.rounds, end.spent, end.decided, told


def test_the_same_seeds_and_work_give_the_same_end_in_any_order_of_arms():
    names = list(TRUE)
    first = race(arms(names), 3, enough(names), drawn().measure)
    again = race(arms(names)[::-1], 3, enough(names[::-1]), drawn().measure)
    assert shown(first) == shown(again)
    other = race(arms(names), 3, enough(names), drawn(seed=1).measure)
    assert shown(first) != shown(other)


def test_all_arms_are_tuned_alike_and_the_best_point_is_picked():
    heard = Heard(drawn())
    end = race(arms(list(TRUE)), 3, enough(list(TRUE)), heard)
    tuned = heard.asked[0]
    assert {(one.arm, one.point) for one in tuned} == {(name, point) for name in TRUE for point in range(3)}
    assert {(one.fold, one.rounds) for one in tuned} == {(1, FIRST)}
    assert end.picked == dict.fromkeys(TRUE, 1)  # the other two points cost two and five points of accuracy


def test_rows_of_the_end_statement_are_judged_on_last_and_only_there():
    heard = Heard(drawn())
    race(arms(list(TRUE)), 3, enough(list(TRUE)), heard)
    *before, last = [{one.fold for one in asked} for asked in heard.asked]
    assert all(folds <= {1, 2} for folds in before)
    assert last == {3, 4, 5}


def test_a_poor_arm_is_cut_at_the_first_look_and_runs_no_further():
    heard = Heard(drawn())
    end = race(arms(list(TRUE), known_gain(0.05)), 3, enough(list(TRUE)), heard)
    (cut,) = end.cut
    first = end.looks[0]
    assert (cut.arm, cut.leader, cut.rounds) == ("poor", first.arms[int(np.argmax(first.value))], FIRST)
    assert cut.at_least > cut.gain == 0.05
    assert max(one.rounds for asked in heard.asked for one in asked if one.arm == "poor") == FIRST
    assert end.left == ["good", "near"]


def test_an_arm_that_may_still_catch_up_is_not_cut_before_the_end():
    end = race(arms(list(TRUE), known_gain(0.4)), 3, enough(list(TRUE)), drawn().measure)
    assert [(one.arm, one.rounds) for one in end.cut] == [("poor", 50)]  # there, no gain is left


def test_without_a_known_gain_no_arm_is_cut_before_the_end():
    names = list(TRUE)
    end = race(arms(names, unknown_gain, most=200), 3, enough(names), drawn().measure)
    assert [look.rounds for look in end.looks] == list(LOOKS)
    assert [(one.arm, one.rounds) for one in end.cut] == [("poor", 200)]


def test_a_cut_by_gains_up_to_50_rounds_ends_the_race_there():
    names = list(TRUE)
    to_50 = 3 * 60 + 3 * 20 + 3 * (2 * 30 + 3 * 50) + 50  # tuning, second fold, further looks, the end, the file
    end = race(arms(names, known_gain(0.02), most=200), 3, enough(names, to_50), drawn().measure)
    assert [one.arm for one in end.cut] == ["poor"]
    assert end.cut[0].rounds == FIRST
    assert set(end.rounds.values()) == {FIRST, 50}
    assert end.spent < to_50  # what the cut saved is not spent beyond the rounds that it was made for


def test_arms_meet_at_the_most_rounds_that_their_limits_allow():
    given = [RaceArm("long", 100, 0.0, no_gain), RaceArm("short", 12, 0.0, no_gain)]
    heard = Heard(drawn({"long": 0.9, "short": 0.9}))
    end = race(given, 3, enough(["long", "short"]), heard)
    assert end.rounds == {"long": 100, "short": 12}
    assert {one.rounds for asked in heard.asked for one in asked if one.arm == "short"} == {12}


def test_of_too_many_arms_the_prior_keeps_those_that_fit_into_a_third():
    names = ["first", "second", "third"]
    work = RaceWork(3 * 130, {name: ArmCost() for name in names})  # a third is 130; each takes 60 to tune
    end = race(arms(names), 3, work, drawn(dict.fromkeys(names, 0.9)).measure)
    assert end.started == ["first", "second"]
    assert end.not_tried == ["third"]
    assert end.decided
    assert end.spent <= work.total
    none = race(arms(names), 3, work._replace(total=100), drawn(dict.fromkeys(names, 0.9)).measure)
    assert (none.started, none.decided, none.figures) == ([], False, None)


def test_of_no_arms_nothing_is_run():
    heard = Heard(drawn())
    end = race([], 3, RaceWork(1000, {}, again=measured({})), heard)
    assert (end.started, end.decided, heard.asked) == ([], False, [])


def test_with_three_points_the_end_always_fits_and_with_one_the_needed_work_is_told():
    names = list(TRUE)
    for total in range(540, 1500, 60):
        end = race(arms(names, unknown_gain, most=200), 3, enough(names, total), drawn(rows=60).measure)
        assert end.decided
        assert end.spent <= total
    short = race(arms(names), 1, enough(names, 200), drawn(dict.fromkeys(names, 0.9), rows=60, points=(0.0,)).measure)
    assert not short.decided
    assert short.needed == 3 * 20 + 3 * 20 + 3 * 3 * 20 + 20
    assert short.left == sorted(names)


def test_where_the_work_is_up_those_left_are_compared_on_the_rows_looked_at():
    names = list(TRUE)
    heard = Heard(drawn(TRUE, points=(0.0,)))
    end = race(arms(names, unknown_gain, most=200), 1, enough(names, 200), heard)
    assert not end.decided
    assert {one.fold for asked in heard.asked for one in asked} == {1, 2}
    assert end.figures is not None
    assert set(end.figures.rows.fold) == {1, 2}
    told = dict(zip(end.left, end.figures.told.among.tolist(), strict=True))
    assert told["good"]
    assert [one.arm for one in end.cut] == ["poor"]


def test_the_work_that_is_named_as_needed_decides():
    """Also where more arms start with it: they are counted in what is named."""
    names = [f"arm-{i}" for i in range(6)]
    undecided = 0
    for seed in range(12):
        stream = np.random.default_rng(seed)
        costs = {name: ArmCost(stream.uniform(0, 9), stream.uniform(0.2, 3)) for name in names}
        inner = drawn(dict.fromkeys(names, 0.9), rows=40, points=(0.0, 0.0))
        points, timing = 1 + seed % 2, stream.uniform(0, 40)
        total = 3.5 * (timing + max(points * cost.run(0, FIRST) for cost in costs.values()))
        first = race(arms(names, unknown_gain), points, RaceWork(total, costs, timing), inner.measure)
        if first.decided:
            continue
        undecided += 1
        again = race(arms(names, unknown_gain), points, RaceWork(first.needed, costs, timing), inner.measure)
        assert again.decided
        assert again.spent <= first.needed + 1e-6
    assert undecided >= 3


def measured(costs: dict[str, ArmCost]) -> Any:
    """What a race learns of its costs by its runs: these, whichever were made."""
    return lambda asked: {one.arm: costs[one.arm] for one in asked}


def test_runs_that_take_longer_than_timed_end_the_race_sooner():
    names = list(TRUE)
    timed, seen = dict.fromkeys(names, ArmCost()), dict.fromkeys(names, ArmCost(0.0, 2.0))
    work = RaceWork(3000, timed)
    plain = race(arms(names, unknown_gain, most=200), 3, work, drawn(rows=60).measure)
    slower = race(arms(names, unknown_gain, most=200), 3, work._replace(again=measured(seen)), drawn(rows=60).measure)
    assert plain.decided
    assert slower.decided
    assert slower.looks[-1].rounds < plain.looks[-1].rounds
    assert slower.spent <= work.total
    assert slower.spent == pytest.approx(2 * slower.foreseen)


def test_an_arm_whose_first_runs_prove_too_slow_is_given_up_before_the_others():
    names = list(TRUE)
    work = RaceWork(3 * 180, dict.fromkeys(names, ArmCost()))  # in a third, three arms at three points
    seen = {"good": ArmCost(), "near": ArmCost(0.0, 20.0), "poor": ArmCost()}
    heard = Heard(drawn(rows=60))
    end = race(arms(names), 3, work._replace(again=measured(seen)), heard)
    assert (end.started, end.given_up, end.not_tried) == (["good", "poor"], ["near"], [])
    assert {one.point for asked in heard.asked for one in asked if one.arm == "near"} == {0}


def test_where_all_runs_take_ten_times_as_long_a_race_ends_within_about_its_work():
    names = list(TRUE)
    work = RaceWork(3 * 180, dict.fromkeys(names, ArmCost()), again=measured(dict.fromkeys(names, ArmCost(0.0, 10.0))))
    end = race(arms(names), 3, work, drawn(rows=60).measure)
    assert end.started == []
    assert end.given_up == sorted(names)
    assert end.spent <= 1.2 * work.total
    half = work._replace(again=measured(dict.fromkeys(names, ArmCost(0.0, 2.4))), total=3 * 440)
    late = race(arms(names), 3, half, drawn(rows=60).measure)
    assert not late.decided or late.spent <= half.total


def test_a_run_without_a_model_counts_as_naming_one_class():
    failing = frozenset({("near", 1), ("near", 2), ("near", 4)})
    end = race(arms(list(TRUE), known_gain(1.0, 20)), 3, enough(list(TRUE)), drawn(failing=failing).measure)
    assert "near" in [one.arm for one in end.cut]  # about 0.16 on both folds
    late = race(arms(list(TRUE), most=20), 3, enough(list(TRUE)), drawn(failing=frozenset({("near", 4)})).measure)
    assert late.failed["near"] == 1
    assert late.figures is not None
    assert late.figures.found.value[late.left.index("near")] < 0.75  # two folds at 0.89, one at about 0.16


def test_what_is_tried_goes_by_the_order_and_a_later_cheaper_one_may_fit():
    work = {"a": ArmWork(50, ArmCost(0, 1)), "b": ArmWork(50, ArmCost(0, 5)), "c": ArmWork(50, ArmCost(0, 1))}
    assert tried(["a", "b", "c"], work, 3, 130) == ["a", "c"]


def test_how_far_all_arms_come_by_hand():
    """From 20 to 30: 2 folds by 10 rounds; the end at 30: 3 folds by 30 rounds, and 30 for the file: 140 in all."""
    one = [ArmWork(200, ArmCost())]
    assert furthest(one, 20, 139) == 20
    assert furthest(one, 20, 140) == 30
    assert furthest([ArmWork(25, ArmCost())], 20, 2 * 5 + 4 * 25) == 30  # it ends at 25


def test_later_gains_by_hand():
    accuracy = np.array([[0.5, 0.6, 0.7], [0.5, 0.55, 0.5], [0.5, np.nan, 0.9]])
    assert later_gain(accuracy, [10, 20, 50], 20, 50) == pytest.approx(0.1)
    assert later_gain(accuracy, [10, 20, 50], 15, 30) == pytest.approx(0.4)  # from 10 to 50, at least as long
    assert later_gain(accuracy, [10, 20, 50], 20, 20) == 0.0
    assert np.isnan(later_gain(accuracy, [10, 20, 50], 20, 75))


def fixed(value: Sequence[float], rows: np.ndarray, seeds: np.ndarray | None = None) -> RaceEstimates:
    seeds = np.zeros_like(rows) if seeds is None else seeds
    return RaceEstimates(np.array(value), rows, seeds, "row", 100)


def test_the_end_statement_by_hand():
    """Two arms whose difference has the error 0.02: c is the normal quantile, and the margins follow from it."""
    stream = np.random.default_rng(0)
    draws = 0.02 / np.sqrt(2) * stream.standard_normal((200_000, 2))
    told = end_statement(fixed([0.9, 0.89], draws), started=2)
    assert told.critical == pytest.approx([2.054, 2.054], abs=0.02)
    assert told.among.all()
    assert told.margin == pytest.approx([-0.01 + 2.054 * 0.02, 0.01 + 2.054 * 0.02], abs=5e-4)
    assert told.chance == pytest.approx([0.6915, 0.3085], abs=5e-3)  # the normal distribution at 0.01 / 0.02
    apart = end_statement(fixed([0.9, 0.8], draws), started=2)
    assert apart.among.tolist() == [True, False]
    assert apart.margin[0] == 0.0
    family = end_statement(fixed([0.9, 0.89], draws), started=5)
    assert family.critical[0] == pytest.approx(2.576, abs=0.03)  # at a quarter of the error


def test_the_rows_for_a_margin_by_hand():
    stream = np.random.default_rng(0)
    rows = 0.02 / np.sqrt(2) * stream.standard_normal((200_000, 2))
    found = fixed([0.9, 0.9], rows)
    told = end_statement(found, 2)
    assert needed_for(found, told, 0, 0.02) == pytest.approx((2.054**2, 1), rel=0.02)
    seeds = 0.02 / np.sqrt(2) * stream.standard_normal((200_000, 2))
    both = fixed([0.9, 0.9], rows, seeds)  # the seeds by themselves leave more than 0.02: half of its square each
    assert needed_for(both, end_statement(both, 2), 0, 0.02) == pytest.approx((2 * 2.054**2, 2 * 2.054**2), rel=0.02)


def test_equal_arms_are_told_as_equal():
    score = np.tile((np.arange(90) % 10 > 0).astype(float), (2, 1))
    rows = ArmRows(score, np.ones(90), np.repeat([3, 4, 5], 30), np.zeros(90, int))
    told = end_statement(estimated(rows, 0), 2)
    assert told.among.all()
    assert told.chance == pytest.approx([0.5, 0.5], abs=0.05)
    assert chances(np.array([0.5, 0.5]), np.zeros((10, 2))).tolist() == [0.5, 0.5]


def test_from_ten_clients_on_clients_are_drawn():
    stream = np.random.default_rng(0)
    client = np.arange(600) % 12
    gap = np.where(client < 6, 0.3, 0.0)  # one arm is worse at half of the clients
    score = np.stack([np.full(600, 0.9), 0.9 - gap]) > stream.random(600)
    rows = ArmRows(score.astype(float), np.ones(600), np.repeat([3, 4, 5], 200), client)
    by_client = estimated(rows, 0)
    by_row = estimated(rows._replace(client=client % 9), 0)
    assert (by_client.unit, by_client.units, by_row.unit) == ("client", 12, "row")
    wide, narrow = (np.std(one.rows[:, 0] - one.rows[:, 1]) for one in (by_client, by_row))
    assert wide > 1.5 * narrow
    same = estimated(rows, 0, same_clients=True)  # for these clients, on other rows
    assert same.unit == "row"
    assert np.std(same.rows[:, 0] - same.rows[:, 1]) == pytest.approx(narrow, rel=0.05)


def test_the_bootstrap_over_rows_has_the_error_of_a_share():
    score = np.stack([np.ones(400), (np.arange(400) % 5 > 0).astype(float)])  # right on all rows, and on 4 of 5
    rows = ArmRows(score, np.ones(400), np.arange(400) % 3, np.zeros(400, int))
    assert np.std(estimated(rows, 0).rows[:, 1]) == pytest.approx(np.sqrt(0.2 * 0.8 / 400), rel=0.05)


def test_the_variance_between_seeds_is_found_beyond_that_of_the_rows():
    """Means over many races: seeds of 3 points are seen as such, and without any the prior is shrunk away from."""
    names, folds = [f"arm-{i}" for i in range(6)], (3, 4, 5)

    def mean_sd(sd: float) -> float:
        found = []
        for seed in range(40):
            one = drawn(dict.fromkeys(names, 0.85), seed=seed, sd_seed=sd, rows=400, points=(0.0,))
            each = [[one.drawn(AskedRun(name, 0, fold, FIRST)).score for fold in folds] for name in names]
            score = np.array([np.concatenate(mine) for mine in each])
            rows = ArmRows(score, np.ones(1200), np.repeat(folds, 400), np.zeros(1200, int))
            found.append(between_seeds(rows)[0].mean())
        return float(np.sqrt(np.mean(found)))

    assert mean_sd(0.03) == pytest.approx(0.03, rel=0.2)
    assert mean_sd(0.0) < 0.009
