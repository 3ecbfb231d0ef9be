"""An operator's end: submits an experiment, shows its events, fetches the run's directory.

Only submitting imports torch.
"""

from __future__ import annotations

import datetime
import re
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedatlas.errors import ConfigError, DiskError, TransportError
from fedatlas.files import OF_THE_FILE, OWN_FILES, write_bytes, write_text
from fedatlas.secret import random_bytes
from fedatlas.wire.agreement import agreement_of, sign
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.channel import call
from fedatlas.wire.messages import (
    OVER,
    FetchRun,
    NodeEvent,
    NoEvent,
    NoticeEvent,
    RoundEvent,
    RunEvent,
    RunFile,
    StartEvent,
    StatusEvent,
    Submission,
    WatchRun,
)

PATIENCE = 600.0  # seconds that a watched run's server may be unreachable
Say = Callable[[str], None]


class ServerAway(NamedTuple):
    """The server cannot be reached at present. It is yielded among the events of a run."""


def silent(text: str) -> None:
    """Show nothing."""


def to_stderr(text: str) -> None:
    """Write a line to standard error. Control characters in it are replaced."""
    sys.stderr.write("".join(c if c.isprintable() or c == "\n" else " " for c in text) + "\n")


def ask_server(bundle: Bundle, asked: Any) -> Any:
    """Return the single answer of the server."""
    return next(call(bundle, asked))


def submit(
    bundle: Bundle, experiment: Path | None, overrides: Sequence[str], nodes: Sequence[str], patience: float = 0
) -> str:
    """Sign and submit a run, and return its name.

    ``patience``: seconds to wait for a server that is not running yet.
    """
    submission = signed_submission(bundle, experiment, overrides, nodes)
    until = time.monotonic() + patience
    while True:
        try:
            return str(ask_server(bundle, submission).run)
        except TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def signed_submission(
    bundle: Bundle, experiment: Path | None, overrides: Sequence[str], nodes: Sequence[str]
) -> Submission:
    """Return the submission of an experiment, resolved here and signed with the operator's key.

    Each call names a new run.
    """
    from fedatlas.config import read  # imports torch, which the other commands do without
    from fedatlas.deployment.refusals import deployable, initial_of, with_values
    from fedatlas.setup.columns_method import of_columns

    text, overrides = with_own_files("" if experiment is None else text_of(experiment), overrides)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (experiment or Path("experiment.toml")).name
        write_text(path, text)
        config = read(path, overrides)
    initial, config = initial_of(config), with_values(config)
    registered = [name for name, member in bundle.members().items() if member.role == "node"]
    names = tuple(nodes) or tuple(registered)
    if odd := [name for name in names if name not in registered]:
        raise ConfigError(f"--nodes: '{odd[0]}' is not registered; registered are {', '.join(registered)}.")
    if of_columns(config) and not nodes and {*(parties := [one.name for one in config.parties])} <= {*registered}:
        names = tuple(parties)
    whole = deployable(config, names).config
    rows = "parties" if config.parties else config.data.name
    label = re.sub(r"[^a-z0-9-]", "-", f"{rows}-{config.algorithm.name}".lower())
    run = f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{label}-{random_bytes(3).hex()}"
    rules = None if config.round is None else config.round.model_dump()
    return Submission(sign(bundle, agreement_of(bundle, run, whole.plain(), names)), rules, initial)


def text_of(path: Path) -> str:
    """Return the text of an experiment file."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"'{path}' cannot be read: {error.strerror}.") from None


def with_own_files(text: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return an experiment and its overrides with a placeholder for each file. Every node gives its file with --data.

    The format of a file (`OF_THE_FILE`) is left out too, because a node's policy states it.
    """
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return text, [*overrides]  # its reader raises the error
    data, parties = values.get("data"), values.get("parties")
    overrides = [
        one for one in overrides if one.partition("=")[0].strip() not in {f"data.{key}" for key in OF_THE_FILE}
    ]
    if isinstance(data, dict) and not data.keys().isdisjoint(OF_THE_FILE):
        data = without_form(data)
        values["data"], text = data, tomli_w.dumps({**values, "data": data})
    given = {key.strip(): value.strip(" '\"") for key, _, value in (one.partition("=") for one in overrides)}
    name = given.get("data.name", data.get("name") if isinstance(data, dict) else None)
    if isinstance(parties, list) and all(isinstance(one, dict) for one in parties):
        text = tomli_w.dumps({**values, "parties": [{**without_form(one), "path": OWN_FILES} for one in parties]})
    return text, [*overrides, *([f"data.path={OWN_FILES}"] if name == "file" else [])]


def without_form(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table of an experiment without the keys of a file's format."""
    return {key: value for key, value in table.items() if key not in OF_THE_FILE}


def events(bundle: Bundle, run: str) -> Iterator[RunEvent | ServerAway]:
    """Yield the events of a run until it ends, through lost connections and restarts of the server."""
    after, since = 0, time.monotonic()
    while True:
        try:
            for said in call(bundle, WatchRun(run, after)):
                since = time.monotonic()
                if isinstance(said, NoEvent):
                    continue
                after = said.number
                yield said
                if isinstance(said, StatusEvent) and said.status in OVER:
                    return
        except TransportError:
            if time.monotonic() - since > PATIENCE:
                raise
            yield ServerAway()
            time.sleep(0.3)


def watch(bundle: Bundle, run: str, say: Say) -> StatusEvent:
    """Show a run until it ends, and return its last status."""
    rounds, away = "?", False
    for event in events(bundle, run):
        if isinstance(event, ServerAway):
            if not away:
                say("The server cannot be reached; the run goes on without this window, or when the server is back.")
            away = True
            continue
        away = False
        if isinstance(event, StartEvent):
            rounds = str(event.rounds)
        elif isinstance(event, NoticeEvent):
            say(event.text)
        elif isinstance(event, RoundEvent):
            say(line_of(event, rounds))
        elif isinstance(event, NodeEvent):
            say(f"  round {event.round}: {event.node} {event.outcome}")
        else:
            if event.status != "running":
                say(f"Run {run}: {event.status}.")
            if event.status in OVER:
                return event
    raise TransportError("the server says no more of the run.")


def line_of(row: RoundEvent, rounds: str) -> str:
    """Return a round as a line."""
    held = {"accuracy": row.accuracy, "rmse": row.rmse, "loss": row.loss}
    figures = [f"{key} {value:.4f}" for key, value in held.items() if value is not None]
    who = [f"{name} {seconds:.2f} s" for name, seconds in row.nodes.items()]
    timed = f"{row.seconds:.2f} s"
    return "  ".join([f"round {row.round}/{rounds}", *figures, timed, *([f"({', '.join(who)})"] if who else [])])


def fetch(bundle: Bundle, run: str, out: Path) -> None:
    """Copy the run's directory to ``out``."""
    for said in call(bundle, FetchRun(run)):
        if not isinstance(said, RunFile):
            return
        write_bytes(out / said.name, bytes(said.body))
    raise TransportError("the run's directory did not come whole: 'fedatlas deploy run --attach' fetches it again.")


def check_out(out: Path) -> None:
    """Make the output folder. ConfigError if something is in it already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: this is not an empty folder; name another.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"'{out}' cannot be made: {error.strerror}.") from None
