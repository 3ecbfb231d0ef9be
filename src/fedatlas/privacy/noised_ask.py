"""Noise around an ask: the server's sum, its noise, and the ledger's lines before the value is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

from fedatlas.aggregation.reducers import Reducer
from fedatlas.algorithm import Algorithm, Ask, Replies, Transform, Update
from fedatlas.privacy.ask_protocol import Asking, Place
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
        value = {part: Tree(x).map(lambda t: t.double()) for part, x in zero().items()}
    if value is None:
        return replies
    lines = how.released(place.round, replies.clients)
    for name, work in works.items():
        if work.memory is not None:
            memories[name], more = work.memory.enter(memories[name], how, place, ask.to)
            lines += more
    if lines:
        note(lines)
    for name, work in works.items():
        if work.release is not None:
            value = work.release(value, how, place, replies.clients, algorithm)
        if work.memory is not None:
            value, memories[name] = work.memory.release(value, memories[name], how, place, algorithm)
    return Replies(replies.clients, value, {})


def _total(works: Mapping[str, Work], memories: Mapping[str, Memory], transform: Transform | None) -> Reducer | None:
    """Return the server's sum that replaces the mean, if a mechanism has one."""
    for name, work in works.items():
        if work.memory is not None and work.memory.total is not None:
            return work.memory.total(memories[name], transform)
        if work.total is not None:
            return work.total(transform)
    return None
