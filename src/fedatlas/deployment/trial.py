"""`fedatlas deploy trial`: a whole federation on one machine, in real processes over mutual TLS, with one command.

It makes an authority and bundles in a new folder, deals the experiment's rows, starts the server and the nodes, submits
the experiment as an operator would, and fetches the run. A process that dies is started again, as systemd would do.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedatlas.deployment.audit import HEAD, LOG
from fedatlas.deployment.operator_client import Say, check_out, fetch, silent, submit, to_stderr, watch
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.files import OF_THE_FILE
from fedatlas.wire.bundle import POLICY, Bundle, init
from fedatlas.wire.messages import StatusEvent
from fedatlas.wire.policy import Policy

START = 120.0  # seconds that the server may take to start


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port: int = made.getsockname()[1]
        return port


class RestartedProcesses:
    """Processes that are restarted if they die."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.over = folder, threading.Event()
        self.commands: dict[str, list[str]] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.given_up: dict[str, str] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a process. Its output goes into ``NAME.log``."""
        self.commands[name] = list(command)
        self._start(name)

    def _start(self, name: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.running[name] = subprocess.Popen(
                self.commands[name], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def _watch(self) -> None:
        while not self.over.wait(0.1):
            for name, process in list(self.running.items()):
                code = process.poll()
                if code is None or name in self.given_up or self.over.is_set():
                    continue
                if code == 2:  # an error for the user, which a restart would repeat
                    text = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                    self.given_up[name] = text.strip().splitlines()[-1] if text.strip() else "it ended"
                else:
                    self._start(name)

    def end(self) -> None:
        """End all processes."""
        self.over.set()
        for process in self.running.values():
            process.terminate()
        until = time.monotonic() + 5
        for process in self.running.values():
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def parties_of(experiment: Path | None) -> dict[str, Mapping[str, Any]]:
    """Return the entry of each party if an experiment's parties hold columns; else an empty mapping."""
    try:
        parties = tomllib.loads(experiment.read_text(encoding="utf-8"))["parties"] if experiment else []
        return {str(one["name"]): {**one, "path": str(one["path"])} for one in parties}
    except (OSError, ValueError, KeyError, TypeError):
        return {}  # the process that deals the rows reports the error


@contextlib.contextmanager
def federation(
    folder: Path, names: Sequence[str], judge: str = "server", tables: Mapping[str, str] = {}
) -> Iterator[tuple[RestartedProcesses, dict[str, Path]]]:
    """Run a server and nodes until the block ends. A node without a table gets the rows in ``folder/NAME.rows``."""
    bundles = init(folder / "trial", list(names), "localhost", free_port())
    processes = RestartedProcesses(folder)
    me = [sys.executable, "-m", "fedatlas", "deploy"]
    try:
        test = ["--test", str(folder / "test.rows"), "--late"] if judge == "server" and not tables else []
        processes.start("server", [*me, "server", str(bundles["server"]), *test])
        for name in names:
            rows = tables.get(name, str(folder / f"{name}.rows"))
            processes.start(name, [*me, "node", str(bundles[name]), "--data", rows, "--late"])
        yield processes, bundles
    finally:
        processes.end()


