"""Anonymised rows against odd rows and false counts: an error in one sentence, and a node that tells nothing of its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from agreements import Agreements, write_rows
from fedatlas.errors import DataError
from fedatlas.privacy.anonymise.agreed_cuts import agree
from fedatlas.privacy.anonymise.choice import AnonymityKeys
from fedatlas.privacy.anonymise.training_rows import by_own
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from nodes_in_process import run_here

HOW = RowsHow(0, 1, bytes(32), bytes(32))
COLUMNS = (("age", ()), ("town", ("A", "B")))


def choice(**keys: Any) -> AnonymityKeys:
    defaults: dict[str, Any] = {
        "quasi": ("age",),
        "sensitive": (),
        "k": 2,
        "l": 1.0,
        "t": 1.0,
        "diversity": "distinct",
        "boundaries": "counts",
        "bounds": {"age": (0.0, 100.0)},
        "bins": 10,
    }
    return AnonymityKeys(**{**defaults, **keys})


def rows(*ages: float) -> OwnRows:
    n = len(ages)
    x = torch.stack([torch.tensor(ages), torch.arange(n) % 2.0], dim=1)
    return OwnRows(x, torch.arange(n) % 2, torch.arange(n), COLUMNS, ("no", "yes"))


def test_an_infinite_number_is_an_error_and_a_missing_one_a_value() -> None:
    with pytest.raises(DataError, match="column 'age' holds an infinite number; correct it"):
        by_own(choice(), rows(1.0, float("inf")), HOW)
    made = by_own(choice(), rows(1.0, 3.0, float("nan"), float("nan")), HOW)
    assert torch.nan_to_num(made.x[:, 0], -9).tolist() == [2.0, 2.0, -9.0, -9.0]
    assert by_own(choice(), rows(1.0, float("nan")), HOW).x[:, 0].tolist() == [1.0, 1.0]


def test_numbers_beyond_the_public_range_are_in_its_first_or_last_bin() -> None:
    mine = rows(-1e30, 5.0, 95.0, 1e30)
    found = agree(choice(), COLUMNS, ("no", "yes"), lambda counted: counted(mine))
    assert sorted(x[0] for x in found["values"]) == [5.0, 95.0]


@pytest.mark.parametrize("more", [-3, 100])
def test_counts_that_no_rows_have_are_an_error(more: int) -> None:
    """One that lies about whole rows is not noticed: docs/security.md says so."""
    mine = rows(1.0, 30.0, 60.0, 90.0)
    with pytest.raises(DataError, match="sums of counts contradict each other: a client counted wrongly"):
        agree(choice(quasi=("age", "town")), COLUMNS, ("no", "yes"), lambda counted: counted(mine) + more)


def test_a_node_that_cannot_keep_the_rules_tells_nothing_of_its_rows(tmp_path: Path) -> None:
    made = Agreements(tmp_path / "made")
    files = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, file) for name, file in files.items()}
    table = {"name": "anonymise", "quasi": ["a"], "sensitive": ["label"], "k": 2, "l": 3}
    ran = run_here(made, trainers, made.signed("r", made.config(privacy=[table])), test=files["north"])
    assert ran.state.status != "finished"
    assert "its rows cannot be used as the experiment says (the node's own log says why)" in ran.state.why
    assert "different values" not in ran.state.why
