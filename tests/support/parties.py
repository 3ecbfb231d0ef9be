"""Parties in processes of their own, which share nothing with the server's half but bytes over pipes: `PartyHalf` behind a `Link`.

A frame is eight bytes, little-endian, that say how long the rest is, and the codec's bytes of a dict; ``do`` says what it is about.

    server -> process   use      algorithm, engine, transform: begin anew, with nothing on the disk     -> used
                        answer   requests                                    -> reply (one a request), or refused: error, message
                        commit   run, round, counted: then the state is on the disk                     -> committed
                        states                                                                          -> states

A process is told by its command line where its folder is and which clients it plays. It builds their rows by their numbers, never
another client's. What it has to remember stands in one file of its folder, written beside the old one and put in its place.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))

import torch

from fedatlas import errors
from fedatlas.algorithm import RoundGenerator, State
from fedatlas.data.batches import Rows
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import Cost
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.server import ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.transforms import TRANSFORMS
from fedatlas.wire import codec
from federation import SIZES, Federation, Normed, Smooth, brief, federation, rows_of

ENGINES = {"loop": SerialExecutor, "program": lambda b: SerialExecutor(b, FastRunner(b, SIZES, "program", "float64"))}
PATIENCE = 300.0  # seconds after which a test gives up; a quiet machine needs a few


def write(pipe: int, value: Mapping[str, Any]) -> None:
    """A frame."""
    data = codec.encode(dict(value))
    left = memoryview(len(data).to_bytes(8, "little") + data)
    while left:
        left = left[os.write(pipe, left) :]


def read(pipe: int) -> dict[str, Any] | None:
    """The next frame; None where the other end is closed."""
    head = exactly(pipe, 8)
    if head is None:
        return None
    found: dict[str, Any] = codec.decode(exactly(pipe, int.from_bytes(head, "little")))
    return found


def exactly(pipe: int, n: int) -> bytes | None:
    """So many bytes; None where the other end closes before."""
    out = b""
    while len(out) < n:
        more = os.read(pipe, n - len(out))
        if not more:
            return None
        out += more
    return out


class Party:
    """What runs in a process: the party half of some clients, and its folder."""

    def __init__(self, folder: Path, clients: tuple[int, ...]) -> None:
        self.file, self.clients = folder / "state", clients
        self.about: dict[str, Any] = {}
        if self.file.exists():
            kept = codec.decode(self.file.read_bytes())
            self.open(kept["about"])
            for k, state in kept["states"].items():
                self.half.state.after.restore(int(k), state)

    def open(self, about: dict[str, Any]) -> None:
        """A party half without a state."""
        held = {k: rows_of(k, SIZES[k]) for k in self.clients}
        bench = problem(about["algorithm"], about["transform"], held).bench
        sizes = {k: rows.n for k, rows in held.items()}
        self.about, self.half = about, PartyHalf(bench, ENGINES[about["engine"]](bench), PartyState(), sizes, 1)

    def states(self) -> dict[str, Any]:
        after = self.half.state.after
        return {str(k): dict(after.get(k) or {}) for k in after.clients()}

    def save(self) -> None:
        """Old or new stands there, whole, whenever this process is killed."""
        new = self.file.with_suffix(".new")
        new.write_bytes(codec.encode({"about": self.about, "states": self.states()}))
        os.replace(new, self.file)

    def serve(self, frame: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What is said to a frame."""
        if frame["do"] == "use":
            self.open({key: frame[key] for key in ("algorithm", "engine", "transform")})
            self.file.unlink(missing_ok=True)
            yield {"do": "used"}
        elif frame["do"] == "answer":
            for answer in self.half.answer([Request.of(plain) for plain in frame["requests"]]):
                yield {"do": "reply", **answer.reply.plain()}
        elif frame["do"] == "commit":
            self.half.commit(frame["round"], frame["counted"])
            self.save()
            yield {"do": "committed"}
        else:
            yield {"do": "states", "states": self.states()}


def problem(name: str, transform: str = "", held: Mapping[int, Rows] | None = None) -> Federation:
    """An algorithm by name and a transform by name ("": none) on the rows of all clients or of some."""
    fed = federation(brief(name), held, make=Normed if name == "fedbn" else Smooth)
    return fed._replace(bench=fed.bench._replace(transform=TRANSFORMS[transform]() if transform else None))


def main() -> None:
    """A process's life, until its pipe is closed."""
    folder, clients = Path(sys.argv[1]), tuple(map(int, sys.argv[2:]))
    told, said = 0, os.dup(1)
    os.dup2(2, 1)  # what anything prints is no frame
    torch.set_num_threads(1)
    party = Party(folder, clients)
    while (frame := read(told)) is not None:
        try:
            for value in party.serve(frame):
                write(said, value)
        except errors.FedatlasError as error:
            write(said, {"do": "refused", "error": type(error).__name__, "message": str(error)})


