"""A coordinator that lies to parties with columns: it tells each a lie in front of the true request, and keeps what comes of it.

A lie that is refused changes nothing: the true request follows, and the run goes on to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from agreements import Agreements
from fedatlas.config import parse
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.terms import decoded
from fedatlas.deployment.trainer import Trainer
from fedatlas.federation.link import Request
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.privacy.secagg.keys import identity
from fedatlas.vertical.letters import LETTERS
from fedatlas.wire import codec, messages
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import TaskRequest, written

LABEL = "default"
COMMON = 40  # rows that all parties have


def write_tables(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """The first party has the label; each has ten rows that nobody else has."""
    stream = np.random.default_rng(0)
    shared = [f"id-{i:03d}" for i in range(COMMON)]
    signal = stream.normal(size=COMMON)
    paths = {}
    for k, name in enumerate(names):
        ids = shared + [f"{name}-{i}" for i in range(10)]
        table = pd.DataFrame({"id": ids, f"{name}-x": stream.normal(size=len(ids))})
        table.loc[: COMMON - 1, f"{name}-x"] += signal
        if not k:
            label = np.concatenate([signal + stream.normal(size=COMMON) / 2, np.zeros(10)])
            table[LABEL] = np.where(label > 0, "yes", "no")
        paths[name] = folder / f"{name}.csv"
        table.sample(frac=1, random_state=k).to_csv(paths[name], index=False)
    return paths


def experiment(names: Sequence[str], **tables: Any) -> dict[str, Any]:
    """Trees under Paillier, written out."""
    parties: list[dict[str, Any]] = [{"name": name, "path": "own.csv", "id": "id"} for name in names]
    parties[0]["label"] = LABEL
    algorithm = {"name": "secureboost", "trees": 2, "bins": 4, "depth": 2}
    given = {"parties": parties, "algorithm": algorithm, "privacy": [{"name": "paillier"}], **tables}
    return deployable(parse(given), names).config.plain()


class Lie(NamedTuple):
    """What is told in place of a request."""

    to: str
    what: str  # the true question
    make: Callable[[Relay, Request], Request | None]  # None: not yet
    said: str  # what the party says


class Relay:
    """The tap of `nodes_in_process.run_here`."""

    def __init__(self, made: Agreements, trainers: Mapping[str, Trainer], lies: Mapping[str, Lie]) -> None:
        self.names, self.trainers, self.lies = made.names, trainers, lies
        self.heard: dict[str, Any] = {}  # lie -> the answer
        self.requests: list[Request] = []
        self.bytes = b""  # all that went through here
        self.digest = ""
        self.private, self.public = identity()

    def __call__(self, name: str, message: RawMessage) -> RawMessage:
        """A message on its way to a node."""
        self.bytes += bytes(message.body)
        asked = messages.read(message, messages.TO_NODE)
        if isinstance(asked, TaskRequest):
            self.digest = asked.agreed
            request = decoded(Request, bytes(asked.body))
            for title, lie in self.lies.items():
                if title not in self.heard and (lie.to, lie.what) == (name, request.what):
                    if (told := lie.make(self, request)) is not None:
                        self.heard[title] = self._told(name, asked, told)
            self.requests.append(request)
        return message

    def _told(self, name: str, asked: TaskRequest, lie: Request) -> Any:
        body = codec.encode(lie.plain())
        (answer,) = self.trainers[name].serve(
            written(asked._replace(body=body, digest=digest_of(body), place=lie.ask[1:]))
        )
        return messages.read(answer, messages.FROM_TRAINER)

    def forged(self, request: Request, sender: str, topic: str, content: Any, step: int = 0) -> dict[str, Any]:
        """A letter in the name of a party, signed by the relay's own key."""
        number = self.names.index(sender)
        own = SignedLetters(number, self.names, self.digest, self.private, {})
        plain = {"to": [request.client], "topic": topic, "step": step, "secret": False, "content": content}
        return dict(own.sealed(request, {LETTERS: [{"from": number, **plain}]})[LETTERS][0])

    def letter(self, topic: str, sender: str = "", **where: Any) -> dict[str, Any] | None:
        """A letter that went through here: the first on this topic, of this sender, in a request with these fields."""
        for request in self.requests:
            for one in request.message.get(LETTERS, []):
                if one["topic"] == topic and (not sender or one["from"] == self.names.index(sender)):
                    if all(getattr(request, key) == value for key, value in where.items()):
                        return dict(one)
        return None


def with_letters(request: Request, letters: Sequence[Any]) -> Request:
    return request._replace(message={**request.message, LETTERS: list(letters)})


def instead(request: Request, topic: str, change: Callable[[Any], Any]) -> Request:
    """The request with its letters on a topic changed."""
    return with_letters(request, [change(one) if one["topic"] == topic else one for one in request.message[LETTERS]])
