"""Questions, which are no trainings, and roles, by which one party does something else than the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from disturbed import Between
from fedatlas.algorithm import (
    Algorithm,
    Ask,
    Batch,
    Facts,
    Message,
    Network,
    Question,
    Round,
    RoundGenerator,
    State,
    Task,
    Update,
    Work,
)
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench, Executor, Job, Role
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.tree import Tree
from federation import SIZES, TWO, Federation, fast, federation, gap, play, same, stacked, states

Make = Callable[[Bench], Executor]


def pool(bench: Bench) -> PoolExecutor:
    """Two workers, two clients a chunk."""
    return PoolExecutor(bench, FastRunner(bench, SIZES, "program", "float64"), 2, 2)


POOL = pytest.param(pool, marks=pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers"))
EXECUTORS = [SerialExecutor, fast, stacked, POOL]


@pytest.fixture
def hosts() -> Iterator[Callable[..., Between]]:
    """Simulators on an executor; workers end with the test."""
    made: list[Between] = []

    def make(fed: Federation, executor: Make = SerialExecutor, **options: Any) -> Between:
        made.append(Between.of(fed, executor, **options))
        return made[-1]

    yield make
    for host in made:
        host.close()


# ------------------------------------------------------------------------------------------------ a session


def deal(model: Network, data: Any, message: Message, state: State, session: Any) -> tuple[Update, State, Any]:
    """The first question: keeps its number of rows for the second. Says whether something was left there."""
    return {"left": int(session is not None)}, state, {"rows": torch.tensor([data.n]), "text": "kept"}


def tell(model: Network, data: Any, message: Message, state: State, session: Any) -> tuple[Update, State, Any]:
    """The second: without data, from what it kept alone; and keeps something else."""
    assert data is None
    return (
        {"rows": session["rows"] + 0, "times": message["times"] * session["rows"]},
        state,
        {"rows": 2 * session["rows"]},
    )


DEALING = {
    "deal": Question(deal),
    "tell": Question(tell, data="none", shows=("rows", "times")),
    "train": Task(),
}


def dealing(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
    """deal, tell, train, tell: a training between two questions leaves the session as it is."""
    told = {k: {"model": server["model"], "times": round.number} for k in round.cohort}
    first = yield Ask(round.cohort, "deal", told, "sum")
    once = yield Ask(round.cohort, "tell", told, "each")
    yield Ask(round.cohort, "train", told, "sum")
    again = yield Ask(round.cohort, "tell", told, "each")
    assert first.value is not None
    heard = [[int(each.each[k]["rows"]) for k in round.cohort] for each in (once, again)]
    times = sum(int(each["times"]) for each in once.each.values())
    return {**server, "heard": [*server.get("heard", []), [first.value["left"], *heard, times]]}


@pytest.mark.parametrize("make", EXECUTORS)
def test_a_session_travels_between_the_questions_of_a_round_and_ends_with_it(
    make: Make, hosts: Callable[..., Between]
) -> None:
    """Into the job and back, wherever it is done; it is in nobody's state, and gone behind the commit."""
    fed = federation(Algorithm("dealing", tasks=DEALING, rounds=dealing))
    host = hosts(fed, make)
    server, _ = play(fed, [(0, 1, 3), (1, 2, 3, 4)], host=host)
    assert server["heard"] == [
        [0, [5, 12, 21], [10, 24, 42], 5 + 12 + 21],
        [0, [12, 9, 21, 7], [24, 18, 42, 14], 2 * (12 + 9 + 21 + 7)],
    ]
    assert host.party.sessions == {}
    assert states(host) == {}


def test_a_session_does_not_outlive_a_round_that_was_never_committed() -> None:
    """Neither into the next round nor into another attempt at the same."""
    fed = federation(Algorithm("dealing", tasks=DEALING, rounds=dealing))
    half = PartyHalf(fed.bench, SerialExecutor(fed.bench), fed.host().states, {k: r.n for k, r in fed.held.items()}, 1)
    asked = Request("", 1, 0, 0, 1, "deal", {"model": fed.params}, 0.1, 5, 54, "sum")

    def left(request: Request) -> list[int]:
        return [answer.reply.update["left"] for answer in half.answer([request])]

    assert left(asked) == [0]
    assert left(asked._replace(number=1)) == [1]
    assert left(asked._replace(attempt=1)) == [0]
    assert left(asked._replace(round=2)) == [0]
    half.commit(2, {1})
    assert left(asked._replace(round=2, number=1)) == [0]


