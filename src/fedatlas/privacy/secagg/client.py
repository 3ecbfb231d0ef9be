"""The client's half of the five phases (P14; Bonawitz et al., Practical Secure Aggregation, CCS 2017).

Each phase takes a message and the session and returns the reply and the next session. A session used twice would mask two inputs the
same way and so reveal their difference. The caller must keep only the newest session, and repeat a lost reply unchanged.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from fedatlas import secret
from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg import keys as k
from fedatlas.privacy.secagg import masks, messages, once
from fedatlas.privacy.secagg.head import Pulls, head_of, heavy
from fedatlas.privacy.secagg.keys import FEWEST, KEY, SIGNATURE, Neighbours, Party, Source
from fedatlas.privacy.secagg.messages import ENVELOPE, Words
from fedatlas.privacy.secagg.session import Session
from fedatlas.privacy.sharing import shamir
from fedatlas.privacy.sharing.shamir import WIDTH
from fedatlas.secret import Secret

SERVER = "the server"


def advertise(message: Any, party: Party, threshold: float = 2 / 3, source: Source = secret.random_bytes,
              fewest: int = FEWEST, counting: Sequence[int] | None = None, most: float = 1.0,
              neighbours: Neighbours = None) -> tuple[dict[str, Any], Session]:  # fmt: skip
    """Phase "keys": two fresh pairs of keys, one to encrypt shares and one to mask with, signed by the client's identity.

    ``threshold``, ``fewest``, ``counting``, ``most`` and ``neighbours`` are the party's own settings, not the server's. Another threshold
    makes another tag, under which no signature holds. The party joins no sum of fewer than ``fewest`` clients. Of those with a weight in
    it only ``counting`` ones count, and its own share of the weights may be at most ``most``. ProtocolError if the cohort holds a client
    that is not on the party's list of identities. ProtocolError also if enough others could open a sum of fewer without this client's
    shares and signature.
    """
    k.installed()
    heard = messages.heard(message, SERVER)
    place, cohort = k.place_of(party.federation, *heard, threshold, neighbours, message.get("graph", "")), heard[-1]
    if bool(place.neighbours) != ("graph" in message):
        raise ProtocolError(
            f"the server and client {party.client} do not agree on which clients share masks (privacy.secagg.neighbours): refused."
        )
    if strangers := [str(v) for v in cohort if v not in party.public]:
        raise ProtocolError(f"the cohort holds clients that are not on the list of identities: {', '.join(strangers)}.")
    if party.client not in cohort:
        raise ProtocolError(f"client {party.client} was asked to take part in a sum that it does not stand in.")
    tag, channel, mask, seed = k.tag_of(place), k.drawn(source), k.drawn(source), k.drawn(source)
    both = k.public_of(channel) + k.public_of(mask)
    signature = k.signed(party, tag, both)
    own = None if counting is None else tuple(i for i, k in enumerate(cohort) if k in counting)
    session = Session(
        place,
        tag,
        party.client,
        "keys",
        channel,
        mask,
        seed,
        (both,),
        fewest=max(fewest, FEWEST),
        counting=own,
        most=most,
    )
    _enough(session, cohort, "are asked")
    _assured(session, range(len(cohort)), session.counted(range(len(cohort))))
    return {"keys": messages.table([both], 2 * KEY), "signature": messages.table([signature], SIGNATURE)}, session


def share(
    message: Any, session: Session, party: Party, source: Source = secret.random_bytes
) -> tuple[dict[str, Any], Session]:
    """Phase "shares": split the private mask key and the seed of the self-mask, t of m, one envelope for each other client.

    ``digests`` let the server detect an altered share (a share has 257 random bits, so its digest reveals nothing of it). ``commitment``
    lets it detect a seed that its owner did not share. ProtocolError if an advertised key is not signed by its client's identity for this
    place, if one comes twice, or if too few clients advertised.
    """
    session.after("keys", "shares")
    messages.only(message, ("keys", "signatures", "present"), SERVER)
    place, tag, me = session.place, session.tag, session.position
    session = _advertised(message, session, party)
    keys, near = session.advertised, {*session.near}
    secrets = [
        shamir.polynomial(int.from_bytes(s, "little"), place.holders, source) for s in (session.mask, session.seed)
    ]
    channels = k.agreed(session.channel, {v: keys[v][:KEY] for v in session.near if v != me}, place.cohort)
    envelopes, digests, own = [], [], Secret()
    for v in session.circle:
        if v not in near:
            envelopes.append(bytes(ENVELOPE))
            digests += [bytes(KEY), bytes(KEY)]
            continue
        both = [shamir.share(polynomial, v + 1).to_bytes(WIDTH, "little") for polynomial in secrets]
        digests += [digest(tag, me, v, kind, text) for kind, text in enumerate(both)]
        if v == me:
            own = Secret(b"".join(both))
            envelopes.append(bytes(ENVELOPE))
        else:
            key = k.derived(channels[v], tag, "channel", me, v)
            envelopes.append(k.sealed(key, b"".join(both), tag, source))
    c = len(session.circle)
    reply = {
        "shares": messages.table(envelopes, c, ENVELOPE),
        "digests": messages.table(digests, c, 2, KEY),
        "commitment": messages.table([commitment(tag, me, session.seed)], KEY),
    }
    return reply, session._replace(done="shares", held={me: own})


def receive(message: Any, session: Session) -> Session:
    """Phase "masked", first half: open the envelopes of the others, keep their shares, and read the head.

    ProtocolError, which names the sender, if an envelope was replayed, altered or otherwise not made for this client at this place.
    ProtocolError also if too few clients have a weight in a part of the sum.
    """
    session.after("shares", "received")
    messages.only(message, ("shares", "present", "head"), SERVER)
    place, tag, me = session.place, session.tag, session.position
    m, circle, keys = len(place.cohort), session.circle, session.advertised
    rows = messages.field(message, "shares", torch.uint8, (len(circle), ENVELOPE), SERVER)
    members = messages.positions(message, "present", m, SERVER)
    if not set(members) <= set(session.members) or me not in members:
        raise ProtocolError(
            "the server's list of those who shared holds somebody who advertised no keys, or lacks this client."
        )
    _enough(session, members, "shared their secrets")
    head = head_of(message.get("head"), m)
    pulls = head.pulls(m)
    _weighty(session, pulls, members)
    for there in heavy(pulls, members):
        if there:
            _assured(session, members, session.counted(there))
    held, session = dict(session.held), session._replace(members=members)
    channels = k.agreed(session.channel, {v: keys[v][:KEY] for v in session.near if v != me}, place.cohort)
    for v, channel in channels.items():
        key = k.derived(channel, tag, "channel", v, me)
        text = k.opened(key, messages.raw(rows[circle.index(v)]), tag)
        if text is None:
            raise ProtocolError(
                f"the share that client {place.cohort[v]} sent client {session.client} was not made for it in this round."
            )
        held[v] = text
    return session._replace(done="received", held=held, head=head.digest(), pulls=pulls)


def mask(words: Mapping[str, Words], session: Session) -> tuple[dict[str, Any], Session]:
    """Phase "masked", second half: y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv), for each part by name.

    ``words`` are rows of uint32 or uint64 (``fixed``). Every part has separate streams. The streams of pairs are bound to the head, so they
    cancel only among clients that were told the same. Afterwards the only secrets in the session are the shares of the others.
    """
    session.after("received", "masked")
    me, tag, cohort = session.position, session.tag, session.place.cohort
    keys = session.advertised
    shared = k.agreed(session.mask, {v: keys[v][KEY:] for v in session.near if v != me}, cohort)
    out, both = {}, k.bound(tag, session.head)
    for name, x in words.items():
        pairs = {v: pair_key(secret, both, me, v, name) for v, secret in shared.items()}
        plus = [self_key(session.seed, tag, me, name), *(key for v, key in pairs.items() if v > me)]
        out[name] = messages.sent(masks.added(x, plus, [key for v, key in pairs.items() if v < me]))
    empty = Secret()
    return {"masked": out}, session._replace(done="masked", channel=empty, mask=empty, seed=empty)


def agree(message: Any, session: Session, party: Party) -> tuple[dict[str, Any], Session]:
    """Phase "agree": sign the list of clients in the sum, the members and the head, once per session.

    ProtocolError if the survivors are not among those who shared, lack this client, or are too few.
    """
    session.after("masked", "agree")
    messages.only(message, ("survivors",), SERVER)
    survivors = messages.positions(message, "survivors", len(session.place.cohort), SERVER)
    if not set(survivors) <= set(session.members) or session.position not in survivors:
        raise ProtocolError("the survivors are not among those who shared, or this client is not among the survivors.")
    _enough(session, survivors, "sent their masked input")
    _weighty(session, session.pulls, survivors)
    signature = k.sign(party, k.statement(session.tag, session.members, survivors, session.head))
    return {"signature": messages.table([signature], SIGNATURE)}, session._replace(done="agree", survivors=survivors)


def unmask(
    message: Any, session: Session, party: Party, record: once.Record
) -> tuple[dict[str, Any], Session, dict[str, list[Any]]]:
    """Phase "unmask": give the share of each survivor's seed and of each dropped client's mask key, never both.

    Also returns the party's record with this ask in it, which is written before the reply leaves. ProtocolError if fewer survivors than the
    threshold signed what this client signed, or if this ask was opened before. In a sparse graph the signatures are its neighbours', of
    which as many are needed as rebuild a secret.
    """
    session.after("agree", "unmask")
    messages.only(message, ("signatures", "signed"), SERVER)
    place, circle = session.place, session.circle
    signatures = messages.field(message, "signatures", torch.uint8, (len(circle), SIGNATURE), SERVER)
    signed = messages.positions(message, "signed", len(place.cohort), SERVER)
    said = {*signed} & {*session.survivors} & {*circle}
    text = k.statement(session.tag, session.members, session.survivors, session.head)
    keys = {v: party.public.get(place.cohort[v], b"") for v in said}
    agree = [v for v in said if k.signed_by(keys[v], text, messages.raw(signatures[circle.index(v)]))]
    _enough(session, agree, "agree on the sum", place.holders if place.neighbours else session.least)
    record = once.noted(record, place.run, place.round, place.ask)
    near, survived = {*session.near}, {*session.survivors}
    rows = [
        bytes(WIDTH) if v not in near else session.held[v][WIDTH:] if v in survived else session.held[v][:WIDTH]
        for v in circle
    ]
    return {"shares": messages.table(rows, len(circle), WIDTH)}, session._replace(done="unmask", held={}), record


def digest(tag: bytes, owner: int, holder: int, kind: int, text: bytes) -> bytes:
    """Return the digest that the server compares a share with. Kind 0 is the mask key, 1 the seed."""
    return hashlib.sha256(b"share" + tag + _numbers(owner, holder, kind) + text).digest()


def commitment(tag: bytes, owner: int, seed: bytes) -> bytes:
    """Return the commitment that the server compares a rebuilt seed with."""
    return hashlib.sha256(b"seed" + tag + _numbers(owner) + seed).digest()


def _numbers(*numbers: int) -> bytes:
    """Return numbers below 2^16 in bytes: one each if all fit, else two each."""
    return b"".join(x.to_bytes(1 if max(numbers) < 1 << 8 else 2, "little") for x in numbers)


def pair_key(secret: bytes, tag: bytes, one: int, other: int, name: str) -> Secret:
    """Return the key of the stream that two clients share for a part, the same at both."""
    return k.derived(secret, tag, "pair", min(one, other), max(one, other), name)


def self_key(seed: bytes, tag: bytes, owner: int, name: str) -> Secret:
    """Return the key of a client's own stream for a part."""
    return k.derived(seed, tag, "self", owner, name)


