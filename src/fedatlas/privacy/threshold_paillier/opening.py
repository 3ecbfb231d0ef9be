"""Open a sum together: every party gets the signed ciphertexts, adds them up itself, and gives its share of that sum only.

The server cannot have anything else opened: a party gives no share of a ciphertext that it did not form itself from what all clients of the
round signed for this round. It gives one for each ask, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fedatlas.algorithm import Ask, Question, State, Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import RoundClosed
from fedatlas.privacy.encrypted.cryptosystem import Opening, Sum
from fedatlas.privacy.encrypted.encrypted_sum import whole_weights
from fedatlas.privacy.numbers import REALS
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import knowledge, threshold
from fedatlas.privacy.secagg import once
from fedatlas.privacy.secagg.head import at
from fedatlas.privacy.secagg.keys import SIGNATURE, signed_by
from fedatlas.privacy.secagg.messages import field, only, raw
from fedatlas.privacy.threshold_paillier.statement import FIELDS, Due, KeyHolders, base_in, due_in, due_of

SHARE = "threshold share"
SEALED = "sealed"  # in a session: group -> what the party signed of it in this round, as text
NOT_OURS = (
    "client {} is asked for its share of a sum without its own ciphertexts, or with others in their place: refused."
)
NOT_SIGNED = "the ciphertexts shown as those of client {} are not signed by it for this sum: refused."
NOT_KNOWN = "the ciphertexts shown as those of client {} lack a proof that it knows what it encrypted: refused."
OTHERS = "a share is asked of the ciphertexts of other clients than the sum has: refused."


# ------------------------------------------------------------------------------------------------ the server


def together(public: KeyHolders, total: Sum, _: int) -> Opening:
    """Send every holder of a share the signed ciphertexts of a sum, and join their shares. RoundClosed if one is missing or false."""
    due, place = due_of(total.ask, total.place), total.place
    if missing := sorted({*due.clients} - {*total.clients}):
        raise RoundClosed(f"client {missing[0]} sent no ciphertexts that can be read, and all are needed")
    shown = {name: {str(k): one.plain() for k, one in group.batches.items()} for name, group in total.groups.items()}
    message, holders = {**due.plain(), "groups": shown}, tuple(public.identities)
    heard = yield Ask(holders, SHARE, dict.fromkeys(holders, message), "each")
    if missing := sorted({*holders} - {*heard.each}):
        raise RoundClosed(f"client {missing[0]} gave no share of the sum of round {place.round}, and all are needed")
    opened = {}
    for name, group in total.groups.items():
        form = paillier.Layout(*group.layout)
        shares = [_share(public, k, heard.each[k], name, form.plaintexts(group.length)) for k in holders]
        try:
            found = paillier.unpack(
                form, threshold.combined(public.key, shares), group.length, sum(group.weights.values())
            )
        except ProtocolError as error:
            raise RoundClosed(f"the sum of round {place.round} stays closed: {error}") from None
        opened[name] = torch.from_numpy(found)
    return opened


def _share(public: KeyHolders, client: int, reply: Any, group: str, count: int) -> paillier.Batch:
    try:
        return paillier.received(public.key, reply["shares"][group], count)
    except (AttributeError, KeyError, ProtocolError, TypeError) as error:
        raise RoundClosed(f"what client {client} gave is no share of the sum: {error}") from None


# ------------------------------------------------------------------------------------------------ a party


def question(unit: int) -> Question:
    """Return the question to a party for its share. ``unit``: the whole number that stands for a weight of 1."""
    return Question(partial(_answer, unit), data="none", shows=("shares",))


def _answer(unit: int, model: Any, data: Any, message: Any, state: State, session: Any) -> tuple[Update, State, Any]:
    only(message, (*FIELDS, "groups"), "the server")
    due = due_in(message)
    record = once.noted(session["record"], due.run, due.round, due.ask)
    share, groups, out = threshold.key_share(session["key"]), message["groups"], {}
    if not isinstance(groups, Mapping):
        raise ProtocolError(OTHERS)
    if session["client"] in due.clients and session.get(SEALED, {}).keys() != groups.keys():
        raise ProtocolError(NOT_OURS.format(session["client"]))
    for name, shown in groups.items():
        batches = [_verified(due, session, share.public, name, k, shown) for k in due.clients]
        if len(shown) != len(batches):
            raise ProtocolError(OTHERS)
        total = paillier.weighted_sum(share.public, batches, weights_of(due, unit, name))
        out[name] = threshold.partial_decryption(share, total).plain()
    return {"shares": out}, state, {**session, "record": record}


def _verified(
    due: Due, session: Mapping[str, Any], public: paillier.PublicKey, group: str, client: int, shown: Any
) -> paillier.Batch:
    """Return a client's ciphertexts after checking its signature for this sum and its proof; of the party's own, that it sent these."""
    sent = shown.get(str(client)) if isinstance(shown, Mapping) else None
    if sent is None:
        raise ProtocolError(OTHERS if client != session["client"] else NOT_OURS.format(client))
    batch = paillier.received(public, sent)
    said = due.statement(session["federation"], client, group, batch.plain())
    if client == session["client"] and session.get(SEALED, {}).get(group) != said.hex():
        raise ProtocolError(NOT_OURS.format(client))
    signature = field(sent, "signature", torch.uint8, (SIGNATURE,), f"client {client}")
    identity = session["public"].get(str(client))
    if identity is None or not signed_by(raw(identity), said, raw(signature)):
        raise ProtocolError(NOT_SIGNED.format(client))
    if client != session["client"]:
        try:
            knowledge.check(public, batch, sent.get("proof"), said, base_in(session))
        except ProtocolError:
            raise ProtocolError(NOT_KNOWN.format(client)) from None
    return batch


def weights_of(due: Due, unit: int, group: str) -> list[int]:
    """Return the whole weights of a group, by client: those of the table that all were told, or 1 where clients weigh themselves."""
    if unit == 1 or not due.head.mean or group.startswith(REALS):
        return [1] * len(due.clients)
    if group not in due.head.weights:
        raise ProtocolError("a sum to open names a part that has no weights: refused.")
    column = due.head.weights[group][1]
    given = {k: at(column, i) for i, k in enumerate(due.clients)}
    return [*whole_weights(unit, given).values()]
