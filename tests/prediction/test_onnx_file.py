"""`fedatlas export RUN --onnx FILE`: the file predicts as `predict` does, from the same raw rows, in another program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from fedatlas import ConfigError, Experiment, load, run
from fedatlas.cli import app
from fedatlas.prediction import onnx_file

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def runtime() -> Any:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="the extra 'onnx' is not installed")
    return pytest.importorskip("onnxruntime", reason="it runs the files; only tests need it")


def answers(runtime: Any, file: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, inputs), strict=True))


def columns_of(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """A table as the file wants it: a matrix of one column each, text or float32."""
    out = {}
    for name in frame.columns:
        text = frame[name].dtype == object or str(frame[name].dtype) in {"str", "string"}
        out[name] = (
            frame[name].fillna("").to_numpy(dtype=object)[:, None]
            if text
            else frame[name].to_numpy(np.float32, na_value=np.nan)[:, None]
        )
    return out


def messy(n: int, seed: int) -> pd.DataFrame:
    """Numbers of several sizes, categories, and holes in both."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": draw.integers(18, 90, n).astype(float),
            "income": np.round(np.exp(draw.normal(10, 1, n)), 2),
            "job": draw.choice(["clerk", "baker", "smith"], n),
            "town": draw.choice(["Wien", "Linz"], n),
        }
    )
    frame["y"] = np.where(frame["age"] + draw.normal(0, 20, n) > 50, "yes", "no")
    frame["pay"] = np.round(frame["income"] * 0.1 + draw.normal(0, 50, n), 2)
    frame.loc[draw.random(n) < 0.1, "age"] = np.nan
    frame.loc[draw.random(n) < 0.1, "job"] = None
    return frame


def of_table(folder: Path, label: str, drop: str, missing: str, scale: str = "auto", **more: Any) -> Any:
    file = folder / "rows.csv"
    messy(300, 0).to_csv(file, index=False)
    data = {"name": "file", "path": str(file), "label": label, "drop": [drop], "missing": missing, "scale": scale}
    tables: dict[str, Any] = {
        "rounds": 2,
        "data": data,
        "partition": {"name": "iid", "clients": 3},
        "model": {"hidden": [8]},
        "engine": {"workers": 1, "plan": "tuned"},
        **more,
    }
    return run(Experiment.of(**tables), out=folder / "run", baselines=False)


@pytest.mark.filterwarnings("ignore:column 'job'")
def test_classes_from_a_table_with_holes_and_categories(runtime: Any, tmp_path: Path):
    done = of_table(tmp_path, "y", "pay", "median")
    file = tmp_path / "model.onnx"
    said = CliRunner().invoke(app, ["export", str(done.path), "--onnx", str(file)], catch_exceptions=False)
    assert said.exit_code == 0
    rows = messy(500, 1).drop(columns=["y", "pay"])
    rows.loc[:4, "job"] = "pilot"  # a category that training lacked
    rows.loc[5:8, "town"] = ["NA", "NaN", "null", ""]
    rows.loc[9, "income"] = np.inf
    with pytest.warns(UserWarning, match="predictions are empty|no training client had"):
        wanted = load(done.path).predict(rows, holes="empty")
    found = answers(runtime, file, columns_of(rows))
    assert found["prediction"].tolist() == wanted["prediction"].fillna("").tolist()
    p = wanted[["p_no", "p_yes"]].to_numpy(float)
    assert np.isnan(p).all(1).sum() == 1
    np.testing.assert_allclose(found["probabilities"], p, atol=TOLERANCE, rtol=0)


def test_numbers_and_rows_that_predict_would_refuse(runtime: Any, tmp_path: Path):
    done = of_table(tmp_path, "pay", "y", "drop")
    file = onnx_file.export_onnx(load(done.path), tmp_path / "model.onnx")
    rows = messy(500, 2).drop(columns=["y", "pay"])
    with pytest.warns(UserWarning, match="predictions are empty"):
        wanted = load(done.path).predict(rows, holes="empty")["prediction"].to_numpy(float)
    found = answers(runtime, file, columns_of(rows))["prediction"]
    assert np.isnan(wanted).sum() > 50
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE)


