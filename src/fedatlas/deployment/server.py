"""The server's program: it listens, accepts submissions of operators, and runs one run after another, each to its end.

It may be killed at any moment. When it starts again, it continues the current run. If the disk is full, it waits. Any
other fault that it cannot handle ends it, so that a supervisor (systemd) starts it again. torch is imported once it
listens, so that nodes can connect at once.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.errors import ConfigError, DiskError, FedatlasError, ProtocolError
from fedatlas.files import lacks_room, write_bytes
from fedatlas.wire.agreement import verified
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.certificates import Caller
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.listener import CALL, LONG_CALL, Listener, ListenerDied
from fedatlas.wire.messages import (
    EVENTS,
    OVER,
    EndOfFiles,
    FetchRun,
    NodeStatus,
    NoEvent,
    NoticeEvent,
    RunFile,
    RunStatus,
    ServerStatus,
    StatusEvent,
    Stopping,
    StopRun,
    Submission,
    Submitted,
    WatchRun,
    read,
)
from fedatlas.wording import capital

if TYPE_CHECKING:
    from fedatlas.deployment.nodes import Nodes
    from fedatlas.deployment.server_run import ServerContext, SubmittedRun

RUNS, LOG = "runs", "server.log"
ROOM, AGAIN = 8 << 20, 2.0  # bytes that must be free again on a full disk, seconds between two checks
POLL = 0.05  # seconds between two checks for new events


class Server:
    """The server of a federation."""

    def __init__(self, bundle: Bundle, test: Path | None = None, listen: str = "") -> None:
        if test is not None and not test.exists():
            raise ConfigError(f"--test {test}: no such file; name the rows to judge by.")
        self.bundle, self.test = bundle, test
        self.runs = bundle.path / RUNS
        self.paused = ""  # why the current run waits
        self.unreadable: set[str] = set()  # folders of runs that were logged as unreadable
        self.listener = Listener(bundle, self.operate, self.log, listen)

    def log(self, text: str) -> None:
        """Write a line with the time to standard error and to the log.

        Control characters, which could fake lines, are replaced.
        """
        shown = "\n    ".join("".join(c if c.isprintable() else " " for c in line) for line in text.splitlines())
        line = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {shown}\n"
        sys.stderr.write(line)
        with contextlib.suppress(OSError), open(self.bundle.path / LOG, "a", encoding="utf-8") as file:
            file.write(line)

    def serve(self) -> None:
        """Serve until the process ends. Raises every fault that it cannot handle."""
        self.listener.start()
        try:
            self._serve()
        except Exception:
            self.log(f"the server ends: {traceback.format_exc()}")
            raise
        finally:
            self.listener.stop()

    def _serve(self) -> None:
        from fedatlas.deployment.nodes import Nodes
        from fedatlas.deployment.server_run import ServerContext

        nodes = Nodes(self.listener)
        context = ServerContext(self.bundle, nodes, self.test)
        while True:
            nodes.stop = lambda: None
            run = self._next_run()
            if run is None:
                nodes.next(time.monotonic() + 0.2)
                continue
            try:
                self._one(run, context)
            except (OSError, FedatlasError) as error:
                if not lacks_room(error):
                    raise
                self._wait_for_room(run, nodes)

    def _one(self, run: SubmittedRun, context: ServerContext) -> None:
        """Run one run to its end. A bug in one run does not end the others. A full disk is left to the caller."""
        from fedatlas.deployment.server_run import run_submitted

        self.log(f"run '{run.name}' begins or goes on")
        try:
            run_submitted(run, context)
        except ListenerDied:
            raise
        except Exception as error:
            if lacks_room(error):
                raise
            run.stands("failed", f"{type(error).__name__}: {error}")
            self.log(f"run '{run.name}' failed: {traceback.format_exc()}")
        self.log(f"run '{run.name}': {run.state.status} {run.state.why}".rstrip())

    def _wait_for_room(self, run: SubmittedRun, nodes: Nodes) -> None:
        """Wait until a file of `ROOM` bytes can be written. The run then continues as after a restart."""
        self.paused = f"the server's disk is full: the run waits until {ROOM >> 20} MB are free"
        self.log(f"run '{run.name}': {self.paused}")
        nodes.stop, since = (lambda: None), time.monotonic()
        while not self._room():
            until = time.monotonic() + AGAIN
            while nodes.next(until) is not None:
                pass
        self.paused = ""
        run.event(NoticeEvent(f"The server's disk was full for {time.monotonic() - since:.0f} s."))

    def _room(self) -> bool:
        path = self.bundle.path / "room"
        try:
            write_bytes(path, bytes(ROOM))
        except DiskError as error:
            if lacks_room(error):
                return False
            raise
        path.unlink(missing_ok=True)
        return True

    def _submitted(self) -> list[SubmittedRun]:
        """Return the runs in their folders. One that cannot be read is skipped, and logged once."""
        from fedatlas.deployment.server_run import JOB, SubmittedRun

        found = []
        for path in sorted(self.runs.glob(f"*/{JOB}")):
            try:
                found.append(SubmittedRun(path.parent))
            except (FedatlasError, OSError, ValueError) as error:
                if path.parent.name not in self.unreadable:
                    self.unreadable.add(path.parent.name)
                    self.log(f"'{path}' cannot be read: {error}")
        return found

    def _seen(self, caller: Caller) -> list[SubmittedRun]:
        """Return the runs that an operator may see."""
        every = self.bundle.operators_see == "all"
        return [run for run in self._submitted() if every or run.agreement.operator == caller.name]

    def _next_run(self) -> SubmittedRun | None:
        """Return the current run, or the first in the queue."""
        found = self._submitted()
        for status in ("running", "queued"):
            for run in found:
                if run.state.status == status:
                    return run
        return None

    def _run(self, caller: Caller, name: str) -> SubmittedRun:
        for run in self._seen(caller):
            if run.name == name:
                return run
        raise ConfigError(f"there is no run '{name}': 'fedatlas deploy status' lists them.")

    # ------------------------------------------------------------------------------------------------ operators

    def operate(self, caller: Caller, asked: Any) -> Iterator[Any]:
        """Answer an operator."""
        if isinstance(asked, Submission):
            yield Submitted(self._submit(caller, asked))
        elif isinstance(asked, WatchRun):
            yield from self._watch(self._run(caller, asked.run), asked.after)
        elif isinstance(asked, FetchRun):
            yield from self._fetch(self._run(caller, asked.run))
        elif isinstance(asked, StopRun):
            run = self._run(caller, asked.run)
            if run.state.status in OVER:
                raise ConfigError(f"run '{run.name}' has ended already ({run.state.status}).")
            (run.folder / "stop").touch()
            self.log(f"'{caller.name}' stops '{run.name}'")
            yield Stopping(run.name, run.state.status)
        else:
            yield self._status(caller)

    def _submit(self, caller: Caller, asked: Submission) -> str:
        """Check the agreement on a run and put it into the queue."""
        from fedatlas.config import parse
        from fedatlas.deployment.refusals import check_initial, deployable
        from fedatlas.deployment.server_run import SubmissionState, SubmittedRun

        found = verified(self.bundle, asked.agreement)
        if found.operator != caller.name:
            raise ConfigError(f"the agreement is signed by '{found.operator}', and '{caller.name}' submits it.")
        deployable(parse({**found.config, **({"round": asked.round} if asked.round else {})}), found.names)
        check_initial(found.config, bytes(asked.body))
        state = SubmissionState(asked.agreement, time.time(), "queued", "", asked.round)
        try:
            SubmittedRun.create(self.runs / found.run, state, bytes(asked.body))
        except FileExistsError:
            raise ConfigError(f"there is a run '{found.run}' already: submit the experiment again.") from None
        self.log(f"'{caller.name}' submits '{found.run}'")
        return found.run

    def _watch(self, run: SubmittedRun, after: int) -> Iterator[Any]:
        """Yield events after line ``after`` as they come, until the run is over or the call reaches its time limit."""
        from fedatlas.deployment.server_run import EVENT_LINES, SubmittedRun

        path, sent, began, paused = run.folder / EVENT_LINES, 0, time.monotonic(), ""
        at, quiet = 0, began
        while time.monotonic() - began < LONG_CALL - CALL:
            for line in _lines(path, at) if path.exists() else ():
                at += len(line)
                sent += 1
                if sent <= after:
                    continue
                if (event := _event(line, sent)) is None:
                    continue
                quiet = time.monotonic()
                yield event
                if isinstance(event, StatusEvent) and event.status in OVER:
                    return
            if paused != (paused := self.paused) and paused and SubmittedRun(run.folder).state.status == "running":
                yield NoticeEvent(f"{capital(paused)}.", time.time(), max(sent, after))
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

    def _status(self, caller: Caller) -> ServerStatus:
        now = time.time()
        nodes = []
        for name, member in self.bundle.members().items():
            if member.role == "node":
                stream = self.listener.streams.get(name)
                heard = now - (time.monotonic() - stream.heard) if stream else self.listener.seen.get(name)
                nodes.append(NodeStatus(name, stream is not None, heard))
        runs = []
        for run in self._seen(caller):
            s, a, rows = run.state, run.agreement, run.folder / "run" / "metrics.jsonl"
            done = max(0, len(rows.read_text().splitlines()) - 1) if rows.exists() else 0
            rounds = a.config.get("rounds")
            why = self.paused if s.status == "running" else s.why
            runs.append(RunStatus(run.name, s.status, why, a.operator, a.names, s.submitted, rounds, done))
        return ServerStatus(self.bundle.federation, tuple(nodes), tuple(runs))


def _event(line: bytes, number: int) -> Any:
    """Return the event of a line; None if the line was cut short, or is not an event of this version."""
    try:
        return read(RawMessage({**json.loads(line), "number": number}), EVENTS)
    except (ValueError, TypeError, ProtocolError):
        return None


def _lines(path: Path, at: int) -> list[bytes]:
    """Return the whole lines from a byte position on."""
    with open(path, "rb") as file:
        file.seek(at)
        return [line for line in file if line.endswith(b"\n")]
