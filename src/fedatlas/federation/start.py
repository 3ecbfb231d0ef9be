"""The start of a round and the head of each of its requests: functions of values that both halves of a federation know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedatlas.algorithm import Ask, Message
from fedatlas.engine.attackers import Order
from fedatlas.federation.link import Head


class RoundStart(NamedTuple):
    """A round, or one attempt at it, before anything is asked. ``RoundStart(0, lr)`` is the set-up."""

    round: int  # from 1; 0 = the set-up
    lr: float  # local learning rate
    attempt: int = 0  # how often the round was begun before
    leaving: Mapping[int, str] = {}  # simulated clients that leave -> the phase in which they leave
    orders: Mapping[int, Order] = {}  # simulated malicious clients -> what they do
    told: Callable[[], Message] = dict  # the message of a client, for a round without replies
    sizes: Mapping[int, int] | None = None  # client -> training rows from now on; None: as before
    memories: Mapping[str, Mapping[str, Any]] = {}  # of mechanisms that keep one, as of the end of the last round

    def again(self, attempt: int) -> RoundStart:
        """Return the start of a later attempt: clients that left are gone."""
        return self._replace(attempt=attempt, leaving={})


class Federation(NamedTuple):
    """Facts of a run that all its parties know: its name, and the numbers of clients and examples."""

    run: str
    K: int
    n: int


def head_of(
    of: Federation, start: RoundStart, number: int, ask: Ask, reducer: str, client: int, *, single: bool
) -> Head:
    """Return the head of the request that ask ``number`` of a round sends to ``client``.

    ``reducer`` is the name of the update's reducer. ``single`` says whether the server looks at this update by itself. The server half
    builds its requests with this function. A party that knows the experiment can compare.
    """
    return Head(
        run=of.run,
        round=start.round,
        attempt=start.attempt,
        number=number,
        client=client,
        what=ask.what,
        lr=start.lr,
        K=of.K,
        n=of.n,
        reduce=reducer,
        single=single,
        budget=ask.budgets.get(client),
        visits=ask.route.visits.get(client, 0),
        architecture=ask.architectures.get(client, ""),
        sender=ask.route.sender.get(client),
        peer=ask.route.via == "peer",
    )
