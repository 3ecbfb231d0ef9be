"""The seam between the server's half and the parties': other processes give the simulator's bits, in any order, late, lost, killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from fedatlas.aggregation.reducers import part_of
from fedatlas.algorithm import SERVER, Algorithm, Ask, Facts, Message, Replies, State, Task
from fedatlas.algorithms import ALGORITHMS
from fedatlas.deploy import codec
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer, Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.server import Mend, coefficients_of
from fedatlas.rounds import federated
from fedatlas.tree import Tree
from federation import (
    SIZES,
    Deep,
    Federation,
    Normed,
    Smooth,
    brief,
    cohorts,
    fast,
    federation,
    gap,
    play,
    same,
    states,
)
from parties import Parties, Remote, problem

MEANS = (
    "fedsgd",
    "fedavg",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedprox",
    "feddyn",
    "scaffold",
    "moon",
    "fednova",
    "hwfedavg",
    "nwfedavg",
    "ditto",
    "fedbn",
    "fedmd",
)
"""The algorithms whose server needs a mean or a sum in every round."""


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parties]:
    """One set of processes for all algorithms: clients 0, 2, 4 and clients 1, 3."""
    with Parties(tmp_path_factory.mktemp("parties")) as started:
        yield started


class Between(InProcess):
    """A simulator whose replies a test may lose, turn round, double or hold back on their way."""

    @classmethod
    def of(cls, fed: Federation, make: Callable[[Bench], Executor] = SerialExecutor, **options: Any) -> Between:
        sizes = {k: r.n for k, r in fed.held.items()}
        return cls(fed.bench, make(fed.bench), PartyState(), sizes, 1, **options)

    lost: Callable[[Request], bool] = staticmethod(lambda request: False)
    way: Callable[[list[Reply]], list[Reply]] = staticmethod(lambda replies: replies)

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        held = []
        for request, reply in zip(requests, super().__call__(requests, deadline), strict=True):
            if not self.lost(request):
                held.append(reply._replace(update=codec.decode(codec.encode(dict(reply.update)))))
        yield from self.way(held)


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


PLAN = [(0, 1, 2), (1, 2, 3), (0, 3, 4), (0, 1, 3)]


def test_a_party_that_is_late_never_came(parties: Parties) -> None:
    """The process of clients 1 and 3 stands still in round 2. Its replies come in round 3, when client 3 is asked again: passed over."""
    fed = federation(brief("scaffold"))
    parties.use("scaffold", "loop")
    remote: Any = Remote(fed, parties)
    there, _ = play(fed, PLAN[:1], host=remote)
    parties.processes[1].send_signal(signal.SIGSTOP)
    remote.server.deadline = 1.0
    there = remote.server.drive(federated(fed.bench.algorithm, there, fed.round(2, PLAN[1])), 2, 0.1)
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
    with pytest.raises(ProtocolError, match=r"client 0 is asked for 'train' on its own, but 'fedavg' declares"):
        remote.server.answer(ask, 1, 0.1)


# ---------------------------------------------------------------------------------------------- replies in any order


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


# ---------------------------------------------------------------------------------------------- the law of the mend


class Seen(Observer):
    """Every update as the server has opened it."""

    def __init__(self) -> None:
        self.updates: dict[tuple[int, int, int], Mapping[str, Any]] = {}  # by round, number of the ask, client

    def opened(self, request: Request, update: Mapping[str, Any]) -> None:
        self.updates[request.round, request.number, request.client] = codec.decode(codec.encode(dict(update)))


class Answered:
    """The asks of a run with what came of them."""

    def __init__(self, host: InProcess) -> None:
        self.asks: list[tuple[int, int, Ask, Replies]] = []  # round, number, ask, replies
        answer = host.server.answer

        def noted(ask: Ask, number: int, lr: float) -> Replies:
            at = host.server.asks
            replies = answer(ask, number, lr)
            value = replies.value and codec.decode(codec.encode(dict(replies.value)))
            self.asks.append((number, at, ask, replies._replace(value=value)))
            return replies

        host.server.answer = noted  # type: ignore[method-assign]

    def last_mean(self) -> tuple[int, int, Ask, Replies]:
        return [each for each in self.asks if each[2].reduce == "mean"][-1]


def by_hand(ask: Ask, who: tuple[int, ...], updates: Mapping[int, Mapping[str, Any]], part: str) -> Any:
    """sum_k p_k(who) u_k of a part in float64, of the algorithm's weights for these clients."""
    p = {k: part_of(c, part) for k, c in coefficients_of(ask, who, ()).items()}
    first = updates[who[0]][part]
    if not isinstance(first, Mapping):
        return sum(p[k] * updates[k][part] for k in who)
    floats = [name for name, x in first.items() if x.is_floating_point()]
    return Tree({name: sum(p[k] * updates[k][part][name].double() for k in who) for name in floats})


