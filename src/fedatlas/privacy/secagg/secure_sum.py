"""Secure aggregation around an ask (P14): five phases as questions, the work among them, and one sum that the server opens.

    keys ── shares ── the work, masked ── agree ── unmask          each phase is an ask; a client may leave in any

`hidden_weights` turns an update into the words that are masked, and their sum into a mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedatlas import secret
from fedatlas.aggregation.reducers import Reduced, Reducer
from fedatlas.algorithm import Ask, Message, Question, Replies, State, Update
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.ask_protocol import (
    CHAIN,
    SEND,
    SESSION,
    WORK,
    Asking,
    Place,
    RoundClosed,
    SessionFailed,
    enough,
)
from fedatlas.privacy.protocol import Doing, Insists, Keys, Protocol
from fedatlas.privacy.secagg import client, fixed, once, server
from fedatlas.privacy.secagg.graph import Degree, chances
from fedatlas.privacy.secagg.head import Head, Known, Pulls, column, digest_of, head_of, heavy, line_told, told_to
from fedatlas.privacy.secagg.hidden_weights import decoded, remended, weights, words_of
from fedatlas.privacy.secagg.keys import FEWEST, KEY, MOST, SPARSE_MOST, Party, identity, place_of
from fedatlas.privacy.secagg.keys import Place as At
from fedatlas.privacy.secagg.messages import Words, heard, positions, raw, table, told
from fedatlas.privacy.secagg.opened_sum import Reading, SecureSum
from fedatlas.privacy.secagg.session import Session, carried, place_in, restored
from fedatlas.privacy.secagg.word import ALL, ROWS, check_fields, weighed
from fedatlas.secret import Secret

KEYS, SHARES, AGREE, UNMASK = "secagg keys", "secagg shares", "secagg agree", "secagg unmask"
PHASES = {
    KEYS: "keys",
    SHARES: "keys",
    AGREE: "agree",
    UNMASK: "unmask",
}  # question -> its phase of cost
MASKED = "masked"  # name of the reducer
OTHERWISE = "client {} is told something else than the table that all get says of it: refused."
BEYOND = 'or write privacy.secagg.neighbours = "auto", which masks up to 1,000 in a simulation'
NOTHING_MORE = Insists()


def protocol(how: SecureSum) -> Protocol:
    """Return the protocol with these keys."""
    return Protocol(
        questions=QUESTIONS,
        phases=PHASES,
        keys=partial(parties, how),
        seal=partial(masked, how),
        around=partial(around, how),
        fits=lambda clients, hidden: fixed.fixed(clients, how.bits, how.range, how.n_cap if hidden else 0),
        fewest=FEWEST,
        reducer=MASKED,
        most=MOST if how.neighbours is None else SPARSE_MOST,
        beyond=BEYOND if how.neighbours is None else "",
        leaves=(KEYS, SHARES, WORK),
        staged=True,
        check=check_asked,
        weighed=weighed,
        cohort=cohort,
        node=partial(node_session, how) if how.neighbours is None else None,
        counted=wide,
    )


# ------------------------------------------------------------------------------------------------ the client


def parties(how: SecureSum, clients: int, federation: str, testing: bool) -> Keys:
    """Return the identities of all parties of a simulation."""
    pairs = {k: identity() for k in range(clients)}
    public = {k: key for k, (_, key) in pairs.items()}
    return Keys(public, lambda k, record: first_session(Party(k, federation, pairs[k][0], public), how, record))


def node_session(
    how: SecureSum,
    client: int,
    federation: str,
    private: bytes,
    public: Mapping[int, bytes],
    record: Mapping[str, Any],
    insists: Insists,
) -> dict[str, Any]:
    """Return the start of a deployed node's sessions."""
    return first_session(Party(client, federation, Secret(private), public), how, record, insists)


def first_session(
    party: Party, how: SecureSum, record: Mapping[str, Any], insists: Insists = NOTHING_MORE
) -> dict[str, Any]:
    """Return the start of a party's sessions: its identity, all public keys, the sums it helped to open. It stays in memory."""
    return {
        "client": party.client,
        "federation": party.federation,
        "private": table([party.private], KEY),
        "listed": [*party.public],
        "public": table(party.public.values(), len(party.public), KEY),
        "threshold": how.threshold,
        "neighbours": how.neighbours,
        "insists": [*insists],
        "record": {run: [list(one) for one in asks] for run, asks in record.items()},
    }


