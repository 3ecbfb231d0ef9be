"""The server's half of the five phases (P14): from the replies to one phase to the messages of the next, and finally the sums.

With its result every function returns the clients that it could not use and the reasons (client -> sentence). The session continues
without them while enough are left, else PrivacyError. Replies come as (client, reply) pairs in any order, so that masked inputs need
not be in memory at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.secagg import keys as k
from fedatlas.privacy.secagg import masks, messages
from fedatlas.privacy.secagg.client import commitment, digest, pair_key, self_key
from fedatlas.privacy.secagg.head import Head
from fedatlas.privacy.secagg.keys import KEY, SIGNATURE, Place
from fedatlas.privacy.secagg.messages import ENVELOPE, UNSIGNED, Words
from fedatlas.privacy.sharing import shamir
from fedatlas.privacy.sharing.shamir import WIDTH

Pairs = Iterable[tuple[int, Any]]
Refused = dict[int, str]
T = TypeVar("T")


class Transcript(NamedTuple):
    """The server's knowledge of a session, none of it secret. Positions are places in the cohort, from 0.

    members: positions of those who are still in. keys: position -> both public keys. digests, commitments: by owner, what shares and
    rebuilt seeds are compared with. head: digest of what all are told. survivors: whose masked input is in ``totals``, part -> words.
    """

    place: Place
    tag: bytes
    members: tuple[int, ...]
    keys: Mapping[int, bytes]
    digests: Mapping[int, bytes] = {}
    commitments: Mapping[int, bytes] = {}
    head: bytes = b""
    survivors: tuple[int, ...] = ()
    totals: Mapping[str, Words] = {}


Each = dict[int, dict[str, Any]]
"""The message of the next phase to each client; one object for all if they are told the same."""


def keys_heard(place: Place, replies: Pairs, public: Mapping[int, bytes]) -> tuple[Each, Transcript, Refused]:
    """Return, after phase "keys", the messages to all who advertised, and the transcript."""
    k.installed()
    tag, taken = k.tag_of(place), set[bytes]()

    def read(v: int, reply: Any, who: str) -> tuple[bytes, bytes]:
        both = messages.raw(messages.field(reply, "keys", torch.uint8, (2 * KEY,), who))
        signature = messages.raw(messages.field(reply, "signature", torch.uint8, (SIGNATURE,), who))
        k.verify(public, tag, place.cohort[v], both, signature)
        if len({both[:KEY], both[KEY:]} | taken) != 2 + len(taken):
            raise ProtocolError(f"{who} advertised a key that came before: every client draws two of its own.")
        taken.update((both[:KEY], both[KEY:]))
        return both, signature

    found, refused = _read(place, range(len(place.cohort)), replies, read)
    _enough(place, found, "advertised keys")
    absent, present = (bytes(2 * KEY), bytes(SIGNATURE)), messages.flags(found, len(place.cohort))

    def told(circle: tuple[int, ...]) -> dict[str, Any]:
        return {
            "keys": messages.table((found.get(v, absent)[0] for v in circle), len(circle), 2 * KEY),
            "signatures": messages.table((found.get(v, absent)[1] for v in circle), len(circle), SIGNATURE),
            "present": present,
        }

    transcript = Transcript(place, tag, tuple(sorted(found)), {v: both for v, (both, _) in found.items()})
    return _each(place, found, told), transcript, refused


def shares_heard(transcript: Transcript, replies: Pairs) -> tuple[dict[int, dict[str, Any]], Transcript, Refused]:
    """Return, after phase "shares", the message to each client with the envelopes made for it. A head still has to be added (`headed`)."""
    place, m = transcript.place, len(transcript.place.cohort)

    def read(v: int, reply: Any, who: str) -> tuple[Tensor, bytes, bytes]:
        c = len(place.circle(v))
        envelopes = messages.field(reply, "shares", torch.uint8, (c, ENVELOPE), who)
        digests = messages.raw(messages.field(reply, "digests", torch.uint8, (c, 2, KEY), who))
        return envelopes, digests, messages.raw(messages.field(reply, "commitment", torch.uint8, (KEY,), who))

    found, refused = _read(place, transcript.members, replies, read)
    _enough(place, found, "shared their secrets")
    present, nothing = messages.flags(found, m), torch.zeros(ENVELOPE, dtype=torch.uint8)
    at = _places(place)
    out = {
        place.cohort[v]: {
            "shares": torch.stack([found[u][0][at(u, v)] if u in found else nothing for u in place.circle(v)]),
            "present": present,
        }
        for v in found
    }
    digests, commitments = {v: x[1] for v, x in found.items()}, {v: x[2] for v, x in found.items()}
    return out, transcript._replace(members=tuple(sorted(found)), digests=digests, commitments=commitments), refused


def headed(
    each: Mapping[int, Mapping[str, Any]], transcript: Transcript, head: Head
) -> tuple[dict[int, dict[str, Any]], Transcript]:
    """Return the messages of `shares_heard` with the head that all clients share."""
    plain = head.plain()
    return {client: {**message, "head": plain} for client, message in each.items()}, transcript._replace(
        head=head.digest()
    )


class Alike(NamedTuple):
    """Masked inputs of one layout and form."""

    form: str
    totals: Mapping[str, Words]
    members: list[int]  # positions


class MaskedSum:
    """Phase "masked": add the masked inputs as they come, in any order. Memory holds one input per layout received.

    Only the inputs of the most common layout and form count. A tie goes to the one that came first. A client that sends another layout
    leaves only itself out.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.kinds: dict[Any, Alike] = {}
        self.refused: Refused = {}

    def add(self, client: int, reply: Any, form: str = "") -> None:
        """Take one client's masked input, or note in ``refused`` why it is not valid. ``form`` describes its words."""
        heard = {v for kind in self.kinds.values() for v in kind.members}
        waited = [v for v in self.transcript.members if v not in heard]
        _, refused = _read(self.transcript.place, waited, [(client, reply)], partial(self._take, form))
        self.refused |= refused

    def _take(self, form: str, v: int, reply: Any, who: str) -> None:
        parts: Any = reply.get("masked") if isinstance(reply, Mapping) else None
        layout = messages.layout_of(parts, who)
        kind = self.kinds.get(key := (form, tuple(sorted(layout.items()))))
        if kind is None:
            zeros = {name: np.zeros(d, UNSIGNED[ring]) for name, (ring, d) in layout.items()}
            kind = self.kinds[key] = Alike(form, zeros, [])
        for name, total in kind.totals.items():
            total += parts[name].numpy().view(total.dtype)
        kind.members.append(v)

    def close(self) -> tuple[dict[str, Any], Transcript, str]:
        """Return the message that names the survivors, the transcript with their sum, and their form. PrivacyError if too few are left."""
        place = self.transcript.place
        most = max(self.kinds.values(), key=lambda kind: len(kind.members), default=Alike("", {}, []))
        for client in (place.cohort[v] for kind in self.kinds.values() if kind is not most for v in kind.members):
            self.refused[client] = f"the masked input of client {client} has another layout than those of most clients."
        survivors = tuple(sorted(most.members))
        _enough(place, survivors, "sent their masked input")
        message = {"survivors": messages.flags(survivors, len(place.cohort))}
        return message, self.transcript._replace(survivors=survivors, totals=most.totals), most.form


