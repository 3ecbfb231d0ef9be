"""Replies that are lost: a mean is mended by one factor a part, a sum is not; who did not count goes back to what it kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disturbed import MEANS, PLAN, Between
from fedatlas.aggregation.reducers import part_of
from fedatlas.algorithm import Algorithm, Ask, Facts, Message, Replies, State, Task
from fedatlas.federation.asks import Mend, coefficients_of
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.start import RoundStart
from fedatlas.grammar import Asks, Form
from fedatlas.rounds import federated
from fedatlas.tree import Tree
from fedatlas.wire import codec
from federation import SIZES, Normed, Smooth, brief, federation, gap, play, same, states
from parties import problem


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

        def noted(ask: Ask) -> Replies:
            at = host.server.now.asks
            replies = answer(ask)
            value = replies.value and codec.decode(codec.encode(dict(replies.value)))
            self.asks.append((host.server.now.start.round, at, ask, replies._replace(value=value)))
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


BOTH = Asks((Form("train"), Form("train", "sum")))


def test_a_sum_is_not_mended() -> None:
    """Neither one asked for nor a part that a mean leaves as it is (`Task.sums`)."""

    def count(params: Tree, work: Any, message: Message, client: State, facts: Facts) -> tuple[State, State]:
        return {"model": params, "rows": float(facts.n_k)}, client

    made = Algorithm("counting", tasks={"train": Task(finish=count, sums=("rows",))}, asks=BOTH)
    fed = federation(made)
    host = Between.of(fed)
    host.lost = lambda request: request.client == 3
    told = {k: {"model": fed.params} for k in range(5)}
    asked = Ask(tuple(range(5)), "train", told, "mean", lambda who: {k: 1 / len(who) for k in who})
    for ask in (asked, asked._replace(reduce="sum", weights=None)):
        host.server.begin(RoundStart(1, 0.1))
        replies = host.server.answer(ask)
        assert replies.clients == (0, 1, 2, 4)
        assert replies.value is not None
        assert replies.value["rows"] == 5 + 12 + 9 + 7


def test_parts_without_weight_are_not_mended() -> None:
    """Nothing is divided by nothing: who has no weight says nothing, and where nobody has any the part stays 0."""
    ask = Ask((0, 1, 2), "train", {}, "mean", lambda who: {k: float(k) / max(sum(who), 1) for k in who})
    assert Mend(ask, (0, 1, 2), (0, 1), ())("model") == 3.0
    assert Mend(ask, (0, 1, 2), (0,), ())("model") == 1.0
    assert Mend(ask, (0, 1, 2), (), ())("model") == 1.0


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
        again = host.server.drive(federated(fed.bench.algorithm, server, drawn), RoundStart(2, 0.1, attempt))
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
