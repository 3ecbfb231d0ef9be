"""The ranking of schemes: by the figure that decides, on rows that no choice has used, seed by seed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedatlas import Experiment, run
from fedatlas.comparison.answer import table_lines
from fedatlas.record.run_folder import JUDGED, RunFolder
from fedatlas.reporting.answer import answer_blocks
from fedatlas.reporting.blocks import as_cell
from fedatlas.reporting.ranking import ranked
from fedatlas.reporting.ranking_rows import resampled
from fedatlas.reporting.ranking_tables import ranking_tables
from fedatlas.verdict.answer import Answer, Asked
from fedatlas.verdict.rule import Ends, PartyVerdict
from fedatlas.verdict.schemes import SeedDraws

SEEDS = range(1, 6)


def summary(value: float, on: str = "rows", **more: Any) -> dict[str, Any]:
    return {"task": "classes", "judged_on": on, "final": {"accuracy": value}, **more}


def runs(**schemes: list[float]) -> dict[str, dict[int, dict[str, Any]]]:
    return {name: {seed: summary(x) for seed, x in zip(SEEDS, values, strict=True)} for name, values in schemes.items()}


def test_a_clear_difference_within_seeds_is_told_and_a_small_one_is_not() -> None:
    # Seeds differ by .1, schemes within a seed by .05 give or take .001: only pairs within seeds show it.
    base = [0.5, 0.6, 0.7, 0.8, 0.9]
    noise = [0.001, -0.001, 0.0, 0.001, -0.001]
    ahead = [x + 0.05 + e for x, e in zip(base, noise, strict=True)]
    alike = [x + 2 * e for x, e in zip(base, noise, strict=True)]
    found = ranked(runs(ahead=ahead, base=base, alike=alike))
    assert found is not None
    assert found.ranking.order[0] == "ahead"
    assert "ahead is better than" in found.text
    assert any("base" in pair and "alike" in pair for pair in found.text.split(". ") if "told apart" in pair)


def test_fewer_than_three_seeds_give_no_verdict() -> None:
    two = {name: dict(list(found.items())[:2]) for name, found in runs(a=[0.9] * 5, b=[0.1] * 5).items()}
    found = ranked(two)
    assert found is not None
    assert "no verdict over seeds" in found.text


def test_the_metric_decides_and_less_of_an_error_is_better() -> None:
    given = {
        name: {seed: summary(accuracy, metric={"name": "log_loss", "value": value}) for seed in SEEDS}
        for name, accuracy, value in (("low", 0.1, 0.2), ("high", 0.9, 0.4))
    }
    found = ranked(given)
    assert found is not None
    assert (found.figure, found.lower_is_better, found.ranking.order) == ("log_loss", True, ["low", "high"])


def test_rows_that_a_choice_has_used_do_not_count() -> None:
    given = {
        name: {seed: summary(final, test={"accuracy": test}) for seed in SEEDS}
        for name, final, test in (("chosen", 0.9, 0.5), ("other", 0.5, 0.9))
    }
    found = ranked(given)
    assert found is not None
    assert found.ranking.order == ["other", "chosen"]


def test_runs_by_different_figures_are_not_ranked() -> None:
    assert ranked({}) is None
    assert ranked({"a": {1: summary(0.5)}, "b": {1: summary(0.5, metric={"name": "auc", "value": 0.5})}}) is None


@pytest.mark.parametrize("rows", [0, 2])
def test_the_table_is_aligned(rows: int) -> None:
    one = {"scheme": "a", "mean": 0.5, "sd": None, "seeds": [1], "local_only": None, "centralised": 0.75}
    row = {**one, "bytes": None, "seconds": 1.0}
    lines = table_lines({"words": "AUC", "rows": [row, {**row, "scheme": "longer"}][:rows]})
    assert len({len(line) for line in lines}) <= 1
    assert len(lines) == (rows + 1 if rows else 0)
    assert all("alone" not in line for line in lines)  # no scheme has the baseline


def test_rows_that_all_seeds_share_leave_their_paired_error_in_a_pair(tmp_path: Path) -> None:
    """Of 200 rows both are right on 100, and one alone on 30, the other alone on 10: the difference is 0.1 on each seed's rows.

    Its standard error is the root of (40 / 200 - 0.1^2) / 200 = 0.0308, however many seeds agree.
    """
    right = {"one": [1] * 100 + [1] * 30 + [0] * 70, "other": [1] * 100 + [0] * 30 + [1] * 10 + [0] * 60}
    folders = {name: RunFolder(tmp_path / name) for name in right}
    for name, hits in right.items():
        folders[name].path.mkdir()
        folders[name].save_arrays(JUDGED, {"score": np.array(hits, dtype=float), "weight": np.ones(200)})
    more = {"metric": {"name": "accuracy", "value": None}, "per_client": [{"client": 0}, {"client": 1}]}
    values = {name: sum(hits) / 200 for name, hits in right.items()}
    given = {
        name: {
            seed: summary(
                0.0, **{**more, "metric": {"name": "accuracy", "value": value + 0.001 * seed * (name == "one")}}
            )
            for seed in SEEDS
        }
        for name, value in values.items()
    }

    def of(name: str, seed: int) -> SeedDraws | None:
        return resampled(folders[name], given[name][seed])

    found, blind = ranked(given, of), ranked(given)
    assert found is not None
    assert blind is not None
    (pair,), (without,) = found.ranking.pairs, blind.ranking.pairs
    assert pair.difference is not None
    assert without.difference is not None
    assert pair.difference.error == pytest.approx(0.0308, rel=0.15)  # 400 draws know it to 4%
    assert without.difference.error < 0.001
    anew = {name: {seed: {**one, "judged_on": seed} for seed, one in runs.items()} for name, runs in given.items()}
    drawn = ranked(anew, of)
    assert drawn is not None
    assert drawn.ranking.pairs == [without._replace(shared=False)]


def test_the_tables_name_the_scheme_to_take_and_each_pair() -> None:
    cost = {"bytes_up": 1.0, "bytes_down": 1.0, "bytes_peer": 0.0, "seconds": 1.0}
    given = {
        name: {seed: summary(value + 0.01 * (seed % step), algorithm=name, cost=cost) for seed in SEEDS}
        for name, value, step in (("FedProx", 0.901, 2), ("FedAvg", 0.9, 3), ("FedYogi", 0.1, 2))
    }
    found = ranked(given)
    assert found is not None
    ranking, pairs = ranking_tables(found)
    assert [as_cell(row[0]).body for row in ranking.rows] == found.ranking.order
    assert [as_cell(row[0]).note for row in ranking.rows if as_cell(row[0]).note] == ["the one to take"]
    assert found.chosen == "FedAvg"
    assert {as_cell(row[0]).body: as_cell(row[-1]).body for row in pairs.rows} == {
        f"{pair.one}, {pair.other}": "told apart" if pair.apart else "not told apart" for pair in found.ranking.pairs
    }
    assert {pair.apart for pair in found.ranking.pairs} == {True, False}
    assert pairs.csv.count("\n") == 1 + len(found.ranking.pairs)
    assert ranking_tables(found._replace(ranking=found.ranking._replace(pairs=[]))) == []


def test_the_page_says_for_whom_of_the_scheme_to_take_alone(tmp_path: Path) -> None:
    """Every office stands there with its interval and verdict, also one whose rows are too few."""
    parties = [
        PartyVerdict(0, "north", 90, "gains", Ends(0.1, 0.05, 0.15, 0.02), together=0.9, alone=0.8),
        PartyVerdict(1, "south", 9, "too few to say"),
    ]
    asked = Asked("FedAvg", "accuracy", "accuracy", party="office")
    entries = []
    for name, value, wobble in (("scaffold", 0.91, 2), ("fedavg", 0.9, 3)):
        answer = Answer(asked, "yes", [1], ["rows"], 99, 200, True, value, 0.8, None, None, None, parties)
        cost = {"bytes_up": 1.0 + (name == "scaffold"), "bytes_down": 1.0, "bytes_peer": 0.0, "seconds": 1.0}
        subjects = []
        for seed in SEEDS:
            told = answer._replace(together=value + 0.01 * (seed % wobble))
            one = summary(value, algorithm=name, cost=cost, seed=seed, answer=told.plain())
            subjects.append(SimpleNamespace(summary=one, folder=RunFolder(tmp_path)))
        entries.append(
            SimpleNamespace(
                label=name,
                key=name,
                summary={"answer": {"text": name, **answer.plain()}, "cost": {"seconds": 1.0}, "cpu": {"cores": 2}},
                subjects=subjects,
            )
        )
    blocks: Any = answer_blocks(entries)  # type: ignore[arg-type]
    tables = {block.id: block for block in blocks if block.kind == "table"}
    assert list(tables) == ["ranking", "pairs", "fedavg-answer"]
    assert "fedavg</b>, the one to take. fedavg" in blocks[0].body
    assert "Take fedavg, which cannot be told apart from scaffold" in blocks[1].body
    rows = [[as_cell(cell).body for cell in row] for row in tables["fedavg-answer"].rows]
    assert [(row[0], row[-1]) for row in rows] == [("north", "gains"), ("south", "too few to say")]
    assert as_cell(tables["fedavg-answer"].rows[0][4]).note == "+0.050 to +0.150"


def ranked_by_test_rows(folder: Path, stream: np.random.Generator, rows: int = 150) -> tuple[bool, bool]:
    """Whether two equally good schemes are told apart, with the error of the test rows that five seeds share, and without.

    Each scheme has rows that suit it, the same in every seed; over all possible rows both are right equally often. Rounds
    are judged on validation rows, other ones in each seed.
    """
    suits = {name: 1 / (1 + np.exp(-(1 + 4 * stream.normal(size=rows)))) for name in ("one", "other")}
    given: dict[str, dict[int, dict[str, Any]]] = {}
    folders = {}
    for name, chance in suits.items():
        for seed in SEEDS:
            hits = (stream.random(rows) < chance).astype(float)
            value = {"name": "accuracy", "value": hits.mean(), "test_rows": rows}
            run = RunFolder(folder / name / str(seed))
            run.path.mkdir(parents=True, exist_ok=True)
            arrays = {"score": hits[:20], "weight": np.ones(20), "test-score": hits, "test-weight": np.ones(rows)}
            run.save_arrays(JUDGED, arrays)
            test = {"metric": value, "judged_on": "all"}
            more = {"metric": {**value, "value": 0.5}, "per_client": [{"client": 0}], "test": test}
            given.setdefault(name, {})[seed] = summary(0.5, f"validation {seed}", **more)
            folders[name, seed] = run
    found = ranked(given, lambda name, seed: resampled(folders[name, seed], given[name][seed]))
    blind = ranked(given)
    assert found is not None
    assert blind is not None
    assert found.ranking.pairs[0].shared
    return found.ranking.pairs[0].apart, blind.ranking.pairs[0].apart


@pytest.mark.slow
def test_equal_schemes_on_shared_test_rows_are_told_apart_by_chance_alone(tmp_path: Path) -> None:
    """200 comparisons without a difference: at most 5% and its noise tell the schemes apart; without the rows' error far more do."""
    stream = np.random.default_rng(6)
    told = np.array([ranked_by_test_rows(tmp_path / "runs", stream) for _ in range(200)])
    most = 10 + 2 * (200 * 0.05 * 0.95) ** 0.5
    assert told[:, 0].sum() <= most
    assert told[:, 1].sum() > 2 * most


