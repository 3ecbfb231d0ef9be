"""An operator's initial model: its digest is signed, its bytes travel beside it, and every party compares the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from safetensors.torch import save, save_file

from agreements import TABLE, Agreements, write_rows
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.course import rounds
from fedatlas.deployment.operator_client import signed_submission
from fedatlas.deployment.refusals import check_initial
from fedatlas.deployment.terms import carried, encoded
from fedatlas.deployment.trial_rows import deal
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.federation.expected import FIRST
from fedatlas.models.initial import named
from fedatlas.rounds import messages
from fedatlas.setup.assembly import first_server
from fedatlas.tree import Tree
from fedatlas.wire.agreement import verified
from fedatlas.wire.messages import RunStart, Submission, written
from nodes_in_process import run_here
from test_agreement import RUN, facts, settled, why
from test_asks import Node

TABLES = {**TABLE, "data": {**TABLE["data"], "test": 0.2}, "engine": {"plan": "program"}}


@pytest.fixture
def made(tmp_path: Path) -> Agreements:
    return Agreements(tmp_path)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A table with rows of all nodes."""
    x = np.random.default_rng(3).normal(size=(90, 2)).round(3)
    path = tmp_path / "whole.csv"
    path.write_text("\n".join(["a,b,y", *(f"{a},{b},{'yes' if a > b else 'no'}" for a, b in x)]) + "\n")
    return path


def experiment(whole: Path, init: str, **tables: Any) -> dict[str, Any]:
    data = {**TABLES["data"], "path": str(whole)}
    model = {**TABLES["model"], "init": init}
    return {**TABLES, "partition": {"name": "iid", "clients": 3}, "data": data, "model": model, **tables}


def trained(whole: Path, folder: Path) -> Path:
    """A model of an earlier run, whose weights no seed gives."""
    found = run(Experiment(parse(experiment(whole, "", seed=5))), out=folder, baselines=False).path
    return found / "model.safetensors"


def submitted(made: Agreements, folder: Path, tables: dict[str, Any]) -> Submission:
    path = folder / "experiment.toml"
    path.write_text(tomli_w.dumps(tables))
    return signed_submission(made.operator, path, [], made.names)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_such_a_run_ends_with_the_bytes_of_a_simulation(
    made: Agreements, whole: Path, tmp_path: Path, algorithm: str
) -> None:
    file = trained(whole, tmp_path / "before")
    tables = experiment(whole, str(file), algorithm={"name": algorithm})
    given = parse(tables)
    deal(given, [*made.names], tmp_path)
    here = run(Experiment(given), out=tmp_path / "here", baselines=False).path
    asked = submitted(made, tmp_path, tables)
    assert bytes(asked.body) == file.read_bytes()
    config = verified(made.operator, asked.agreement).config
    assert config["model"]["init"] == named(file.read_bytes())
    file.unlink()
    trainers = {name: made.trainer(name, tmp_path / f"{name}.rows") for name in made.names}
    signed = made.signed(RUN, config)
    done = run_here(made, trainers, signed, test=tmp_path / "test.rows", initial=bytes(asked.body))
    assert done.state.status == "finished", done.state.why
    assert (done.folder / "run" / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()


def test_a_server_cannot_give_another_model_to_a_node(made: Agreements, tmp_path: Path) -> None:
    data, other = save({"w": torch.zeros(2)}), save({"w": torch.ones(2)})
    config = made.config()
    config["model"]["init"] = named(data)
    node = made.trainer("north", write_rows(tmp_path / "north.csv"))
    signed = made.signed(RUN, config)
    about = facts(node, signed)
    for initial, said in (
        (carried(other), "is not the one of the agreement"),
        (None, "is not the one of the agreement"),
        (torch.zeros(3), "is not bytes"),
    ):
        body = bytes(encoded(settled(about, initial=initial)))
        assert said in why(node, RunStart(RUN, signed, -1, body))
    plain = made.signed("other", made.config())
    with pytest.raises(ConfigError, match="is not the one of the agreement"):
        check_initial(verified(made.operator, plain).config, data)


def test_a_submission_is_checked(made: Agreements, whole: Path, tmp_path: Path) -> None:
    """By the operator's program, and again by the server's."""
    file = tmp_path / "odd.safetensors"
    with pytest.raises(ConfigError, match="there is no file"):
        submitted(made, tmp_path, experiment(whole, str(file)))
    file.write_bytes(b"no model")
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        submitted(made, tmp_path, experiment(whole, str(file)))
    with pytest.raises(ConfigError, match="cannot be read as safetensors"):
        check_initial({"model": {"init": named(b"no model")}}, b"no model")
    save_file({"w": torch.zeros(2)}, file)
    asked = submitted(made, tmp_path, experiment(whole, str(file)))
    assert bytes(written(asked).body) == file.read_bytes()
    config = verified(made.operator, asked.agreement).config
    check_initial(config, file.read_bytes())
    for data in (b"", b"no model", save({"w": torch.ones(2)})):
        with pytest.raises(ConfigError, match="is not the one of the agreement"):
            check_initial(config, data)


def test_a_digest_alone_is_no_model(whole: Path, tmp_path: Path) -> None:
    given = Experiment(parse(experiment(whole, named(b"x"))))
    with pytest.raises(ConfigError, match="did not come with it"):
        run(given, out=tmp_path / "run", baselines=False)


# ------------------------------------------------------------------------------------- the model that the server sends


def nearly(model: Tree) -> Tree:
    """As another processor may draw it."""
    return model * (1 + 1e-7)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox", "hwfedavg"])
def test_a_node_knows_the_model_that_round_1_begins_with(tmp_path: Path, name: str) -> None:
    """The server sent one of its own in round 1, made to tell what it likes; in later rounds nobody can know."""
    node = Node(tmp_path, algorithm={"name": name})
    begun = first_server(node.trainer.running("run").setup)  # type: ignore[union-attr]
    honest = messages(node.trainer.running("run").setup.algorithm, begun, (0,))[0]  # type: ignore[union-attr]
    for lie in (
        {**honest, "model": node.model.zeros()},
        {**honest, "model": node.model * 1.001},
        *([{**honest, "c": node.model}] if "c" in honest else []),
        *([{**honest, "mu": 1e6}] if "mu" in honest else []),
        {**honest, "more": 1},
    ):
        assert FIRST in node.ask(message=lie).head["why"]
    assert node.ask(message={**honest, "model": nearly(node.model)}).kind == "reply"
    assert node.ask(message={**honest, "model": node.model.zeros()}, landed=1, round=2).kind == "reply"


def test_a_node_knows_the_model_that_is_judged_before_round_1(tmp_path: Path) -> None:
    node = Node(tmp_path, judging=True)
    asked: dict[str, Any] = {"what": "judge", "reduce": "sum", "landed": -1, "round": 0, "lr": 0.0}
    for lie in (node.model.zeros(), Tree(), {"more": node.model}):
        assert node.ask(message={"judged": lie}, **asked).kind == "refused"
    assert FIRST in node.ask(message={"judged": node.model.zeros()}, **asked).head["why"]
    assert node.ask(message={"judged": node.model}, **asked).kind == "reply"


def test_so_does_the_party_of_a_simulation(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server half whose state is not the one that the experiment begins with."""
    usual = rounds.first_server
    monkeypatch.setattr(rounds, "first_server", lambda setup: {**usual(setup), "model": usual(setup)["model"].zeros()})
    with pytest.raises(ProtocolError, match="than the experiment begins with"):
        run(Experiment(parse(experiment(whole, ""))), out=tmp_path / "run", baselines=False)
