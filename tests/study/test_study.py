"""STUDY.toml: what it means, what it refuses in one sentence, and that the order of what is written changes nothing."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedatlas.data.cells import Reading, read_as
from fedatlas.errors import ConfigError
from fedatlas.runs import run_key
from fedatlas.runs.run_key import described, keys, written
from fedatlas.setup import refusals, resolution
from fedatlas.study.design import read_study_file, study_of
from fedatlas.study.plan import StudyPlan, plan_of
from fedatlas.study.study_preview import preview

BASE: dict[str, Any] = {"rounds": 2, "data": {"limit": 300}, "partition": {"name": "iid", "clients": 3}}
NODES = {"name": "nodes", "role": "setting", "key": "partition.clients", "levels": [2, 4, 8]}
AVG = {"name": "fedavg", "set": {"algorithm.name": "fedavg"}}
PROX = {"name": "prox", "set": {"algorithm.name": "fedprox", "algorithm.mu": 0.1}}
SCHEME = {"name": "scheme", "role": "choice", "level": [AVG, PROX]}


def plan(**tables: Any) -> StudyPlan:
    return plan_of(study_of({"base": BASE, "factor": [NODES, SCHEME], **tables}, "test", Path()))


def refused(**tables: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(**tables)
    return str(caught.value)


def test_a_grid_has_each_combination_by_each_seed_and_a_baseline_a_setting():
    found = plan(seeds=[1, 2])
    assert len(found.cells) == 6
    assert sorted({job.seed for one in found.cells for job in one.runs}) == [1, 2]
    assert len(found.baselines) == 6
    assert {job.config.algorithm.name for job in found.baselines if job.config} == {"centralised"}
    assert len({job.keys.run_key for job in found.known()}) == 18


@pytest.mark.parametrize(
    "tables", [{"factor": [SCHEME]}, {}, {"alone": True, "tuning": {"keys": {"local.lr": [0.02]}}}]
)
def test_each_configuration_is_resolved_and_checked_once(monkeypatch: pytest.MonkeyPatch, tables: dict[str, Any]):
    """Levels, cells with every seed, and what a baseline is made from mean the same ones over and over."""
    counts: dict[str, Counter[str]] = {"resolve": Counter(), "check": Counter()}

    def counted(name: str, work: Any) -> Any:
        def counting(given: Any, *rest: Any) -> Any:
            made = work(given, *rest)
            counts[name][(made or given).config.hash()] += 1
            return made

        return counting

    for name, work in {"resolve": resolution.resolve, "check": refusals.check}.items():
        for module in [each for path, each in sys.modules.items() if path.startswith("fedatlas.")]:
            if vars(module).get(name) is work:
                monkeypatch.setattr(module, name, counted(name, work))
    found = plan(seeds=[2, 1], **tables)
    for one in found.cells:  # as when rates are picked
        found.picked_runs(one.cell)
    planned = [*found.known(), *(run for one in found.cells for run in one.runs)]
    assert {*counts["resolve"].values()} == {*counts["check"].values()} == {1}
    needed = {run.config.hash() for run in planned if run.config and run.seed != 2}
    assert needed <= counts["resolve"].keys() == counts["check"].keys()  # and a level of one factor beside the base


def test_exclusions_take_cells_away_and_a_share_of_settings_is_held_out():
    found = plan(exclude=[{"scheme": "prox", "nodes": [4, 8]}], design={"holdout": 0.34})
    assert {one.cell.levels for one in found.cells} == {
        (("nodes", "2"), ("scheme", "fedavg")),
        (("nodes", "2"), ("scheme", "prox")),
        (("nodes", "4"), ("scheme", "fedavg")),
        (("nodes", "8"), ("scheme", "fedavg")),
    }
    assert len({one.cell.setting for one in found.cells if one.cell.holdout}) == 1
    assert {job.kind for one in found.cells for job in one.runs} == {"cell", "holdout"}


def test_random_draws_cells_or_whole_settings():
    assert len(plan(design={"name": "random", "cells": 4}).cells) == 4
    whole = plan(design={"name": "random", "settings": 2})
    assert len(whole.cells) == 4
    assert len({one.cell.setting for one in whole.cells}) == 2
    assert plan(design={"name": "random", "cells": 4}) != plan(design={"name": "random", "cells": 4, "seed": 2})


SKEW = {"name": "skew", "role": "setting", "key": "local.batch_size", "levels": [8, 16, 32, 64]}


def test_random_settings_can_be_spread_over_the_levels_of_factors_and_fewer_of_them_are_the_first_ones():
    def settings(number: int, **keys: Any) -> list[dict[str, str]]:
        design = {"name": "random", "settings": number, **keys}
        found = plan(factor=[NODES, SKEW, SCHEME], design=design, exclude=[{"nodes": [2, 4], "skew": 64}])
        return [dict(setting) for setting in dict.fromkeys(one.cell.setting for one in found.cells)]

    eight = settings(8, evenly=["skew"])
    assert sorted(one["skew"] for one in eight[:4]) == ["16", "32", "64", "8"]
    often = Counter(one["skew"] for one in eight)
    assert (often["64"], sorted(often.values())) == (1, [1, 2, 2, 3])  # there is no other with 64
    assert settings(3, evenly=["skew"]) == eight[:3]
    both = settings(4, evenly=["skew", "nodes"])
    assert len({one["skew"] for one in both}) == 4
    assert len({one["nodes"] for one in both}) == 3


@pytest.mark.parametrize("design", [{}, {"name": "random", "cells": 4}, {"name": "random", "settings": 2}])
def test_the_order_of_factors_levels_and_seeds_changes_nothing(design: dict[str, Any]):
    one = plan(design=design, seeds=[1, 2])
    nodes, scheme = {**NODES, "levels": [8, 2, 4]}, {**SCHEME, "level": [PROX, AVG]}
    other = plan(design=design, seeds=[2, 1], factor=[scheme, nodes])
    assert [job[:4] for job in one.known()] == [job[:4] for job in other.known()]


def test_another_component_takes_its_predecessors_keys_away():
    base = {**BASE, "algorithm": {"name": "fedprox", "mu": 0.5}}
    found = {job.levels[1][1]: job.config for one in plan(base=base).cells for job in one.runs}
    assert found["fedavg"]
    assert found["fedavg"].algorithm.parameters() == {"weights": "samples"}
    assert found["prox"]
    assert found["prox"].algorithm.parameters()["mu"] == 0.1


def test_whole_privacy_tables_are_levels_and_their_noise_can_be_repeated():
    dp = {"name": "dp", "set": {"privacy": [{"name": "central_dp", "clip": 1.0}], "algorithm.weights": "uniform"}}
    found = plan(factor=[{**SCHEME, "level": [AVG, dp]}])
    configs = {job.levels[0][1]: job.config for one in found.cells for job in one.runs}
    assert configs["dp"]
    assert configs["dp"].privacy[0].parameters()["noise"] == "seed"
    assert configs["dp"].engine.workers == 1


def test_a_refused_cell_is_planned_with_its_sentence_and_its_keys():
    secret = {"name": "secret", "set": {"privacy": [{"name": "secagg"}]}}
    found = plan(factor=[NODES, {**SCHEME, "level": [AVG, secret]}])
    (job,) = [job for one in found.cells for job in one.runs if job.refused]
    assert dict(job.levels) == {"nodes": "2", "scheme": "secret"}
    assert "fewer than 3" in job.refused
    assert len(job.keys.run_key) == len(job.keys.curve_key) == 64


def test_optional_levels_that_are_not_there_are_left_out_and_said():
    later = {"name": "later", "set": {"algorithm.name": "not_yet"}, "optional": True}
    found = plan(factor=[NODES, {**SCHEME, "level": [AVG, later]}])
    assert len(found.cells) == 3
    assert "'later' is left out" in found.notices[0]


def test_rates_are_tried_in_every_cell_with_a_seed_of_their_own():
    found = plan(tuning={"keys": {"local.lr": [0.02, 0.1]}, "seed": 99})
    trials = [job for one in found.cells for job in one.trials]
    assert len(trials) == 12
    assert {(job.seed, job.config.evaluation.on) for job in trials if job.config} == {(99, "validation")}
    assert {job.config.local.lr for job in trials if job.config} == {0.02, 0.1}
    assert {job.config.evaluation.every for job in trials if job.config} == {BASE["rounds"]}  # its end alone decides
    assert {job.kind for job in found.known()} == {"baseline", "tuning"}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"factr": []}, "did you mean 'factor'?"),
        ({"factor": [{**NODES, "key": "partition.cleints"}, SCHEME]}, "did you mean 'partition.clients'?"),
        ({"factor": [{**NODES, "key": "local.lrr"}, SCHEME]}, "did you mean 'local.lr'?"),
        ({"factor": [{**NODES, "key": "engine.workers"}, SCHEME]}, "cannot be varied"),
        (
            {"factor": [NODES, {**SCHEME, "level": [{"name": "a", "set": {"algorithm.name": "fedavgg"}}]}]},
            "did you mean",
        ),
        (
            {"factor": [NODES, {**SCHEME, "level": [AVG, {"name": "same", "set": {"local.epochs": 1}}]}]},
            "give the same experiment",
        ),
        ({"factor": [NODES, {**SCHEME, "level": [AVG, AVG]}]}, "occurs twice"),
        (
            {"factor": [NODES, {**NODES, "name": "more"}, SCHEME]},
            "key 'partition.clients' is set by both factor 'nodes' and",
        ),
        ({"factor": [NODES]}, "no choice"),
        ({"exclude": [{"scheme": ["fedavg", "prox"]}]}, "no cell is left"),
        ({"exclude": [{"scheme": "proxx"}]}, "did you mean 'prox'?"),
        ({"design": {"name": "random", "settings": 2, "evenly": ["node"]}}, "did you mean 'nodes'?"),
        ({"design": {"name": "random", "cells": 2, "evenly": ["nodes"]}}, "give design.settings"),
        ({"exclude": [{"schem": "prox"}]}, "did you mean 'scheme'?"),
        ({"seeds": [1, 1]}, "seeds: give a list of different"),
        ({"tuning": {"keys": {"partition.clients": [2]}}}, "is set by both [tuning] and factor 'nodes'"),
        ({"tuning": {"keys": {"local.lr": []}}}, "a list of different values"),
        ({"tuning": {"keys": {"local.lr": [0.1]}, "seed": 1}}, "not among seeds"),
        ({"design": {"name": "random"}}, "give one of the two"),
        ({"design": {"name": "random", "cells": 7}}, "only 6 are allowed"),
        ({"design": {"name": "sobol"}}, "'grid' or 'random'"),
        ({"factor": [{**NODES, "name": "accuracy"}, SCHEME]}, "a column of the table has this name"),
        ({"factor": [{**NODES, "levels": []}, SCHEME]}, "give either levels"),
    ],
)
def test_wrong_input_is_one_sentence(tables: dict[str, Any], said: str):
    message = refused(**tables)
    assert said in message
    assert "\n" not in message


def test_a_base_file_lies_beside_the_study(tmp_path: Path):
    (tmp_path / "base.toml").write_text('rounds = 3\nseed = 7\n[partition]\nname = "iid"\n')
    text = 'base = "base.toml"\n[[factor]]\nname = "lr"\nrole = "choice"\nkey = "local.lr"\nlevels = [0.1, 0.2]\n'
    (tmp_path / "study.toml").write_text(text)
    found = plan_of(read_study_file(tmp_path / "study.toml"))
    assert {job.config.rounds for one in found.cells for job in one.runs if job.config} == {3}
    with pytest.raises(ConfigError, match="there is no study file"):
        read_study_file(tmp_path / "other.toml")


def key_of(values: dict[str, Any], data: dict[str, str] | None = None) -> run_key.RunKeys:
    return keys(described(written(values, 1)).plain, data or {})


def test_a_run_is_known_by_what_decides_its_result_alone():
    """Defaults written or not, and how fast it is made, make no other run; length, seed, content of the data and a result's number do."""
    same = key_of(BASE)
    assert key_of({**BASE, "local": {"lr": 0.05, "epochs": 1}}) == same
    assert key_of({**BASE, "engine": {"memory": "1GiB", "state_memory": "1GiB", "workers": 2}}) == same
    assert key_of({**BASE, "checkpoint": {"every": 3}}) == same
    longer = key_of({**BASE, "rounds": 5})
    assert longer.run_key != same.run_key
    assert longer.curve_key == same.curve_key
    cosine = [key_of({**BASE, "rounds": n, "local": {"schedule": {"name": "cosine"}}}).curve_key for n in (2, 5)]
    assert cosine[0] != cosine[1]
    assert key_of(BASE, {"a": "1"}) != key_of(BASE, {"a": "2"})
    assert key_of({**BASE, "engine": {"precision": "float64"}}) != same
    assert keys(described(written(BASE, 2)).plain, {}).curve_key != same.curve_key


