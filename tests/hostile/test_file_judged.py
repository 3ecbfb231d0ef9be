"""The file that a node's judgements are of: whatever an experiment says of its rows, they are those of the same people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedatlas import registry
from fedatlas.config import parse
from fedatlas.data.config import DataConfig
from fedatlas.data.files import load_file
from fedatlas.deployment.node_rows import read_rows
from fedatlas.errors import FedatlasError
from fedatlas.files import OF_THE_FILE, OWN_FILES

DATA: dict[str, Any] = {"name": "file", "label": "y", "test": 0.2}
NODES_OWN = {"path", "name", *OF_THE_FILE}  # no experiment says them at a node
OTHERWISE: dict[str, list[Any]] = {
    "label": ["a", "c"],
    "client": ["c"],
    "weight": ["w", "a"],
    "task": ["classes", "numbers"],
    "drop": [["a"], ["w", "c"]],
    "categories": [["a"], ["w"]],
    "size": [8, 9],
    "same_owner": [True, False],
    "thousands": [" "],
    "units": [["%"]],
    "background": ["black"],
    "na": [["3"], ["yes"]],
    "dates": ["dmy"],
    "test": [0.2, 0.3, 0.5],
    "limit": [0, 12],
    "scale": ["none"],
    "missing": ["drop", "median"],
    "augment": ["crop_flip"],
    "constants": [None],
}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = [f"{a},{a % 3 + 1},{'uv'[a % 2]},{'yes' if b > 0 else 'no'}" for a, b in enumerate(rng.normal(size=40))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,w,c,y", *rows, "40,,u,"]) + "\n")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for k in range(20):
        path = tmp_path / "pictures" / "ab"[k % 2] / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 4), np.uint8)).save(path)
    return tmp_path / "pictures"


def source(path: Path, data: dict[str, Any], seed: int = 1) -> str | None:
    """None where the file cannot be read so."""
    try:
        return read_rows(path, parse({"data": {**data, "path": OWN_FILES}, "seed": seed})).file
    except FedatlasError:
        return None


def test_no_key_of_an_experiment_makes_another_file_of_it(table: Path, pictures: Path) -> None:
    assert {*registry.keywords(load_file), *DataConfig.model_fields} == {*OTHERWISE} | NODES_OWN, "a key that is new"
    usual = {"missing": "drop", "task": "auto"}
    for path, base, least in ((table, {**DATA, **usual}, 18), (pictures, {"name": "file", "test": 0.2}, 6)):
        found = [source(path, {**base, key: value}) for key, values in OTHERWISE.items() for value in values]
        found += [source(path, base, seed) for seed in (1, 2, 3)]
        read = [one for one in found if one is not None]
        assert len(read) >= least
        assert len({*read}) == 1
        assert read[0]


def test_other_bytes_are_another_file_and_another_name_is_not(table: Path, pictures: Path) -> None:
    known = source(table, {**DATA, "missing": "drop"})
    moved = table.rename(table.with_name("moved.csv"))
    assert source(moved, {**DATA, "missing": "drop"}) == known
    moved.write_text(moved.read_text().replace("39,", "38.5,"))
    assert source(moved, {**DATA, "missing": "drop"}) not in {known, None}
    of_all = source(pictures, {"name": "file", "test": 0.2})
    Image.new("RGBA", (8, 8)).save(pictures / "a" / "0.png")
    assert source(pictures, {"name": "file", "test": 0.2}) not in {of_all, None}
