"""A Ray cluster on this machine: every node in a process group of its own, stopped by the ids that were started here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from fedatlas.study.table import started

STORE = 80_000_000  # bytes of each node's object store
PATIENCE = 300.0  # seconds after which a test gives up; a quiet machine needs ten


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def own_address() -> str:
    """The address that Ray gives to a node of this machine."""
    import ray

    return str(ray.util.get_node_ip_address())


def descendants(group: int) -> list[int]:
    """Processes of a group, of any session that came of it, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    found, new = {group}, {group}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return sorted(found & {*parents, group})


class LocalCluster:
    """A head and further nodes with one core each."""

    def __init__(self, nodes: int = 1, cores: int = 1) -> None:
        self.folder, self.port = (
            Path(tempfile.mkdtemp(prefix="fr", dir="/tmp")),
            free_port(),
        )  # sockets need short paths
        self.cores, self.nodes = cores, list[subprocess.Popen[bytes]]()
        self.address = f"{own_address()}:{self.port}"
        self.add("--head", f"--port={self.port}", f"--temp-dir={self.folder}", "--include-dashboard=false")
        for _ in range(nodes - 1):
            self.add(f"--address={self.address}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, *words: str) -> int:
        """Start a node, and wait until it is there; return its number."""
        words = words or (f"--address={self.address}",)
        # setpriv stops the node with the tests, however they end.
        bound = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        command = [*bound, str(Path(sys.executable).with_name("ray")), "start", "--block", f"--num-cpus={self.cores}"]
        command += [*words, f"--object-store-memory={STORE}", "--disable-usage-stats"]
        log = self.folder / f"node-{len(self.nodes)}.log"
        environment = {key: x for key, x in os.environ.items() if not key.startswith("RAY_")}
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(self.folder)}
        with open(log, "wb") as file:
            self.nodes.append(
                subprocess.Popen(command, stdout=file, stderr=file, env=environment, start_new_session=True)
            )
        until = time.monotonic() + PATIENCE
        while "Ray runtime started" not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            assert self.nodes[-1].poll() is None, log.read_text()
            time.sleep(0.1)
        return len(self.nodes) - 1

    def processes(self, number: int) -> list[int]:
        """All processes that came of a node."""
        return descendants(self.nodes[number].pid)

    def kill(self, number: int) -> None:
        """Kill a node's own processes with -9, all at once, as when its machine loses power; workers have other groups."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.nodes[number].pid, signal.SIGKILL)
        self.nodes[number].wait()

    def stop(self) -> None:
        """Kill what is left."""
        for number, node in enumerate(self.nodes):
            left = self.processes(number) if node.poll() is None else []
            self.kill(number)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def begun(cluster: LocalCluster) -> set[int]:
    """The agents and workers of a cluster's nodes; a worker is no child of its node, but has the node's folder."""
    found = set[int]()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            words = (entry / "cmdline").read_bytes()
            if b"fedatlas.cluster.worker" in words and str(cluster.folder).encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
    agents = [
        pid for number, node in enumerate(cluster.nodes) if node.poll() is None for pid in cluster.processes(number)
    ]
    return found | {pid for pid in agents if b"ray::Agent" in command_of(pid)}


def gone(pids: list[int]) -> bool:
    """Whether these processes end soon."""
    until = time.monotonic() + PATIENCE
    while (left := [pid for pid in pids if started(pid) is not None]) and time.monotonic() < until:
        time.sleep(0.05)
    return not left


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def scratch(cluster: LocalCluster) -> Iterator[Path]:
    """The folders that workers made."""
    return cluster.folder.glob("fedatlas-node-*")
