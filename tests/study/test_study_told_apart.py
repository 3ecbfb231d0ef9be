"""Which choices of a setting are told apart: false differences, planted ones, and the error of test rows that all seeds share."""

from __future__ import annotations

import itertools
import math
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedatlas.study.analyse import analysis
from fedatlas.study.effects import effects
from fedatlas.study.front import axes_of
from fedatlas.study.measurements import Measurements, measurements_of
from fedatlas.study.page import render
from fedatlas.study.read_measurements import measured
from fedatlas.study.seed_noise import noise_between, shrunken
from fedatlas.study.study import Study
from fedatlas.study.table import Table
from fedatlas.study.test_rows import JUDGED_ON, RIGHT, kept, right_rows
from fedatlas.study.winners import standings
from fedatlas.wording import number

SETTINGS, CHOICES, SEEDS = 20, "abcd", 3


def noisy(stream: np.random.Generator, lead: float = 0.0) -> np.ndarray:
    """(settings, choices, seeds) accuracies whose deviation differs tenfold between settings; "a" leads in all of them."""
    sd = 10 ** stream.uniform(-2.7, -1.7, SETTINGS)
    values = 0.8 + sd[:, None, None] * stream.normal(size=(SETTINGS, len(CHOICES), SEEDS))
    values += 0.01 * stream.normal(size=(SETTINGS, 1, SEEDS))  # what all choices share
    values[:, 0] += lead
    return values


def study_of(values: np.ndarray, more: Any = lambda i, choice, seed: {}) -> Measurements:
    """The measurements of these accuracies."""
    rows = [
        {"run_key": f"{i} {choice} {seed}", "kind": "cell", "status": "done", "seed": seed, "rounds": 1, "setting": f"{i:02d}",
         "scheme": choice, "accuracy": float(values[i, j, seed]), "cpu_seconds": 1.0 + i + 0.1 * j, **more(i, choice, seed)}
        for i in range(len(values)) for j, choice in enumerate(CHOICES[: values.shape[1]]) for seed in range(values.shape[2])
    ]  # fmt: skip
    for run in rows:
        if "judged" in run:
            run["judged"]["metric"]["value"] = run["accuracy"]
    return measurements_of(rows, ["setting"], ["scheme"])


def leads_of(values: np.ndarray, more: Any = lambda i, choice, seed: {}) -> list[Any]:
    """The differences that `standings` finds in these values."""
    found = standings(study_of(values, more), draws=1000)
    return [lead for standing in found.values() for lead in standing.leads]


def false_share(tables: int, first: int) -> float:
    """The share of tables without differences in which any two choices are told apart."""
    return float(
        np.mean([any(x.told_apart for x in leads_of(noisy(np.random.default_rng(first + k)))) for k in range(tables)])
    )


def test_unequal_noise_shows_few_false_differences():
    """150 tables: 5% with a standard error of 1.8%; variances pooled over settings gave 53%."""
    assert 0.005 <= false_share(150, 0) <= 0.11


def drawn_rows(i: int, choice: str, seed: int) -> dict[str, Any]:
    """Each seed draws 500 test rows from 1,500, so that its 1,000 training rows overlap with those of the others."""
    return {"rows": 1000, "judged": {"metric": {"name": "accuracy", "test_rows": 500}, "judged_on": f"rows {seed}"}}


def overlapping(stream: np.random.Generator) -> np.ndarray:
    """Accuracies without differences, of overlapping training rows: seeds have test / all rows of their variance in common."""
    sd = 10 ** stream.uniform(-2.7, -1.7, SETTINGS)[:, None, None]
    common, own = stream.normal(size=(SETTINGS, len(CHOICES), 1)), stream.normal(size=(SETTINGS, len(CHOICES), SEEDS))
    return 0.8 + sd * (math.sqrt(500 / 1500) * common + math.sqrt(1000 / 1500) * own)


def false_where_drawn(tables: int, first: int, more: Any) -> float:
    """The share of tables whose seeds draw their test rows, without differences, in which any two choices are told apart."""
    each = [leads_of(overlapping(np.random.default_rng(first + k)), more) for k in range(tables)]
    return float(np.mean([any(x.told_apart for x in leads) for leads in each]))


