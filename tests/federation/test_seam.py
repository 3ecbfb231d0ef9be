"""The seam between the server's half and the parties': other processes give the simulator's bits, in any order, late, lost, killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from disturbed import MEANS, PLAN, Between
from fedatlas.algorithm import Ask, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import ProtocolError
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Reply
from fedatlas.federation.start import RoundStart
from fedatlas.rounds import federated
from federation import brief, cohorts, fast, federation, play, same, states
from parties import Parties, Remote, problem


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """One set of processes for all algorithms: clients 0, 2, 4 and clients 1, 3."""
    with Parties(tmp_path_factory.mktemp("parties")) as started:
        yield started


def play_here_and_there(
    name: str, engine: str, parties: Parties, transform: str = "", between: Callable[[int], None] = lambda done: None
) -> tuple[tuple[State, InProcess], State]:
    """Four rounds in the simulator and over the pipes; ``between`` is called before each, with how many are done."""
    fed = problem(name, transform)
    plan = cohorts(4)
    here = play(fed, plan, make={"loop": SerialExecutor, "program": fast}[engine])
    parties.use(name, engine, transform)
    remote: Any = Remote(fed, parties)
    there = fed.begin(remote)
    for number, cohort in enumerate(plan, start=1):
        between(number - 1)
        there, _ = play(fed, [cohort], server=there, host=remote, first=number)
    return here, there


BOTH = [(name, "program") for name in MEANS] + [(name, "loop") for name in ("fedavg", "scaffold", "fednova")]


@pytest.mark.parametrize(("name", "engine"), BOTH)
def test_other_processes_give_the_simulators_bits(name: str, engine: str, parties: Parties) -> None:
    (server, host), there = play_here_and_there(name, engine, parties)
    assert same(server, there)
    assert same(states(host), parties.states())
    assert bool(parties.states()) == (brief(name).client_init is not None)


@pytest.mark.timing
@pytest.mark.parametrize(
    ("name", "engine", "transform", "party"), [("scaffold", "program", "", 0), ("fednova", "loop", "topk", 1)]
)
def test_a_party_that_is_killed_between_two_rounds_goes_on_from_its_folder(
    name: str, engine: str, transform: str, party: int, parties: Parties
) -> None:
    """Nobody tells the new process anything: what was in use and what its clients keep stand in its folder."""

    def killed(done: int) -> None:
        if done == 2:
            parties.kill(party)

    (server, host), there = play_here_and_there(name, engine, parties, transform, killed)
    assert same(server, there)
    assert same(states(host), parties.states())
    assert parties.states()


@pytest.mark.timing
def test_a_party_that_is_late_never_came(parties: Parties) -> None:
    """The process of clients 1 and 3 stands still in round 2. Its replies come in round 3, when client 3 is asked again: passed over."""
    fed = federation(brief("scaffold"))
    parties.use("scaffold", "loop")
    remote: Any = Remote(fed, parties)
    there, _ = play(fed, PLAN[:1], host=remote)
    parties.processes[1].send_signal(signal.SIGSTOP)
    os.waitpid(parties.processes[1].pid, os.WUNTRACED)  # until it stands
    remote.server.deadline = 1.0
    there = remote.server.drive(federated(fed.bench.algorithm, there, fed.round(2, PLAN[1])), RoundStart(2, 0.1))
    came = remote.server.counted
    parties.processes[1].send_signal(signal.SIGCONT)
    remote.server.deadline = None
    remote.server.commit(2)
    assert {reply.client for reply in parties.late} == {1, 3}, "they worked, in vain"
    there, _ = play(fed, PLAN[2:], server=there, host=remote, first=3)
    assert came == {2}
    host = Between.of(fed)
    host.lost = lambda request: request.round == 2 and request.client in {1, 3}
    server, _ = play(fed, PLAN, host=host)
    assert same(server, there)
    assert same(states(host), parties.states())


def test_a_party_in_another_process_refuses_what_was_not_declared(parties: Parties) -> None:
    """It knows the algorithm itself: a server that asks for what only a sum may show gets an error, and no update."""
    fed = federation(brief("fedavg"))
    parties.use("fedavg", "loop")
    remote: Any = Remote(fed, parties)
    task = fed.bench.algorithm.training()._replace(shows=("model",))
    remote.server.algorithm = fed.bench.algorithm._replace(tasks={"train": task})
    ask = Ask((0, 1), "train", {k: {"model": fed.params} for k in (0, 1)}, "each")
    with pytest.raises(ProtocolError, match=r"client [01] is asked for 'train' on its own, but 'fedavg' declares"):
        remote.server.answer(ask)


class Disorder:
    """The last one first, each twice, among replies of the ask before, of strangers and of those who were not asked."""

    def __init__(self) -> None:
        self.before: list[Reply] = []

    def __call__(self, replies: list[Reply]) -> list[Reply]:
        said, self.before = [*self.before], replies
        for reply in reversed(replies):
            spoilt = {name: {} for name in reply.update}
            said += [reply._replace(client=99), reply, reply._replace(update=spoilt)]
            said += [reply._replace(client=k, update=spoilt) for k in range(5) if k not in {r.client for r in replies}]
        return said


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_replies_come_in_any_order(name: str) -> None:
    """Turned round, doubled, late, unasked for: the first that each party sends to this ask counts, in the order of the seats."""
    fed = federation(brief(name))
    server, host = play(fed)
    disturbed = Between.of(fed)
    disturbed.way = Disorder()
    there, _ = play(fed, host=disturbed)
    assert same(server, there)
    assert same(states(host), states(disturbed))
    assert host.cost._replace(seconds={}) == disturbed.cost._replace(seconds={})
