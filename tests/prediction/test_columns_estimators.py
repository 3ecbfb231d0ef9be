"""Parties that hold columns as scikit-learn estimators: the trees of a run, and scikit-learn's own tools on them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import resample

from fedatlas import Experiment, predict, run
from fedatlas.errors import ConfigError, DataError
from fedatlas.estimators.parameters import seed_of
from fedatlas.federation.client_states import PartyState
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.setup.consortium import consortium
from fedatlas.setup.refusals import checked
from fedatlas.vertical import Parties, SecureBoostClassifier, SecureBoostRegressor
from fedatlas.vertical.parties import order, places

N = 300


def tables(seed: int = 0) -> dict[str, pd.DataFrame]:
    """Two tables of the same people in different orders, each with people of its own; a text column and missing cells."""
    stream = np.random.default_rng(seed)
    a, b, noise = stream.normal(size=(3, N))
    city = stream.choice(["Rome", "Oslo", ""], N)
    amount = np.round(2 * a + 2 * b + (city == "Rome") + noise, 3)
    ids = [f"i{k:03}" for k in range(N)]
    b[:30] = np.nan
    bank = pd.DataFrame({"customer": ids, "a": a, "city": city, "amount": amount})[: N - 20]
    shop = pd.DataFrame({"nr": ids, "b": b, "noise": stream.normal(size=N)})
    return {"bank": bank, "shop": shop.sample(frac=1, random_state=1)[10:]}


def given(classes: int = 2) -> tuple[Parties, np.ndarray, np.ndarray]:
    """Return parties, a class of each row, and a number of each row."""
    found = tables()
    amount = found["bank"].set_index("customer")["amount"]
    parties = Parties({**found, "bank": found["bank"].drop(columns="amount")}, on={"bank": "customer", "shop": "nr"})
    number = amount.loc[parties.ids].to_numpy()
    return parties, np.where(number > 0, "yes", "no"), number


@pytest.mark.parametrize("number", [False, True])
def test_the_trees_are_those_of_a_run_bit_for_bit(number: bool, tmp_path: Path) -> None:
    """A run reads files, matches under masks and holds test rows out: on its training rows the estimator grows its trees."""
    found, paths = tables(), {}
    if not number:
        found["bank"] = found["bank"].assign(amount=np.where(found["bank"]["amount"] > 0, "yes", "no"))
    for name, table in found.items():
        paths[name] = str(tmp_path / f"{name}.csv")
        table.to_csv(paths[name], index=False)
    parties = [
        {"name": "bank", "path": paths["bank"], "id": "customer", "label": "amount"},
        {"name": "shop", "path": paths["shop"], "id": "nr"},
    ]
    keys = {"trees": 4, "subsample": 0.8, "columns": 0.7, "complete_secure": 1}
    experiment = Experiment.of(parties=parties, algorithm={"name": "secureboost", **keys}, seed=seed_of(3))
    done = run(experiment, out=tmp_path / "run", baselines=False)
    states = PartyState()
    Checkpoints(tmp_path / "run" / "checkpoint", checked(experiment.config).config.hash()).load(states)
    own = states.get(0)
    assert own is not None
    ids = consortium(checked(experiment.config)).tables[0].ids
    trained_on = {ids[i] for i in order(own)[places(own, "train")]}

    rows, yes_no, numbers = given()
    at = np.flatnonzero([one in trained_on for one in rows.ids])
    assert len(at) == done.summary["rows"]["train"] < len(rows)
    made: Any = (SecureBoostRegressor if number else SecureBoostClassifier)(**keys, random_state=3)
    made.fit(rows.take(at), (numbers if number else yes_no)[at])

    model = json.loads((tmp_path / "run" / "model.json").read_text())
    assert made.run_.parts[0].exported["model"] == model
    for part in made.run_.parts:
        saved = json.loads((tmp_path / "run" / f"model-{part.table.name}.json").read_text())
        assert part.exported["table"]["records"] == saved["records"]
    assert made.importance_ == done.summary["importance"]
    assert any(made.importance_.values())

    told = predict(done.path, {name: paths[name] for name in found}).set_index("customer").loc[rows.ids]
    said = made.predict(rows)
    assert (said == told["prediction"].to_numpy()).all()
    if not number:
        assert (made.predict_proba(rows) == told[["p_no", "p_yes"]].to_numpy()).all()


def test_encryption_changes_no_tree() -> None:
    parties, y, _ = given()
    rows, some = parties.take(range(40)), y[:40]
    clear = SecureBoostClassifier(trees=1, depth=2, bins=8, random_state=0).fit(rows, some)
    key = {"name": "paillier", "key_bits": 2048}
    sealed = SecureBoostClassifier(trees=1, depth=2, bins=8, privacy=key, random_state=0).fit(rows, some)
    assert [one.exported for one in sealed.run_.parts] == [one.exported for one in clear.run_.parts]
    assert sealed.run_.how.encrypted


def test_scikit_learn_s_tools_work_on_parties() -> None:
    parties, y, number = given()
    model = SecureBoostClassifier(trees=4, depth=2, random_state=0)
    scores = cross_val_score(model, parties, y, cv=3)
    assert scores.shape == (3,)
    assert scores.min() > 0.6
    searched = GridSearchCV(model, {"depth": [1, 2], "learning_rate": [0.01, 0.3]}, cv=2).fit(parties, y)
    assert set(searched.best_params_) == {"depth", "learning_rate"}
    assert searched.predict(parties).shape == y.shape
    piped = make_pipeline(FunctionTransformer(lambda rows: rows), model).fit(parties, y)
    assert piped.score(parties, y) == model.fit(parties, y).score(parties, y)
    regressor = SecureBoostRegressor(trees=8, random_state=0)
    assert cross_val_predict(regressor, parties, number, cv=3).shape == number.shape
    assert cross_val_score(regressor, parties, number, cv=3).min() > 0.3


def test_columns_that_matter_are_the_important_ones() -> None:
    parties, y, _ = given()
    before = parties.frame.copy()
    train, test, y_train, y_test = train_test_split(parties, y, random_state=0)
    model = SecureBoostClassifier(trees=8, random_state=0).fit(train, y_train)
    found = permutation_importance(model, test, y_test, n_repeats=5, random_state=0).importances_mean
    by_column = dict(zip(test.columns, found, strict=True))
    assert min(by_column["bank", "a"], by_column["shop", "b"]) > max(0.0, by_column["shop", "noise"])
    pd.testing.assert_frame_equal(parties.frame, before)


def test_rows_are_matched_by_id_and_taken_as_of_a_frame() -> None:
    parties, _, _ = given()
    assert parties.names == ("bank", "shop")
    assert parties.shape == (len(parties), 4)
    both = set(tables()["bank"]["customer"]) & set(tables()["shop"]["nr"])
    assert [*parties.ids] == sorted(both)
    shop = tables()["shop"].set_index("nr")["b"]
    np.testing.assert_array_equal(parties["shop", "b"].to_numpy(), shop.loc[parties.ids].to_numpy())
    for rows in (
        parties[5:8],
        parties[[5, 6, 7]],
        parties.take([5, 6, 7]),
        parties[np.isin(np.arange(len(parties)), [5, 6, 7])],
    ):
        assert [*rows.ids] == [*parties.ids[5:8]]
    assert len(parties[4]) == 1
    assert repr(parties).startswith("Parties: bank (2 columns), shop (2 columns); ")


def test_it_is_cloned_and_kept_like_any_estimator() -> None:
    parties, y, _ = given()
    model = SecureBoostClassifier(trees=2, settings={"pack": False}, random_state=0).fit(parties, y)
    twin = clone(model)
    assert twin.get_params() == model.get_params()
    assert twin.set_params(depth=1).depth == 1
    again = pickle.loads(pickle.dumps(model))  # noqa: S301
    assert (again.predict_proba(parties) == model.predict_proba(parties)).all()
    assert model.n_features_in_ == 4
    assert (SecureBoostClassifier(trees=2, random_state=0).fit(parties, y == "yes").classes_ == [False, True]).all()


def test_the_party_of_the_label_is_the_first_unless_it_is_named() -> None:
    parties, y, _ = given()
    first, second = (SecureBoostClassifier(trees=1, label_party=one).fit(parties, y).run_ for one in (None, "shop"))
    assert (first.active, second.active) == (0, 1)
    with pytest.raises(ConfigError, match=r"^unknown party 'shoop': did you mean 'shop'"):
        SecureBoostClassifier(label_party="shoop").fit(parties, y)


def without(name: str, **change: Any) -> dict[str, pd.DataFrame]:
    found = {k: one.set_axis(["id", *one.columns[1:]], axis=1) for k, one in tables().items()}
    return {**found, name: found[name].assign(**change)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: {"bank": without("bank")["bank"]}, "Parties takes the tables of two parties or more"),
        (lambda: {**without("bank"), "shop": without("bank")["shop"][:0]}, r"party 'shop' has no rows\."),
        (
            lambda: without("shop", id=range(290)),
            r"no id is at all parties \(280 at 'bank', 290 at 'shop'\): name the columns",
        ),
        (lambda: without("shop", id="i001"), "party 'shop': the same id occurs twice in 'id', in rows 1 and 2"),
        (
            lambda: {**without("bank"), "shop": tables()["shop"]},
            r"party 'shop' has no column 'id' of ids: name it with on=\.",
        ),
        (
            lambda: {**without("bank"), "shop": without("bank")["shop"][["id"]]},
            "party 'shop' has no column but its ids",
        ),
        (lambda: {**without("bank"), "shop": np.zeros((3, 2))}, "party 'shop': ndarray is no table: give a DataFrame"),
    ],
)
def test_tables_that_cannot_be_matched_are_refused_in_a_sentence(wrong: Any, said: str) -> None:
    with pytest.raises((ConfigError, DataError), match=f"^{said}"):
        Parties(wrong(), on="id")


@pytest.mark.parametrize("on", [["customer", "nr"], {"bank": "customer"}, {"bank": ["customer"], "shop": "nr"}])
def test_columns_of_ids_that_are_no_names_are_refused_in_a_sentence(on: Any) -> None:
    with pytest.raises(ConfigError, match=r"^on= names no column of ids for party '(bank|shop)': give one name"):
        Parties(tables(), on=on)
    with pytest.raises(ConfigError, match=r"^Parties takes the tables of two parties or more"):
        Parties(list(tables().values()), on="id")  # type: ignore[arg-type]


def test_rows_and_targets_that_do_not_fit_are_refused_in_a_sentence() -> None:
    parties, y, number = given()
    model = SecureBoostClassifier(trees=1)
    with pytest.raises(
        DataError, match=rf"^y has 300 values, but all parties have {len(parties)} rows: give y for the ids"
    ):
        model.fit(parties, np.zeros(300))
    with pytest.raises(DataError, match=r"^y has no value in 2 of 270 rows: leave these rows out\.$"):
        SecureBoostRegressor().fit(parties, np.concatenate([[np.nan, np.nan], number[2:]]))
    with pytest.raises(ConfigError, match=r"^SecureBoostClassifier takes Parties\(.*, not ndarray\.$"):
        model.fit(np.zeros((3, 2)), y)
    with pytest.raises(ValueError, match="only one class"):
        model.fit(parties, np.zeros(len(parties)))
    with pytest.raises(ConfigError, match=r"algorithm\.depth"):
        SecureBoostClassifier(depth=0).fit(parties, y)
    model.fit(parties, y)
    with pytest.raises(DataError, match="party 'shop' is lacking: the model was trained with bank, shop"):
        model.predict(Parties.of(parties.frame[["bank"]]))
    infinite = parties.copy()
    infinite["bank", "a"] = np.inf
    with pytest.raises(DataError, match=r"party 'bank'.*infinite"):
        model.fit(infinite, y)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"settings": "mix"}, "settings takes keys of"),
        ({"privacy": [{"name": "paillier"}]}, ".* is neither a name nor a mapping"),
        ({"label_party": 1}, "unknown party '1'"),
    ],
)
def test_parameters_of_another_type_are_refused_in_a_sentence(keys: dict[str, Any], said: str) -> None:
    parties, y, _ = given()
    with pytest.raises(ConfigError, match=f"^{said}"):
        SecureBoostClassifier(trees=1, **keys).fit(parties, y)


def test_numbers_without_a_finite_spread_are_refused_in_estimators_and_runs(tmp_path: Path) -> None:
    parties, _, number = given()
    with pytest.raises(DataError, match=r"the label's numbers are too large for a mean"):
        SecureBoostRegressor(trees=1).fit(parties, number * 1e200)
    found = tables()
    found["bank"]["amount"] *= 1e200
    for name, table in found.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    held = [
        {"name": "bank", "path": str(tmp_path / "bank.csv"), "id": "customer", "label": "amount"},
        {"name": "shop", "path": str(tmp_path / "shop.csv"), "id": "nr"},
    ]
    with pytest.raises(DataError, match=r"the label's numbers are too large for a mean"):
        run(Experiment.of(parties=held, algorithm={"name": "secureboost", "trees": 1}), out=tmp_path / "run")


def test_rows_drawn_with_replacement_count_as_often_as_they_are_drawn() -> None:
    """Each row twice and twice the penalty, or each row once, with a bin a value: leaves and splits are the same."""
    parties, y, _ = given()
    once = SecureBoostClassifier(trees=3, bins=512, l2=1.0, random_state=0).fit(parties, y)
    twice = np.tile(np.arange(len(parties)), 2)
    double = SecureBoostClassifier(trees=3, bins=512, l2=2.0, min_leaf=2, random_state=0).fit(parties[twice], y[twice])
    np.testing.assert_allclose(double.predict_proba(parties), once.predict_proba(parties), atol=1e-6)
    drawn, labels = resample(parties, y, random_state=0)
    assert SecureBoostClassifier(trees=2, random_state=0).fit(drawn, labels).score(parties, y) > 0.7


def test_a_text_in_a_column_of_numbers_is_refused_when_predicting() -> None:
    parties, y, _ = given()
    model = SecureBoostClassifier(trees=2).fit(parties, y)
    other = parties.copy()
    other["bank", "a"] = ["many"] * len(parties)
    with pytest.raises(DataError, match=r"^party 'bank': column 'a' must hold numbers"):
        model.predict(other)


def test_a_table_that_lies_on_columns_says_so() -> None:
    """Who reads the help of the class learns that it is no private computation."""
    assert "for simulations" in (Parties.__doc__ or "")
    assert "**all** parties in one place" in (Parties.__doc__ or "")
