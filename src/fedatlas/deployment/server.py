"""The server's program: it listens, takes what operators submit, and runs one run after another, each to its end.

It may be killed at any moment: started again, it goes on with the run that was under way. torch is imported behind its back, so that
nodes find it at once.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedatlas.errors import ConfigError
from fedatlas.files import OWN_FILES
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.certificates import Caller
from fedatlas.wire.frames import Message
from fedatlas.wire.listener import Listener

if TYPE_CHECKING:
    from fedatlas.deployment.server_run import SubmittedRun

RUNS, LOG = "runs", "server.log"
OVER = {"finished", "diverged", "failed", "stopped"}
POLL = 0.05  # seconds between two looks at what a watcher is told


class Server:
    """The server of a federation."""

    def __init__(self, bundle: Bundle, test: Path | None = None, listen: str = "") -> None:
        if test is not None and not test.exists():
            raise ConfigError(f"--test {test}: there is no such file.")
        self.bundle, self.test = bundle, test
        self.runs = bundle.path / RUNS
        self.listener = Listener(bundle, self.operate, self.log, listen)

    def log(self, text: str) -> None:
        """A line with the time, on the screen and in the bundle."""
        line = f"{datetime.datetime.now():%Y-%m-%d %H:%M:%S} {text}\n"
        sys.stderr.write(line)
        with open(self.bundle.path / LOG, "a", encoding="utf-8") as file:
            file.write(line)

    def serve(self) -> None:
        """Until it is ended."""
        self.listener.start()
        from fedatlas.deployment.nodes import Nodes
        from fedatlas.deployment.server_run import ServerContext, run_submitted

        nodes = Nodes(self.listener)
        context = ServerContext(self.bundle, nodes, self.test)
        while True:
            nodes.stop = lambda: None
            if (job := self._due()) is None:
                nodes.next(time.monotonic() + 0.2)
                continue
            self.log(f"run '{job.name}' begins or goes on")
            try:
                run_submitted(job, context)
            except Exception as error:  # noqa: BLE001  # a fault of ours in one run must not end the others
                job.stands("failed", f"{type(error).__name__}: {error}")
                self.log(f"run '{job.name}' failed: {error!r}")
                import traceback

                self.log(traceback.format_exc())
            self.log(f"run '{job.name}': {job.about['status']} {job.about['why']}".rstrip())

    def _jobs(self) -> list[SubmittedRun]:
        from fedatlas.deployment.server_run import JOB, SubmittedRun

        folders = sorted(self.runs.glob(f"*/{JOB}"), key=lambda path: path.parent.name)
        return [SubmittedRun(path.parent) for path in folders]

    def _due(self) -> SubmittedRun | None:
        """The run that was under way, else the first that waits."""
        jobs = self._jobs()
        for status in ("running", "queued"):
            for job in jobs:
                if job.about["status"] == status:
                    return job
        return None

    def _job(self, name: str) -> SubmittedRun:
        for job in self._jobs():
            if job.name == name:
                return job
        raise ConfigError(f"there is no run '{name}': 'fedatlas deploy status' lists them.")

    # ------------------------------------------------------------------------------------------------ operators

    def operate(self, caller: Caller, message: Message) -> Iterator[Message]:
        """What an operator is answered."""
        head = message.head
        if message.kind == "submit":
            yield Message({"kind": "submitted", "run": self._submit(caller, head)})
        elif message.kind == "watch":
            yield from self._watch(self._job(str(head["run"])), int(head.get("after", 0)))
        elif message.kind == "fetch":
            yield from self._fetch(self._job(str(head["run"])))
        elif message.kind == "stop":
            job = self._job(str(head["run"]))
            if job.about["status"] in OVER:
                raise ConfigError(f"run '{job.name}' has ended already ({job.about['status']}).")
            (job.folder / "stop").touch()
            self.log(f"'{caller.name}' stops '{job.name}'")
            yield Message({"kind": "stopping", "run": job.name, "status": job.about["status"]})
        elif message.kind == "status":
            yield Message({"kind": "status", **self._status()})
        else:
            raise ConfigError(f"'{message.kind}' is nothing that this version of the server does.")

    def _submit(self, caller: Caller, head: Mapping[str, Any]) -> str:
        """Checks an experiment and puts it into the queue."""
        from fedatlas.config import read
        from fedatlas.deployment.refusals import checked
        from fedatlas.deployment.server_run import SubmittedRun
        from fedatlas.files import write_text

        registered = [name for name, member in self.bundle.members().items() if member.role == "node"]
        names = list(head.get("nodes") or registered)
        if odd := [name for name in names if name not in registered]:
            raise ConfigError(f"--nodes: '{odd[0]}' is not registered; registered are {', '.join(registered)}.")
        path = self.runs / ".submitted.toml"
        text = with_paths(str(head["text"]))
        write_text(path, text)
        config = read(path, with_path(text, [str(one) for one in head.get("overrides", [])]))
        if config.columns and not head.get("nodes"):
            parties = [one.name for one in config.parties]
            names = parties if {*parties} <= {*registered} else registered
        whole = checked(config, names)
        rows = "parties" if config.parties else config.data.name
        label = re.sub(r"[^a-z0-9-]", "-", f"{rows}-{config.algorithm.name}".lower())
        base = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{label}"
        name, number = base, 2
        while (self.runs / name).exists():
            name, number = f"{base}-{number}", number + 1
        about = {"config": whole.plain(), "nodes": names, "operator": caller.name, "submitted": time.time()}
        if config.round is not None:
            about["round"] = config.round.model_dump()
        SubmittedRun.create(self.runs / name, about)
        self.log(f"'{caller.name}' submits '{name}'")
        return name

    def _watch(self, job: SubmittedRun, after: int) -> Iterator[Message]:
        """Events from line ``after`` on, as they come, until the run is over."""
        from fedatlas.deployment.server_run import EVENTS

        path, sent, quiet = job.folder / EVENTS, after, time.monotonic()
        at = 0
        while True:
            lines = _lines(path, at) if path.exists() else []
            for length, line in lines:
                at += length
                if after > 0:
                    after -= 1
                    continue
                event = json.loads(line)
                sent += 1
                quiet = time.monotonic()
                yield Message({"kind": "event", "number": sent, "event": event})
                if event["kind"] == "status" and event["status"] in OVER:
                    return
            if time.monotonic() - quiet > 1.0:
                quiet = time.monotonic()
                yield Message({"kind": "waiting"})
            time.sleep(POLL)

    def _fetch(self, job: SubmittedRun) -> Iterator[Message]:
        """The files of the run's directory."""
        root = job.folder / "run"
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_file() and not name.endswith(".part") and not name.startswith(("checkpoint/", "closed", "lock")):
                yield Message({"kind": "file", "name": name}, path.read_bytes())
        yield Message({"kind": "end"})

    def _status(self) -> dict[str, Any]:
        now = time.time()
        streams = self.listener.streams
        nodes = []
        for name, member in self.bundle.members().items():
            if member.role == "node":
                stream = streams.get(name)
                heard = now - (time.monotonic() - stream.heard) if stream else self.listener.seen.get(name)
                nodes.append({"name": name, "connected": stream is not None, "heard": heard})
        runs = []
        for job in self._jobs():
            rounds = job.about["config"].get("rounds")
            rows = job.folder / "run" / "metrics.jsonl"
            done = max(0, len(rows.read_text().splitlines()) - 1) if rows.exists() else 0
            kept = {key: job.about[key] for key in ("status", "why", "operator", "nodes", "submitted")}
            runs.append({"run": job.name, **kept, "rounds": rounds, "done": done})
        return {"federation": self.bundle.federation, "nodes": nodes, "runs": runs}


def with_paths(text: str) -> str:
    """The experiment with a place holder for the file of each of its parties that hold columns."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text  # said by who reads it
    parties = values.get("parties")
    if not isinstance(parties, list) or not all(isinstance(one, dict) for one in parties):
        return text
    return tomli_w.dumps({**values, "parties": [{**one, "path": OWN_FILES} for one in parties]})


def with_path(text: str, overrides: list[str]) -> list[str]:
    """The overrides with a place holder for ``data.path``, where the data are files: each node says with --data where its own lies."""
    try:
        data = tomllib.loads(text).get("data", {})
    except tomllib.TOMLDecodeError:
        return overrides  # said by who reads it
    given = {one.partition("=")[0].strip(): one.partition("=")[2].strip(" '\"") for one in overrides}
    name = given.get("data.name", data.get("name") if isinstance(data, dict) else None)
    return [*overrides, f"data.path={OWN_FILES}"] if name == "file" else overrides


def _lines(path: Path, at: int) -> list[tuple[int, str]]:
    """(bytes, text) of the whole lines from a place on."""
    with open(path, "rb") as file:
        file.seek(at)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [(len(line), line.decode()) for line in whole.splitlines(keepends=True)]