@pytest.mark.parametrize("gone", [1, 2, 3])
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_of_those_asked_becomes_one_of_those_who_answered(name: str, gone: int) -> None:
    """With one reply lost: sum_k p_k(S) u_k, as if the lost client had never been asked; by one factor a part, the same for every k."""
    fed = federation(
        brief(name), make=Smooth if name == "moon" else Normed
    )  # the statistics of batch norm are reduced, too
    whole = Between.of(fed)
    heard = Answered(whole)
    play(fed, PLAN[:2], host=whole)
    at, number, ask, _ = heard.last_mean()
    assert at == 2
    mend = Mend(ask, ask.to, ask.to, ())
    assert [mend(part) for part in ("model", "c", "buffers")] == [1.0, 1.0, 1.0]  # nobody lost: not a bit is changed

    seen = Seen()
    host = Between.of(fed, observers=[seen])
    host.lost = lambda request: (request.round, request.number, request.client) == (2, number, gone)
    heard = Answered(host)
    play(fed, PLAN[:2], host=host)
    at, _, ask, replies = heard.last_mean()
    there = tuple(k for k in PLAN[1] if k != gone)
    assert (at, replies.clients) == (2, there)
    updates = {k: seen.updates[2, number, k] for k in there}
    assert replies.value, "a mean of something"
    now, asked = coefficients_of(ask, there, ()), coefficients_of(ask, PLAN[1], ())
    mend = Mend(ask, PLAN[1], there, ())
    for part, value in replies.value.items():
        value = Tree({n: x for n, x in value.items() if x.is_floating_point()}) if isinstance(value, Tree) else value
        assert gap(value, by_hand(ask, there, updates, part)) < 1e-12
        ratios = [part_of(now[k], part) / part_of(asked[k], part) for k in there]
        assert ratios == pytest.approx([mend(part)] * len(there), rel=1e-12)
        fixed = part_of(now[there[0]], part) == part_of(asked[there[0]], part)
        assert mend(part) == 1.0 if fixed else mend(part) > 1.0 + 1e-6
        assert fixed == (name == "scaffold" and part == "c")  # divided by K, whoever answers
    counted = {k: part_of(c, "model") for k, c in now.items()}
    assert dict(host.cost.weights) == pytest.approx(counted, rel=1e-12)  # what the record says


def test_a_sum_is_not_mended() -> None:
    """Neither one asked for nor a part that a mean leaves as it is (`Task.sums`)."""

    def count(params: Tree, work: Any, message: Message, client: State, facts: Facts) -> tuple[State, State]:
        return {"model": params, "rows": float(facts.n_k)}, client

    made = Algorithm("counting", tasks={"train": Task(finish=count, sums=("rows",))})
    fed = federation(made)
    host = Between.of(fed)
    host.lost = lambda request: request.client == 3
    told = {k: {"model": fed.params} for k in range(5)}
    asked = Ask(tuple(range(5)), "train", told, "mean", lambda who: {k: 1 / len(who) for k in who})
    for ask in (asked, asked._replace(reduce="sum", weights=None)):
        replies = host.server.answer(ask, 1, 0.1)
        assert replies.clients == (0, 1, 2, 4)
        assert replies.value is not None
        assert replies.value["rows"] == 5 + 12 + 9 + 7


