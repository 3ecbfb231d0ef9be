"""A sum by two servers around an ask (P15): the work with one share of it, the other share, and one sum of both servers' totals.

    the work, the first server's share ── the second server's share ── totals            a client may leave before either

Both shares of a client's words are uniform, each by itself. A client counts if both servers have its share. It gives the second one once
for an ask, so no two sums that differ by a client are opened. In a simulation the second server is played here. The first server
tells it who is in the sum and receives its total.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from fedatlas.aggregation.reducers import Reduced, Reducer
from fedatlas.algorithm import Ask, Question, Replies, State, Update
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.ask_protocol import SEND, WORK, Asking, Place, RoundClosed, enough, weights_of
from fedatlas.privacy.protocol import Doing, Keys, Protocol
from fedatlas.privacy.secagg import once
from fedatlas.privacy.secagg.head import heavy
from fedatlas.privacy.secagg.hidden_weights import Rounding, decoded, remended, weights, words_of
from fedatlas.privacy.secagg.keys import FEWEST
from fedatlas.privacy.secagg.messages import sent
from fedatlas.privacy.secagg.word import ALL, ROWS, weighed_unmasked
from fedatlas.privacy.sharing.additive import joined, split
from fedatlas.privacy.two_server.servers import OneServer

SECOND = "two_server second share"
SHARED = "shared"  # name of the reducer
SHARE, FORM = "share", "form"
KEPT = "second"  # in a client's session: the share that the second server has not asked for yet


def protocol(how: Rounding) -> Protocol:
    """Return the protocol with these steps."""
    return Protocol(
        questions=QUESTIONS,
        phases={SECOND: "share"},
        keys=lambda clients, federation, testing: Keys(None, first_session),
        seal=partial(shared, how),
        around=partial(around, how),
        fits=lambda clients, hidden: how.hidden(clients) if hidden else how.plain(clients),
        fewest=FEWEST,
        reducer=SHARED,
        leaves=(WORK, SECOND),
        staged=True,
        later=True,
        second_server=(SECOND,),
        check=check_asked,
        weighed=weighed_unmasked,
        counted=wide,
    )


# ------------------------------------------------------------------------------------------------ the client


def first_session(client: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start of a client's sessions: the asks of which it gave both shares. There are no keys."""
    return {"client": client, "record": {run: [list(one) for one in asks] for run, asks in record.items()}}


