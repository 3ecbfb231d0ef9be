"""`PrivateRidge` and `PrivateRidgeClassifier`: scikit-learn's ridge on all rows, with its tools; bad input is a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedatlas.errors import ConfigError, DataError, PrivacyError
from fedatlas.vertical import PrivateRidge, PrivateRidgeClassifier

BITS = 512


def rows(n: int = 60, columns: int = 3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(n, columns))
    return x, x @ np.arange(1, columns + 1) + 5 + draw.normal(size=n)


@pytest.mark.parametrize("reveal", ["engine", "owners"])
def test_a_list_of_tables_and_owners_of_rows_give_the_same_bits_and_scikit_learns_ridge(reveal: str) -> None:
    x, y = rows()
    groups = np.repeat(["a", "b", "c"], [10, 20, 30])
    cut = [np.split(one, [10, 30]) for one in (x, y)]
    one = PrivateRidge(key_bits=BITS, reveal=reveal).fit(*cut)
    other = PrivateRidge(key_bits=BITS, reveal="owners").fit(x, y, groups=groups)
    assert np.array_equal(one.coef_, other.coef_)
    assert one.intercept_ == other.intercept_
    assert [*other.owners_] == ["a", "b", "c"]
    due = Ridge(alpha=1.0).fit(x, y).predict(x)
    away = np.abs(one.predict(x) - due).max()
    assert away < 1e-6
    assert away <= one.error_


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_those_of_scikit_learns_ridge_classifier(classes: int) -> None:
    x, y = rows()
    names = np.array(["low", "mid", "top"])[3 - classes :][
        np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    ]
    one = PrivateRidgeClassifier(key_bits=BITS).fit(x, names, groups=np.arange(60) % 2)
    due = RidgeClassifier(alpha=1.0).fit(x, names)
    assert [*one.classes_] == [*due.classes_]
    assert np.allclose(one.decision_function(x), due.decision_function(x), atol=1e-6)
    assert [*one.predict(x)] == [*due.predict(x)]


def test_a_tie_of_two_classes_is_the_first() -> None:
    x, y = np.array([[-1.0], [1.0]]), np.array(["a", "b"])
    one = PrivateRidgeClassifier(key_bits=BITS).fit(x, y)
    assert one.decision_function([[0.0]])[0] == 0.0
    assert one.predict([[0.0]])[0] == "a"


def test_scikit_learns_tools_run_on_it() -> None:
    x, y = rows()
    found = cross_val_score(make_pipeline(StandardScaler(), PrivateRidge(key_bits=BITS)), x, y, cv=3)
    due = cross_val_score(make_pipeline(StandardScaler(), Ridge()), x, y, cv=3)
    assert np.allclose(found, due, atol=1e-6)


def test_bad_input_is_a_sentence() -> None:
    x, y = rows()
    ridge = PrivateRidge(key_bits=BITS)
    with pytest.raises(DataError, match="owner 1 has no rows: leave its table out"):
        ridge.fit([x, x[:0]], [y, y[:0]])
    with pytest.raises(DataError, match="2 tables and 1 targets"):
        ridge.fit([x, x], [y])
    with pytest.raises(DataError, match="owner 1 has 60 rows and 59 targets"):
        ridge.fit([x, x], [y, y[1:]])
    with pytest.raises(DataError, match="owner 1 has other columns than owner 0"):
        ridge.fit([pd.DataFrame(x, columns=[*"abc"]), pd.DataFrame(x, columns=[*"acb"])], [y, y])
    with pytest.raises(ConfigError, match="leave it out with a list of tables"):
        ridge.fit([x, x], [y, y], groups=y)
    with pytest.raises(ConfigError, match="reveal"):
        PrivateRidge(key_bits=BITS, reveal="all").fit(x, y)
    with pytest.raises(PrivacyError, match="12 columns and 60 rows"):
        ridge.fit(*rows(columns=12))
    with pytest.raises(PrivacyError, match="choose 2048 or 3072 or 4096"):
        PrivateRidge(key_bits=500).fit(x[:, :1], y)
    for bits, said in [("512", "a whole number"), (512.0, "a whole number"), (8192, "choose 2048 or 3072 or 4096")]:
        with pytest.raises((ConfigError, PrivacyError), match=said):
            PrivateRidge(key_bits=bits).fit(x, y)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="groups names no owner for 1 of 60 rows"):
        ridge.fit(x, y, groups=[None, *["a"] * 59])
    assert ridge.fit([x.tolist(), x.tolist()], [y.tolist(), y.tolist()]).n_owners_ == 2
    x[:, 1] = 7.0
    with pytest.raises(DataError, match="a column is constant"):
        PrivateRidge(l2=0.0, key_bits=BITS).fit(x, y)
    with pytest.raises(ValueError, match="only one class"):
        PrivateRidgeClassifier(key_bits=BITS).fit(x, np.ones(60))
    with pytest.warns(UserWarning, match="owner '1' has no row of class 'b'"):
        PrivateRidgeClassifier(key_bits=BITS).fit(x[:4], np.array(["a", "b", "a", "a"]), groups=[0, 0, 1, 1])
