"""A contestant as the benchmark sees it: a process of its own that is told what to do, and whose memory is watched."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from workload import Workload

HERE = Path(__file__).parent
PATIENCE = 600.0  # seconds for one order; a contestant that takes longer hangs
SAMPLING = 0.05  # seconds between two looks at the memory
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "PYTHONWARNINGS": "ignore",
    "PYTHONPATH": str(HERE),
}


class Entry(NamedTuple):
    """Who takes part: the interpreter, the script and the name it is called with."""

    label: str
    python: str
    script: str
    name: str


class OutError(Exception):
    """The contestant does not take part (any more); the message says why."""


class Running:
    """A contestant's process. ``with`` it, and it is gone afterwards, with all that it started.

    It is stopped except while it carries out an order: an idle Ray, for one, takes a twentieth of a core. A process
    group of its own makes the kernel wake and end it should the benchmark be killed.
    """

    def __init__(self, entry: Entry, log: Path) -> None:
        ours, theirs = socket.socketpair()
        self.started, self.log = time.perf_counter(), log
        with theirs, log.open("w") as out:
            self.process = subprocess.Popen(
                [entry.python, HERE / entry.script, str(theirs.fileno()), entry.name],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **QUIET},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
                cwd=log.parent,
            )
        self.pipe = Connection(ours.detach())

    def ask(self, **order: Any) -> dict[str, Any]:
        """Gives an order and waits for the answer; `OutError` where there is none."""
        self.signal(signal.SIGCONT)
        try:
            self.pipe.send(order)
            if not self.pipe.poll(PATIENCE):
                raise OutError(f"no answer within {PATIENCE:.0f} s")
            answer: dict[str, Any] = self.pipe.recv()
        except (EOFError, OSError):
            raise OutError(f"ended: {last_words(self.log)}") from None
        if "unavailable" in answer:
            raise OutError(answer["unavailable"])
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, number: signal.Signals) -> None:
        """To the process and all that descend from it."""
        for pid in family(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def open(self, workload: Workload) -> dict[str, Any]:
        """Makes the contestant ready for a workload."""
        return self.ask(do="open", workload=workload._asdict())

    def round(self, cohort: Sequence[int], epochs: int) -> dict[str, Any]:
        """One round: its ``seconds``, and a ``note`` on how."""
        return self.ask(do="round", cohort=list(cohort), epochs=epochs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGCONT)
        started = {pid: birth(pid) for pid in family(self.process.pid)[1:]}
        self.pipe.close()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pid, born in started.items():
            if born and birth(pid) == born:  # it was left behind
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def status(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def birth(pid: int) -> str:
    """When a process began: with its number, that tells it from every other."""
    return (status(pid) or [""] * 20)[19]


def last_words(log: Path) -> str:
    """The last line that a contestant wrote."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "without a word"


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = int((status(int(entry.name)) or ["", "0"])[1])
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for member in found:
        found += children.get(member, [])
    return found


def memory(pid: int) -> int:
    """Bytes of a process and its descendants: the sum of their PSS, in which a page that n share counts 1/n for each."""
    total = 0
    for member in family(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total


def machine_busy() -> float:
    """Seconds that all cores have worked so far, for anybody."""
    user, nice, system, _, _, irq, soft, *_ = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


def busy(pid: int) -> float:
    """Seconds that a process, its descendants and those who have ended have worked so far."""
    ticks = sum(int(x) for member in family(pid) for x in status(member)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """The largest memory that was seen."""

    bytes = 0


@contextmanager
def watched(pid: int, every: float = SAMPLING) -> Iterator[Peak]:
    """Looks at the memory every so many seconds as long as the block runs."""
    peak, over = Peak(), threading.Event()

    def watch() -> None:
        while not over.wait(every):
            peak.bytes = max(peak.bytes, memory(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()
