"""What happens when something dies, stands still or lies: real processes, killed where they stand."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from deployments import PATIENCE, Deployment, answers_of, deployment, experiment, rows_of, until
from fedatlas import Experiment, run
from fedatlas.config import parse
from fedatlas.wire.channel import RefusedByServer

pytestmark = pytest.mark.timing

SLOW: dict[str, Any] = {"rounds": 12, "algorithm": {"name": "scaffold"}, "local": {"epochs": 20}}
LONG: dict[str, Any] = {**SLOW, "rounds": 100_000}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(tmp_path_factory.mktemp("faults")) as made:
        yield made


def simulated(tmp_path: Path, given: dict[str, Any]) -> bytes:
    return (
        run(Experiment(parse(given)), out=tmp_path / "here", baselines=False).path / "model.safetensors"
    ).read_bytes()


def who(three: Deployment, run: str) -> list[list[int]]:
    """Who counted, round by round."""
    return [row["clients"] for row in rows_of(three.bundles["server"] / "runs" / run / "run")]


def landed(three: Deployment, run: str, number: int) -> None:
    """Waits for a round."""
    path = three.bundles["server"] / "runs" / run / "run" / "metrics.jsonl"
    until(lambda: path.exists() and len(path.read_text().splitlines()) > number, f"round {number} does not land")


def test_a_node_that_is_killed_is_noticed_and_comes_back_with_its_state(three: Deployment):
    run = three.submit(experiment(**LONG))
    landed(three, run, 2)
    three.kill("south")
    until(lambda: "'south' is gone" in three.log("server"), "nobody noticed")
    until(lambda: [0, 2] in who(three, run), "no round goes on without it")
    three.start("south")
    until(lambda: who(three, run)[-1] == [0, 1, 2], "it does not come back")
    folder, last = three.stop(run)
    assert last.status == "stopped"
    lost = [line for line in answers_of(folder) if line["outcome"].startswith("lost")]
    assert {line["node"] for line in lost} == {"south"}


def test_a_trainer_that_is_killed_is_started_again_and_the_bytes_are_those_of_one_never_killed(
    three: Deployment, tmp_path: Path
):
    given = experiment(**SLOW, round={"on_loss": "wait"})
    run = three.submit(given)
    landed(three, run, 3)
    os.kill(three.trainer("west"), signal.SIGKILL)
    folder, last = three.ended(run)
    assert last.status == "finished"
    assert (folder / "model.safetensors").read_bytes() == simulated(tmp_path, given)


@pytest.mark.slow
def test_a_node_that_stands_still_is_noticed(three: Deployment):
    run = three.submit(experiment(**LONG))
    landed(three, run, 1)
    three.processes["north"].send_signal(signal.SIGSTOP)
    until(lambda: "'north' is gone: nothing was heard" in three.log("server"), "nobody noticed")
    until(lambda: [1, 2] in who(three, run), "no round goes on without it")
    three.processes["north"].send_signal(signal.SIGCONT)
    until(lambda: who(three, run)[-1] == [0, 1, 2], "it does not come back")
    assert three.stop(run)[1].status == "stopped"


@pytest.mark.slow
def test_fewer_nodes_than_the_minimum_end_the_run_with_the_reason(three: Deployment):
    run = three.submit(experiment(**LONG, round={"minimum": 3, "deadline": 10.0}))
    landed(three, run, 1)
    three.kill("west")
    _, last = three.ended(run)
    three.start("west")
    assert last.status == "failed"
    assert "2 of 3 nodes answered, and the run needs 3 (west: no reply within 10 s)" in last.why
    until(lambda: three.log("server").rstrip().endswith("'west' is connected"), "west does not come back")


LIES = {
    "nan": "'model' of its reply is not finite",
    "misshapen": "'model' of its reply has other tensors than the model",
    "other parts": "'model' of its reply has other tensors than the model",
    "no codec": "its reply cannot be read",
    "foreign": "its reply cannot be read (it answers another request)",
    "late": "no reply within 10 s",
}


def test_lies_of_a_trainer_lose_its_node_a_round_or_the_run_its_start_and_never_the_server(three: Deployment):
    """Facts that cannot be read end a run with the node's name. From round 2 on a trainer lies in another way each round."""
    three.again("west", "facts")
    _, last = three.ended(three.submit(experiment(rounds=1)))
    assert last.status == "failed"
    assert last.why == "'west' takes no part: the field 'facts.rows' is not a table."
    hows = ["twice", *LIES]
    three.again("west", ",".join(hows))
    folder, last = three.ended(three.submit(experiment(rounds=len(hows) + 2, round={"deadline": 10.0})))
    three.again("west")
    assert last.status == "finished", last
    rows, said = rows_of(folder), [line for line in answers_of(folder) if line["outcome"] != "answered"]
    assert {line["node"] for line in said} == {"west"}
    assert rows[2]["clients"] == rows[len(hows) + 2]["clients"] == [0, 1, 2]
    for number, how in enumerate(LIES, 3):
        assert rows[number]["clients"] == [0, 1], how
        lost = [line["outcome"] for line in said if line["round"] == number and line["outcome"].startswith("lost")]
        assert len(lost) == 1
        assert lost[0].startswith(f"lost: {LIES[how]}")


