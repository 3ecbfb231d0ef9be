"""``[guard]`` between real parties: a rejection and a rollback leave the bytes of a simulation, and no round number comes twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fedatlas
from agreements import Agreements
from deployments import NAMES, deployment, experiment, rows_of
from fedatlas import ConfigError, Experiment
from fedatlas.config import parse
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.server_run import SubmittedRun
from fedatlas.deployment.trainer import Trainer
from fedatlas.deployment.trial_rows import deal
from fedatlas.federation.link import Observer, Request
from fedatlas.setup.resolution import resolve
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import RoundVerdicts, written
from nodes_in_process import LocalListener, run_here, serve_run
from test_asks import Node

GIVEN = experiment(rounds=6, algorithm={"name": "scaffold"}, guard={"rows": 100, "tol": 0.03})
BACK, STOP = 1, 5  # the version of the rollback; the round in which the run is stopped


class Killed(BaseException):
    """The server's process dies."""


def tables() -> dict[str, Any]:
    return resolve(parse(GIVEN)).config.plain()


def trained(made: Agreements, folder: Path) -> dict[str, Trainer]:
    return {name: made.trainer(name, folder / f"{name}.rows") for name in NAMES}


def stops(at: int, name: str, message: RawMessage) -> RawMessage:
    """A tap at which the server dies once all nodes but one have answered in a round."""
    if message.kind == "ask" and message.head["place"][0] == at and name == NAMES[-1]:
        raise Killed
    return message


class Stopping(Observer):
    """The same in a simulation."""

    def asked(self, request: Request) -> None:
        if request.round == STOP and request.client == len(NAMES) - 1:
            raise Killed


def compared(there: Path, here: Path) -> list[dict[str, Any]]:
    """Compare two runs; return the rows."""
    assert (there / "model.safetensors").read_bytes() == (here / "model.safetensors").read_bytes()
    for mine, theirs in zip(rows_of(there), rows_of(here), strict=True):
        for key in ("round", "committed", "version", "clients", "steps"):
            assert mine[key] == theirs[key], key
        assert mine["score"] == pytest.approx(theirs["score"], abs=1e-9)
    blind = [one._replace(time=0.0, score=None) for one in fedatlas.versions(here)]
    assert [one._replace(time=0.0, score=None) for one in fedatlas.versions(there)] == blind
    return rows_of(here)


def test_a_rejection_and_a_rollback_leave_the_bytes_of_a_simulation(tmp_path: Path):
    deal(parse(GIVEN), NAMES, tmp_path, "server")
    made, test = Agreements(tmp_path, NAMES), tmp_path / "test.rows"
    signed, nodes = made.signed("r", tables()), trained(made, tmp_path)
    with pytest.raises(Killed):
        run_here(made, nodes, signed, partial(stops, STOP), test)
    folder = Bundle.open(made.paths["server"], "server").path / "runs" / "r"
    fedatlas.rollback(folder / "run", BACK)
    before = {name: nodes[name].running("r").state.round for name in NAMES}  # type: ignore[union-attr]
    assert {*before.values()} == {STOP - 1}
    run, nodes = SubmittedRun(folder), trained(made, tmp_path)
    serve_run(
        run, Bundle.open(made.paths["server"], "server"), LocalListener(nodes, lambda name, message: message), test
    )
    assert run.state.status == "finished", run.state.why

    assert "rounds may be rejected" in (made.paths["north"] / "audit.jsonl").read_text()

    here = tmp_path / "here"
    with pytest.raises(Killed):
        fedatlas.run(Experiment.of(**GIVEN), out=here, baselines=False, observers=[Stopping()])
    fedatlas.rollback(here, BACK)
    fedatlas.resume(here)
    rows = compared(folder / "run", here)
    assert [(row["round"], row["committed"]) for row in rows[3:]] == [(3, False), (4, False), (6, True)]
    assert fedatlas.versions(here)[-1].begun_from == BACK
    with pytest.raises(ConfigError, match="a deployed run that is over"):
        fedatlas.rollback(folder / "run", 2)


def test_a_deployed_run_that_stop_ended_is_over(tmp_path: Path):
    given = {**GIVEN, "stop": {"patience": 1}}
    deal(parse(given), NAMES, tmp_path, "server")
    made = Agreements(tmp_path, NAMES)
    run = run_here(
        made,
        trained(made, tmp_path),
        made.signed("r", resolve(parse(given)).config.plain()),
        test=tmp_path / "test.rows",
    )
    assert (run.state.status, rows_of(run.folder / "run")[-1]["round"]) == ("finished", 3)
    with pytest.raises(ConfigError, match="a deployed run that is over"):
        fedatlas.rollback(run.folder / "run", 1)
    assert (run.folder / "run" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.timing
def test_a_rejection_in_real_processes_is_that_of_a_simulation(tmp_path: Path):
    with deployment(tmp_path, given=GIVEN) as made:
        run = made.submit(GIVEN)
        _, ended = made.ended(run)
        assert ended.status == "finished", (ended, made.log("server"))
        there = made.bundles["server"] / "runs" / run / "run"
        fedatlas.run(Experiment.of(**GIVEN), out=tmp_path / "here", baselines=False)
        rows = compared(there, tmp_path / "here")
        assert False in [row["committed"] for row in rows]


def told(node: Node, *verdicts: tuple[int, bool, int]) -> RawMessage:
    (said,) = node.trainer.serve(written(RoundVerdicts("run", verdicts)))
    return said


def test_a_server_that_claims_rejections_gets_no_round_number_twice(tmp_path: Path):
    """It says of rounds that they were rejected, or rolled back, and asks for the same number again."""
    node = Node(tmp_path, guard={"rows": 50}, algorithm={"name": "scaffold"})
    ask = partial(node.ask, message={"model": node.model, "c": node.model.zeros()}, landed=0)
    assert ask().kind == "reply"
    assert told(node, (1, False, -1)).kind == "landed", "round 1 was rejected"
    for said in (ask(number=0, lr=0.05), told(node, (1, False, 0)), ask(attempt=1)):
        assert said.kind in {"refused", "landed"}
    assert "round 1 has landed" in ask(attempt=1).head["why"]
    assert told(node, (2, False, 0)).kind == "landed", "a rollback takes a number of its own"
    assert "round 2 has landed" in ask(round=2).head["why"]
    assert "does not come after the last" in ask(round=5).head["why"]
    for verdict in ((3, False, 3), (3, True, 0), (3, False, 4)):
        assert "a rollback is told" in told(node, verdict).head["why"]
    assert ask(round=3).kind == "reply"


def test_without_a_guard_in_the_agreement_a_node_goes_back_nowhere(tmp_path: Path):
    node = Node(tmp_path, algorithm={"name": "scaffold"})
    assert "a rollback is told that the experiment does not allow" in told(node, (1, False, 0)).head["why"]


def test_what_cannot_be_deployed_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"guard.from = 'train': the server of a deployed run has test rows only"):
        deployable(parse(experiment(guard={"from": "train"})), NAMES)
    given = experiment(guard={"rows": 50})
    deal(parse(given), NAMES, tmp_path, "nodes")
    made = Agreements(tmp_path, NAMES)
    run = run_here(made, trained(made, tmp_path), made.signed("r", resolve(parse(given)).config.plain()))
    assert "start it with --test FILE" in run.state.why