def agreed(transcript: Transcript, replies: Pairs, public: Mapping[int, bytes]) -> tuple[Each, Refused]:
    """Return, after phase "agree", the messages to those who signed, with all their signatures.

    PrivacyError if fewer than the threshold signed. In a sparse graph a client with too few neighbours that signed is told nothing more.
    """
    place, m = transcript.place, len(transcript.place.cohort)
    text = k.statement(transcript.tag, transcript.members, transcript.survivors, transcript.head)

    def read(v: int, reply: Any, who: str) -> bytes:
        signature = messages.raw(messages.field(reply, "signature", torch.uint8, (SIGNATURE,), who))
        if not k.signed_by(public[place.cohort[v]], text, signature):
            raise ProtocolError(f"{who} did not sign who is in the sum.")
        return signature

    found, refused = _read(place, transcript.survivors, replies, read)
    _enough(place, found, "agreed on the sum")
    signed = messages.flags(found, m)

    def told(circle: tuple[int, ...]) -> dict[str, Any]:
        rows = (found.get(v, bytes(SIGNATURE)) for v in circle)
        return {"signatures": messages.table(rows, len(circle), SIGNATURE), "signed": signed}

    able = [v for v in sorted(found) if sum(u in found for u in place.circle(v)) >= place.holders]
    return _each(place, able, told), refused


