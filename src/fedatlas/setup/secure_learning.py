"""Learn about all parties' rows during the set-up through secure sums, so that the server sees no single answer.

The questions are those of `summaries`. The protocols are those of the rounds, run here in one process before there is a
model. Every set-up makes new keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from fedatlas.algorithm import Ask, Question, Replies
from fedatlas.errors import ConfigError
from fedatlas.privacy.ask_protocol import Asking, Place, SessionFailed
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.protocol import Doing, Keys
from fedatlas.summaries import Learner, Learnt, StoredRows, Summary, Traffic, in_process, in_the_clear, note
from fedatlas.wire import codec

LEARN = "learn"


def learner_of(mechanisms: Sequence[Mechanism]) -> Learner:
    """Return the learner that asks the parties: in the clear unless a mechanism hides updates from the server."""
    hiding = next((one for one in mechanisms if one.sums_only), None)
    if hiding is None:
        return in_process
    return lambda parties: Hidden(hiding, parties)


class Hidden:
    """A learner that uses secure sums. ``more``: bytes sent so far beyond those of the same questions in the clear."""

    def __init__(self, how: Mechanism, parties: Sequence[StoredRows]) -> None:
        protocol = how.work().protocol
        assert protocol is not None
        protocol = protocol.before or protocol
        self.name, self.protocol, self.parties, self.asked, self.more = how.name, protocol, parties, 0, 0

    @cached_property
    def keys(self) -> Keys:
        """The parties' keys, made at the first question. They take seconds, and many set-ups ask nothing."""
        protocol, many = self.protocol, len(self.parties)
        if many < protocol.fewest or many > (protocol.most or many):
            most = f" to {protocol.most}" if protocol.most else " or more"
            raise ConfigError(
                f"privacy.{self.name}: preparing columns needs a sum over {protocol.fewest}{most} clients, but {many} hold rows: "
                "name a file of constants in data.constants."
            )
        return protocol.keys(many, "set-up", False)

    def __call__(self, summary: Summary, message: Mapping[str, Any]) -> Learnt:
        """Return the sum of the answers to one question, and its traffic. ConfigError if it needs more than one sum."""
        if not summary.linear:
            raise ConfigError(
                f"privacy.{self.name}: '{summary.name}' needs many sums, each of which reveals something: "
                "use data.missing = 'drop', or name a file of constants in data.constants."
            )
        clients = tuple(range(len(self.parties)))
        answers = [summary.of(rows, message) for rows in self.parties]
        ask = Ask(clients, LEARN, {k: dict(message) for k in clients}, "sum")
        place = Place(
            run="set-up",
            round=self.asked,  # each question counts as a round
            attempt=0,
            number=0,
            task=Question(lambda *given: ({}, {}, None)),
            sizes=dict.fromkeys(clients, 1),
            n=len(clients),
            K=len(clients),
            coefficients=dict.fromkeys(clients, 1.0),
            mend=lambda answered: lambda part: 1.0,
            leaving={},
        )
        try:
            protocol = self.protocol.around(self.keys.public, "set-up", ask, place, 1)
            found = self._drive(protocol, answers, summary, message)
        except SessionFailed as error:
            raise ConfigError(f"privacy.{self.name}: the columns could not be prepared: {error}") from None
        self.asked += 1
        return found

    def _drive(
        self, protocol: Asking, answers: Sequence[Mapping[str, Any]], summary: Summary, message: Mapping[str, Any]
    ) -> Learnt:
        sessions = [self.keys.session(k, {}) for k in range(len(answers))]
        traffic, ask = Traffic(), next(protocol)
        while True:
            total, each = None, {}
            for k in ask.to:
                reply, sessions[k] = self._answer(ask, k, answers[k], sessions[k])
                note(k, "up", ask.what, dict(reply))
                note(k, "down", ask.what, dict(ask.messages[k]))
                traffic = traffic.plus(Traffic(codec.size(dict(reply)), codec.size(dict(ask.messages[k]))))
                each[k] = reply
                if ask.what == LEARN:
                    total = ask.reduce.add(total, ask.reduce.lift(k, reply, 1.0))
            try:
                ask = protocol.send(Replies(ask.to, None, each))
            except StopIteration as end:
                found: Replies = end.value
                break
        value = found.value or {}
        told = summary.told(message, value)
        for k in range(len(answers)) if told is not None else ():
            note(k, "down", summary.name, told)
        traffic = traffic.plus(Traffic(0, 0 if told is None else codec.size(told) * len(answers)))
        self.more += sum(traffic) - sum(in_the_clear(summary, message, answers, value))
        return Learnt(value, traffic)

    def _answer(self, ask: Ask, k: int, answer: Mapping[str, Any], session: Any) -> tuple[Mapping[str, Any], Any]:
        if ask.what == LEARN:
            reply, session, _ = self.protocol.seal(answer, Doing(k, self.asked, LEARN, 0, 1), ask.words[k], session)
            return reply, session
        reply, _, session = self.protocol.questions[ask.what].answer(None, None, ask.messages[k], {}, session)  # type: ignore[arg-type]
        return reply, session
