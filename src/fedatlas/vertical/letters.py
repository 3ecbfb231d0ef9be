"""Letters: messages from one party to others. The coordinator carries them and does not use their content.

A letter names its sender, its receivers, its topic, and the step of the protocol that it belongs to. A question finds
the letters that it needs by these (`taken`), and the order of the steps follows from the experiment. So a letter of
another party, question or step is never used instead. In a simulation letters are plain. Between real parties they are
signed for the run, the round and the attempt (`federation.signed_letters`), and opened before a question sees them.

Each kind of letter declares its form (`LetterKind`). If a letter has another form, or a later check refuses its content
(`blamed`), that is the fault of its sender. The sender then counts as lost, like a party that does not answer. An
answer to the coordinator itself also has a form, which is given where the question is asked (``says`` of `Mail.ask`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from fedatlas.algorithm import Ask, Replies, Update
from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.vertical.forms import Form, odd
from fedatlas.vertical.parties import Columns, PartyLeft, each

LETTERS = "letters"  # the part of a message, and of a reply, that holds letters
Letter = Mapping[str, Any]
Due = Mapping[str, tuple[str, Sequence[Mapping[str, Any]]]]
"""Question -> who may be asked it ("active", "passive", "all"), and what the coordinator may tell besides letters."""


class LetterKind(NamedTuple):
    """A kind of letter: its topic, and the form of its content."""

    topic: str
    form: Form


def letter(
    data: Columns, to: Iterable[int], topic: str, content: Mapping[str, Any], step: int = 0, *, secret: bool = False
) -> Letter:
    """Return a letter of this party. ``secret``: between real parties only its receivers can read it."""
    return {"from": data.party, "to": [*to], "topic": topic, "step": step, "secret": secret, "content": content}


def taken(data: Columns, message: Mapping[str, Any], sender: int, kind: LetterKind, step: int = 0, **sizes: int) -> Any:
    """Return the content of a party's letter, which has the form of its kind.

    ``sizes``: of the form, as this party knows them.

    PartyLeft if the expected letter is missing or has another form.
    """
    name, topic = data.parties[sender], kind.topic
    for one in message.get(LETTERS, ()):
        if (one["from"], one["topic"], one["step"]) == (sender, topic, step) and data.party in one["to"]:
            if why := odd(kind.form, one["content"], "it", sizes):
                raise unusable(name, topic, why)
            return one["content"]
    raise PartyLeft(f"party '{data.name}' got no letter '{topic}', number {step}, from '{name}', and one was due.")


def there(message: Mapping[str, Any], topic: str) -> bool:
    """Return whether a letter on this topic has come."""
    return any(one["topic"] == topic for one in message.get(LETTERS, ()))


def unusable(name: str, topic: str, why: str) -> PartyLeft:
    """Return the error for a letter that cannot be used: its sender is lost."""
    return PartyLeft(f"party '{name}' is lost: its letter '{topic}' cannot be used: {why.rstrip('.')}.")


@contextmanager
def blamed(data: Columns, sender: int, kind: LetterKind) -> Iterator[None]:
    """Turn every refusal inside into PartyLeft in the name of the sender of a letter, who is at fault."""
    try:
        yield
    except PartyLeft:
        raise
    except (ProtocolError, PrivacyError) as error:
        raise unusable(data.parties[sender], kind.topic, str(error)) from None


def answered(name: str, what: str, reply: Mapping[str, Any], form: Form, **sizes: int) -> None:
    """Compare a party's answer, without its letters, with its form. PartyLeft in the party's name if it differs."""
    if why := odd(form, {part: value for part, value in reply.items() if part != LETTERS}, "it", sizes):
        raise unanswered(name, what, why)


def unanswered(name: str, what: str, why: str) -> PartyLeft:
    """Return the error for an answer that cannot be used: its party is lost."""
    return PartyLeft(f"party '{name}' is lost: its answer to '{what}' cannot be used: {why}.")


def well_addressed(one: Any, sender: int, parties: int) -> bool:
    """Return whether a letter names this sender, receivers among the given number of parties, a topic and a step."""
    if not isinstance(one, Mapping) or not {"from", "to", "topic", "step"} <= {*one}:
        return False
    receivers = isinstance(one["to"], list) and all(type(k) is int and 0 <= k < parties for k in one["to"])
    named = type(one["from"]) is int and one["from"] == sender and type(one["topic"]) is str
    return receivers and named and type(one["step"]) is int


def others(data: Columns) -> tuple[int, ...]:
    """Return the numbers of all parties but this one."""
    return tuple(k for k in range(len(data.parties)) if k != data.party)


class Mail:
    """The coordinator's part: it asks the parties of a round, and hands each letter to its receivers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.waiting: dict[int, list[Letter]] = {}

    def ask(
        self, parties: Iterable[int], what: str, *topics: str, says: Form | None = None, **told: Any
    ) -> Generator[Ask, Replies, Mapping[int, Update]]:
        """Return the replies of some parties. Each is told the same, plus its letters on these topics.

        ``says``: the form of their replies without letters; None: nothing. PartyLeft as in `each`, for replies of
        another form, and for letters that cannot be delivered.
        """
        to = tuple(parties)
        if not to:
            return {}
        ask = Ask(to, what, {k: {**told, LETTERS: self._take(k, topics)} for k in to}, "each")
        heard = yield from each(ask, self.names)
        for sender, reply in heard.items():
            letters = reply.get(LETTERS, [])
            if not isinstance(letters, list) or not all(
                well_addressed(one, sender, len(self.names)) for one in letters
            ):
                raise PartyLeft(f"party '{self.names[sender]}' is lost: it answered '{what}' with letters to nobody.")
            answered(self.names[sender], what, reply, says or {}, parties=len(self.names))
            for one in letters:
                for k in one["to"]:
                    self.waiting.setdefault(k, []).append(one)
        return heard

    def _take(self, party: int, topics: Sequence[str]) -> list[Letter]:
        held = self.waiting.pop(party, [])
        self.waiting[party] = [one for one in held if one["topic"] not in topics]
        return [one for one in held if one["topic"] in topics]