def trial(
    experiment: Path | None,
    overrides: Sequence[str],
    nodes: int | None,
    out: Path,
    *,
    quiet: bool = False,
    judge: str = "server",
) -> tuple[str, StatusEvent]:
    """Run a trial, and return the run's name and its last event. The run's directory is ``out``.

    ``nodes``: how many. By default one for each natural owner of the rows if these are the experiment's clients, else
    three. ConfigError for an experiment that cannot be deployed, before a server or a node starts.
    """
    say: Say = silent if quiet else to_stderr
    check_out(out)
    parties = parties_of(experiment)
    tables = {name: str(one["path"]) for name, one in parties.items()}
    names, overrides, submitted = planned(experiment, overrides, nodes, [*tables])
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-trial-"))
    command = [sys.executable, "-m", "fedatlas.deployment.trial_rows", str(folder), ",".join(names), judge]
    dealing = subprocess.Popen(
        [*command, str(experiment) if experiment else "-", *overrides], stderr=subprocess.PIPE, text=True
    )
    try:
        dealt = not names
        if dealt:  # only the rows tell the number of owners
            names, submitted = by_owner(dealing, folder, experiment, submitted, say)
        with federation(folder, names, judge, tables) as (processes, bundles):
            say(
                f"{len(names)} nodes and a server start on this machine; nodes allow plain label counts and answers from a single row here "
                "(label_counts = 'plain', min_rows = 1)."
            )
            for name in names:
                form = {key: value for key, value in parties.get(name, {}).items() if key in OF_THE_FILE}
                Policy.write_for_trial(bundles[name] / POLICY, form)
            if not dealt:
                ended_well(dealing)
            operator = Bundle.open(bundles["operator"], "operator")
            run = submit(operator, experiment, submitted, [], START)
            ended = watch(operator, run, say)
            if ended.status in {"finished", "diverged", "stopped"}:
                fetch(operator, run, out)
            for name in names:
                if (folder_there := bundles[name] / "runs" / run).is_dir():
                    shutil.copytree(folder_there, out / "nodes" / name)
                    for file in (LOG, HEAD):
                        shutil.copy(bundles[name] / file, out / "nodes" / name)
            if processes.given_up and ended.status == "failed":
                name, why = next(iter(processes.given_up.items()))
                raise FedatlasError(f"{name}: {why}")
            return run, ended
    finally:
        if dealing.poll() is None:
            dealing.kill()
        if os.environ.get("FEDATLAS_KEEP_TRIAL"):
            say(f"Kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def planned(
    experiment: Path | None, overrides: Sequence[str], nodes: int | None, parties: list[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return the nodes' names, the overrides for dealing the rows, and the overrides that are submitted.

    Without names there is one node for each natural owner, to be counted later. ConfigError for an experiment that
    cannot be deployed, before any process starts.
    """
    from fedatlas.config import read  # imports torch, which submitting needs as well
    from fedatlas.deployment.refusals import deployable, with_values
    from fedatlas.deployment.trial_rows import NATURAL, of_nodes, site

    config, given = read(experiment, overrides), [*overrides]
    by_owner = config.partition.name == NATURAL and nodes is None and not parties
    names = parties or [site(k) for k in range(nodes or 3)]
    if not parties and not any(one.replace(" ", "").startswith("partition.clients=") for one in given):
        given.append(f"partition.clients={len(names)}")
    deployable(with_values(of_nodes(read(experiment, given))), names)
    submitted = [*given, 'data.client=""'] if of_nodes(config) is not config else given
    return ([], [*overrides], submitted) if by_owner else (names, given, submitted)


def by_owner(
    dealing: subprocess.Popen[str], folder: Path, experiment: Path | None, submitted: list[str], say: Say
) -> tuple[list[str], list[str]]:
    """Wait for the rows of each owner.

    Return one node per owner, and the overrides to submit. ConfigError as in `planned`.
    """
    from fedatlas.config import read
    from fedatlas.deployment.refusals import deployable, with_values
    from fedatlas.deployment.trial_rows import OWNERS

    ended_well(dealing)
    owners: dict[str, str] = json.loads((folder / OWNERS).read_text(encoding="utf-8"))
    submitted = [*submitted, f"partition.clients={len(owners)}"]
    deployable(with_values(read(experiment, submitted)), [*owners])
    say(f"Each owner's rows are at a node: {', '.join(f'{name} has {owner!r}' for name, owner in owners.items())}.")
    return [*owners], submitted


def ended_well(dealing: subprocess.Popen[str]) -> None:
    """Wait until the rows are dealt. If that failed, raise ConfigError with the error of that process."""
    _, said = dealing.communicate()
    if dealing.returncode:
        words = (said or "").strip().splitlines()[-1:] or ["the rows could not be dealt."]
        raise ConfigError(words[0].removeprefix("fedatlas: "))