def opened(transcript: Transcript, replies: Pairs) -> tuple[dict[str, Words], Refused]:
    """Return, after phase "unmask", the sum over the survivors of each part, in its ring.

    Shares that differ from what their owner made for this client are left out and named. PrivacyError if fewer than the threshold are left
    for a secret, or if a rebuilt secret is not the one that its owner committed to.
    """
    place, tag, at = transcript.place, transcript.tag, _places(transcript.place)

    def read(v: int, reply: Any, who: str) -> bytes:
        return messages.raw(messages.field(reply, "shares", torch.uint8, (len(place.circle(v)), WIDTH), who))

    found, refused = _read(place, transcript.survivors, replies, read)
    _enough(place, found, "gave their shares")
    coefficients: dict[tuple[int, ...], list[int]] = {}

    def secret(owner: int, kind: int) -> bytes:
        good: list[tuple[int, int]] = []
        for holder in (v for v in place.circle(owner) if v in found):
            row, begin = at(holder, owner), (2 * at(owner, holder) + kind) * KEY
            text = found[holder][row * WIDTH : (row + 1) * WIDTH]
            if digest(tag, owner, holder, kind, text) == transcript.digests[owner][begin : begin + KEY]:
                good.append((holder + 1, int.from_bytes(text, "little")))
            else:
                who, whose = place.cohort[holder], place.cohort[owner]
                refused[who] = (
                    f"the share of client {whose}'s secret that client {who} gave is not the one it was sent."
                )
        _enough(place, good, f"gave a true share of client {place.cohort[owner]}'s secret", place.holders)
        xs, shares = zip(*good[: place.holders], strict=True)
        if xs not in coefficients:
            coefficients[xs] = shamir.lagrange(xs)
        found_secret = (
            shamir.rebuilt(shares, coefficients[xs]) % 2**256
        )  # no larger, unless its owner shared something else
        return _checked(transcript, owner, kind, found_secret.to_bytes(KEY, "little"))

    seeds = {v: secret(v, 1) for v in transcript.survivors}
    private = {v: secret(v, 0) for v in transcript.members if v not in transcript.survivors}
    return _unmasked(transcript, seeds, private), refused


def _checked(transcript: Transcript, owner: int, kind: int, secret: bytes) -> bytes:
    if kind:
        same = commitment(transcript.tag, owner, secret) == transcript.commitments[owner]
    else:
        same = k.public_of(secret) == transcript.keys[owner][KEY:]
    if not same:
        client = transcript.place.cohort[owner]
        raise PrivacyError(f"client {client} shared something else than it committed to: this sum cannot be opened.")
    return secret


def _unmasked(transcript: Transcript, seeds: Mapping[int, bytes], private: Mapping[int, bytes]) -> dict[str, Words]:
    """Return the totals without the survivors' own streams and without those that they share with dropped clients."""
    tag, cohort = transcript.tag, transcript.place.cohort
    both = k.bound(tag, transcript.head)
    survived = {*transcript.survivors}
    near = {v: {u: transcript.keys[u][KEY:] for u in transcript.place.circle(v) if u in survived} for v in private}
    shared = {(u, v): secret for v, key in private.items() for u, secret in k.agreed(key, near[v], cohort).items()}
    out = {}
    for name, total in transcript.totals.items():
        pairs = {pair: pair_key(secret, both, *pair, name) for pair, secret in shared.items()}
        plus = [key for (u, v), key in pairs.items() if v < u]  # u had subtracted these
        minus = [key for (u, v), key in pairs.items() if v > u]
        out[name] = masks.added(total, plus, [*minus, *(self_key(seed, tag, v, name) for v, seed in seeds.items())])
    return out


def _read(
    place: Place, members: Iterable[int], replies: Pairs, read: Callable[[int, Any, str], T]
) -> tuple[dict[int, T], Refused]:
    """Return (what ``read`` makes of each member's first reply, by position; why other replies were of no use)."""
    found: dict[int, T] = {}
    refused: Refused = {}
    waited = {place.cohort[v]: v for v in members}
    for client, reply in replies:
        try:
            if client not in waited or waited[client] in found:
                raise ProtocolError(f"client {client} answered twice, or without being asked.")
            found[waited[client]] = read(waited[client], reply, f"client {client}")
        except ProtocolError as error:
            refused[client] = str(error)
    return found, refused


def _enough(place: Place, found: Iterable[Any], did: str, least: int = 0) -> None:
    count, least = len(list(found)), least or place.least
    if count < least:
        raise PrivacyError(
            f"only {count} of the {len(place.cohort)} clients asked {did} and {least} are needed: this sum stays closed."
        )


def _each(place: Place, who: Iterable[int], told: Callable[[tuple[int, ...]], dict[str, Any]]) -> Each:
    """Return what the clients at these positions are told of their circle: one message for all if it is everybody."""
    if place.neighbours:
        return {place.cohort[v]: told(place.circle(v)) for v in who}
    message = told(place.circle(0))
    return {place.cohort[v]: message for v in sorted(who)}


def _places(place: Place) -> Callable[[int, int], int]:
    """Return the function that gives the place of a position in the circle of another."""
    if not place.neighbours:
        return lambda whose, v: v
    known = [{u: at for at, u in enumerate(place.circle(v))} for v in range(len(place.cohort))]
    return lambda whose, v: known[whose][v]