def shared(
    how: Rounding, update: Update, doing: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the first server's share, the session with the other one, and the update as decoded."""
    groups, form, seen = words_of(how, update, doing.rows, word, session["client"])
    if not word[SEND]:
        return {}, session, seen
    halves = {group: split(words) for group, words in groups.items()}
    kept = {"round": doing.round, "ask": doing.what, "words": {group: sent(two) for group, (_, two) in halves.items()}}
    return {SHARE: {group: sent(one) for group, (one, _) in halves.items()}, FORM: form}, {**session, KEPT: kept}, seen


def _second(model: Any, data: Any, message: Any, state: State, session: Any) -> tuple[Update, State, Any]:
    """Give the second server its share, once for an ask."""
    kept = session.get(KEPT)
    if kept is None or [kept["round"], kept["ask"]] != [message["round"], message["ask"]]:
        raise ProtocolError(f"client {session['client']} has no share of '{message['ask']}' to give: refused.")
    record = once.noted(session["record"], message["run"], message["round"], message["ask"])
    rest = {name: x for name, x in session.items() if name != KEPT}
    return {SHARE: kept["words"]}, state, {**rest, "record": record}


QUESTIONS: Mapping[str, Question] = {SECOND: Question(_second, data="none", shows=(SHARE,))}


def check_asked(asked: Any, session: Mapping[str, Any], known: dict[int, Any]) -> None:
    """Raise ProtocolError if a share is asked for in the name of another run or round. ``asked``: a `federation.link.Request`."""
    if asked.what == SECOND and (asked.message.get("run"), asked.message.get("round")) != (asked.run, asked.round):
        raise ProtocolError(f"a share of another run or round is asked for in round {asked.round}: refused.")
    if asked.what == SECOND and not isinstance(asked.message.get("ask"), str):
        raise ProtocolError(f"a share is asked for in round {asked.round} without the ask that it is of: refused.")


def wide(sent: Update) -> int:
    """Return the number of 64-bit words that hold rows with values, in both shares of one client's update."""
    words: Mapping[str, Any] = sent.get(SHARE, {})
    return 2 * sum(int(x.numel()) for group, x in words.items() if group in {ROWS, ALL} and x.dtype == torch.int64)


# ------------------------------------------------------------------------------------------------ the servers


def around(how: Rounding, public: Any, federation: str, ask: Ask, place: Place, workers: int = 1) -> Asking:
    """Run an ask of which each server sees only uniform words, and return the replies. RoundClosed if nothing can be opened."""
    asked = tuple(sorted({*ask.to, *place.leaving}))
    if len(asked) < FEWEST:
        raise RoundClosed(f"a sum of {len(asked)} is no secret: {FEWEST} clients have to take part")
    coefficients, given = weights(ask, place, asked), weights_of(ask, place, asked)
    common = {"clients": len(asked), "mean": ask.reduce == "mean", "sums": list(place.sums), SEND: True}
    words = {k: {**common, "weights": coefficients[k]} for k in asked}
    messages = {k: ask.messages.get(k, ask.messages[ask.to[0]]) for k in asked}
    first, second = FirstServer(), OneServer()
    yield ask._replace(to=asked, messages=messages, reduce=first.reducer(), weights=None, words=words)
    form, heard = first.most()
    _weighty(given, heard)
    message = {"run": place.run, "round": place.round, "ask": ask.what}
    replies = yield Ask(heard, SECOND, dict.fromkeys(heard, message), "each")
    for k, reply in replies.each.items():
        with suppress(ProtocolError):  # a share that is none leaves its client out
            second.take(k, reply.get(SHARE))
    both = tuple(k for k in heard if second.layouts.get(k) == first.layouts[k])
    _weighty(given, both)
    one, two = first.total(both), second.total(both)
    try:
        value = decoded(
            how, json.loads(form), {group: joined(one[group], two[group]) for group in one}, place, len(asked)
        )
    except (PrivacyError, ProtocolError) as error:
        raise RoundClosed(str(error)) from None
    return Replies(both, remended(value, ask, place, coefficients[asked[0]], both), {})


def _weighty(given: Mapping[str, Mapping[int, float]], who: tuple[int, ...]) -> None:
    """Raise RoundClosed if so few of these clients have a weight in a part that the sum would reveal what one of them sent."""
    if len(who) < FEWEST:
        raise RoundClosed(f"only {len(who)} clients gave a share to both servers: {FEWEST} have to")
    pulls = tuple(tuple(abs(own[k]) for k in who) for own in given.values())
    for there in heavy(pulls, range(len(who))):
        enough(who, {k: float(at in there) for at, k in enumerate(who)}, FEWEST)


class FirstServer(OneServer):
    """The first server, which also learns the form of updates. Those of the most common form count; in a tie the one that came first."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[Any, list[int]] = {}

    def reducer(self) -> Reducer:
        """Return the reducer for the server half."""
        return Reducer(SHARED, lambda k, update, _: (k, update), self._add, lambda total, _: Reduced(), single=False)

    def most(self) -> tuple[str, tuple[int, ...]]:
        """Return the most common form and its clients."""
        (form, _), clients = max(self.kinds.items(), key=lambda kind: len(kind[1]), default=(("", ()), []))
        return form, tuple(sorted(clients))

    def _add(self, total: Any, one: tuple[int, Update]) -> Any:
        k, update = one
        with suppress(ProtocolError):
            self.take(k, update.get(SHARE))
            kind = json.dumps(update.get(FORM), default=str), tuple(sorted(self.layouts[k].items()))
            self.kinds.setdefault(kind, []).append(k)
        return total
