"""The statement that a client signs with its ciphertexts: the sum that they are for, and what all clients of it were told.

A signature for one run, round, attempt, task, cohort, table of weights or client is valid for no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import Ask
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import Place, weights_of
from fedatlas.privacy.paillier.cryptosystem import Base, Batch, PublicKey, base_of
from fedatlas.privacy.secagg.head import Head, digest_of, head_of, heavy
from fedatlas.privacy.secagg.keys import FEWEST
from fedatlas.privacy.secagg.secure_sum import headed
from fedatlas.privacy.secagg.word import TOLD

WITNESS = "witness"  # beside fresh ciphertexts, until they are signed: what they were made of
FIELDS = ("run", "round", "attempt", "ask", "clients", "head")


class KeyHolders(NamedTuple):
    """The server's knowledge of a key: the public part, and the identities of all that hold a share of the private one."""

    federation: str
    key: PublicKey
    identities: Mapping[int, bytes]


class SignedBatch(NamedTuple):
    """Ciphertexts of one client, its signature over them and their place, and its proof that it knows their plaintexts."""

    batch: Batch
    signature: Tensor
    proof: Mapping[str, Tensor]

    def plain(self) -> dict[str, Any]:
        """Return the form for a message."""
        return {**self.batch.plain(), "signature": self.signature, "proof": self.proof}


def base_in(session: Mapping[str, Any]) -> Base:
    """Return the base of everybody's comb, which every party was given with its share."""
    found = base_of(session["key"])
    assert found is not None
    return found


class Due(NamedTuple):
    """A sum that is to be opened: the ask in its run, its clients upwards, and what each of them was told."""

    run: str
    round: int
    attempt: int
    ask: str
    clients: tuple[int, ...]
    head: Head

    def plain(self) -> dict[str, Any]:
        """Return the form for a message."""
        return {**self._asdict(), "clients": torch.tensor(self.clients), "head": self.head.plain()}

    def statement(self, federation: str, client: int, group: str, ciphertexts: Mapping[str, Any]) -> bytes:
        """Return what a client signs of one group of its ciphertexts."""
        own = {"key": ciphertexts["key"], "ciphertexts": ciphertexts["ciphertexts"]}
        about = {**self.plain(), "federation": federation, "client": client, "group": group, **own}
        return b"threshold paillier" + digest_of(about)


def due_of(ask: Ask, place: Place) -> Due:
    """Return the sum of an ask, with the table of what its clients are told."""
    asked = tuple(sorted(ask.to))
    given = weights_of(ask, place, asked)
    coefficients = {k: {part: [TOLD, own[k], own[k]] for part, own in given.items()} for k in asked}
    head = headed(ask, place, asked, {k: ask.messages[k] for k in asked}, coefficients)
    return Due(place.run, place.round, place.attempt, ask.what, asked, head)


def due_in(message: Any, least: int = FEWEST) -> Due:
    """Return the sum in a message. ProtocolError if a field is missing or of another type, or if it would hide nobody.

    least: clients with a noticeable weight in each part of the sum.
    """
    kinds: dict[str, type] = {"run": str, "round": int, "attempt": int, "ask": str, "clients": torch.Tensor}
    good = isinstance(message, Mapping) and all(type(message.get(name)) is kind for name, kind in kinds.items())
    if not good or message["clients"].dtype != torch.int64 or message["clients"].dim() != 1:
        raise ProtocolError("a sum to open does not say its run, round, attempt, ask and clients: refused.")
    clients = tuple(message["clients"].tolist())
    if list(clients) != sorted({*clients}):
        raise ProtocolError("the clients of a sum to open are no list of distinct clients upwards: refused.")
    head = head_of(message.get("head"), len(clients))
    if (
        any(0 < len(there) < least for there in heavy(head.pulls(len(clients)), range(len(clients))))
        or len(clients) < least
    ):
        raise ProtocolError(
            f"fewer than {least} clients have a weight in a sum, which would reveal what one of them sent: refused."
        )
    return Due(message["run"], message["round"], message["attempt"], message["ask"], clients, head)
