"""An ask as the server half handles it: its reducer, its coefficients, the checks on it, and its replies in seat order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from fedatlas.aggregation import REDUCERS
from fedatlas.aggregation.reducers import Reducer, part_of
from fedatlas.algorithm import SERVER, UNION, Algorithm, Ask, Question, Task, Weights
from fedatlas.errors import ConfigError, ProtocolError
from fedatlas.federation.link import Reply
from fedatlas.grammar import Form
from fedatlas.registry import find
from fedatlas.wire import codec


class Mend:
    """The factor that corrects a part of a mean when some of the clients asked were lost.

    The factor is p_k(those who answered) / p_k(those asked). It is the same for every client k that answered. It is exactly 1 if no
    client was lost, or if the denominator is fixed.
    """

    def __init__(self, ask: Ask, clients: tuple[int, ...], answered: tuple[int, ...], sums: Collection[str]) -> None:
        self.ratio: tuple[Mapping[int, Any], Mapping[int, Any]] | None = None
        if ask.weights is not None and answered and len(answered) < len(clients):
            self.ratio = coefficients_of(ask, answered, sums), coefficients_of(ask, clients, sums)

    def __call__(self, part: str) -> float:
        """Return the factor of a part."""
        if self.ratio is None:
            return 1.0
        now, asked = self.ratio
        k = max(now, key=lambda k: abs(part_of(asked[k], part)))  # a client without weight says nothing about the ratio
        return part_of(now[k], part) / part_of(asked[k], part) if part_of(asked[k], part) else 1.0


def in_seats(replies: Iterator[Reply], clients: tuple[int, ...]) -> Iterator[Reply]:
    """Yield replies in seat order. An early reply is copied and held until every earlier seat has answered or is lost."""
    early: dict[int, Reply] = {}
    place = {k: i for i, k in enumerate(clients)}
    at = 0
    for reply in replies:
        if place[reply.client] != at:
            early[reply.client] = reply._replace(update=codec.decode(codec.encode(dict(reply.update)), own=True))
            continue
        yield reply
        at += 1
        while at < len(clients) and clients[at] in early:
            yield early.pop(clients[at])
            at += 1
    yield from (early[k] for k in clients if k in early)


def summed(ask: Ask) -> bool:
    """Whether the server forms a sum of what clients send."""
    return ask.route.via == "server" and SERVER not in ask.to and ask.reduce in {"mean", "sum"}


def hidden(ask: Ask, task: Task | Question) -> bool:
    """Whether ``[[privacy]]`` has something to protect in an ask: a sum over clients that send something."""
    return summed(ask) and not (isinstance(task, Task) and task.sealing.silent)


def reducer_of(ask: Ask) -> Reducer:
    """Return the reducer that an ask names or carries."""
    if isinstance(ask.reduce, Reducer):
        return ask.reduce
    try:
        made: Reducer = find("reducers", REDUCERS, ask.reduce)()
    except ConfigError as error:
        raise ProtocolError(str(error)) from None
    return made


def check_ask(ask: Ask, reducer: Reducer, algorithm: Algorithm) -> None:
    """Raise ProtocolError for an ask that no reply could answer, or that shows the server more than the algorithm declares.

    Such an ask is a mistake in the algorithm. It is reported before any client trains.
    """
    name = algorithm.name
    if ask.what not in algorithm.tasks:
        raise ProtocolError(f"'{name}' asks for the task '{ask.what}', but its tasks are {', '.join(algorithm.tasks)}.")
    if alone := [k for k in ask.to if k not in ask.messages]:
        raise ProtocolError(
            f"'{name}' asks client {alone[0]} for '{ask.what}' without a message; an empty one is {{}}."
        )
    if ask.reduce == "mean" and ask.weights is None:
        raise ProtocolError(f"'{name}' asks for a mean of '{ask.what}' without weights; a plain sum is reduce='sum'.")
    if ask.reduce == "neighbours" and not algorithm.serverless:
        raise ProtocolError(
            f"'{name}' asks for '{ask.what}' by reduce='neighbours', but declares a server: set serverless=True."
        )
    if ask.reduce == "neighbours" and ask.to and not ask.mixing:
        raise ProtocolError(f"'{name}' asks for '{ask.what}' by reduce='neighbours' without mixing.")
    shown = reducer.single and ask.route.via == "server" and SERVER not in ask.to
    if shown and not algorithm.tasks[ask.what].shows:
        raise ProtocolError(
            f"'{name}' asks for '{ask.what}' by reduce='{reducer.name}', which looks at single clients, but the task declares "
            "that the server sees it in sums only: name the parts it shows in Task.shows."
        )


class Tally:
    """How often each party has been asked each form in one attempt at a round. ``clients``: of the federation."""

    def __init__(self, clients: int, layers: int | None = None) -> None:
        self.clients, self.layers = clients, layers  # hidden layers of the network; None if unknown
        self.times: Counter[tuple[int, Form]] = Counter()

    def once_more(self, party: int, form: Form) -> bool:
        """Count one more, and return whether the form allows it."""
        self.times[party, form] += 1
        return self.times[party, form] <= self.most(form)

    def most(self, form: Form) -> float:
        """Return how often a form may come."""
        if isinstance(form.most, int):
            return form.most
        many = self.clients if form.most == "clients" else self.layers
        return math.inf if many is None else many


def of_party(form: Form, party: int) -> bool:
    """Whether a form is for a party of this kind."""
    return form.to == {SERVER: "server", UNION: "union"}.get(party, "clients")


def from_whom(form: Form, party: int, sender: int | None) -> bool:
    """Whether this sender may hand a form's message over."""
    return sender is None or form.handed == "client" or (form.handed == "self" and sender == party)


