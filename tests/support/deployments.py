"""A federation in real processes for the tests: a server and nodes, as `fedatlas deploy` starts them, and what is asked of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedatlas.config import parse
from fedatlas.deployment.operator_client import ask_server, events, fetch, submit
from fedatlas.deployment.trial import free_port
from fedatlas.deployment.trial_rows import deal
from fedatlas.wire.bundle import Bundle, init
from fedatlas.wire.messages import StatusEvent, StopRun
from fedatlas.wire.policy import Policy

NAMES = ["north", "south", "west"]
EXPERIMENT: Mapping[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "dirichlet", "clients": 3},
    "engine": {"plan": "program"},
}
PATIENCE = 300.0  # seconds after which a test gives up; a quiet machine needs a few
SPEAK = """
import sys
from pathlib import Path
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.speaker import Speaker
Speaker(Bundle.open(Path(sys.argv[1]), "node"), sys.argv[2:], lambda text: None).speak()
"""


def experiment(**tables: Any) -> dict[str, Any]:
    """The experiment of these tests with other tables."""
    return {**EXPERIMENT, **tables}


class Deployment:
    """Processes by name: "server" and the nodes'. Each is started, killed, stopped and waited for."""

    def __init__(
        self, folder: Path, names: Sequence[str] = NAMES, given: Mapping[str, Any] = EXPERIMENT, judge: str = "server"
    ) -> None:
        self.folder, self.names, self.judge = folder, list(names), judge
        self.bundles = init(folder / "federation", self.names, "localhost", free_port())
        deal(parse(given), self.names, folder, judge)
        for name in self.names:
            Policy.write_for_trial(self.bundles[name] / "policy.toml")
        self.rows = {name: folder / f"{'test' if name == 'server' else name}.rows" for name in ("server", *self.names)}
        self.rows |= {one["name"]: Path(one["path"]) for one in given.get("parties", ())}
        self.lies: dict[str, str] = {}  # node -> how its trainer lies
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.operator = Bundle.open(self.bundles["operator"], "operator")

    def start(self, *names: str, **data: Path) -> None:
        for name in names or ("server", *self.names):
            me = [sys.executable, "-m", "fedatlas", "deploy"]
            rows = data.get(name, self.rows[name])
            command = [*me, "server", str(self.bundles[name])]
            command += ["--test", str(rows)] if self.judge == "server" else []
            if name != "server":
                command = [*me, "node", str(self.bundles[name]), "--data", str(rows)]
            if name in self.lies:
                lying = str(Path(__file__).with_name("lying_trainer.py"))
                command = [sys.executable, "-c", SPEAK, str(self.bundles[name]), sys.executable, lying, self.lies[name]]
                command += [str(self.bundles[name]), str(rows)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
            with open(self.folder / f"{name}.log", "ab") as log:
                self.processes[name] = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
                )

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def again(self, name: str, how: str = "") -> None:
        """A node that is there ends, and begins again; ``how`` its trainer lies."""
        before = self.log("server").count(f"'{name}' is connected")
        self.processes[name].terminate()
        self.processes[name].wait()
        self.lies = {name: how} if how else {}
        self.start(name)
        until(lambda: self.log("server").count(f"'{name}' is connected") > before, f"{name} does not come back")

    def kill(self, name: str) -> None:
        """With -9, and with it whatever it had started, as the kernel would not do: a trainer ends by itself."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def trainer(self, name: str) -> int:
        """The process that trains for a node."""
        path = Path(f"/proc/{self.processes[name].pid}/task/{self.processes[name].pid}/children")
        until(lambda: bool(path.read_text().split()), f"{name} has no trainer")
        return int(path.read_text().split()[0])

    def submit(self, given: Mapping[str, Any], nodes: Sequence[str] = ()) -> str:
        path = self.folder / "experiment.toml"
        path.write_text(tomli_w.dumps(dict(given)))
        return submit(self.operator, path, [], nodes, PATIENCE)

    def watch(self, run: str) -> StatusEvent:
        """The last event of a run."""
        *_, last = events(self.operator, run)
        assert isinstance(last, StatusEvent)
        return last

    def run(self, given: Mapping[str, Any], nodes: Sequence[str] = ()) -> tuple[Path, StatusEvent]:
        """(the run's directory as fetched, its last event)."""
        run = self.submit(given, nodes)
        return self.ended(run)

    def ended(self, run: str) -> tuple[Path, StatusEvent]:
        last = self.watch(run)
        out = self.folder / "fetched" / run
        if last.status != "failed":
            fetch(self.operator, run, out)
        return out, last

    def stop(self, run: str) -> tuple[Path, StatusEvent]:
        """Stops a run; as `ended`."""
        ask_server(self.operator, StopRun(run))
        return self.ended(run)

    def end(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def deployment(
    folder: Path, names: Sequence[str] = NAMES, given: Mapping[str, Any] = EXPERIMENT, judge: str = "server"
) -> Iterator[Deployment]:
    made = Deployment(folder, names, given, judge)
    try:
        made.start()
        yield made
    finally:
        made.end()


def until(true: Callable[[], bool], otherwise: str, seconds: float = PATIENCE) -> None:
    """Waits for something."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def answers_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
