"""What a round between real processes costs beyond training, with the transport's bare echo beside it as the limit.

    python benchmarks/deployment.py [--rounds 20] [--flower PYTHON] [--json FILE]

Three nodes and a server on this machine over loopback and mutual TLS: the digits MLP, and a network of ten million parameters (40 MB).
A round's overhead is its time less the longest node's own work in it; medians over the rounds but the first. Bytes on the wire are
counted by a proxy between one node and the server, TLS included, and compared with the codec's. ``--flower``: a Python with Flower
1.41, whose minimal Message-API app sends the same model through a SuperLink and three SuperNodes in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.deployment.operator_client import events, fetch, submit
from fedatlas.deployment.trial import federation, free_port
from fedatlas.wire import bundle as bundles
from fedatlas.wire import messages
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.frames import Body
from fedatlas.wire.listener import Listener
from fedatlas.wire.messages import RoundEvent, StatusEvent
from fedatlas.wire.speaker import Speaker

NAMES = ["site-1", "site-2", "site-3"]
DIGITS = ["data.name=digits", "partition.name=iid", "partition.clients=3", "engine.plan=program"]
LARGE = [*DIGITS, "model.hidden=[3110,3110]", "local.steps=1", "data.limit=200"]
FEW = 3  # rounds of the run before the one that is measured
ECHO = """
import sys
from fedatlas.wire.frames import read, write
from fedatlas.wire.messages import TrainerReady, written
write(sys.stdout.buffer, written(TrainerReady({})))
while (message := read(sys.stdin.buffer)) is not None:
    write(sys.stdout.buffer, message)
"""


class Echo(NamedTuple):
    """Bytes that come back."""

    body: Body


messages.TO_NODE["echo"] = messages.FROM_TRAINER["echo"] = messages.MessageKind(Echo)


class Proxy:
    """Carries bytes between a node and the server, and counts them."""

    def __init__(self, port: int) -> None:
        self.to, self.bytes = port, 0
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self.listening.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(1 << 18):
                self.bytes += len(data)
                other.sendall(data)
        except OSError:
            pass
        other.close()


def deal(folder: Path, overrides: list[str]) -> None:
    """Writes the rows of the experiment."""
    command = [
        sys.executable,
        "-m",
        "fedatlas.deployment.trial_rows",
        str(folder),
        ",".join(NAMES),
        "server",
        "-",
        *overrides,
    ]
    subprocess.run(command, check=True)


def memory(pids: list[int]) -> int:
    """Resident bytes of processes and their children."""
    total = 0
    for pid in pids:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in [pid, *map(int, children)]:
            words = Path(f"/proc/{each}/statm").read_text().split()
            total += int(words[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def deployed(overrides: list[str], rounds: int) -> dict[str, Any]:
    """One experiment: overhead of its rounds, bytes on the wire, resident memory of all processes."""
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-benchmark-"))
    try:
        deal(folder, overrides)
        with federation(folder, NAMES) as (processes, made):
            operator = Bundle.open(made["operator"], "operator")
            proxy = Proxy(operator.port)
            path = made["site-1"] / "bundle.toml"
            path.write_text(path.read_text().replace(str(operator.port), str(proxy.port)))
            processes.running["site-1"].kill()  # it is started again behind the proxy
            time.sleep(3)
            most, wire = 0, []
            for number in (FEW, rounds):
                before = proxy.bytes
                run = submit(operator, None, [*overrides, f"rounds={number}"], [], 120)
                for event in events(operator, run):
                    if isinstance(event, RoundEvent):
                        most = max(most, memory([process.pid for process in processes.running.values()]))
                if not isinstance(event, StatusEvent) or event.status != "finished":
                    raise SystemExit(f"the run ended as {event}")
                wire.append(proxy.bytes - before)
            fetch(operator, run, folder / "out")
        rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
        said = [json.loads(line) for line in (folder / "out" / "answers.jsonl").read_text().splitlines()]
        work = {n: max(one["work"] for one in said if one["round"] == n) for n in range(1, rounds + 1)}
        beyond = [row["seconds"] - work[row["round"]] for row in rows[2:]]
        more = rounds - FEW  # all else that crosses is the same in both runs
        a_round = (wire[1] - wire[0]) / more
        codec = (rows[-1]["bytes_up"] + rows[-1]["bytes_down"]) / len(NAMES)
        return {
            "round beyond training, s": statistics.median(beyond),
            "slowest such round, s": max(beyond),
            "round, s": statistics.median(row["seconds"] for row in rows[2:]),
            "bytes of one node on the wire, a round": a_round,
            "bytes of the codec, a round": codec,
            "wire beyond the codec, bytes a message": (a_round - codec) / 2,
            "wire over codec": a_round / codec,
            "resident memory of all, GiB": most / 2**30,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def first_round() -> dict[str, float]:
    """Seconds from `deploy trial` to the end of round 1, and to its own end."""
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-benchmark-"))
    command = [sys.executable, "-m", "fedatlas", "deploy", "trial", *DIGITS, "rounds=2", "--out", str(folder / "out")]
    began, first = time.monotonic(), 0.0
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1/"):
                first = time.monotonic() - began
    shutil.rmtree(folder, ignore_errors=True)
    return {"trial to the end of round 1, s": first, "trial, s": time.monotonic() - began}


@contextmanager
def echoing(nodes: int) -> Iterator[Listener]:
    """Nodes whose trainer sends back what it is sent: no torch, no codec, no disk."""
    folder = Path(tempfile.mkdtemp(prefix="fedatlas-benchmark-")) / "echo"
    made = bundles.init(folder, NAMES[:nodes], "localhost", free_port())
    listener = Listener(Bundle.open(made["server"], "server"), lambda *_: iter(()), lambda text: None)
    listener.start()
    speakers = [
        Speaker(Bundle.open(made[name], "node"), [sys.executable, "-c", ECHO], lambda text: None)
        for name in NAMES[:nodes]
    ]
    for speaker in speakers:
        threading.Thread(target=speaker.speak, daemon=True).start()
    for _ in speakers:
        listener.events.get(timeout=30)
    yield listener
    for speaker in speakers:
        speaker.end()
    listener.stop()


def echo(size: int, times: int = 9) -> float:
    """Seconds that three nodes take to send back so many bytes; the median."""
    taken = []
    with echoing(len(NAMES)) as listener:
        for _ in range(times):
            began = time.monotonic()
            for name in NAMES:
                listener.send(name, Echo(bytes(size)))
            for _ in NAMES:
                listener.events.get(timeout=60)
            taken.append(time.monotonic() - began)
    return statistics.median(taken[1:])


def flower(python: str, size: int, rounds: int = 3) -> Mapping[str, Any]:
    """Seconds of a round of a minimal Flower app that sends so many bytes to three SuperNodes and back."""
    here = Path(__file__).parent / "peers" / "flower_round.py"
    found = subprocess.run([python, str(here), str(size), str(rounds)], capture_output=True, text=True, check=True)
    out: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return out


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--flower", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"digits MLP, 19 KB": deployed(DIGITS, given.rounds)}
    found["10 million parameters, 40 MB"] = deployed(LARGE, max(6, given.rounds // 2))
    found["bare echo of three nodes"] = {"19 KB, s": echo(19_240), "40 MB, s": echo(40_000_000)}
    found |= {"start": first_round()}
    if given.flower:
        found["Flower 1.41, 19 KB"] = flower(given.flower, 19_240)
    for title, figures in found.items():
        sys.stdout.write(f"{title}\n")
        for name, value in figures.items():
            sys.stdout.write(f"  {name:<42} {value:.4g}\n")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
