"""``engine.cluster``: no part of any hash, and one sentence for what the nodes of a cluster cannot do."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from fedatlas import Experiment, resume, run
from fedatlas.config import read
from fedatlas.config.parties import VERTICAL
from fedatlas.deployment.plain_refusals import of_rows
from fedatlas.errors import ConfigError
from fedatlas.runs.baselines import baseline_config
from fedatlas.runs.run_key import described, keys, written
from fedatlas.setup import refusals
from fedatlas.setup.refusals import checked
from fedatlas.study.levels import check_key

AT = "10.0.0.5:6379"
MASKED = [f"engine.cluster={AT}", "privacy.secagg={}"]


@pytest.fixture
def ray_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: object())


def test_it_enters_no_hash_and_no_key() -> None:
    without, there = read(None), read(None, [f"engine.cluster={AT}"])
    assert there.engine.cluster == AT
    assert there.hash() == without.hash()
    assert "cluster" not in without.plain()["engine"]
    base = {"rounds": 2, "partition": {"name": "iid", "clients": 3}}
    plain = [described({**base, "engine": engine}).plain for engine in ({}, {"cluster": AT})]
    assert keys(plain[0], {}) == keys(plain[1], {})
    assert "cluster" not in written({**base, "engine": {"cluster": AT}}, 1)["engine"], "a run of a study stays whole"


def test_an_empty_address_is_this_machine() -> None:
    assert read(None, ["engine.cluster="]).engine.cluster is None


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            ["engine.name=loop"],
            "the loop trains one client after another in one process; remove the key or engine.name",
        ),
        (["engine.plan=stacked"], "one process trains the stack; remove the key or engine.plan"),
        (["engine.device=cuda"], "the nodes of a cluster train on processors; remove the key or engine.device"),
        ([f"partition.name={VERTICAL}", "algorithm.name=secureboost"], "engine.cluster"),
    ],
)
def test_what_it_does_not_go_with(overrides: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(None, [f"engine.cluster={AT}", *overrides])
    assert sentence in str(caught.value)


@pytest.mark.usefixtures("ray_is_there")
def test_keys_stay_in_one_process() -> None:
    with pytest.raises(ConfigError, match="the keys of 'secagg' stay in one process; remove the key"):
        checked(read(None, MASKED))
    study = written(read(None, MASKED).plain(), 1)
    assert not described(study).refused, "in a study such a run is whole, on one node"


@pytest.mark.usefixtures("ray_is_there")
def test_a_network_handed_over_in_python_is_on_no_node() -> None:
    with pytest.raises(ConfigError, match="nodes build the network from the configuration"):
        checked(read(None, [f"engine.cluster={AT}"]), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def test_without_ray_it_is_refused_before_any_data_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Ray, which is not installed: pip install \"fedatlas\[cluster\]\""):
        checked(read(None, [f"engine.cluster={AT}"]))


def test_real_parties_and_levels_of_a_study_have_no_cluster() -> None:
    assert any("engine.cluster" in why for why in of_rows({"engine": {"cluster": AT}}))
    with pytest.raises(ConfigError, match="--cluster ADDRESS"):
        check_key("engine.cluster")


def test_the_pooled_baseline_trains_here() -> None:
    """It has one client, the union of all; each client alone is dealt like the run itself."""
    config = read(None, [f"engine.cluster={AT}"])
    assert baseline_config(config, "centralised", 2).engine.cluster is None
    assert baseline_config(config, "local_only", 2).engine.cluster == AT


def test_a_run_is_continued_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record names the cluster until it is continued elsewhere; the number of rounds may stay."""
    whole = run(Experiment.of(rounds=2), out=tmp_path / "whole", baselines=False)
    begun = run(Experiment.of(rounds=1), out=tmp_path / "run", baselines=False).path
    for path in (begun / "config.toml",):
        path.write_text(path.read_text().replace("[engine]", f'[engine]\ncluster = "{AT}"'))
    monkeypatch.setattr(refusals, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs Ray"):
        resume(begun, ["rounds=2"], baselines=False)
    done = resume(begun, ["engine.cluster=", "rounds=2"], baselines=False)
    assert done.summary["sha256"] == whole.summary["sha256"]
    assert read(begun / "config.toml").engine.cluster is None
    with pytest.raises(ConfigError, match=r"only rounds=N and engine.cluster=ADDRESS may change"):
        resume(begun, ["local.lr=1"], baselines=False)