@pytest.mark.parametrize(
    ("model", "precision"),
    [
        pytest.param({"name": "cnn1"}, "float32", marks=pytest.mark.slow),
        ({"name": "mlp", "hidden": [8], "norm": "batch"}, "float64"),
    ],
)
def test_pictures_go_in_as_they_are_stored(runtime: Any, model: dict[str, Any], precision: str, tmp_path: Path):
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 256, (200, 28, 28), dtype=np.uint8), draw.integers(0, 3, 200)
    x[y == 1, :9] //= 4
    np.savez(tmp_path / "rows.npz", x_train=x, y_train=y)
    tables: dict[str, Any] = {
        "rounds": 1,
        "data": {"name": "file", "path": str(tmp_path / "rows.npz"), "scale": "federated"},
        "partition": {"name": "iid", "clients": 2},
        "model": model,
        "engine": {"workers": 1, "plan": "tuned", "precision": precision},
    }
    done = run(Experiment.of(**tables), out=tmp_path / "run", baselines=False)
    loaded = load(done.path)
    file = onnx_file.export_onnx(loaded, tmp_path / "model.onnx")
    stored = torch.from_numpy(x).reshape(-1, *loaded.preprocess.shape)
    wanted = loaded.predict(stored)
    found = answers(runtime, file, {"image": stored.numpy().astype(np.float32)})
    assert found["prediction"].tolist() == wanted["prediction"].astype(str).tolist()
    p = wanted[[f"p_{name}" for name in loaded.preprocess.class_names]].to_numpy(float)
    np.testing.assert_allclose(found["probabilities"], p, atol=TOLERANCE, rtol=0)


def test_one_score_for_two_classes_and_a_clients_own_scale(runtime: Any, tmp_path: Path):
    model = {"name": "logistic", "loss": "hinge"}
    done = of_table(tmp_path, "y", "pay", "median", "client", model=model)
    loaded = load(done.path)
    assert loaded.loss.width() == 1
    file = onnx_file.export_onnx(loaded, tmp_path / "model.onnx", client=1)
    rows = messy(100, 3).drop(columns=["y", "pay"])
    wanted = loaded.predict(rows, client=1)
    found = answers(runtime, file, columns_of(rows))
    assert found["prediction"].tolist() == wanted["prediction"].tolist()
    p = wanted[["p_no", "p_yes"]].to_numpy(float)
    np.testing.assert_allclose(found["probabilities"], p, atol=TOLERANCE, rtol=0)


def test_what_cannot_be_exported_is_said(runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = of_table(tmp_path, "y", "pay", "median")
    loaded = load(done.path)
    texts = loaded._replace(preprocess=loaded.preprocess.__class__(**{**vars(loaded.preprocess), "kind": "tokens"}))
    with pytest.raises(ConfigError, match="models of texts"):
        onnx_file.export_onnx(texts, tmp_path / "model.onnx")
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **more: (_ for _ in ()).throw(ValueError("no such step")))
    with pytest.raises(ConfigError, match="torch cannot export this network: no such step"):
        onnx_file.export_onnx(loaded, tmp_path / "model.onnx")
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ConfigError, match=r'needs onnxscript: pip install "fedatlas\[onnx\]"'):
        onnx_file.export_onnx(loaded, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_run_in_python_writes_the_file(runtime, tmp_path):
    """As a method, and by the function with a path as text."""
    done = run(
        Experiment.of(data=messy(200, 1).drop(columns="pay"), label="y", missing="median", rounds=1, partition="iid"),
        out=tmp_path / "run",
        baselines=False,
    )
    third = load(done.path).export_onnx(tmp_path / "c.onnx")
    files = [
        done.export_onnx(str(tmp_path / "a.onnx")),
        onnx_file.export_onnx(load(done.path), str(tmp_path / "b.onnx")),
    ]
    new = messy(20, 2).drop(columns=["y", "pay"])
    wanted = done.estimator().predict(new).tolist()
    assert [*files, third] == [tmp_path / f"{name}.onnx" for name in "abc"]
    for file in (*files, third):
        assert answers(runtime, file, columns_of(new))["prediction"].tolist() == wanted