def test_seeds_that_draw_their_test_rows_show_few_false_differences():
    """100 tables, 5% with a standard error of 2.2%; told that seeds are independent, far more tables show one."""
    assert false_where_drawn(100, 0, drawn_rows) <= 0.11
    assert false_where_drawn(20, 0, lambda *_: {}) > 0.3


@pytest.mark.slow
def test_seeds_that_draw_their_test_rows_show_as_few_false_differences_as_is_said():
    assert 0.035 <= false_where_drawn(1000, 20_000, drawn_rows) <= 0.065


def test_seeds_that_draw_their_test_rows_widen_effects_and_fronts_by_the_same_factor():
    """1/3 of a seed's variance becomes 1/3 + 1/2; what a run costs needs no test rows."""
    values = noisy(np.random.default_rng(1))
    plain, drawn = study_of(values), study_of(values, drawn_rows)
    wide, narrow = (effects(one, "accuracy", draws=200).effects for one in (drawn, plain))
    for one, other in zip(wide, narrow, strict=True):
        assert one.low is not None
        assert other.low is not None
        assert one.estimate - one.low == pytest.approx(math.sqrt(2.5) * (other.estimate - other.low), rel=1e-6)
    factors = [
        [axis.noise.of_means(0, np.ones((2, SEEDS), bool))[0, 1] for axis in axes_of(one) if axis.noise]
        for one in (drawn, plain)
    ]
    assert factors == [pytest.approx([1 / 3 + 1 / 2, 1 / 3]), pytest.approx([1 / 3, 1 / 3])]


def test_the_table_of_the_best_choices_agrees_with_the_answer():
    """Six settings in which "a" leads by 3.97 standard errors, with 2 degrees of freedom each, p = 0.058; all six together have 12."""
    lead = 3.97 * 0.004 * math.sqrt(1 / 3 + 1 / 2)
    values = np.full((6, 2, SEEDS), 0.8)
    values[:, 0] += lead + 0.004 * np.array([-1.0, 0.0, 1.0])
    assert any(x.told_apart for x in leads_of(values, drawn_rows)), "by the noise of all settings"
    found = analysis(study_of(values, drawn_rows))
    assert "a cannot be told apart from b" in found["answer"]["text"]
    assert [(one["first"], one["lead"]) for one in found["settings"]] == [(["a", "b"], None)] * 6
    assert [(one["alone"], one["better"], one["among"]) for one in found["record"]] == [(0, 0, 6)] * 2
    values[:, 0] += lead
    clear = analysis(study_of(values, drawn_rows))
    assert {(one["lead"]["choice"], one["lead"]["over"]) for one in clear["settings"]} == {("a", "b")}
    assert clear["settings"][0]["lead"]["low"] == pytest.approx(
        clear["answer"]["settings"][0]["pairs"][0]["difference"]["low"]
    )
    shown = {name: unescape(render(one)) for name, one in (("tied", found), ("clear", clear))}
    assert {name: f"{number(2 * lead)} over b" in text for name, text in shown.items()} == {
        "tied": False,
        "clear": True,
    }


@pytest.mark.slow
def test_unequal_noise_shows_as_few_false_differences_as_is_said():
    assert 0.035 <= false_share(1000, 10_000) <= 0.065


def test_planted_differences_are_found_at_least_as_often_as_by_paired_t_with_bonferroni():
    """Two points in each of 20 settings; 3 seeds, of which paired t can make little, and 10."""
    for seeds in (3, 10):
        ours = theirs = 0
        for k in range(12):
            stream = np.random.default_rng(k)
            sd = 10 ** stream.uniform(-2.7, -1.7, SETTINGS)
            values = 0.8 + sd[:, None, None] * stream.normal(size=(SETTINGS, len(CHOICES), seeds))
            values[:, 0] += 0.02
            ours += sum(x.told_apart for x in leads_of(values) if "a" in (x.choice, x.over))
            level = 0.05 / (SETTINGS * math.comb(len(CHOICES), 2))
            p = [[stats.ttest_rel(one[0], one[j]).pvalue for j in range(1, len(CHOICES))] for one in values]
            theirs += int((np.array(p) < level).sum())
        assert ours >= theirs
        assert ours > 0.3 * 12 * SETTINGS * 3


