"""The server's program: it listens, takes submissions of operators, and runs one run after another, each to its end.

It may be killed at any moment: started again, it goes on with the run that was under way. torch is imported after it listens, so that
nodes find it at once.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.errors import ConfigError
from fedatlas.wire.agreement import verified
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.certificates import Caller
from fedatlas.wire.listener import Listener
from fedatlas.wire.messages import (
    EndOfFiles,
    FetchRun,
    NodeStatus,
    NoEvent,
    RunEvent,
    RunFile,
    RunStatus,
    ServerStatus,
    Stopping,
    StopRun,
    Submission,
    Submitted,
    WatchRun,
)

if TYPE_CHECKING:
    from fedatlas.deployment.server_run import SubmittedRun

RUNS, LOG = "runs", "server.log"
OVER = {"finished", "diverged", "failed", "stopped"}
POLL = 0.05  # seconds between two looks at what a watcher is told


class Server:
    """The server of a federation."""

    def __init__(self, bundle: Bundle, test: Path | None = None, listen: str = "") -> None:
        if test is not None and not test.exists():
            raise ConfigError(f"--test {test}: no such file; name the rows to judge by.")
        self.bundle, self.test = bundle, test
        self.runs = bundle.path / RUNS
        self.listener = Listener(bundle, self.operate, self.log, listen)

    def log(self, text: str) -> None:
        """Write a line with the time, on the screen and in the bundle."""
        line = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n"
        sys.stderr.write(line)
        with open(self.bundle.path / LOG, "a", encoding="utf-8") as file:
            file.write(line)

    def serve(self) -> None:
        """Run until it is ended."""
        self.listener.start()
        from fedatlas.deployment.nodes import Nodes
        from fedatlas.deployment.server_run import ServerContext, run_submitted

        nodes = Nodes(self.listener)
        context = ServerContext(self.bundle, nodes, self.test)
        while True:
            nodes.stop = lambda: None
            if (run := self._next_run()) is None:
                nodes.next(time.monotonic() + 0.2)
                continue
            self.log(f"run '{run.name}' begins or goes on")
            try:
                run_submitted(run, context)
            except Exception as error:  # noqa: BLE001  # a fault of ours in one run must not end the others
                run.stands("failed", f"{type(error).__name__}: {error}")
                self.log(f"run '{run.name}' failed: {traceback.format_exc()}")
            self.log(f"run '{run.name}': {run.state.status} {run.state.why}".rstrip())

    def _submitted(self) -> list[SubmittedRun]:
        from fedatlas.deployment.server_run import JOB, SubmittedRun

        return [SubmittedRun(path.parent) for path in sorted(self.runs.glob(f"*/{JOB}"))]

    def _next_run(self) -> SubmittedRun | None:
        """The run that was under way, else the first that waits."""
        found = self._submitted()
        for status in ("running", "queued"):
            for run in found:
                if run.state.status == status:
                    return run
        return None

    def _run(self, name: str) -> SubmittedRun:
        for run in self._submitted():
            if run.name == name:
                return run
        raise ConfigError(f"there is no run '{name}': 'fedatlas deploy status' lists them.")

    # ------------------------------------------------------------------------------------------------ operators

    def operate(self, caller: Caller, asked: Any) -> Iterator[Any]:
        """Answer an operator."""
        if isinstance(asked, Submission):
            yield Submitted(self._submit(caller, asked))
        elif isinstance(asked, WatchRun):
            yield from self._watch(self._run(asked.run), asked.after)
        elif isinstance(asked, FetchRun):
            yield from self._fetch(self._run(asked.run))
        elif isinstance(asked, StopRun):
            run = self._run(asked.run)
            if run.state.status in OVER:
                raise ConfigError(f"run '{run.name}' has ended already ({run.state.status}).")
            (run.folder / "stop").touch()
            self.log(f"'{caller.name}' stops '{run.name}'")
            yield Stopping(run.name, run.state.status)
        else:
            yield self._status()

    def _submit(self, caller: Caller, asked: Submission) -> str:
        """Check the agreement on a run and put it into the queue."""
        from fedatlas.config import parse
        from fedatlas.deployment.refusals import deployable
        from fedatlas.deployment.server_run import SubmissionState, SubmittedRun

        found = verified(self.bundle, asked.agreement)
        if found.operator != caller.name:
            raise ConfigError(f"the agreement is signed by '{found.operator}', and '{caller.name}' submits it.")
        deployable(parse({**found.config, **({"round": asked.round} if asked.round else {})}), found.names)
        state = SubmissionState(asked.agreement, time.time(), "queued", "", asked.round)
        try:
            SubmittedRun.create(self.runs / found.run, state)
        except FileExistsError:
            raise ConfigError(f"there is a run '{found.run}' already: submit the experiment again.") from None
        self.log(f"'{caller.name}' submits '{found.run}'")
        return found.run

    def _watch(self, run: SubmittedRun, after: int) -> Iterator[Any]:
        """Yield events from line ``after`` on, as they come, until the run is over."""
        from fedatlas.deployment.server_run import EVENTS

        path, sent, quiet = run.folder / EVENTS, 0, time.monotonic()
        at = 0
        while True:
            for line in _lines(path, at) if path.exists() else ():
                at += len(line)
                sent += 1
                if sent <= after:
                    continue
                event = json.loads(line)
                quiet = time.monotonic()
                yield RunEvent(sent, event)
                if event["kind"] == "status" and event["status"] in OVER:
                    return
            if time.monotonic() - quiet > 1.0:
                quiet = time.monotonic()
                yield NoEvent()
            time.sleep(POLL)

    def _fetch(self, run: SubmittedRun) -> Iterator[Any]:
        """Yield the files of the run's directory."""
        root = run.folder / "run"
        for path in sorted(root.rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and not name.endswith(".part") and not name.startswith(("checkpoint/", "closed", "lock")):
                yield RunFile(name, path.read_bytes())
        yield EndOfFiles()

    def _status(self) -> ServerStatus:
        now = time.time()
        nodes = []
        for name, member in self.bundle.members().items():
            if member.role == "node":
                stream = self.listener.streams.get(name)
                heard = now - (time.monotonic() - stream.heard) if stream else self.listener.seen.get(name)
                nodes.append(NodeStatus(name, stream is not None, heard))
        runs = []
        for run in self._submitted():
            s, a, rows = run.state, run.agreement, run.folder / "run" / "metrics.jsonl"
            done = max(0, len(rows.read_text().splitlines()) - 1) if rows.exists() else 0
            rounds = a.config.get("rounds")
            runs.append(RunStatus(run.name, s.status, s.why, a.operator, a.names, s.submitted, rounds, done))
        return ServerStatus(self.bundle.federation, tuple(nodes), tuple(runs))


def _lines(path: Path, at: int) -> list[bytes]:
    """The whole lines from a place on."""
    with open(path, "rb") as file:
        file.seek(at)
        return [line for line in file if line.endswith(b"\n")]
