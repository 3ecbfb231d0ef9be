"""State of a client between the phases of one session: secrets that live in its memory and are never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg.keys import KEY, Place, Secret
from fedatlas.privacy.secagg.messages import raw, table
from fedatlas.privacy.secagg.shamir import WIDTH


class Session(NamedTuple):
    """A client's part of one session. Positions are places in the cohort, from 0.

    done: what is behind it, the last of "keys", "shares", "received", "masked" and "unmask". keys: what everybody advertised, a
    position each. members: positions of those who are still in. held: position -> this client's shares of that client's private
    mask key and seed. What is no longer needed is empty.
    """

    place: Place
    tag: bytes
    client: int
    done: str
    channel: Secret
    mask: Secret
    seed: Secret
    keys: tuple[bytes, ...] = ()
    members: tuple[int, ...] = ()
    held: Mapping[int, Secret] = {}

    def __repr__(self) -> str:
        return f"Session(client {self.client}, {self.done}, hidden)"

    @property
    def position(self) -> int:
        return self.place.cohort.index(self.client)

    def after(self, done: str, next: str) -> None:
        """Raises ProtocolError unless ``done`` is the last phase behind this client: each phase happens once."""
        if self.done != done:
            raise ProtocolError(
                f"client {self.client} was asked for '{next}' after '{self.done}': a phase comes once, in order."
            )


def carried(session: Session) -> dict[str, Any]:
    """A session as a codec value, for another process of the same party through memory: it holds every secret, and is never written."""
    secrets = session.channel + session.mask + session.seed
    return {
        "place": [*session.place[:5], list(session.place.cohort), session.place.threshold],
        "tag": table([session.tag], KEY),
        "client": session.client,
        "done": session.done,
        "secrets": table([secrets], len(secrets)),
        "keys": table(session.keys, len(session.keys), 2 * KEY),
        "members": list(session.members),
        "held": {str(v): table([text], 2 * WIDTH) for v, text in session.held.items()},
    }


def restored(value: Mapping[str, Any]) -> Session:
    """The session behind ``carried``."""
    place = value["place"]
    secrets = Secret(raw(value["secrets"]))
    channel, mask, seed = (Secret(secrets[i : i + KEY]) for i in range(0, 3 * KEY, KEY))
    return Session(
        Place._make([*place[:5], tuple(place[5]), place[6]]),
        raw(value["tag"]),
        value["client"],
        value["done"],
        channel,
        mask,
        seed,
        tuple(raw(row) for row in value["keys"]),
        tuple(value["members"]),
        {int(v): Secret(raw(row)) for v, row in value["held"].items()},
    )
