"""What a number is, what a class is called and which owners are alike: the one grammar of docs/data.md."""

from __future__ import annotations

import math
import random

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedatlas.data.cells import (
    OLDEST,
    Reading,
    class_text,
    in_order,
    missing,
    now,
    numbers,
    one_owner,
    read_as,
    texts,
    value_of,
    values_of,
    with_keys,
)
from fedatlas.data.frame import class_codes, encode_target
from fedatlas.errors import DataError

CELLS = st.text(alphabet="0123456789.+-−_eE,' $%€infa٣ ", min_size=1, max_size=8).map(str.strip).filter(bool)
NUMBERS = ["151.3", "1e-3", ".5", "5.", "+2", "-4", "−4", "1E5", "007", "inf", "-Infinity"]
NONE = ["1_24", "1,5", "1,240", "$5", "5%", "٣", "1 240", "0x10", "-nan", "e5", ".", "1e", "--1", "1.2.3"]


@pytest.mark.parametrize("cell", NUMBERS)
def test_these_are_numbers(cell: str) -> None:
    assert value_of(cell) == float(cell.replace("−", "-"))


@pytest.mark.parametrize("cell", NONE)
def test_these_are_none(cell: str) -> None:
    assert value_of(cell) is None
    assert numbers(pd.Series(["1", cell])) is None


@given(CELLS, st.sampled_from([Reading(), Reading(thousands=","), Reading(thousands=" ", units=("$", "%"))]))
@example("1_24", Reading())
@example("−$1 240", Reading(thousands=" ", units=("$", "%")))
def test_a_column_is_read_as_its_cells(cell: str, reading: Reading) -> None:
    """The way for whole columns and the one for single cells are two: they agree on every text."""
    with read_as(reading):
        one, column = value_of(cell), values_of(np.array([cell, "7"]))
    assert (one is None) == (column is None)
    if column is not None:
        assert column[0] == one


@pytest.mark.parametrize(
    ("cell", "keys", "value"),
    [
        ("1,240", {"thousands": ","}, 1240),
        ("-1,240,000.5", {"thousands": ","}, -1240000.5),
        ("1,24", {"thousands": ","}, None),
        ("1240,000", {"thousands": ","}, None),
        ("1.240", {"thousands": ","}, 1.24),
        ("1\N{NARROW NO-BREAK SPACE}240", {"thousands": " "}, 1240),
        ("1’240", {"thousands": "'"}, 1240),
        ("$1,240", {"thousands": ",", "units": ["$"]}, 1240),
        ("−$5", {"units": ["$"]}, -5),
        ("$-5", {"units": ["$"]}, -5),
        ("12.5 %", {"units": ["%"]}, 12.5),
        ("12%", {"units": ["$"]}, None),
    ],
)
def test_keys_allow_marks(cell: str, keys: dict[str, str], value: float | None) -> None:
    with read_as(with_keys(**keys)):
        assert value_of(cell) == value


def test_the_first_rules_are_those_of_python() -> None:
    with read_as(OLDEST):
        assert value_of("1_24") == 124
        assert values_of(np.array(["1_24", "٣"])).tolist() == [124, 3]
        assert value_of("−4") is None
    assert now() == Reading()


def test_a_class_is_its_text() -> None:
    """Codes, exponents, fractions, whole numbers that no float holds; only ``.0`` of a whole number is dropped."""
    cells = ["01", "1", "1.0", "02", "5E1", "50", "1.1", "1.10", "9007199254740993", "9007199254740992", "b", "a"]
    codes, names = class_codes(np.array(cells), "it", 2)
    assert [names[c] for c in codes] == [class_text(cell) for cell in cells]
    assert names == ("01", "1", "1.1", "1.10", "02", "50", "5E1", "9007199254740992", "9007199254740993", "a", "b")
    assert [class_text(cell) for cell in ("1.00", "-3.0", "a.0", "1.0.0", ".0")] == ["1.00", "-3", "a.0", "1.0.0", ".0"]


def test_whole_numbers_keep_their_ids_in_every_type() -> None:
    values = [3, 10, 2, 10, 3]
    columns = [values, [float(v) for v in values], [f"{v}" for v in values], [f"{v}.0" for v in values]]
    for column in (*map(pd.Series, columns), pd.Series(values, dtype="Int64")):
        codes, task, names = encode_target(column, "auto", "it")
        assert (codes.tolist(), task, names) == ([1, 2, 0, 2, 1], "classes", ("2", "3", "10"))


@given(
    st.lists(st.sampled_from(["1.1", "1.10", "01", "1", "5E1", "50", "x", "X", "é"]), min_size=1, unique=True),
    st.integers(0, 99),
)
def test_the_order_of_classes_does_not_hang_on_who_comes_first(names: list[str], seed: int) -> None:
    shuffled = random.Random(seed).sample(names, len(names))  # noqa: S311
    assert in_order(shuffled) == in_order(names)
    with read_as(Reading(thousands=",")):
        assert in_order(names) == in_order(shuffled)


def test_owners_are_alike_by_form_case_and_point_alone() -> None:
    composed, parted = "M\N{LATIN SMALL LETTER U WITH DIAERESIS}nchen", "Mu\N{COMBINING DIAERESIS}nchen"
    assert one_owner(composed) == one_owner(parted) == one_owner(parted.upper())
    assert one_owner("1.0") == one_owner("1") != one_owner("01")
    assert one_owner("Kiel") != one_owner("Köln")


def test_lists_are_no_cells() -> None:
    for cells in ([[1, 2], [3]], [(1,), (2,)], [np.array([1]), None]):
        with pytest.raises(DataError, match="column 'tags' holds lists, not one value in each row"):
            texts(pd.Series(cells, name="tags"))
    with pytest.raises(DataError, match="column 'tags' holds tables"):
        texts(pd.Series([{"a": 1}], name="tags"))


def test_holes_are_holes_in_every_type() -> None:
    for column in (
        pd.Series([1, None], dtype="Int64"),
        pd.Series([1.5, math.nan]),
        pd.Series(["a", None]),
        pd.Series(["a", "NaN"]),
    ):
        assert missing(texts(column)).tolist() == [False, True]
