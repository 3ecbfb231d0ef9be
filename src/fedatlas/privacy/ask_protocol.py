"""Values and steps shared by the protocols around an ask: facts about the ask, and the way from a sum to the expected mean.

A protocol is a generator around an ask. It turns the algorithm's `Ask` into several (keys, shares, the work, opening) and returns
`Replies` that hold only a value. The server half drives it like a round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, NamedTuple, Protocol

from fedatlas.aggregation.reducers import part_of, scaled
from fedatlas.algorithm import Ask, Message, Question, Replies, Task, Update
from fedatlas.transforms.change import BUFFERS
from fedatlas.tree import Tree

SEND = "send"  # in a client's word: False if its sum was opened before
CHAIN = "chain"  # in a client's word: True if models were passed from client to client
WORK = "masked"  # the phase of the work itself, for clients that leave during it
MEMORY = "$privacy"  # in the server's state: memories of the mechanisms, by name
SESSION = "session"  # in a client's word: entries that belong to one masked session and are not repeated

ATTEMPTS = 3  # at a round whose masked session fails before any share is given

Asking = Generator[Ask, Replies, Replies]


class Journal(Protocol):
    """Opened sums, written before they are used, and the asks that this run's parties have opened."""

    def read(self, round: int, ask: int) -> dict[str, Any] | None: ...
    def write(self, round: int, ask: int, opened: Mapping[str, Any]) -> None: ...
    def given(self, run: str, round: int, ask: str) -> bool: ...


class Place(NamedTuple):
    """The place of an ask in its run, and the facts known there."""

    run: str
    round: int
    attempt: int
    number: int  # number of the sum in its round: the same in every attempt and when the round is repeated
    task: Task | Question
    sizes: Mapping[int, int]  # rows of the clients
    n: int
    K: int
    coefficients: Mapping[
        int, Any
    ]  # of all clients asked, including those that leave: client -> number, or part -> number
    mend: Callable[[tuple[int, ...]], Callable[[str], float]]  # clients that answered -> the factor of a part of a mean
    leaving: Mapping[int, str]  # client -> the phase before the end of which it leaves
    by_rows: Callable[[str], bool] = lambda part: True  # whether the weights of a part follow the clients' rows
    journal: Journal | None = None
    lr: float = 0.0  # the round's local learning rate

    @property
    def sums(self) -> Collection[str]:
        """Parts of a mean that are summed unweighted."""
        return self.task.sums if isinstance(self.task, Task) else ()


class SessionFailed(Exception):  # an event of the protocol, answered by another attempt
    """A masked session that fell below its threshold before any share was given: the round is restarted."""


class RoundClosed(Exception):  # an event of the protocol: the round changes nothing
    """A sum that can be neither opened nor requested again. The round closes without a change."""


def journalled(
    ask: Ask, place: Place, protocol: Asking, note: Callable[[tuple[int, ...]], None], repeats: bool = False
) -> Asking:
    """Return a protocol that writes the opened sum to the journal before use, after ``note`` has recorded in the ledger who answered.

    A repeated round reads the sum from the journal. The clients that answered repeat their work without sending anything. The journal
    also holds what they were told, so that their states follow from the numbers that were opened. RoundClosed if a party has
    helped to open this ask and the sum was lost, because a sum is never opened twice. ``repeats``: repeated work reads the clients' rows
    anew under noise of its own, which their states may show later, so it is noted as well.
    """
    journal, words = place.journal, dict[str, Any]()
    if journal is not None and (kept := journal.read(place.round, place.number)) is not None:
        clients = tuple(kept["clients"])
        if repeats:
            note(clients)
        again = {k: {**kept["words"][str(k)], SEND: False} for k in clients}
        yield ask._replace(to=clients, reduce="sum", weights=None, words=again)
        return Replies(clients, kept["value"], {})
    if journal is not None and journal.given(place.run, place.round, ask.what):
        raise RoundClosed(f"a sum of round {place.round} was opened and then lost")
    inner = next(protocol)
    while True:
        if inner.what == ask.what:
            words = {
                str(k): {name: x for name, x in word.items() if name != SESSION} for k, word in inner.words.items()
            }
        replies = yield inner
        try:
            inner = protocol.send(replies)
        except StopIteration as end:
            found: Replies = end.value
            break
    if found.value is not None:
        note(found.clients)
        if journal is not None:
            opened = {"clients": list(found.clients), "value": dict(found.value), "words": words}
            journal.write(place.round, place.number, opened)
    return found


def enough(who: Collection[int], given: Mapping[int, float], fewest: int) -> None:
    """Raise RoundClosed if so few clients have a weight in a sum that it would reveal what one of them sent."""
    heavy = sum(given[k] != 0 for k in who)
    if 0 < heavy < fewest:
        raise RoundClosed(f"only {heavy} of the {len(who)} clients in a sum have a weight in it: {fewest} have to")


def weight_of(coefficients: Mapping[int, Any], client: int, part: str, sums: Collection[str]) -> float:
    """Return a client's coefficient of a part."""
    return 1.0 if part in sums else part_of(coefficients[client], part)


def weights_of(ask: Ask, place: Place, asked: tuple[int, ...]) -> dict[str, dict[int, float]]:
    """Return the coefficients of an ask by part and client; 1 in a sum. The part "" means one coefficient for all parts."""
    if ask.reduce != "mean":
        return {"": dict.fromkeys(asked, 1.0)}
    first = place.coefficients[asked[0]]
    names = [*first] if isinstance(first, Mapping) else [""]
    return {part: {k: weight_of(place.coefficients, k, part, place.sums) for k in asked} for part in names}


def way_of(ways: Mapping[str, Any], part: str) -> Any:
    """Return the weighting of a part: its declared one, else the model's, else that of the first part."""
    return ways.get(part, ways.get("model", next(iter(ways.values()))))


def with_counters(value: Update, told: Message) -> dict[str, Any]:
    """Return the summed buffers together with the counters of ``told``, which are not summed."""
    whole = {**told.get(BUFFERS, {}), **value.get(BUFFERS, {})}
    return {**value, BUFFERS: Tree(whole)} if whole and BUFFERS in value else dict(value)


def mended(value: Update, factor: Callable[[str], float]) -> dict[str, Any]:
    """Return each part times its factor."""
    return {part: scaled(x, factor(part)) for part, x in value.items()}