def test_results_of_another_program_are_not_reused(monkeypatch: pytest.MonkeyPatch):
    before = key_of(BASE)
    monkeypatch.setattr(run_key, "RESULTS", run_key.RESULTS + 1)
    assert key_of(BASE).run_key != before.run_key


def test_runs_on_own_files_of_other_reading_rules_are_not_reused(tmp_path: Path):
    """Of registered tables and of pictures that come with a package all rules read the same: their runs stay."""
    file = tmp_path / "rows.csv"
    file.write_text("x,y\n" + "1,0\n2,1\n" * 20)
    own = {**BASE, "data": {"name": "file", "path": str(file), "label": "y"}}
    tested = {**BASE, "data": {"name": "breast_cancer_wdbc", "test": str(file)}}
    for values, same in ((own, False), (tested, False), (BASE, True)):
        with read_as(Reading(1)):
            before = key_of(values)
        after = key_of(values)
        assert (after.run_key == before.run_key, after.curve_key == before.curve_key) == (same, same)


def test_a_file_is_hashed_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "rows.csv"
    file.write_text("x,y\n" + "1,0\n2,1\n" * 20)
    values = {**BASE, "data": {"name": "file", "path": str(file), "label": "y"}}
    found = described(written(values, 1)).checked
    assert found is not None
    config = found.config
    before = run_key.data_hashes(config)
    assert run_key.data_hashes(config) == before
    file.write_text("x,y\n" + "1,0\n3,1\n" * 21)
    after = run_key.data_hashes(config)
    assert list(run_key.changed(before, after)) == [f"{tmp_path.name}/rows.csv"]


def test_a_dry_run_says_cells_refusals_and_hours():
    secret = {"name": "secret", "set": {"privacy": [{"name": "secagg"}]}}
    too_even = {"name": "majority", "set": {"partition.name": "majority_even"}}
    choices = {**SCHEME, "level": [AVG, secret, too_even]}
    found = preview(plan(factor=[{**NODES, "levels": [2, 4]}, choices], seeds=[1, 2]))
    assert (found["cells"], found["settings"]) == (6, 2)
    said = {tuple(sorted(one["levels"].items())): one["reason"] for one in found["refused"]}
    assert len(said) == 3  # secagg of two, and a partition that its data refuse
    assert "needs at least 10" in said[("nodes", "4"), ("scheme", "majority")]
    assert found["runs_by_kind"]["cell"] == 6
    assert found["hours"] > 0