def test_parts_without_weight_are_not_mended() -> None:
    """Nothing is divided by nothing: who has no weight says nothing, and where nobody has any the part stays 0."""
    ask = Ask((0, 1, 2), "train", {}, "mean", lambda who: {k: float(k) / max(sum(who), 1) for k in who})
    assert Mend(ask, (0, 1, 2), (0, 1), ())("model") == 3.0
    assert Mend(ask, (0, 1, 2), (0,), ())("model") == 1.0
    assert Mend(ask, (0, 1, 2), (), ())("model") == 1.0


# ---------------------------------------------------------------------------------------------- commit


def mean_of_states(host: InProcess, name: str, K: int = len(SIZES)) -> Tree:
    """(1/K) sum over all K clients; who has no state yet has 0."""
    kept = [host.states.get(k) for k in range(K)]
    found = [state[name] for state in kept if state]
    return Tree({n: sum(each[n] for each in found) / K for n in found[0]})


@pytest.mark.parametrize(("name", "at_server", "at_client"), [("scaffold", "c", "c_k"), ("feddyn", "h", "g_k")])
@pytest.mark.parametrize("transform", ["", "topk"])
def test_what_the_server_adds_up_stays_the_mean_of_what_the_clients_keep(
    name: str, at_server: str, at_client: str, transform: str
) -> None:
    """c = (1/K) sum c_k, and FedDyn's h = (1/K) sum g_k, over rounds in each of which somebody trains in vain."""
    fed = problem(name, transform)
    host, lost = Between.of(fed), {1: 0, 2: 2, 3: 3, 4: 1, 5: 4}
    host.lost = lambda request: lost[request.round] == request.client
    server = fed.begin(host)
    for number, cohort in enumerate([*PLAN, (2, 3, 4)], start=1):
        before = host.states.get(lost[number])
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        assert host.view.work[lost[number]].steps > 0  # it did its work
        assert same(host.states.get(lost[number]) or {}, before or {})
        assert gap(server[at_server], mean_of_states(host, at_client)) < 1e-12
    assert gap(server[at_server], server[at_server].zeros()) > 1e-6


@pytest.mark.parametrize("name", [name for name in MEANS if brief(name).client_init is not None] + ["fednova"])
def test_who_trained_in_vain_goes_back_to_what_it_kept(name: str) -> None:
    """Also to having nothing; a transform's memory, too. Who counted has gone on."""
    fed = problem(name, "topk" if name == "fednova" else "")
    host = Between.of(fed)
    server, _ = play(fed, [(0, 1)], host=host)
    before = {k: host.states.get(k) for k in range(5)}
    host.lost = lambda request: request.client in {1, 2}
    play(fed, [(0, 1, 2, 3)], server=server, host=host, first=2)
    after = {k: host.states.get(k) for k in range(5)}
    assert before[1] is not None
    assert [same(before[k] or {}, after[k] or {}) for k in range(5)] == [False, True, True, False, True]


def test_who_is_lost_in_one_ask_of_a_round_does_not_count_in_it() -> None:
    """FedMD asks three times: whoever digests and revisits, but whose scores did not come, goes back as a whole."""
    fed = federation(brief("fedmd"))
    host = Between.of(fed)
    server = fed.begin(host)
    before = {k: host.states.get(k) for k in range(5)}
    last = {"train": 1, "digest": 2}
    host.lost = lambda request: request.round > 0 and last.get(request.what) == request.client
    play(fed, [(0, 1, 2)], server=server, host=host)
    after = {k: host.states.get(k) for k in range(5)}
    assert [same(before[k] or {}, after[k] or {}) for k in range(5)] == [False, True, True, True, True]
    assert host.server.counted == {0}