def test_variances_are_drawn_together_by_their_degrees_of_freedom():
    """limma's case: with one variance for all, they are equal; of one setting nothing is borrowed; of unequal ones, little."""
    stream = np.random.default_rng(0)
    equal = stream.chisquare(4, 400) / 4
    found, df = shrunken(equal, np.full(400, 4.0))
    assert found.std() < 0.1
    assert df.min() > 40
    true = 4.0 * stream.chisquare(4, 4000) ** -1  # inverse chi-square: d0 = 4, s0 = 1
    found, df = shrunken(true * stream.chisquare(6, 4000) / 6, np.full(4000, 6.0))
    assert df[0] == pytest.approx(10, abs=1)
    one, alone = shrunken(np.array([3.0]), np.array([2.0]))
    assert (one[0], alone[0]) == (3.0, 2.0)


def test_a_noisy_setting_keeps_its_noise():
    values = np.concatenate([0.001 * np.random.default_rng(1).normal(size=(6, 4, 5)),
                             0.05 * np.random.default_rng(2).normal(size=(6, 4, 5))])  # fmt: skip
    scales = noise_between(values).scales
    assert scales[6:].min() > 50 * scales[:6].max()


ROWS = 400


def right(i: int, choice: str, seed: int) -> np.ndarray:
    """Choice "a" is right on 300 of 400 rows, "b" on 20 of these fewer; the same in all seeds but for one row."""
    found = np.arange(ROWS) < (300 if choice == "a" else 280)
    found[ROWS - 1 - seed] = choice == "a"
    return found


def test_test_rows_that_all_seeds_share_leave_their_error_open():
    """By hand: 21 of 400 rows speak for "a" in a seed (20 in all, one of three in each of three rows): sd(mean over seeds) / 20."""
    values = np.array([[[right(0, choice, seed).mean() for seed in range(3)] for choice in "ab"]])
    alike = lambda i, choice, seed: {RIGHT: right(i, choice, seed), JUDGED_ON: "x"}  # noqa: E731
    drawn = lambda i, choice, seed: {RIGHT: right(i, choice, seed), JUDGED_ON: str(seed)}  # noqa: E731
    unknown, own, together = (leads_of(values, more)[0] for more in (lambda *_: {}, drawn, alike))
    assert [one.value - one.low for one in (unknown, own)] == pytest.approx([0, 0], abs=1e-9), "no noise between seeds"
    gap = np.mean([right(0, "a", s).astype(float) - right(0, "b", s) for s in range(3)], axis=0)
    error = gap.std(ddof=1) / 20
    assert 1.7 * error < together.value - together.low < 2.2 * error
    assert together.told_apart


def test_which_rows_were_right_is_kept_as_bits():
    score = (np.arange(1001) % 3 > 0).astype(float)
    text = kept(score, np.ones(1001))
    assert text is not None
    assert len(text) < 200
    assert right_rows({RIGHT: text}).tolist() == (score == 1).tolist()
    assert kept(np.array([0.5, 1.0]), np.ones(2)) is None
    assert kept(np.array([0.0, 1.0]), np.array([1.0, 2.0])) is None
    assert right_rows({}) is None


def test_a_study_keeps_them_of_its_runs(tmp_path: Path, shared_data: Any):
    base = {"rounds": 1, "data": {"name": "digits", "limit": 200}, "partition": {"name": "iid", "clients": 2}}
    factor = [{"name": "scheme", "role": "choice", "level": [{"name": "fedavg", "set": {"algorithm.name": "fedavg"}}]}]
    study = Study.of("kept", base=base, factor=factor, seeds=[1], execute={"parallel": 1})
    assert study.run(tmp_path)
    for run in itertools.islice(measured(Table.open(study.table(tmp_path))).cells(), 1):
        assert run[RIGHT].mean() == pytest.approx(run["accuracy"])
        assert run[JUDGED_ON]
