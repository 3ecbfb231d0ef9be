"""Whose model predicts: not another run's, and not the common one without a word where clients have their own."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedatlas
from fedatlas import Experiment
from fedatlas.api import resume, run
from fedatlas.errors import ConfigError

FEW: dict[str, Any] = {"rounds": 1, "partition": {"name": "iid", "clients": 3}, "data": {"limit": 150}}
ROWS = np.linspace(0, 1, 5 * 64, dtype=np.float32).reshape(5, 1, 8, 8)


def ran(path: Path, **tables: Any) -> Path:
    return run(Experiment.of(**{**FEW, **tables}), out=path, baselines=False).path


def forget_sha256(path: Path) -> None:
    """Makes it a run of before its models' SHA-256 was recorded."""
    summary = json.loads((path / "summary.json").read_text())
    del summary["sha256"]
    (path / "summary.json").write_text(json.dumps(summary))


def test_another_runs_model_of_the_same_shape_is_refused(tmp_path: Path) -> None:
    mine, other = ran(tmp_path / "mine"), ran(tmp_path / "other", seed=2)
    before = fedatlas.predict(mine, ROWS)
    shutil.copy(other / "model.safetensors", mine)
    said = (
        r"model.safetensors' is not the model that this run ended with .* put the original back; 'fedatlas run --resume"
    )
    with pytest.raises(ConfigError, match=said):
        fedatlas.predict(mine, ROWS)
    resume(mine, baselines=False)
    assert fedatlas.predict(mine, ROWS).equals(before)


@pytest.mark.parametrize(
    "tables", [{}, {"algorithm": {"name": "fedma"}}, {"algorithm": {"name": "ifca", "clusters": 2}}]
)
def test_an_older_runs_model_is_known_by_its_checkpoint(tables: dict[str, Any], tmp_path: Path) -> None:
    """Its summary has no SHA-256 of the model. Where the checkpoint is gone, too, nothing says whose model it is, and that is said."""
    mine, other = ran(tmp_path / "mine", **tables), ran(tmp_path / "other", seed=2, **tables)
    named = "cluster-0" if (mine / "model-cluster-0.safetensors").exists() else ""
    file = f"model-{named}.safetensors" if named else "model.safetensors"
    before = fedatlas.load(mine).predict(ROWS, model=named)
    forget_sha256(mine)
    assert fedatlas.load(mine).predict(ROWS, model=named).equals(before)
    shutil.copy(other / file, mine)
    with pytest.raises(ConfigError, match=r"not the model that this run ended with \(its checkpoint holds another\)"):
        fedatlas.load(mine).predict(ROWS, model=named)
    shutil.rmtree(mine / "checkpoint")
    with pytest.warns(UserWarning, match="Cannot check whether .* is the model that this run ended with"):
        fedatlas.load(mine).predict(ROWS, model=named)


def test_one_of_several_models_is_known_too(tmp_path: Path) -> None:
    done = ran(tmp_path / "run", algorithm={"name": "ifca", "clusters": 2})
    shutil.copy(done / "model-cluster-0.safetensors", done / "model-cluster-1.safetensors")
    loaded = fedatlas.load(done)
    assert len(loaded.predict(ROWS, model="cluster-0")) == 5
    with pytest.raises(ConfigError, match=r"model-cluster-1.safetensors' is not the model that this run ended with"):
        loaded.predict(ROWS, model="cluster-1")


@pytest.mark.parametrize(
    ("other", "tensor"),
    [
        ({"model": {"hidden": [9, 7]}}, "body.3.bias"),  # a layer more
        ({"model": {"name": "logistic"}}, "body.1.bias"),
        ({"data": {"name": "synthetic", "users": 3}}, "body.1.weight"),  # other inputs
    ],
)
def test_another_network_is_one_sentence_in_older_runs(other: dict[str, Any], tensor: str, tmp_path: Path) -> None:
    mine, foreign = ran(tmp_path / "mine"), ran(tmp_path / "other", **other)
    shutil.copy(foreign / "model.safetensors", mine)
    forget_sha256(mine)
    said = rf"model.safetensors' holds the weights of a network other than this run's \(see '{tensor}'\)"
    with pytest.raises(ConfigError, match=said):
        fedatlas.predict(mine, ROWS)


def test_another_network_of_ones_own_is_one_sentence(tmp_path: Path) -> None:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))
    path = run(Experiment.of(made, **FEW), out=tmp_path / "run", baselines=False).path
    assert len(fedatlas.predict(path, ROWS, made)) == 5
    with pytest.raises(ConfigError, match=r"\(see '3.bias'\): pass the network that the run had as module"):
        fedatlas.predict(path, ROWS, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


@pytest.mark.parametrize("name", ["ditto", "gossip"])
def test_the_common_model_of_a_personal_method_is_named(name: str, tmp_path: Path) -> None:
    loaded = fedatlas.load(ran(tmp_path / "run", algorithm={"name": name}, partition={"name": "iid", "clients": 4}))
    with pytest.warns(UserWarning, match=rf"personal models or those of their group \({name}\).* by the common one"):
        common = loaded.predict(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = loaded.predict(ROWS, client=0)
    assert loaded.model is not None
    p = torch.softmax(loaded.model(torch.from_numpy(ROWS)).double(), 1)
    assert np.allclose(common.filter(like="p_").to_numpy(), p.detach().numpy(), atol=1e-12)
    assert not own.equals(common)


def test_nothing_is_said_where_all_share_a_model(tmp_path: Path) -> None:
    path = ran(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(fedatlas.predict(path, ROWS)) == 5


def test_kept_columns_are_copied_before_marks_and_dates(tmp_path: Path) -> None:
    """A cell that ``na`` names, and a date, stand before the predictions as they stand in the file."""
    lines = [f"{i % 9},{1 + i % 28:02d}.03.2021,{'ab'[i % 2]}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,day,y", *lines, ""]))
    data = {"name": "file", "path": str(tmp_path / "t.csv"), "label": "y", "dates": {"day": "%d.%m.%Y"}, "na": ["8"]}
    experiment = Experiment.of(
        data={**data, "missing": "median"},
        partition={"name": "iid", "clients": 2},
        rounds=1,
        model={"name": "logistic"},
    )
    done = run(experiment, out=tmp_path / "run", baselines=False)
    table = fedatlas.load(done.path).predict(tmp_path / "t.csv", keep=("a", "day"))
    assert table["a"].tolist()[:9] == [str(i) for i in range(9)]
    assert table["day"].tolist()[:2] == ["01.03.2021", "02.03.2021"]
    del table["a"], table["day"]
    assert table.equals(fedatlas.load(done.path).predict(tmp_path / "t.csv"))