def test_a_round_that_is_begun_anew_begins_with_what_was_kept_before_it() -> None:
    """Nothing of an attempt without a commit is left, neither of this round nor of one before it."""
    fed = federation(brief("scaffold"))
    server, host = play(fed, [(0, 1)])
    once, _ = play(fed, [(0, 1, 2)], server=server, host=host, first=2)
    kept = states(host)

    server, host = play(fed, [(0, 1)])
    for attempt in (0, 1, 2):
        drawn = fed.round(2, (0, 1, 2))
        again = host.server.drive(federated(fed.bench.algorithm, server, drawn), 2, 0.1, attempt)
    host.server.commit(2)
    assert same(again, once)
    assert same(states(host), kept)


def test_a_commit_of_another_round_changes_nothing() -> None:
    state = PartyState()
    state.begin(3)
    state.put(0, {"x": 1})
    state.commit(2, ())
    assert state.get(0) == {"x": 1}
    state.commit(3, ())
    assert state.get(0) is None


# ---------------------------------------------------------------------------------------------- what is declared


class Alone(Observer):
    """The tasks of which the server looks at single clients."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()

    def asked(self, request: Request) -> None:
        if request.single and not request.peer and request.client != SERVER:
            self.tasks.add(request.what)


def showing(made: Algorithm, shows: Mapping[str, tuple[str, ...]]) -> Algorithm:
    """The algorithm with other declarations."""
    tasks = {what: task._replace(shows=shows.get(what, task.shows)) for what, task in made.tasks.items()}
    return made._replace(tasks=tasks)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_the_server_sees_of_one_client_is_what_is_declared(name: str) -> None:
    """Without its declarations an algorithm is refused where it asks a client on its own, and only there; on both sides of the link."""
    made = ALGORITHMS[name](eps1=1e9, eps2=0.0, after_round=0) if name == "cfl" else brief(name)  # it splits at once

    def tried(made: Algorithm, *observers: Observer) -> None:
        fed = federation(made, make=Deep if name == "fedma" else Smooth)
        play(fed, [(0, 1, 2), (0, 3, 4)], host=Between.of(fed, observers=observers))

    seen = Alone()
    tried(made, seen)
    assert seen.tasks == {what for what, task in made.tasks.items() if task.shows}, (
        "declared for nothing, or not at all"
    )

    silent = showing(made, dict.fromkeys(made.tasks, ()))
    if not seen.tasks:
        tried(silent)
        return
    with pytest.raises(ProtocolError, match="which looks at single clients, but the task declares"):
        tried(silent)
    for what in seen.tasks:
        with pytest.raises(ProtocolError, match=f"its task '{what}' declares something else"):
            tried(showing(made, {what: ("something else",)}))


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_party_does_not_show_what_it_would_hand_to_a_sum(name: str) -> None:
    """Whatever the server half thinks: no task without a declaration is answered alone."""
    fed = federation(brief(name))
    sizes = {k: rows.n for k, rows in fed.held.items()}
    half = PartyHalf(fed.bench, Refusing(), PartyState(), sizes, 1)
    for what, task in fed.bench.algorithm.tasks.items():
        asked = Request("", 1, 0, 0, 1, what, {"model": fed.params}, 0.1, 5, 54, "mean", single=True)
        if not task.shows:
            with pytest.raises(ProtocolError, match=f"is asked for '{what}' on its own"):
                list(half.answer([asked]))
    with pytest.raises(ProtocolError, match="is asked for 'spy', which"):
        list(half.answer([asked._replace(what="spy")]))


class Refusing:
    """An executor that must not be reached."""

    def run(self, jobs: Any) -> Any:  # noqa: ARG002
        raise AssertionError("the party began to work")

    def close(self) -> None:
        """Nothing."""