def test_a_run_judged_on_validation_rows_keeps_its_test_rows(tmp_path: Path) -> None:
    """Two seeds draw other validation rows and share their test rows; the figure of these is that of the rows that are kept."""
    stream = np.random.default_rng(1)
    x = stream.normal(size=(400, 3))
    y = (x[:, 0] + stream.normal(size=400) > 0).astype(int)
    given = Experiment.of(
        data={"x_train": x[:250], "y_train": y[:250], "x_test": x[250:], "y_test": y[250:]},
        partition={"name": "iid", "clients": 2},
        rounds=2,
        model="logistic",
        evaluation={"on": "validation", "metric": "macro_f1"},
        seeds=[1, 2],
        engine={"name": "loop"},
    )
    done = run(given, out=tmp_path / "run", baselines=False)
    each = [RunFolder(done.path / f"seed-{seed}") for seed in (1, 2)]
    found = [one.summary() for one in each]
    assert len({one["judged_on"] for one in found}) == 2
    assert len({one["test"]["judged_on"] for one in found}) == 1
    for folder, one in zip(each, found, strict=True):
        drawn = resampled(folder, one)
        assert drawn is not None
        assert drawn.rows == 150
        assert drawn.values[0] == pytest.approx(one["test"]["metric"]["value"], abs=1e-6)
