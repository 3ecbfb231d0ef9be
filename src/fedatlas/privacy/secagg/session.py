"""The state of a client between the phases of one session: secrets that stay in memory and are never written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg.head import Pulls
from fedatlas.privacy.secagg.keys import FEWEST, KEY, Place
from fedatlas.privacy.secagg.messages import raw, table
from fedatlas.privacy.sharing.shamir import WIDTH
from fedatlas.secret import Secret


class Session(NamedTuple):
    """A client's part of one session. Positions are places in the cohort, from 0.

    done: the last finished phase of "keys", "shares", "received", "masked", "agree" and "unmask". keys: what those of its circle
    advertised, in their order. members: positions of those who are still in. held: position -> this client's shares of that client's
    private mask key and seed. fewest: it joins no sum of fewer clients. counting: positions that count for it; None: all. most: its
    largest own share of the weights of a sum. head: digest of what all are told. pulls: the weight of each position in the sums.
    survivors: positions in the sum, as it signed.
    Values that are no longer needed are empty.
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
    fewest: int = FEWEST
    head: bytes = b""
    pulls: Pulls = ()
    survivors: tuple[int, ...] = ()
    counting: tuple[int, ...] | None = None
    most: float = 1.0

    def __repr__(self) -> str:
        return f"Session(client {self.client}, {self.done}, hidden)"

    @property
    def position(self) -> int:
        return self.place.cohort.index(self.client)

    @property
    def circle(self) -> tuple[int, ...]:
        """Positions with which it shares masks and secrets, itself included."""
        return self.place.circle(self.position)

    @property
    def near(self) -> tuple[int, ...]:
        """Those of its circle that are still in."""
        there = {*self.members}
        return tuple(v for v in self.circle if v in there)

    @property
    def advertised(self) -> dict[int, bytes]:
        """The keys of those of its circle, by position."""
        return dict(zip(self.circle, self.keys, strict=True))

    @property
    def least(self) -> int:
        """Fewest clients with which it continues."""
        return max(self.place.least, self.fewest)

    def counted(self, who: Collection[int]) -> int:
        """Return how many of these positions count for this client."""
        return len(who) if self.counting is None else len({*who} & {*self.counting})

    def after(self, done: str, next: str) -> None:
        """Raise ProtocolError unless ``done`` is the last finished phase: each phase happens once."""
        if self.done != done:
            raise ProtocolError(
                f"client {self.client} was asked for '{next}' after '{self.done}': a phase comes once, in order."
            )


def carried(session: Session) -> dict[str, Any]:
    """Return a session as a codec value, passed in memory to another process of the same party. It holds all secrets; never write it."""
    secrets = session.channel + session.mask + session.seed
    return {
        "place": [*session.place[:5], list(session.place.cohort), *session.place[6:]],
        "tag": table([session.tag], KEY),
        "client": session.client,
        "done": session.done,
        "secrets": table([secrets], len(secrets)),
        "keys": table(session.keys, len(session.keys), 2 * KEY),
        "members": list(session.members),
        "fewest": session.fewest,
        "head": session.head.hex(),
        "pulls": [list(one) for one in session.pulls],
        "survivors": list(session.survivors),
        "counting": None if session.counting is None else list(session.counting),
        "most": session.most,
        "held": {str(v): table([text], 2 * WIDTH) for v, text in session.held.items()},
    }


def place_in(value: Mapping[str, Any]) -> Place:
    """Return the place of the session in a value of ``carried``."""
    place = value["place"]
    return Place._make([*place[:5], tuple(place[5]), *place[6:]])


def restored(value: Mapping[str, Any]) -> Session:
    """Return the session in a value of ``carried``."""
    secrets = Secret(raw(value["secrets"]))
    channel, mask, seed = (Secret(secrets[i : i + KEY]) for i in range(0, 3 * KEY, KEY))
    return Session(
        place_in(value),
        raw(value["tag"]),
        value["client"],
        value["done"],
        channel,
        mask,
        seed,
        tuple(raw(row) for row in value["keys"]),
        tuple(value["members"]),
        {int(v): Secret(raw(row)) for v, row in value["held"].items()},
        value["fewest"],
        bytes.fromhex(value["head"]),
        tuple(map(tuple, value["pulls"])),
        tuple(value["survivors"]),
        None if value["counting"] is None else tuple(value["counting"]),
        value["most"],
    )