class Parties:
    """The link: a process for some clients each."""

    def __init__(self, folder: Path, hosted: Sequence[tuple[int, ...]] = ((0, 2, 4), (1, 3))) -> None:
        self.hosted = hosted
        self.folders = [folder / f"party-{i}" for i in range(len(hosted))]
        for each in self.folders:
            each.mkdir()
        self.processes = [self._start(i) for i in range(len(hosted))]
        self.late: list[Reply] = []  # that came after their ask was closed: they lie here until the next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """Replies as they come, behind those that were late. A deadline counts from when one process has answered: how busy this machine is
        makes nobody late."""
        late, self.late = self.late, []
        yield from late
        owed: dict[int, int] = {}
        for i, clients in enumerate(self.hosted):
            asked = [request.plain() for request in requests if request.client in clients]
            if asked:
                self.tell(i, {"do": "answer", "requests": asked})
                owed[i] = len(asked)
        end, whole = time.monotonic() + PATIENCE, len(owed)
        while owed and (ready := self._ready(owed, end)):
            for i in ready:
                reply = replied(self.hear(i, "reply"))
                owed[i] -= reply.ask == requests[0].ask
                owed = {j: n for j, n in owed.items() if n}
                if deadline is not None and len(owed) < whole:
                    end, whole = time.monotonic() + deadline, 0
                yield reply
        assert not owed or deadline is not None, f"the parties {sorted(owed)} do not answer"

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:
        """Every party has its state on the disk afterwards."""
        self._all({"do": "commit", "run": run, "round": round, "counted": sorted(counted)}, "committed")

    def use(self, algorithm: str, engine: str, transform: str = "") -> None:
        """All parties begin anew."""
        self._all({"do": "use", "algorithm": algorithm, "engine": engine, "transform": transform}, "used")
        self.late = []

    def states(self) -> dict[str, object]:
        """What the clients keep, by name."""
        found = [frame["states"] for frame in self._all({"do": "states"}, "states")]
        return {k: x for states in found for k, x in states.items()}

    def kill(self, i: int) -> None:
        """Ends a process where it stands, and starts another on its folder."""
        self.processes[i].kill()
        self.processes[i].communicate()
        self.processes[i] = self._start(i)

    def tell(self, i: int, frame: Mapping[str, Any]) -> None:
        pipe = self.processes[i].stdin
        assert pipe is not None
        write(pipe.fileno(), frame)

    def hear(self, i: int, what: str) -> dict[str, Any]:
        """A process's next frame of this kind; its error where it refused."""
        pipe = self.processes[i].stdout
        assert pipe is not None
        while (frame := read(pipe.fileno())) is not None and frame["do"] == "reply" != what:
            self.late.append(replied(frame))
        assert frame is not None, f"party {i} is gone"
        if frame["do"] == "refused":
            raise getattr(errors, frame["error"])(frame["message"])
        assert frame["do"] == what, frame
        return frame

    def _all(self, frame: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
        for i in range(len(self.hosted)):
            self.tell(i, frame)
        return [self.hear(i, what) for i in range(len(self.hosted))]

    def _ready(self, owed: Mapping[int, int], end: float) -> list[int]:
        """The processes from which something has come; none where the time is over."""
        pipes = {self.processes[i].stdout: i for i in owed}
        found, _, _ = select.select(list(pipes), [], [], max(end - time.monotonic(), 0))
        return [pipes[pipe] for pipe in found]

    def _start(self, i: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, str(self.folders[i]), *map(str, self.hosted[i])]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def replied(frame: Mapping[str, Any]) -> Reply:
    """The reply that a frame holds."""
    return Reply.of({key: x for key, x in frame.items() if key != "do"})


class Remote:
    """A federation whose server half is here and whose parties are elsewhere; in the tests' eyes an `InProcess`."""

    def __init__(self, fed: Federation, parties: Parties) -> None:
        bench: Bench = fed.bench
        sizes = {k: rows.n for k, rows in fed.held.items()}
        self.server = ServerHalf(bench.algorithm, parties, sizes, 1, transform=bench.transform)

    def drive(self, make: Callable[[], RoundGenerator], start: RoundStart) -> State:
        state = self.server.drive(make(), start)
        self.server.commit(start.round)
        return state

    @property
    def cost(self) -> Cost:
        return self.server.cost


if __name__ == "__main__":
    main()