def _party(session: Mapping[str, Any]) -> Party:
    keys = raw(session["public"])
    public = {k: keys[i * KEY : (i + 1) * KEY] for i, k in enumerate(session["listed"])}
    return Party(session["client"], session["federation"], Secret(raw(session["private"])), public)


def _begun(session: Mapping[str, Any]) -> Session:
    """Return the session under way."""
    begun_at(session)
    return restored(session["secagg"])


def begun_at(session: Mapping[str, Any]) -> At:
    """Return the place of the session under way."""
    if "secagg" not in session:
        raise ProtocolError(f"client {session['client']} was asked to go on with a session that it never began.")
    return place_in(session["secagg"])


def check_asked(asked: Any, session: Mapping[str, Any], known: Known) -> None:
    """Raise ProtocolError if a phase is not part of the session that this client began for this ask, or if a table contradicts the ask.

    ``asked`` is a `federation.link.Request`. ``known`` holds digests of what others were told in the same process.
    """
    what, word, here = asked.what, asked.word, (asked.run, asked.round, asked.attempt)
    if what == KEYS:
        if (begun := tuple(asked.message.get(name) for name in ("run", "round", "attempt"))) != here:
            run, number, attempt = (str(one)[:80] for one in begun)
            named = f"attempt {attempt} at round {number} of '{run}'"
            raise ProtocolError(
                f"a masked session for {named} was begun in round {asked.round} of '{asked.run}': refused."
            )
        return
    if word is not None:
        check_fields(word)
    masking = word is not None and word[SEND]
    if what not in QUESTIONS and not masking:
        return
    place = begun_at(session)
    if (place.run, place.round, place.attempt) != here:
        raise ProtocolError(f"'{what}' is asked in a session that was begun for another round or attempt: refused.")
    if masking:
        head = head_of(_told(word).get("head"), len(place.cohort))
        if len(head.told) > 1 and Insists(*session["insists"]).alike:
            raise ProtocolError(
                "the clients of a sum are each told a model of their own, where all are to get the same: refused."
            )
        line = head.line(place.cohort.index(session["client"]))
        if (line["told"], line["budget"], line["lr"]) != line_told(asked, known):
            raise ProtocolError(OTHERWISE.format(session["client"]))


def _told(word: Mapping[str, Any]) -> Mapping[str, Any]:
    found = word.get(SESSION)
    return found if isinstance(found, Mapping) else {}


def cohort(what: str, message: Message, session: Any) -> tuple[int, ...] | None:
    """Return the clients of a sum that a client signs for; None if a question does not tell.

    Without a ``session`` the survivors of a sum are known only by their places. ``what`` may be the work itself; its ``message`` is then
    what its word says about the session.
    """
    if what == KEYS:
        return heard(message, client.SERVER)[-1]
    if what == UNMASK and session is not None:
        own = _begun(session)
        return tuple(own.place.cohort[v] for v in own.survivors)
    if what == WORK and "secagg" in session:
        here = begun_at(session).cohort
        return tuple(here[v] for v in positions(message, "present", len(here), client.SERVER))
    if what != AGREE:
        return None
    known = message.get("survivors")
    asked = range(known.numel() if isinstance(known, Tensor) else 0) if session is None else begun_at(session).cohort
    return tuple(asked[v] for v in positions(message, "survivors", len(asked), client.SERVER))


def wide(sent: Update) -> int:
    """Return the number of 64-bit words that hold rows with values, in one client's masked update."""
    words: Mapping[str, Any] = sent.get("masked", {})
    return sum(x.numel() for group, x in words.items() if group in {ROWS, ALL} and x.dtype == torch.int64)


def check_task(what: str, session: Mapping[str, Any]) -> None:
    """Raise ProtocolError if the session under way is for another task: one update would be opened under two names."""
    if (ask := begun_at(session).ask) != what:
        raise ProtocolError(f"'{what}' is to be masked in a session that was begun for '{ask}': refused.")


def _phase_of(step: Callable[[Any, Any], tuple[Update, Session, dict[str, Any]]], *shows: str) -> Question:
    """Return a phase as a question: a client's reply, its session afterwards, and what else it keeps."""

    def answer(model: Any, data: Any, message: Any, state: State, session: Any) -> tuple[Update, State, Any]:
        reply, own, kept = step(message, session)
        return reply, state, {**session, "secagg": carried(own), **kept}

    return Question(answer, data="none", shows=shows)


