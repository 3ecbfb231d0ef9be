"""Noise around an ask: the server's sum, its noise, and the ledger's lines before the value is used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedatlas.algorithm import Algorithm, Ask, Replies, Transform, Update
from fedatlas.privacy.ask_protocol import Asking, Place
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Protection
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
) -> Asking:
    """Return the replies to an ask under mechanisms without a separate protocol.

    ``zero`` makes an update that changes nothing. A round that nobody came to uses it, because that round gets noise too.
    """
    works = how.works
    total = next((work.total for work in works if work.total is not None), None)
    summed = ask if total is None else ask._replace(reduce=total(transform), weights=None)
    replies = yield summed._replace(words={k: {} for k in ask.to})
    value = replies.value
    if value is None and total is not None:
        value = {part: Tree(x).map(lambda t: t.double()) for part, x in zero().items()}
    if value is None:
        return replies
    if lines := how.released(place.round, replies.clients):
        note(lines)
    for work in works:
        if work.release is not None:
            value = work.release(value, how, place, replies.clients, algorithm)
    return Replies(replies.clients, value, {})