# ------------------------------------------------------------------------------------------------ what a question is handed


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 9),
        ({"data": "public"}, 12),
        ({"data": "public", "rows": 5}, 5),
        ({"data": "none"}, -1),
        ({"balanced": True}, None),
    ],
)
def test_a_question_has_the_row_options_of_a_task(
    options: dict[str, Any], rows: int | None, hosts: Callable[..., Between]
) -> None:
    def count(model: Network, data: Any, message: Message, state: State, session: Any) -> tuple[Update, State, Any]:
        y = torch.cat([piece.y for piece in data.pieces()]) if data else torch.zeros(0, dtype=torch.int64)
        return {"n": data.n if data else -1, "counts": torch.bincount(y, minlength=3)}, state, session

    fed = federation(Algorithm("asking", tasks={"count": Question(count, **options)}))
    replies = hosts(fed).server.answer(Ask((2,), "count", {2: {}}, "sum"))
    assert replies.value is not None
    counts = replies.value["counts"].tolist()
    assert rows in {replies.value["n"], None}
    assert sum(counts) == max(replies.value["n"], 0)
    if options.get("balanced"):
        assert len({n for n in counts if n}) == 1


@pytest.mark.parametrize("make", EXECUTORS)
def test_a_question_may_keep_a_state_and_does_no_step(make: Make, hosts: Callable[..., Between]) -> None:
    """Its state is the client's, and goes back where the client is lost; nothing is trained or evaluated for it."""

    def remember(model: Network, data: Any, message: Message, state: State, session: Any) -> tuple[Update, State, Any]:
        return {"model": message["model"]}, {"asked": state["asked"] + 1}, session

    def rounds(algorithm: Algorithm, server: State, round: Round) -> RoundGenerator:
        told = {k: {"model": server["model"]} for k in round.cohort}
        yield Ask(round.cohort, "remember", told, "sum")
        return server

    keeping = Algorithm(
        "keeping",
        tasks={"remember": Question(remember, stateful=True)},
        client_init=lambda model, facts: {"asked": 0},
        rounds=rounds,
    )
    fed = federation(keeping)
    host = hosts(fed, make)
    host.lost = lambda request: (request.round, request.client) == (2, 1)
    play(fed, [(0, 1), (1, 2)], host=host)
    assert states(host) == {"0": {"asked": 1}, "1": {"asked": 1}, "2": {"asked": 1}}
    assert all((work.steps, work.examples) == (0, 0) for work in host.view.work.values())


# ------------------------------------------------------------------------------------------------ roles


class Seen(Observer):
    """The updates of the last round."""

    def __init__(self) -> None:
        self.models: dict[int, Tree] = {}

    def opened(self, request: Request, update: Mapping[str, Any]) -> None:
        if request.what == "train":
            self.models[request.client] = Tree(update["model"]).map(torch.clone)


def upwards(
    model: Network, params: Mapping[str, Tensor], batch: Batch, message: Message, client: State, facts: Facts
) -> Tensor:
    """The loss the other way round."""
    return -model.loss(params, batch)


def climbing(tasks: Mapping[str, Any]) -> dict[str, Any]:
    """A malicious party's tasks."""
    return {what: task._replace(objective=upwards) for what, task in tasks.items()}


def with_role(fed: Federation, role: Role, *members: int, name: str = "odd") -> Federation:
    """The federation in which some parties have a role."""
    return fed._replace(bench=fed.bench._replace(roles={name: role}, cast=dict.fromkeys(members, name)))


def others(honest: Mapping[int, Tree], mixed: Mapping[int, Tree], make: Make) -> list[int]:
    """Whose models differ. Stacks of other clients' numbers may round otherwise; whoever works alone keeps every bit."""
    return [
        k for k in range(5) if gap(honest[k], mixed[k]) > 1e-12 or not (make is stacked or same(honest[k], mixed[k]))
    ]


