"""Noise around an ask: the server's sum, its noise, and the ledger's lines before the value is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

from fedatlas.aggregation.reducers import Reducer
from fedatlas.algorithm import Algorithm, Ask, Replies, Transform, Update
from fedatlas.privacy.ask_protocol import ATTEMPTS, Asking, Place, RoundClosed, SessionFailed
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Memory, Protection, Work
from fedatlas.tree import Tree

Note = Callable[[Sequence[Event]], None]
"""Writes lines of the ledger and returns when they are on the disk."""


def around(
    how: Protection,
    transform: Transform | None,
    algorithm: Algorithm,
    zero: Callable[[], Update],
    ask: Ask,
    place: Place,
    note: Note,
    memories: MutableMapping[str, Memory],
) -> Asking:
    """Return the replies to an ask under mechanisms without a separate protocol.

    ``zero`` makes an update that changes nothing. A round that nobody came to uses it, because that round gets noise too.
    ``memories`` of the mechanisms, by name, are replaced by those after the ask.
    """
    works = dict(zip([one.name for one in how.mechanisms], how.works, strict=True))
    for name, work in works.items():
        if work.memory is not None and name not in memories:
            memories[name] = work.memory.start(how)
    word, total = how.told(memories), _total(works, memories, transform)
    summed = ask if total is None else ask._replace(reduce=total, weights=None)
    replies = yield summed._replace(words={k: dict(word) for k in ask.to})
    value = replies.value
    if value is None and total is not None:
        value = nothing(zero)
    if value is None:
        return replies
    lines = how.released(place.round, replies.clients)
    for name, work in works.items():
        if work.memory is not None:
            memories[name], more = work.memory.enter(memories[name], how, place, ask.to)
            lines += more
    if lines:
        note(lines)
    return Replies(replies.clients, released(how, algorithm, value, replies.clients, place, memories), {})


def _total(works: Mapping[str, Work], memories: Mapping[str, Memory], transform: Transform | None) -> Reducer | None:
    """Return the server's sum that replaces the mean, if a mechanism has one."""
    for name, work in works.items():
        if work.memory is not None and work.memory.total is not None:
            return work.memory.total(memories[name], transform)
        if work.total is not None:
            return work.total(transform)
    return None


def over_sum(
    how: Protection, algorithm: Algorithm, zero: Callable[[], Update], ask: Ask, place: Place, opened: Asking
) -> Asking:
    """Return the replies of a protocol, ``opened``, with the server's noise on its sum; only noise if it is never opened.

    SessionFailed if another attempt may still open it.
    """
    replies = Replies((), None, {})
    try:
        if ask.to:
            replies = yield from opened
    except SessionFailed:
        if place.attempt + 1 < ATTEMPTS:
            raise
    except RoundClosed:
        pass
    value = replies.value
    if value is None:
        yield ask._replace(to=(), messages={}, weights=None, words={}, reduce="sum")  # a protocol asks once at least
        value = nothing(zero)
    return Replies(replies.clients, released(how, algorithm, value, replies.clients, place, {}), {})


def fixed(place: Place) -> Place:
    """Return a place in which a mean keeps its denominator, whoever is lost."""
    return place._replace(mend=lambda answered: lambda part: 1.0)


def nothing(zero: Callable[[], Update]) -> Update:
    """Return the sum of no changes."""
    return {part: Tree(x).map(lambda t: t.double()) for part, x in zero().items()}


def released(
    how: Protection,
    algorithm: Algorithm,
    value: Update,
    clients: tuple[int, ...],
    place: Place,
    memories: MutableMapping[str, Memory],
) -> Update:
    """Return a value with the server's noise. Memories that a release changes are replaced."""
    for one, work in zip(how.mechanisms, how.works, strict=True):
        if work.release is not None:
            value = work.release(value, how, place, clients, algorithm)
        if work.memory is not None:
            value, memories[one.name] = work.memory.release(value, memories[one.name], how, place, algorithm)
    return value