def _advertise(message: Any, session: Any) -> tuple[Update, Session, dict[str, Any]]:
    insists, threshold = Insists(*session["insists"]), session["threshold"]
    if threshold < insists.threshold:
        raise ProtocolError(
            f"of a sum this party wants a share of {insists.threshold:g} to stay, not {threshold:g}: refused."
        )
    reply, own = client.advertise(
        message,
        _party(session),
        threshold,
        fewest=insists.min_cohort,
        counting=insists.counting,
        most=insists.most,
        neighbours=session["neighbours"],
    )
    tries = once.begun(session.get("begun", {}), own.place.run, own.place.round, own.place.ask)
    return reply, own, {"begun": tries}


def _unmask(message: Any, session: Any) -> tuple[Update, Session, dict[str, Any]]:
    reply, own, record = client.unmask(message, _begun(session), _party(session), session["record"])
    return reply, own, {"record": record}


QUESTIONS: Mapping[str, Question] = {
    KEYS: _phase_of(_advertise, "keys", "signature"),
    SHARES: _phase_of(
        lambda message, session: (*client.share(message, _begun(session), _party(session)), {}),
        "shares",
        "digests",
        "commitment",
    ),
    AGREE: _phase_of(
        lambda message, session: (*client.agree(message, _begun(session), _party(session)), {}), "signature"
    ),
    UNMASK: _phase_of(_unmask, "shares"),
}


def check_work(what: str, word: Mapping[str, Any], session: Mapping[str, Any]) -> None:
    """Raise ProtocolError unless the session under way is for this work, and its word is the table's."""
    if word[SEND] is not False:  # a simulated client that leaves works and sends nothing
        check_task(what, session)
        check_word(word, session)


def check_word(word: Mapping[str, Any], session: Mapping[str, Any]) -> None:
    """Raise ProtocolError if the word that a client is to seal by is not its line of the common table."""
    place = begun_at(session)
    line = head_of(_told(word).get("head"), len(place.cohort)).line(place.cohort.index(session["client"]))
    own = {name: x for name, x in word.items() if name not in {SESSION, CHAIN}}
    due = {name: line[name] for name in ("mean", "sums", "weights")} | {"clients": len(place.cohort), SEND: True}
    if digest_of(own) != digest_of(due):
        raise ProtocolError(OTHERWISE.format(session["client"]))


def masked(
    how: SecureSum, update: Update, doing: Doing, word: Mapping[str, Any], session: Any
) -> tuple[Update, Any, Update]:
    """Return the masked update, the session afterwards, and the update as decoded. ``update`` holds changes, noise included."""
    check_work(doing.what, word, session)
    groups, form, seen = words_of(how.steps, update, doing.rows, word, session["client"])
    if not word[SEND]:
        return {}, session, seen
    return *sent(groups, form, word, session), seen


def sent(
    words: Mapping[str, Words], form: Mapping[str, Any], word: Mapping[str, Any], session: Mapping[str, Any]
) -> tuple[Update, dict[str, Any]]:
    """Return the words under their masks, as they are sent with their form, and the session afterwards."""
    own = client.receive(_told(word), _begun(session))
    reply, own = client.mask(words, own)
    return {**reply, "form": form}, {**session, "secagg": carried(own)}


# ------------------------------------------------------------------------------------------------ the server


