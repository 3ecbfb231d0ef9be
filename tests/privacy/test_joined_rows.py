"""Rows that are changed by way of other rows, under noise: an epsilon of single rows, or of clients, would not hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedatlas.errors import ConfigError
from fedatlas.privacy.anonymise.choice import AnonymityKeys
from fedatlas.privacy.anonymise.training_rows import by_own
from fedatlas.privacy.mechanisms import beside, every, made, of_tables
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from fedatlas.setup.mechanism_choice import check_pairs

NOISED = [name for name, one in every().items() if one.noise is not None]
OF_ROWS = {"dp_sgd", "nbafl"}
SHARED = {"quasi": ("a",), "boundaries": "counts", "bounds": {"a": (0.0, 9.0)}}


def refused(*tables: dict[str, Any]) -> str:
    try:
        check_pairs(of_tables(tables))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", NOISED)
def test_own_cuts_are_refused_under_an_epsilon_of_rows_only(name: str) -> None:
    check = refused({"name": "anonymise", "quasi": ("a",)}, {"name": name, **needed(name)})
    assert ("one row changes what others of its client become" in check) == (name in OF_ROWS), check


@pytest.mark.parametrize("masks", ["", "secagg"])
@pytest.mark.parametrize("name", NOISED)
def test_shared_cuts_are_refused_under_any_noise(name: str, masks: str) -> None:
    others = [{"name": masks}] if masks and name not in {"nbafl", "dp_ftrl", "distributed_dp"} else []
    check = refused({"name": "anonymise", **SHARED}, {"name": name, **needed(name)}, *others)
    assert f"the noise of '{name}' does not cover that" in check


@pytest.mark.parametrize("name", [name for name, one in every().items() if one.sums_only == "wholly" and not one.noise])
def test_shared_cuts_stay_with_what_only_hides(name: str) -> None:
    check_pairs(beside([made("anonymise", SHARED), made(name)]))


def test_the_record_of_each_mechanism_that_changes_rows_says_whether_others_move() -> None:
    """One row of a client is changed: the others stay as they are, unless the record says otherwise."""
    assert {name for name, one in every().items() if one.joins} == {"anonymise"}
    x = torch.arange(20, dtype=torch.float32)[:, None]
    rows = OwnRows(x, torch.zeros(20, dtype=torch.int64), torch.arange(20), (("a", ()),), ("no", "yes"))
    moved = rows._replace(x=torch.cat([x[:1] + 200, x[1:]]))
    chosen, how = AnonymityKeys(("a",), (), 5, 1.0, 1.0, "distinct", "local", {}, 32), RowsHow(0, 1, b"", b"")
    one, other = (by_own(chosen, given, how).x[1:] for given in (rows, moved))
    assert int((one != other).sum()) > 5


def needed(name: str) -> dict[str, Any]:
    return {key: value for key, value in made(name).keys.items() if key in {"clip", "epsilon"}}
