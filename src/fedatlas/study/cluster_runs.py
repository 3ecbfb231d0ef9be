"""The runs of a study on the nodes of a Ray cluster, as many at once as Ray may use cores. Imported only where a cluster is named."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.cluster.frames import Failed, head_and_body, with_head
from fedatlas.cluster.last_words import ENDED, LastWords
from fedatlas.cluster.nodes import Lost, Node, Nodes, Ticket
from fedatlas.config import bytes_of
from fedatlas.errors import TransportError
from fedatlas.runs.carried_data import listed, named_copies
from fedatlas.runs.run_key import data_hashes
from fedatlas.runs.surroundings import surroundings
from fedatlas.setup.checked import Checked
from fedatlas.study.children import LOST, Ended
from fedatlas.study.design import ExecuteTable
from fedatlas.study.local_runs import Ending, Runs
from fedatlas.study.node_handler import packed_folder, unpacked_folder
from fedatlas.study.table import Outcome
from fedatlas.wording import count

CONTINUE = "Run the same command to continue; finished runs are kept."
STARTING = 10.0  # seconds until the nodes' workers have started, about


class SentRun(NamedTuple):
    """A run that a node has in hand."""

    key: str
    whole: Checked
    folder: Path
    message: bytes
    carried: bool = False  # its data were copied to the node


class ClusterRuns:
    """`local_runs.Runs` on other machines."""

    def __init__(self, nodes: Nodes, how: ExecuteTable) -> None:
        self.nodes, self.how = nodes, how
        self.working: dict[Ticket, SentRun] = {}
        self.carried: dict[str, Any] = {}  # list of data files -> the copies in the object store

    def open_seats(self) -> dict[str, int]:
        """Return node -> runs that it could begin now."""
        out = {node.id: seats(self.how, node) for node in self.nodes.alive()}
        for ticket in self.working:
            if ticket.node in out:
                out[ticket.node] -= 1
        return out

    def free(self) -> bool:
        """As in `Runs`."""
        return any(many > 0 for many in self.open_seats().values())

    def begin(self, key: str, whole: Checked, folder: Path, *, tested: bool) -> None:
        """As in `Runs`, on the node with most open seats."""
        told = {"key": key, "tested": tested, "seed": whole.config.seed, "plain": whole.config.plain()}
        told |= {"data": listed(whole.config), "hashes": data_hashes(whole.config)}
        free = self.open_seats()
        message = with_head(told, packed_folder(folder))
        self.send(max(free, key=lambda node: free[node]), SentRun(key, whole, folder, message))

    def send(self, node: str, run: SentRun) -> None:
        """Have a node begin a run."""
        self.working[self.nodes.call(node, run.message)] = run

    def carry(self, node: str, run: SentRun) -> None:
        """Copy a run's data to a node, and have it begin the run."""
        if run.carried:
            raise TransportError(
                "a node finds other data than the copies that it was given: remove its own data files."
            )
        self.nodes.call(node, self.data_of(run.whole))
        self.send(node, run._replace(carried=True))

    def endings(self, pause: float) -> list[tuple[str, Ending]]:
        """As in `Runs`. TransportError if the head is lost, or if a node cannot make a run at all."""
        out = []
        for ticket, answer in self.nodes.wait(pause):
            if (run := self.working.pop(ticket, None)) is None:
                if isinstance(answer, Failed):
                    raise TransportError(f"a node could not take the data: {answer.reason}")
            elif isinstance(answer, Lost):
                out.append((run.key, lost(answer)))
            elif isinstance(answer, Failed):
                raise TransportError(f"a node could not make a run: {answer.reason}")
            else:
                told, kept = head_and_body(answer)
                if "need" in told:
                    self.carry(ticket.node, run)
                else:
                    out.append((run.key, ending(run.folder, told, kept)))
        return out

    def data_of(self, whole: Checked) -> Any:
        """Return the data files of a run in the object store; equal ones are put there once."""
        wanted = listed(whole.config)
        if (known := json.dumps(wanted)) not in self.carried:
            names, files = named_copies(whole.config)
            self.carried[known] = self.nodes.put(with_head({"names": names, "data": wanted}, files))
        return self.carried[known]

    def stop(self) -> None:
        """As in `Runs`: the nodes end their runs when the driver leaves."""
        self.working = {}

    def where(self) -> str:
        """As in `Runs`."""
        return f", {len(self.working)} in hand on {count(len(self.nodes.alive()), 'node')}"


def lost(why: Lost) -> Ending:
    """Return the end of a run whose node was lost; a worker that died counts as a signal, since the run may have caused it."""
    return Ending(Ended(LOST, f"Its node was lost ({why.reason}).", 9 * why.died, 0.0, {}), None)


def ending(folder: Path, told: Any, kept: memoryview) -> Ending:
    """Return how a run ended; write its folder if it came along."""
    if len(kept):
        unpacked_folder(kept, folder)
    outcome = None if told["outcome"] is None else Outcome(*told["outcome"])
    return Ending(Ended(*told["ended"]), outcome)


def seats(how: ExecuteTable, node: Node) -> int:
    """Return how many runs a node has at once: its cores, fewer if ``execute.parallel`` or ``execute.memory`` say so."""
    most = [node.cores, *([how.parallel] if how.parallel else [])]
    if how.memory is not None:
        most.append(node.memory // bytes_of(how.memory))
    return max(min(most), 1)


@contextlib.contextmanager
def runs_on(address: str, how: ExecuteTable, say: Callable[[str], None]) -> Iterator[Runs]:
    """Carry runs out on the nodes of the cluster with this address; nothing is left running there."""
    execute = how.model_dump(exclude_none=True)
    hello = {
        "execute": {**execute, "parallel": 10_000},  # the driver decides how many
        **surroundings(),
    }
    try:
        nodes = Nodes.connect(address, "study", json.dumps(hello).encode(), say)
        last_words = LastWords(f"{ENDED} {CONTINUE}")
        try:
            yield ClusterRuns(nodes, how)
        finally:
            nodes.close()
            last_words.take_back()
    except TransportError as error:
        raise TransportError(f"{str(error).rstrip('.')}. {CONTINUE}") from error