def check_declared(ask: Ask, reducer: Reducer, algorithm: Algorithm, forms: Iterable[Form], tally: Tally) -> None:
    """Raise ProtocolError for an ask that matches none of the declared ``forms``, or that comes too often."""
    name, route = algorithm.name, ask.route
    shape = (ask.what, reducer.name, reducer.single, route.via)
    alike = [form for form in forms if (form.what, form.reduce, form.single, form.via) == shape]
    for k in ask.to:
        one = next((form for form in alike if of_party(form, k) and from_whom(form, k, route.sender.get(k))), None)
        if one is None:
            raise ProtocolError(
                f"'{name}' asks for '{ask.what}' by reduce='{reducer.name}', which it does not declare: add the form to Algorithm.asks."
            )
        if not tally.once_more(k, one):
            raise ProtocolError(
                f"'{name}' asks client {k} for '{ask.what}' more often in a round than it declares (Form.most)."
            )


def coefficients_of(ask: Ask, clients: tuple[int, ...], sums: Collection[str]) -> dict[int, Any]:
    """Return client -> coefficient, or client -> part -> coefficient. The parts in ``sums`` are added without weights."""
    if ask.weights is None or not clients:
        return dict.fromkeys(clients, 1.0)
    found = by_client(ask.weights(clients), clients)
    if not sums:
        return found
    whole = dict.fromkeys(sums, 1.0)
    return {k: {**(own if isinstance(own, Mapping) else {"model": own}), **whole} for k, own in found.items()}


def by_client(weights: Weights, clients: tuple[int, ...]) -> dict[int, Any]:
    """Turn the algorithm's weights into client -> coefficient (or client -> part -> coefficient if parts differ)."""
    if weights and all(isinstance(value, Mapping) for value in weights.values()):
        return {k: {part: value[k] for part, value in weights.items()} for k in clients}  # type: ignore[index]
    return {k: weights[k] for k in clients}  # type: ignore[index]


def heard_by_others(ask: Ask, sizes: Mapping[int, int]) -> int:
    """Return the bytes of the updates that went to other nodes."""
    if ask.mixing is None:
        return 0
    mixing = ask.mixing(tuple(sizes))
    return sum(sizes[sender] for receiver, row in mixing.items() for sender in row if sender != receiver)
