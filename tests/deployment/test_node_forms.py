"""How a node's file is written is the node's own: its policy says it, no agreement holds it, and nobody is told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.agreements import Agreements

from fedatlas.config import parse
from fedatlas.deployment.node_columns import own_table
from fedatlas.deployment.node_rows import read_rows
from fedatlas.deployment.operator_client import with_own_files
from fedatlas.errors import ConfigError, DataError, FedatlasError
from fedatlas.files import OF_THE_FILE
from fedatlas.wire.bundle import POLICY
from fedatlas.wire.policy import TEMPLATE, Policy

DATA = {"name": "file", "path": "x", "label": "y"}
TEXT = "größe;y\n" + "1,240;a\n2,500;b\n" * 20


def test_a_node_reads_its_file_as_its_policy_says(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_bytes(TEXT.encode("cp1252"))
    made = Agreements(tmp_path)
    node = made.trainer("north", tmp_path / "n.csv")
    signed = made.signed("run", made.config(data=DATA))
    agreed = node.agreements.accept("run", signed)
    node.agreements.pin(agreed)
    with pytest.raises(FedatlasError, match="cannot be used as the experiment says"):
        node.held(agreed)
    policy = made.paths["north"] / POLICY
    policy.write_text('decimal = ","\nencoding = "cp1252"\nseparator = ";"\n')
    held = node.held(agreed)
    assert {*held.splits["train"].x[:, 0].tolist()} <= {1.2400000095367432, 2.5}
    for word in ("decimal", "cp1252", "encoding", "separator"):
        assert word not in repr(held.facts)


@pytest.mark.parametrize("key", OF_THE_FILE)
def test_an_agreement_holds_no_form(key: str) -> None:
    data = f'[data]\nname = "file"\npath = "a.csv"\nlabel = "y"\n{key} = ","\n'
    text, overrides = with_own_files(data, [f"data.{key}=;", "rounds=3"])
    assert tomllib.loads(text)["data"] == {"name": "file", "path": "a.csv", "label": "y"}
    assert overrides[0] == "rounds=3"
    assert not any(key in one for one in overrides)
    text, _ = with_own_files(f'[[parties]]\nname = "a"\npath = "a.csv"\nid = "id"\n{key} = ","\n', [])
    assert tomllib.loads(text)["parties"][0].keys() == {"name", "path", "id"}


def test_a_form_in_the_experiment_is_not_a_nodes(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(TEXT)
    with pytest.raises(DataError, match=r"may mean 1240 or 1\.240"):
        read_rows(tmp_path / "n.csv", parse({"data": {**DATA, "decimal": ","}}))


def test_a_node_with_columns_reads_as_its_policy_says(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id;size\n1;1,240\n2;2,500\n")
    parties = [{"name": "a", "path": "x", "id": "id", "label": "y"}, {"name": "b", "path": "x", "id": "id"}]
    config = parse({"parties": parties, "algorithm": {"name": "secureboost"}})
    assert own_table(config, "b", tmp_path / "n.csv", {"decimal": ","}).x.ravel().tolist() == [1.24, 2.5]


def test_a_policy_checks_its_form(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('decimal = ";"')
    with pytest.raises(ConfigError, match=r"decimal = ';' is not"):
        Policy.read(path)
    Policy.write_for_trial(path, {"decimal": ",", "sheet": 'a "b"'})
    assert Policy.read(path).form == {"decimal": ",", "sheet": 'a "b"'}
    given: dict[str, Any] = tomllib.loads(TEMPLATE)
    assert given.keys().isdisjoint(OF_THE_FILE)
