"""Federations and finished runs as scikit-learn estimators: its own checks, owners, and the predictions of ``fedatlas predict``."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

from fedatlas import ConfigError, Experiment, FederatedClassifier, FederatedRegressor, predict, run

FAST = {"engine": {"name": "loop"}}
SET = {**FAST, "local": {"momentum": 0.5}}
EXPECTED_FAILED = {FederatedClassifier: {}, FederatedRegressor: {}}
"""Estimator -> scikit-learn's checks that it does not pass, each with the reason."""


def rows(n: int = 120) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Rows with texts and numbers, their classes, and their owners."""
    rng = np.random.default_rng(3)
    x = pd.DataFrame(
        {"age": rng.normal(40, 9, n), "job": rng.choice(["nurse", "clerk"], n), "pay": rng.normal(2, 1, n)}
    )
    y = np.where((x["age"] - 40) / 9 + 2 * (x["job"] == "nurse") > 1, "ill", "healthy")
    return x, y, rng.choice(["A", "B", "C"], n)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPECTED_FAILED)
@pytest.mark.filterwarnings("ignore")
def test_all_checks_of_scikit_learn_pass_but_those_listed(kind):
    expected = EXPECTED_FAILED[kind]
    found = check_estimator(kind(), expected_failed_checks=expected, on_fail=None)
    assert [one["check_name"] for one in found if one["status"] == "failed"] == []
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == expected.keys()
    assert len(found) > 50


@pytest.mark.parametrize("kind", [FederatedClassifier, FederatedRegressor])
def test_parameters_survive_clone_and_the_model_survives_pickle(kind):
    x, y, owner = rows()
    target = y if kind is FederatedClassifier else x["age"].to_numpy() + 3
    model = kind(rounds=2, random_state=4, settings=FAST)
    assert clone(model).get_params() == model.get_params()
    with pytest.raises(AttributeError, match="not fitted"):
        model.predict(x)
    model.fit(x, target, groups=owner)
    again = pickle.loads(pickle.dumps(model))  # noqa: S301  (our own)
    assert np.array_equal(again.predict(x), model.predict(x))
    assert np.array_equal(clone(model).fit(x, target, groups=owner).predict(x), model.predict(x)), "by random_state"
    assert (model.n_features_in_, model.n_clients_, model.n_iter_) == (3, 3, 2)
    assert list(model.feature_names_in_) == ["age", "job", "pay"]


def test_fit_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    x, y, _ = rows()
    FederatedClassifier(rounds=1, settings=FAST).fit(x, y)
    assert {*tmp_path.rglob("*")} == {tmp_path / "temporary", tmp_path / "work"}


def test_it_is_the_run_of_the_same_experiment(tmp_path):
    """Owners are clients, the seed follows from ``random_state``: an experiment with these keys predicts the same."""
    x, y, owner = rows()
    model = FederatedClassifier(model="logistic", rounds=3, lr=0.2, random_state=7, settings=SET).fit(x, y, owner)
    assert model.get_params()["settings"] is SET
    seed = int(np.random.RandomState(7).randint(np.iinfo(np.int32).max))
    experiment = Experiment.of(
        data=x.assign(y=y, owner=owner),
        test=x.assign(y=y, owner=owner)[:50],
        label="y",
        client="owner",
        seed=seed,
        rounds=3,
        model={"name": "logistic"},
        local={"lr": 0.2, "momentum": 0.5},
        engine={"name": "loop", "precision": "float64"},
    )
    done = run(experiment, out=tmp_path / "run", baselines=False)
    own = done.estimator()
    assert list(own.classes_) == list(model.classes_) == ["healthy", "ill"]
    assert np.array_equal(model.predict_proba(x), own.predict_proba(x))
    assert model.score(x, y) > 0.8


def test_rows_without_owners_are_dealt_to_clients():
    x, y, _ = rows()
    few = FederatedClassifier(rounds=1, clients=4, settings=FAST, random_state=0).fit(x, y)
    assert few.n_clients_ == 4
    assert FederatedClassifier(rounds=1, settings=FAST).fit(x[:3], np.array([0, 1, 1])).n_clients_ == 3


def test_it_serves_in_a_pipeline_and_in_cross_validation():
    x, y, owner = rows()
    numbers = x[["age", "pay"]].to_numpy()
    model = make_pipeline(StandardScaler(), FederatedClassifier(rounds=1, settings=FAST, random_state=0))
    scores = cross_val_score(model, numbers, y, groups=owner, cv=GroupKFold(3))
    assert len(scores) == 3


def test_holes_and_a_network_and_further_tables():
    x, y, owner = rows()
    x.loc[::9, "age"] = np.nan
    network = nn.Sequential(nn.Linear(5, 2))  # age, age missing, two jobs, pay
    model = FederatedClassifier(model=network, rounds=1, missing="median", random_state=0, settings=FAST)
    assert len(model.fit(x, y, owner).predict(x)) == len(x)
    with pytest.raises(ConfigError, match="no model of all clients"):
        FederatedClassifier(algorithm="fedmd", rounds=1, settings={**FAST, "public": {"rows": 10}}).fit(x.fillna(0), y)


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_a_finished_run_as_an_estimator_predicts_what_predict_does(tmp_path, target):
    x, y, owner = rows()
    data = x.assign(born=pd.Timestamp("2020-01-01"), site=owner, y=y if target == "classes" else 10 * x["age"] + 1)
    keys = {"label": "y", "client": "site", "drop": ["born"]}
    done = run(Experiment.of(data=data, rounds=2, **keys, **FAST), out=tmp_path / "run", baselines=False)
    own = done.estimator()
    wanted = predict(done.path, data)
    (tmp_path / "run").rename(tmp_path / "gone")
    own = pickle.loads(pickle.dumps(own))  # noqa: S301  (our own)
    assert own.predict(data).tolist() == wanted["prediction"].tolist()
    if target == "classes":
        assert np.array_equal(own.predict_proba(data), wanted[["p_healthy", "p_ill"]].to_numpy())
    assert own.score(data, data["y"]) <= 1
    assert own.n_features_in_ == 3
    assert list(own.feature_names_in_) == ["age", "job", "pay"]
    assert own.fit(data) is own
    assert repr(own) == f"Fitted{'Classifier' if target == 'classes' else 'Regressor'}(trained=<fedavg, 2 rounds>)"


@pytest.mark.parametrize(
    ("of", "kind"),
    [(int, "i"), (bool, "b"), (lambda hit: np.where(hit, 12, 3), "i"), (lambda hit: np.where(hit, 0.5, 1.5), "O")],
)
def test_a_finished_run_as_an_estimator_keeps_the_kind_of_the_classes(tmp_path, of, kind):
    x, y, owner = rows()
    data = x.assign(y=of(y == "ill") if not isinstance(of, type) else (y == "ill").astype(of), site=owner)
    task = {"task": "classes"}
    done = run(
        Experiment.of(data=data, label="y", client="site", rounds=2, **task, **FAST),
        out=tmp_path / "r",
        baselines=False,
    )
    own = done.estimator()
    assert own.classes_.tolist() == sorted({*(data["y"] if kind != "O" else data["y"].astype(str))})
    assert own.predict(data).dtype.kind == own.classes_.dtype.kind == kind
    share = (own.predict(data).astype(str) == data["y"].to_numpy().astype(str)).mean()
    assert own.score(data, data["y"]) == pytest.approx(share)
    assert own.score(data, data["y"].astype(str)) == pytest.approx(share), "as texts, too"


def test_owners_reach_fit_in_cross_validation_as_parameters():
    """scikit-learn gives ``groups=`` to the splitter alone: `owners_` tells one from the other."""
    x, y, owner = rows()
    model = FederatedClassifier(rounds=1, settings=FAST, random_state=0)
    kept = cross_validate(model, x, y, params={"groups": owner}, return_estimator=True, cv=2)["estimator"]
    assert [(one.n_clients_, list(one.owners_)) for one in kept] == [(3, ["A", "B", "C"])] * 2
    dealt = cross_validate(model, x, y, groups=owner, return_estimator=True, cv=GroupKFold(2))["estimator"]
    assert [(one.n_clients_, one.owners_) for one in dealt] == [(5, None)] * 2


def test_an_algorithm_without_a_common_model_is_refused_in_words_of_the_estimator():
    x, y, owner = rows()
    with pytest.raises(ConfigError) as error:
        FederatedClassifier(algorithm="local_only", rounds=1, settings=FAST).fit(x, y, groups=owner)
    assert str(error.value).startswith("'local_only' gives no model of all clients, and FederatedClassifier keeps one")
    assert tempfile.gettempdir() not in str(error.value)


def test_a_run_without_a_common_model_is_no_estimator(tmp_path):
    x, y, owner = rows()
    keys = {"label": "y", "client": "site", "public": {"rows": 10}, "algorithm": {"name": "fedmd"}}
    done = run(
        Experiment.of(data=x.assign(site=owner, y=y), rounds=1, **keys, **FAST), out=tmp_path / "run", baselines=False
    )
    with pytest.raises(ConfigError, match="no model of all clients"):
        done.estimator()
    assert Path(done.path).exists()


def test_settings_may_hold_keys_of_the_data_but_not_those_of_fit():
    x, y, _ = rows()
    model = FederatedClassifier(rounds=1, random_state=0, settings={**FAST, "data": {"scale": "none"}}).fit(x, y)
    assert model.run_.run.preprocess.scale == "none"
    with pytest.raises(ConfigError, match=r"data.label comes from fit"):
        FederatedClassifier(rounds=1, settings={"data": {"label": "z"}}).fit(x, y)