def test_a_trainer_that_is_killed_in_a_masked_round_costs_that_round_anew(three: Deployment, tmp_path: Path):
    """Its keys of the round are gone with it; with three nodes a sum of the other two is none that may be opened."""
    given = experiment(rounds=3, privacy=[{"name": "secagg"}], local={"epochs": 100}, round={"on_loss": "wait"})
    run = three.submit(given)
    pending = three.bundles["south"] / "state" / run / "pending"
    until(lambda: any(pending.glob("000002-000-0001.bin")), "no masked round begins")  # and its longest ask follows
    os.kill(three.trainer("south"), signal.SIGKILL)
    folder, last = three.ended(run)
    assert last.status == "finished", last
    assert {tuple(one) for one in who(three, run)[1:]} == {(0, 1, 2)}
    assert {line["attempt"] for line in answers_of(folder)} == {0, 1}
    assert (folder / "model.safetensors").read_bytes() == simulated(tmp_path, given)


def test_a_terminal_that_is_closed_ends_no_run(three: Deployment):
    """The operator's program is hung up on; the run goes on, and can be come back to."""
    path = three.folder / "closed.toml"
    path.write_text(tomli_w.dumps(experiment(rounds=30)))
    command = [sys.executable, "-m", "fedatlas", "deploy", "run", str(path), "--bundle", str(three.bundles["operator"])]
    before = three.log("server").count("submits")
    with open(three.folder / "terminal.log", "wb") as log:
        terminal = subprocess.Popen(command, stdout=log, stderr=log, cwd=three.folder, start_new_session=True)
    until(lambda: "round 1/30" in (three.folder / "terminal.log").read_text(), "nothing is shown of the run")
    terminal.send_signal(signal.SIGHUP)
    terminal.wait(PATIENCE)
    assert three.log("server").count("submits") == before + 1
    run = (three.folder / "terminal.log").read_text().split("Run ")[1].split()[0]
    out = three.folder / "attached"
    again = [*command[:5], "--attach", run, "--bundle", str(three.bundles["operator"]), "--out", str(out), "--json"]
    said = subprocess.run(again, capture_output=True, text=True, check=True)
    assert json.loads(said.stdout)["status"] == "finished"
    with pytest.raises(RefusedByServer, match=f"run '{run}' has ended already"):
        three.stop(run)
    assert len(rows_of(out)) == 31


def kills(three: Deployment, tmp_path: Path, count: int) -> None:
    """Kills the server so many times at random moments of a run."""
    given = experiment(
        rounds=10 * count, algorithm={"name": "scaffold"}, local={"epochs": 4}, round={"on_loss": "wait"}
    )
    run = three.submit(given)
    moments = random.Random(7)  # noqa: S311
    path = three.bundles["server"] / "runs" / run / "run" / "metrics.jsonl"
    done = 0
    for _ in range(count):
        before = len(path.read_text().splitlines()) if path.exists() else 0
        until(lambda: path.exists() and len(path.read_text().splitlines()) > before, "the run does not go on")  # noqa: B023
        time.sleep(moments.uniform(0, 0.4))
        three.kill("server")
        done += 1
        three.start("server")
    folder, last = three.ended(run)
    assert (last.status, done) == ("finished", count)
    assert (folder / "model.safetensors").read_bytes() == simulated(tmp_path, given)
    assert [row["round"] for row in rows_of(folder)] == list(range(given["rounds"] + 1))


def test_the_server_is_killed_and_the_run_goes_on_by_itself_to_the_same_bytes(three: Deployment, tmp_path: Path):
    kills(three, tmp_path, 2)


@pytest.mark.slow
def test_the_server_is_killed_at_twenty_random_moments(three: Deployment, tmp_path: Path):
    kills(three, tmp_path, 20)
