"""Constants of an operator's file: they travel as values that it signed, so a server has nothing to ask of rows before round 1."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from agreements import TABLE, Agreements, write_rows
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.deployment.operator_client import signed_submission
from fedatlas.deployment.trial_rows import deal
from fedatlas.errors import ConfigError
from fedatlas.wire.agreement import verified
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import FactsQuestion
from nodes_in_process import run_here
from test_agreement import RUN, facts, question, why

RULES = (
    {"name": "a", "categories": [], "mean": 0.25, "sd": 2.0},
    {"name": "b", "categories": [], "mean": -1, "sd": 0.1},
)
CONSTANTS: Mapping[str, Any] = {
    "kind": "table", "rules": [{**rule, "indicator": False} for rule in RULES], "scale": "federated", "missing": "error",
    "input_scale": [], "input_shift": [], "shape": [2], "task": "classes",
}  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Agreements:
    return Agreements(tmp_path)


def submitted(made: Agreements, folder: Path, constants: Any, tables: Mapping[str, Any] = TABLE) -> dict[str, Any]:
    """The experiment that an operator's program signs for one that names a file; the file is gone afterwards."""
    file, path = folder / "constants.json", folder / "experiment.toml"
    file.write_text(json.dumps(constants))
    path.write_text(tomli_w.dumps({**tables, "partition": {"name": "iid", "clients": len(made.names)}}))
    signed = signed_submission(made.operator, path, [f"data.constants={file}"], made.names).agreement
    file.unlink()
    return dict(verified(made.operator, signed).config)


def test_the_values_are_in_the_agreement_and_no_row_is_asked(made: Agreements, tmp_path: Path) -> None:
    """A server that asks for sums before round 1 all the same gets none."""
    given = {**CONSTANTS, "bytes_up": 7, "rules": [{**rule, "median": None} for rule in CONSTANTS["rules"]]}
    config = submitted(made, tmp_path, given)
    assert config["data"]["constants"] == CONSTANTS, "and nothing else of the file"
    signed, heard = made.signed(RUN, config), list[str]()
    rows = {name: write_rows(tmp_path / f"{name}.csv", seed=k) for k, name in enumerate(made.names)}
    trainers = {name: made.trainer(name, rows[name]) for name in made.names}
    about = facts(trainers["north"], signed)
    assert "no question of this number is due" in why(trainers["north"], question(signed, about))

    def tap(name: str, message: RawMessage) -> RawMessage:
        heard.append(message.kind)
        return message

    done = run_here(made, trainers, signed, tap, rows["north"])
    assert done.state.status == "finished", done.state.why
    assert {"facts", "ask"} <= {*heard}
    assert "learn" not in heard
    kept = json.loads((done.folder / "run" / "preprocess.json").read_text())
    assert [(rule["mean"], rule["sd"]) for rule in kept["rules"]] == [(0.25, 2.0), (-1, 0.1)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rules": [{**RULES[0], "sd": 0.0}, RULES[1]]}, "a deviation is not above 0"),
        ({"rules": [{**RULES[0], "mean": "many"}, RULES[1]]}, "'many' is not a finite number"),
        ({"rules": [{"spy": 1}]}, "does not have the form of a run's preprocess.json"),
        ({"client_constants": [[[0.0, 1.0]]]}, "differ from client to client"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_operator_and_node(
    made: Agreements, tmp_path: Path, change: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        submitted(made, tmp_path, {**CONSTANTS, **change})
    config = made.config()
    config["data"]["constants"] = {**CONSTANTS, **change}
    node = made.trainer("north", write_rows(tmp_path / "north.csv"))
    assert words in why(node, FactsQuestion(RUN, made.signed(RUN, config)))


def test_a_run_with_such_constants_ends_with_the_bytes_of_a_simulation(made: Agreements, tmp_path: Path) -> None:
    """Of columns of the constants' own order, dealt as a trial deals them."""
    random = np.random.default_rng(3)
    x = random.normal(size=(90, 2)).round(3)
    whole = tmp_path / "whole.csv"
    whole.write_text("\n".join(["a,b,y", *(f"{a},{b},{'yes' if a > b else 'no'}" for a, b in x)]) + "\n")
    file, turned = tmp_path / "given.json", {**CONSTANTS, "rules": CONSTANTS["rules"][::-1]}
    file.write_text(json.dumps(turned))
    tables = {**TABLE, "data": {**TABLE["data"], "test": 0.2}, "engine": {"plan": "program"}}
    data = {**tables["data"], "path": str(whole), "constants": str(file)}
    given = parse({**tables, "partition": {"name": "iid", "clients": 3}, "data": data})
    deal(given, [*made.names], tmp_path)
    here = run(Experiment(given), out=tmp_path / "here", baselines=False).path
    config = submitted(made, tmp_path, turned, tables)
    trainers = {name: made.trainer(name, tmp_path / f"{name}.rows") for name in made.names}
    done = run_here(made, trainers, made.signed(RUN, config), test=tmp_path / "test.rows")
    assert done.state.status == "finished", done.state.why
    for name in ("model.safetensors", "preprocess.json"):
        assert (done.folder / "run" / name).read_bytes() == (here / name).read_bytes(), name
