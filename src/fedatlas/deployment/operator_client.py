"""An operator's end: submits an experiment, shows what happens, fetches the run's directory. It imports no torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.errors import ConfigError, DiskError, TransportError
from fedatlas.files import write_bytes
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.channel import call
from fedatlas.wire.messages import FetchRun, RunEvent, RunFile, Submission, WatchRun

PATIENCE = 600.0  # seconds that a server may be away while a run is watched
Say = Callable[[str], None]


def silent(text: str) -> None:
    """Show nothing."""


def to_stderr(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(text + "\n")


def ask_server(bundle: Bundle, asked: Any) -> Any:
    """The one answer of the server."""
    return next(call(bundle, asked))


def submit(
    bundle: Bundle, experiment: Path | None, overrides: Sequence[str], nodes: Sequence[str], patience: float = 0
) -> str:
    """Submit a run; return its name. ``patience``: seconds to wait for a server that is not there yet."""
    try:
        text = "" if experiment is None else experiment.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"'{experiment}' cannot be read: {error.strerror}.") from None
    submission = Submission(text, tuple(overrides), tuple(nodes))
    until = time.monotonic() + patience
    while True:
        try:
            return str(ask_server(bundle, submission).run)
        except TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def events(bundle: Bundle, run: str) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a run, to its end, through breaks of the connection and restarts of the server."""
    after, since = 0, time.monotonic()
    while True:
        try:
            for said in call(bundle, WatchRun(run, after)):
                since = time.monotonic()
                if not isinstance(said, RunEvent):
                    continue
                after, event = said
                yield event
                if event["kind"] == "status" and event["status"] in {"finished", "diverged", "failed", "stopped"}:
                    return
        except TransportError:
            if time.monotonic() - since > PATIENCE:
                raise
            yield {"kind": "away"}
            time.sleep(0.3)


def watch(bundle: Bundle, run: str, say: Say) -> Mapping[str, Any]:
    """Show a run to its end; return its last status."""
    rounds, away = "?", False
    for event in events(bundle, run):
        kind = event["kind"]
        if kind == "away":
            if not away:
                say("The server cannot be reached; the run goes on without this window, or when the server is back.")
            away = True
            continue
        away = False
        if kind == "started":
            rounds = str(event["rounds"])
        elif kind == "said":
            say(str(event["text"]))
        elif kind == "row":
            say(line_of(event["row"], rounds, event.get("nodes", {})))
        elif kind == "node":
            say(f"  round {event['round']}: {event['node']} {event['outcome']}")
        elif kind == "status":
            if event["status"] != "running":
                say(f"Run {run}: {event['status']}.")
            if event["status"] in {"finished", "diverged", "failed", "stopped"}:
                return event
    raise TransportError("the server says no more of the run.")


def line_of(row: Mapping[str, Any], rounds: str, nodes: Mapping[str, float]) -> str:
    """A round as a line."""
    figures = [f"{key} {row[key]:.4f}" for key in ("accuracy", "rmse", "loss") if row.get(key) is not None]
    who = [f"{name} {seconds:.2f} s" for name, seconds in nodes.items()]
    timed = f"{row['seconds']:.2f} s"
    return "  ".join([f"round {row['round']}/{rounds}", *figures, timed, *([f"({', '.join(who)})"] if who else [])])


def fetch(bundle: Bundle, run: str, out: Path) -> None:
    """Copy the run's directory to ``out``."""
    for said in call(bundle, FetchRun(run)):
        if not isinstance(said, RunFile):
            return
        write_bytes(out / said.name, bytes(said.body))
    raise TransportError("the run's directory did not come whole: 'fedatlas deploy run --attach' fetches it again.")


def check_out(out: Path) -> None:
    """Refuse to copy a run over something, with a ConfigError."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: this is not an empty folder; name another.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"'{out}' cannot be made: {error.strerror}.") from None
