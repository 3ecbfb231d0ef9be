"""A search over every mechanism that changes rows: odd rows, sums of counts and a run's file, changed in every way, one at a time.

Of each there comes a sentence, or changed rows in the form of those that were given. Mechanisms of rounds are in
`test_generated_rounds`, and whole conversations of nodes in `test_generated`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedatlas import load
from fedatlas.algorithm import SERVER
from fedatlas.api import run
from fedatlas.errors import FedatlasError
from fedatlas.privacy.mechanism import Mechanism, on_rows
from fedatlas.privacy.mechanisms import every, made
from fedatlas.privacy.own_rows import OwnRows, RowsHow
from mutations_of import at, changed, changes, fields, tensors
from tables import of_table, table

RANGE = (-3.0, 3.0)
ROWS: Mapping[str, dict[str, Any]] = {
    "rotation": {"bounds": RANGE, "columns": ("a", "b")},
    "additive_noise": {"bounds": RANGE},
    "randomised_response": {"epsilon": 1.0, "classes": ("no", "yes"), "columns": {"c": ("A", "B")}},
    "anonymise": {"quasi": ("a", "c"), "k": 2},
    "anonymise, counts": {"quasi": ("a", "c"), "k": 2, "boundaries": "counts", "bounds": {"a": RANGE}},
}
KEY = bytes(32)


def of(name: str) -> Mechanism:
    return made(name.split(",", maxsplit=1)[0], ROWS[name])


def honest(n: int = 12) -> OwnRows:
    x = torch.stack([torch.linspace(-2, 2, n), torch.linspace(3, -3, n), torch.arange(n) % 2.0], dim=1)
    columns = (("a", ()), ("b", ()), ("c", ("A", "B")))
    return OwnRows(x, torch.arange(n) % 2, torch.arange(n), columns, ("no", "yes"))


def cells(value: float) -> Callable[[OwnRows], OwnRows]:
    """A row whose numbers are all the same; a reader leaves no other codes of categories than there are."""

    def change(own: OwnRows) -> OwnRows:
        x = own.x.clone()
        x[3, :2] = value
        return own._replace(x=x)

    return change


ODD: Mapping[str, Callable[[OwnRows], OwnRows]] = {
    "as they are": lambda own: own,
    "missing cells": cells(float("nan")),
    "infinite cells": cells(float("inf")),
    "the lowest": cells(-3e38),
    "all cells missing": lambda own: own._replace(x=own.x * float("nan")),
    "one row": lambda own: honest(1),
    "no rows": lambda own: own._replace(x=own.x[:0], y=own.y[:0], row=own.row[:0]),
    "equal rows": lambda own: own._replace(x=own.x[:1].repeat(len(own.x), 1)),
    "no names": lambda own: own._replace(columns=()),
    "only categories": lambda own: own._replace(x=own.x[:, 2:], columns=own.columns[2:]),
    "other categories": lambda own: own._replace(columns=(*own.columns[:2], ("c", ("A", "B", "C")))),
    "no classes": lambda own: own._replace(classes=(), y=own.y.float()),
    "other classes": lambda own: own._replace(classes=("no", "yes", "perhaps")),
    "tokens": lambda own: own._replace(y=own.y[:, None].repeat(1, 3), classes=("no", "yes")),
    "pictures": lambda own: own._replace(x=torch.zeros(len(own.x), 1, 4, 4, dtype=torch.uint8), columns=()),
}


def test_no_mechanism_of_rows_is_forgotten() -> None:
    assert {name.split(",")[0] for name in ROWS} == {one.name for one in on_rows([*every().values()])}


def how(told: Mapping[int, Any]) -> RowsHow:
    return RowsHow(0, 3, KEY, KEY, told)


def outcome(work: Callable[[], Any]) -> tuple[Any, str]:
    """What a function returns, or the sentence of its error."""
    try:
        return work(), ""
    except FedatlasError as error:
        said = str(error)
    assert "\n" not in said
    return None, said


def agreed(name: str, own: OwnRows, change: Callable[[Tensor], Tensor] = lambda x: x) -> dict[int, Any]:
    work = of(name).work()
    if work.agree is None:
        return {}
    return {SERVER: work.agree(own.columns, own.classes, lambda counted: change(counted(own)))}


def well_formed(found: OwnRows, own: OwnRows) -> None:
    assert len(found.x) == len(found.y) == len(found.row)
    assert found.x.dtype == own.x.dtype
    assert found.x.shape[1:] == own.x.shape[1:]
    assert len(found.columns) == len(own.columns)
    assert not torch.isinf(found.x).any() or torch.isinf(own.x).any() or own.x.abs().max() > 1e38


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ROWS)
def test_odd_rows_end_in_a_sentence_or_in_changed_rows(name: str, odd: str) -> None:
    own, work = ODD[odd](honest()), of(name).work()
    assert work.rows is not None
    for act in filter(None, (work.rows, work.new_rows)):
        found, said = outcome(partial(lambda act: act(own, how(agreed(name, own))), act))
        assert len(said) < 400
        assert not said or odd != "as they are", said
        if found is not None:
            well_formed(found, own)


def test_sums_of_counts_that_no_rows_have_end_in_a_sentence() -> None:
    """The sum is changed at every length and type, in the first question and in all."""
    name, own, refused = "anonymise, counts", honest(), 0
    for kind in tensors(torch.arange(4)):
        for first in (True, False):
            asked: list[int] = []

            def change(x: Tensor, kind: str = kind, first: bool = first, asked: list[int] = asked) -> Tensor:
                asked.append(1)
                new = tensors(x)[kind] if len(asked) == 1 or not first else x
                return new if isinstance(new, Tensor) else torch.zeros(0)

            found, said = outcome(partial(agreed, name, own, change))
            assert found is not None or "a client counted wrongly. Find out which." in said
            refused += found is None
    assert refused >= 12


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Runs whose folders say how new rows are read."""
    path = tmp_path_factory.mktemp("rows")
    table(path / "rows.csv")
    of_rows = {
        "rotation": {"name": "rotation", "bounds": [-3, 3], "noise": "seed"},
        "anonymise": {
            "name": "anonymise", "quasi": ["a", "b"], "k": 3, "boundaries": "counts", "bounds": {"a": [-3, 3], "b": [-3, 3]}, "bins": 4,
        },
    }  # fmt: skip
    more = {"rotation": {"evaluation": {"on": "validation", "validation": 0.2}}, "anonymise": {}}
    masks = {"rotation": [], "anonymise": [{"name": "secagg"}]}
    for name, one in of_rows.items():
        asked = of_table(path / "rows.csv", privacy=[one, *masks[name]], rounds=1, **more[name])
        run(asked, out=path / name, baselines=False)
    return {name: path / name for name in of_rows}


def predicted(folder: Path) -> Any:
    return load(folder).predict(folder.parent / "rows.csv")["prediction"]


@pytest.mark.parametrize("name", ["rotation", "anonymise"])
def test_a_changed_file_of_a_run_ends_in_a_sentence_or_in_predictions(name: str, folders: Mapping[str, Path]) -> None:
    """Every field of what tells how new rows are read; no change leads around in a circle."""
    folder = folders[name]
    path, said = folder / "rows.json", (folder / "rows.json").read_text()
    assert len(predicted(folder)) == 60
    every_one = [(field, kind) for field in fields(json.loads(said)) for kind in changes(at(json.loads(said), field))]
    chosen = random.Random(name).sample(every_one, min(80, len(every_one)))  # noqa: S311  # chooses what is tried
    refused = 0
    try:
        for field, kind in chosen:
            value = json.loads(said)
            path.write_text(json.dumps(changed(value, field, changes(at(value, field))[kind]), default=str))
            found, _ = outcome(partial(predicted, folder))
            assert found is None or len(found) == 60, (field, kind)
            refused += found is None
    finally:
        path.write_text(said)
    assert refused > len(chosen) / 4
