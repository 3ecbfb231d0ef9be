"""What the server sees of one client is declared, task by task, and held on both sides of the link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from disturbed import Between
from fedatlas.algorithm import SERVER, Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ProtocolError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.grammar import Asks, Form
from federation import Deep, Smooth, brief, federation, play


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


class Forms(Observer):
    """What was asked, as the grammar says it: (whether before round 1, task, reducer, whether the reply goes to another party)."""

    def __init__(self) -> None:
        self.seen: set[tuple[bool, str, str, bool]] = set()

    def asked(self, request: Request) -> None:
        self.seen.add((not request.round, request.what, request.reduce, request.peer))


UNUSED = {"fedma": {(False, "train", "sum", False)}}
"""Forms of other networks: a single layer has nothing to match."""


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_what_is_declared_is_what_is_asked(name: str) -> None:
    """Nothing else comes of the grammar's forms, and each of them comes: both halves compare, here as everywhere."""
    made = ALGORITHMS[name](eps1=1e9, eps2=0.0, after_round=0) if name == "cfl" else brief(name)
    fed, forms = federation(made, make=Deep if name == "fedma" else Smooth), Forms()
    host = Between.of(fed, observers=[forms])
    assert host.party.expected is not None
    play(fed, [(0, 1, 2), (0, 3, 4)], host=host)
    grammar = made.grammar
    assert grammar is not None
    first = {(True, form.what, form.reduce, form.via == "peer") for form in grammar.first if made.prepare is not None}
    later = {(False, form.what, form.reduce, form.via == "peer") for form in grammar.round}
    assert first | later == forms.seen | UNUSED.get(name, set())


@pytest.mark.parametrize(
    ("asks", "why"),
    [
        (
            Asks((Form("counts", "sum"), Form("train"))),
            "'hwfedavg' asks for 'score' by reduce='each', which it does not",
        ),
        (
            Asks((Form("counts", "sum", most=0), Form("score", "each"), Form("train"))),
            "'hwfedavg' asks client 0 for 'counts' more often in a round than it declares",
        ),
    ],
)
def test_the_servers_generator_is_held_to_the_grammar(asks: Asks, why: str) -> None:
    """Before anybody works: the law that no algorithm of the registry breaks is one that can be broken."""
    fed = federation(brief("hwfedavg")._replace(asks=asks))
    with pytest.raises(ProtocolError, match=why):
        play(fed, [(0, 1, 2)])


class Refusing:
    """An executor that must not be reached."""

    def run(self, jobs: Any) -> Any:  # noqa: ARG002
        raise AssertionError("the party began to work")

    def close(self) -> None:
        """Nothing."""