def around(
    how: SecureSum,
    public: Mapping[int, bytes],
    federation: str,
    ask: Ask,
    place: Place,
    workers: int = 1,
    read: Reading | None = None,
) -> Asking:
    """Run an ask of which the server sees only the sum, and return the replies. ``read``: of opened words; None: `decoded`.

    SessionFailed before a share was given, RoundClosed afterwards.
    """
    asked = tuple(sorted({*ask.to, *place.leaving}))
    if len(asked) < FEWEST:
        raise RoundClosed(f"a sum of {len(asked)} is no secret: {FEWEST} clients have to take part")
    if len(asked) > (most := MOST if how.neighbours is None else SPARSE_MOST):
        raise RoundClosed(f"{len(asked)} clients take part, and this version masks up to {most} together")
    try:
        at = _begin(how, federation, ask, place, asked)
        heard = yield _phase(KEYS, asked, dict.fromkeys(asked, told(at)))
        each, transcript, _ = server.keys_heard(at, heard.each.items(), public)
        heard = yield _phase(SHARES, _clients(transcript), each)
        each, transcript, _ = server.shares_heard(transcript, heard.each.items())
        coefficients, summed = weights(ask, place, asked), _Summing(transcript)
        messages = {k: ask.messages.get(k, ask.messages[ask.to[0]]) for k in each}
        head = headed(ask, place, asked, messages, coefficients)
        weighty(head.pulls(len(asked)), transcript.members)
        each, summed.transcript = server.headed(each, transcript, head)
        common = {"clients": len(asked), "mean": head.mean, "sums": list(head.sums), SEND: True}
        words = {k: {SESSION: each[k], **common, "weights": coefficients[k]} for k in each}
        made = ask._replace(to=tuple(sorted(each)), messages=messages, weights=None)
        yield made._replace(reduce=summed.reducer(), words=words)
        message, transcript, form = summed.close()
        weighty(head.pulls(len(asked)), transcript.survivors)
        survivors = tuple(at.cohort[v] for v in transcript.survivors)
        heard = yield _phase(AGREE, survivors, dict.fromkeys(survivors, message))
        each, _ = server.agreed(transcript, heard.each.items(), public)
    except PrivacyError as error:
        raise SessionFailed(str(error)) from None
    heard = yield _phase(UNMASK, tuple(each), each)
    try:
        sums, _ = server.opened(transcript, heard.each.items())
        given = json.loads(form), sums, place, len(asked)
        value = decoded(how.steps, *given) if read is None else read(how, *given)
    except (PrivacyError, ProtocolError) as error:
        raise RoundClosed(str(error)) from None
    value = remended(value, ask, place, coefficients[asked[0]], survivors)
    return Replies(survivors, value, {})


def _begin(how: SecureSum, federation: str, ask: Ask, place: Place, asked: tuple[int, ...]) -> At:
    """Return the place of a session. RoundClosed if its sparse graph would fail too often."""
    here = (federation, place.run, place.round, place.attempt, ask.what, asked, how.threshold, how.neighbours)
    at = place_of(*here, secret.random_bytes(KEY).hex())
    leaving = len(asked) - at.threshold
    if at.neighbours and not chances(len(asked), leaving, Degree(at.neighbours, at.holders)).small:
        raise RoundClosed(f"{at.neighbours} neighbours are too few for the masks of {len(asked)} clients")
    return at


def headed(
    ask: Ask,
    place: Place,
    asked: tuple[int, ...],
    messages: Mapping[int, Message],
    coefficients: Mapping[int, Mapping[str, list[Any]]],
) -> Head:
    """Return the head of an ask: what all of its clients are told. A model told to many is digested once."""
    known: Known = {}
    told = {
        k: digest_of(
            told_to(
                message,
                ask.route.anchors.get(k),
                ask.route.visits.get(k, 0),
                ask.architectures.get(k, ""),
                place.K,
                place.n,
            ),
            known,
        )
        for k, message in messages.items()
    }
    absent = next(iter(told.values()))  # nothing is compared for clients that are gone
    budgets = [None if k not in ask.budgets else [*ask.budgets[k]] for k in asked]
    weights = {
        part: (group, column([coefficients[k][part][1] for k in asked]))
        for part, (group, *_) in coefficients[asked[0]].items()
    }
    rows = tuple(told.get(k, absent) for k in asked)
    rows = rows if ask.route.anchors else column(rows)  # in a chain each client is told a different model
    return Head(rows, column(budgets), weights, place.lr, ask.reduce == "mean", tuple(place.sums))


def weighty(pulls: Pulls, who: tuple[int, ...]) -> None:
    """Raise RoundClosed if so few of these positions have a weight in a part that the sum would reveal what one of them sent."""
    for part in heavy(pulls, who):
        enough(who, {v: float(v in part) for v in who}, FEWEST)


def _phase(what: str, to: tuple[int, ...], messages: Mapping[int, Any]) -> Ask:
    return Ask(to, what, messages, "each")


def _clients(transcript: server.Transcript) -> tuple[int, ...]:
    return tuple(transcript.place.cohort[v] for v in transcript.members)


class _Summing(server.MaskedSum):
    """The reducer of one masked ask, with the form of its updates."""

    def reducer(self) -> Reducer:
        """Return the reducer for the server half. Updates are added as they come."""
        return Reducer(MASKED, lambda k, update, _: (k, update), self._add, lambda total, _: Reduced(), single=False)

    def _add(self, total: Any, one: tuple[int, Update]) -> Any:
        k, update = one
        self.add(k, update, json.dumps(update.get("form"), default=str))
        return total
