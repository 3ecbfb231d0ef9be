"""Letters: what one party tells another through the coordinator, which carries them and has no part in what they say.

A letter names its sender, its receivers, its topic, and the step of the protocol that it belongs to. A question takes the letters that it
needs by these (`taken`), and the order of the steps follows from the experiment: what another party, question or step said is never used
in their place. In a simulation letters are plain. Between real parties they are signed for the run, the round and the attempt
(`federation.signed_letters`), and opened before a question sees them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Ask, Replies, Update
from fedatlas.errors import ProtocolError
from fedatlas.vertical.parties import Columns, each

LETTERS = "letters"  # the part of a message, and of a reply, that holds them
Letter = Mapping[str, Any]
Due = Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]
"""Question -> who may be asked it ("active", "passive", "all"), and what the coordinator may say beside letters."""


def letter(
    data: Columns, to: Iterable[int], topic: str, content: Mapping[str, Any], step: int = 0, *, secret: bool = False
) -> Letter:
    """Return a letter of this party. ``secret``: between real parties only its receivers can read it."""
    return {"from": data.party, "to": [*to], "topic": topic, "step": step, "secret": secret, "content": content}


def taken(data: Columns, message: Mapping[str, Any], sender: int, topic: str, step: int = 0) -> Any:
    """Return what a party's letter says. ProtocolError where the one that is due did not come."""
    for one in message.get(LETTERS, ()):
        if (one["from"], one["topic"], one["step"]) == (sender, topic, step) and data.party in one["to"]:
            return one["content"]
    raise ProtocolError(
        f"party '{data.name}' got no letter '{topic}', number {step}, from '{data.parties[sender]}', and one was due."
    )


def others(data: Columns) -> tuple[int, ...]:
    """Return the numbers of all parties but this one."""
    return tuple(k for k in range(len(data.parties)) if k != data.party)


class Mail:
    """The coordinator's part: it asks the parties of a round, and hands each letter to those that it is for."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.waiting: dict[int, list[Letter]] = {}

    def ask(
        self, parties: Iterable[int], what: str, *topics: str, **told: Any
    ) -> Generator[Ask, Replies, Mapping[int, Update]]:
        """Return the replies of some parties, each told the same beside its letters on these topics. PartyLeft as `each`."""
        to = tuple(parties)
        if not to:
            return {}
        ask = Ask(to, what, {k: {**told, LETTERS: self._take(k, topics)} for k in to}, "each")
        heard = yield from each(ask, self.names)
        for reply in heard.values():
            for one in reply.get(LETTERS, ()):
                for k in one["to"]:
                    self.waiting.setdefault(k, []).append(one)
        return heard

    def _take(self, party: int, topics: Sequence[str]) -> list[Letter]:
        held = self.waiting.pop(party, [])
        self.waiting[party] = [one for one in held if one["topic"] not in topics]
        return [one for one in held if one["topic"] in topics]
