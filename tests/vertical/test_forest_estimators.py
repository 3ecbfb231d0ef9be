"""Federated Forest as scikit-learn estimators, and what it refuses."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import fedatlas
from boosting_federation import Table
from fedatlas.errors import ConfigError, DataError
from fedatlas.vertical import (
    SCHEMES,
    FederatedForestClassifier,
    FederatedForestRegressor,
    Parties,
    SecureBoostClassifier,
)
from test_federated_forest import OWNERS, TABLES
from test_vertical_run import IDS, tables


def frames(table: Table) -> Parties:
    ids = [f"i{k}" for k in range(len(table.y))]
    parts = {name: {f"x{c}": table.x[:, c] for c in own} for name, own in zip("ab", OWNERS[2], strict=True)}
    return Parties({name: pd.DataFrame({"id": ids, **own}) for name, own in parts.items()}, on="id")


def test_estimators_grow_the_forest() -> None:
    """All rows train; their order is that of a run, so the forest is compared by its figures and by its promises."""
    table = TABLES["two classes"]
    rows = frames(table)
    y = np.where(table.y[[int(one[1:]) for one in rows.ids]] > 0, "yes", "no")
    one = FederatedForestClassifier(trees=5, features=1.0, random_state=2)
    found = one.fit(rows, y)
    assert clone(found).get_params() == one.get_params()
    assert (found.predict(rows) == y).mean() > 0.9
    assert np.allclose(found.predict_proba(rows).sum(axis=1), 1)
    assert set(found.importance_) == {"a", "b"}
    number = TABLES["a number"]
    rows = frames(number)
    target = number.y[[int(one[1:]) for one in rows.ids]]
    fitted = FederatedForestRegressor(trees=5, features=1.0, random_state=2).fit(rows, target)
    assert fitted.score(rows, target) > 0.7
    assert fitted.predict(rows).tolist() == clone(fitted).fit(rows, target).predict(rows).tolist()


def test_a_label_whose_squares_are_above_all_doubles_is_refused() -> None:
    number = TABLES["a number"]
    with pytest.raises(DataError, match="too large for sums of squares: give it in a larger unit"):
        FederatedForestRegressor(trees=1).fit(frames(number), number.y * 1e200)


@pytest.mark.parametrize("made", [FederatedForestClassifier, FederatedForestRegressor, SecureBoostClassifier])
def test_a_parameter_has_the_default_of_its_key(made: Any) -> None:
    build = SCHEMES[made.scheme].build
    keys = {name: one.default for name, one in signature(build).parameters.items()}
    own = made().get_params()
    assert {*own} - {*keys} == {"label_party", "random_state"} | ({"privacy", "settings"} & {*own})
    assert {name: own[name] for name in keys if name in own} == {name: keys[name] for name in own if name in keys}
    assert {"trees", "depth"} < {*own}


def test_a_label_of_the_other_kind_and_row_weights_are_refused(tmp_path: Path) -> None:
    tables(tmp_path)
    parties = [{"name": n, "path": str(tmp_path / f"{n}.csv"), "id": IDS[n]} for n in ("bank", "shop")]
    parties[0]["label"] = "default"
    keys = {"name": "federated_forest", "trees": 2}
    with pytest.raises(ConfigError, match="task = 'numbers', and the label is of classes"):
        fedatlas.dry_run(fedatlas.Experiment.of(parties=parties, algorithm={**keys, "task": "numbers"}))
    before = fedatlas.dry_run(fedatlas.Experiment.of(parties=parties, algorithm=keys))
    assert any("count the labels as known to all parties" in one for one in before["notices"])
    parties[0]["weight"] = "age"
    with pytest.raises(ConfigError, match="counts all rows alike: remove the key 'weight' of 'bank'"):
        fedatlas.dry_run(fedatlas.Experiment.of(parties=parties, algorithm=keys))