def models(fed: Federation, make: Make, hosts: Callable[..., Between]) -> dict[int, Tree]:
    """What every client sends in round 1."""
    seen = Seen()
    host = hosts(fed, make, observers=[seen])
    play(fed, [(0, 1, 2, 3, 4)], host=host)
    host.close()  # workers of one pool hold the pipes of another that is still there
    return seen.models


@pytest.mark.parametrize("make", EXECUTORS)
def test_a_role_changes_one_clients_work_and_nobody_elses(make: Make, hosts: Callable[..., Between]) -> None:
    """Client 2 climbs its loss: a program of its own, while the others keep theirs, and their bits."""
    fed = federation(ALGORITHMS["fedavg"]())
    odd = with_role(fed, Role(tasks=climbing), 2)
    honest, mixed, oracle = models(fed, make, hosts), models(odd, make, hosts), models(odd, SerialExecutor, hosts)
    assert others(honest, mixed, make) == [2]
    assert gap(mixed, oracle) < 1e-12
    (down, up) = ((found[2] - fed.params).flatten() for found in (honest, mixed))
    assert float(down @ up) < 0  # the other way


@pytest.mark.parametrize("make", EXECUTORS)
def test_a_role_may_choose_its_rows(make: Make, hosts: Callable[..., Between]) -> None:
    """Client 2 turns its labels: it sends what an honest client with these labels would."""

    def turned(rows: Any) -> Any:
        def found(party: int) -> Any:
            own = rows(party)
            return own._replace(y=(own.y + 1) % 3)

        return found

    fed = federation(ALGORITHMS["fedavg"]())
    held = {**fed.held, 2: fed.held[2]._replace(y=(fed.held[2].y + 1) % 3)}
    honest, mixed = models(fed, make, hosts), models(with_role(fed, Role(rows=turned), 2), make, hosts)
    assert others(honest, mixed, make) == [2]
    assert others(mixed, models(federation(ALGORITHMS["fedavg"](), held), make, hosts), make) == []


def test_programs_are_not_shared_across_roles() -> None:
    """Their jobs are of another kind, also where a role is called as an architecture is."""
    fed = with_role(federation(ALGORITHMS["fedavg"]()), Role(tasks=climbing), 2)
    runner = FastRunner(fed.bench, SIZES, "program", "float64")
    play(fed, [(0, 1, 2)], make=lambda bench: SerialExecutor(bench, runner))
    assert {note.split(",")[0] for note in runner.notes()} == {"train", "train as odd"}
    job = Job(0, "train", {}, {}, Facts(1.0, 1.0, 1, 3, 1.0, 0.1), None, 1)  # type: ignore[arg-type]
    assert job._replace(architecture="nine").kind != job._replace(role="nine").kind


def test_a_role_may_keep_a_state_where_others_have_none(hosts: Callable[..., Between]) -> None:
    """It is kept from round to round, as a client's is, and goes back with one who is lost."""

    def note(params: Tree, work: Work, message: Message, client: State, facts: Facts) -> tuple[Update, State]:
        return {"model": params}, {"rounds": [*client["rounds"], int(facts.round)]}

    noting = Role(
        tasks=lambda tasks: {what: task._replace(finish=note) for what, task in tasks.items()},
        client_init=lambda model, facts: {"rounds": []},
    )
    fed = with_role(federation(ALGORITHMS["fedavg"]()), noting, 2)
    host = hosts(fed)
    host.lost = lambda request: request.round == 2
    play(fed, [(1, 2), (2, 3), (0, 2)], host=host)
    assert states(host) == {"2": {"rounds": [1, 3]}}


@pytest.mark.parametrize("make", [fast, stacked])
def test_roles_and_architectures_go_together(make: Make, hosts: Callable[..., Between]) -> None:
    """Networks in turn, and two clients of a role, one of each network."""
    fed = federation(ALGORITHMS["feddf"](steps=5), several=TWO)
    odd = with_role(fed, Role(tasks=lambda tasks: {**tasks, "train": tasks["train"]._replace(objective=upwards)}), 1, 2)
    honest, mixed, oracle = models(fed, make, hosts), models(odd, make, hosts), models(odd, SerialExecutor, hosts)
    assert others(honest, mixed, make) == [1, 2]
    assert gap(mixed, oracle) < 1e-11
