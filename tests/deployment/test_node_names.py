"""Classes and categories of nodes are those of one file with all their rows, by the rules that each node began the run with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreements import Agreements
from fedatlas.config import parse
from fedatlas.data.config import DataConfig
from fedatlas.data.sources import load_dataset
from fedatlas.deployment.node_agreement import PIN
from fedatlas.deployment.node_rows import RowsFacts, agreed, read_rows
from fedatlas.deployment.trainer import Trainer
from fedatlas.wire import messages
from fedatlas.wire.fields import record
from fedatlas.wire.messages import FactsQuestion, Signed, written

LABELS = ["01", "1", "1.0", "2", "10", "5E1", "50", "9007199254740993", "x", "X", "1.1", "1.10", "$3", "1,240"]
DATA: dict[str, Any] = {"name": "file", "label": "y", "task": "classes", "categories": ["kind"]}


def rows(stream: np.random.Generator, n: int = 60) -> list[str]:
    kinds, labels = stream.choice(["2", "10", "1", "01", "a"], n), stream.choice(LABELS, n)
    return [f'{i},{kind},"{label}"' for i, (kind, label) in enumerate(zip(kinds, labels, strict=True))]


def written_to(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(["a,kind,y", *lines]) + "\n")
    return path


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("keys", [{}, {"thousands": ",", "units": ["$"]}], ids=["", "keys"])
def test_nodes_agree_on_the_names_and_the_order_of_one_file(keys: dict[str, Any], seed: int, tmp_path: Path) -> None:
    """Whoever asks them first: also where one node has numbers alone, and the other texts."""
    lines = rows(np.random.default_rng(seed))
    config = parse({"data": {**DATA, **keys, "path": "x"}})
    shares = {"one": lines[:20], "two": lines[20:25], "three": lines[25:]}
    facts = {name: read_rows(written_to(tmp_path / f"{name}.csv", some), config).facts for name, some in shares.items()}
    whole = load_dataset(DataConfig(**{**DATA, **keys, "path": str(written_to(tmp_path / "all.csv", lines))}), 1)
    for names in (["one", "two", "three"], ["three", "one", "two"]):
        found = agreed({name: facts[name] for name in names})
        assert found.class_names == whole.class_names
        assert found.schema == tuple((column.name, column.categories) for column in whole.schema)
        assert found.facts.get("reading") == whole.facts.get("reading")


def facts_of(node: Trainer, run: str, signed: Signed) -> RowsFacts:
    (answer,) = node.serve(written(FactsQuestion(run, signed)))
    said: Any = messages.read(answer, messages.FROM_TRAINER)
    found: RowsFacts = record(RowsFacts, said.facts, "facts")
    return found


def test_a_node_reads_as_when_its_run_began(tmp_path: Path) -> None:
    """The agreement that it kept names the rules; one that was kept before they had a number is of the first."""
    made = Agreements(tmp_path)
    node = made.trainer("north", written_to(tmp_path / "n.csv", ["1_24,1,01", "3,2,1", "4,1,2"] * 9))
    signed = {run: made.signed(run, made.config(data=DATA)) for run in ("new", "old")}
    assert facts_of(node, "new", signed["new"]).class_names == ("01", "1", "2")
    pin = made.paths["north"] / "state" / "new" / PIN
    kept = json.loads(pin.read_text())
    assert kept["reading"] == {"rules": 3}
    old = made.paths["north"] / "state" / "old" / PIN
    facts_of(node, "old", signed["old"])
    again = made.trainer("north", tmp_path / "n.csv")
    old.write_text(json.dumps({"digest": json.loads(old.read_text())["digest"]}))
    found = facts_of(again, "old", signed["old"])
    assert (found.class_names, found.schema[0]) == (("1", "2"), ("a", ()))
    assert facts_of(again, "new", signed["new"]).class_names == ("01", "1", "2")