def _enough(session: Session, who: Sequence[int], did: str, least: int = 0) -> None:
    least = least or session.least
    if len(who) < least:
        raise ProtocolError(
            f"the server says that {len(who)} clients {did}; client {session.client} goes on with {least} or more."
        )


def _weighty(session: Session, pulls: Pulls, who: Sequence[int]) -> None:
    """Raise ProtocolError if a part has too few weighted clients, or this client weighs too much: the sum would reveal one's update."""
    for there in heavy(pulls, who):
        if there and session.counted(there) < session.fewest:
            raise ProtocolError(
                f"too few of those in the sum have a weight in it; client {session.client} goes on with {session.fewest} or more."
            )
    for row in pulls:
        if row[session.position] > session.most * sum(row[v] for v in who):
            raise ProtocolError(
                f"client {session.client} weighs more than {session.most:g} of this sum (max_weight_share in its policy.toml): refused."
            )


def _assured(session: Session, members: Sequence[int], counted: int) -> None:
    """Raise ProtocolError if enough others could open a sum that holds this client's input but too few clients that count.

    Opening takes t of them, so the sum holds at least t + 1 of the ``members``. The others may have left, and all of those may be
    ``counted`` ones. The limits that all clients share need no such care.
    """
    t, m, fewest = session.place.threshold, len(session.place.cohort), session.fewest
    if fewest <= FEWEST and session.counted(members) == len(members):
        return
    worst = counted - max(len(members) - t - 1, 0)
    if worst >= fewest:
        return
    needed = t + fewest - worst  # others that must be needed
    share = math.ceil(100 * (needed - 1) / m) / 100
    advice = (
        f"write privacy.secagg.threshold = {share:g} or more" if needed <= m and counted >= fewest else "ask more nodes"
    )
    raise ProtocolError(
        f"{t} others could open a sum in which {max(worst, 0)} count for client {session.client}, which wants {fewest} "
        f"(min_cohort): {advice}."
    )


def _advertised(message: Any, session: Session, party: Party) -> Session:
    """Return the session with the keys of its circle and those who advertised, after checking everything that the server hands on."""
    place, circle, me = session.place, session.circle, session.position
    table = messages.field(message, "keys", torch.uint8, (len(circle), 2 * KEY), SERVER)
    signatures = messages.field(message, "signatures", torch.uint8, (len(circle), SIGNATURE), SERVER)
    members = messages.positions(message, "present", len(place.cohort), SERVER)
    own = session.keys[0]
    session = session._replace(keys=tuple(messages.raw(row) for row in table), members=members)
    keys = session.advertised
    if me not in members or keys[me] != own:
        raise ProtocolError(f"the keys that the server hands on as those of client {session.client} are not its own.")
    _enough(session, members, "advertised keys")
    each = list(chain.from_iterable((keys[v][:KEY], keys[v][KEY:]) for v in session.near))
    if len(set(each)) != len(each):
        raise ProtocolError("a key came twice among those that were advertised: every client draws two of its own.")
    near = {*session.near}
    for at, v in enumerate(circle):
        if v != me and v in near:
            k.verify(party.public, session.tag, place.cohort[v], keys[v], messages.raw(signatures[at]))
    return session
