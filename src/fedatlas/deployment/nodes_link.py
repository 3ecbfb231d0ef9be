"""The link between the server half and the nodes: requests and replies over their streams.

It survives crashes in two ways. Before the round goes on, a journal line on the disk records whose replies closed an
ask. A round that is repeated after a crash takes the same replies. The verdict of a round (who counted) is in the
checkpoint that lands it. It is sent with every request until the node confirms it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedatlas.algorithm import Update, Work
from fedatlas.config.experiment import RoundConfig
from fedatlas.deployment.nodes import Nodes
from fedatlas.deployment.reply_form import unlikely
from fedatlas.deployment.terms import decoded
from fedatlas.errors import FedatlasError, TransportError, first_line
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.secrets import append, whole_lines
from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.agreement import digest_of
from fedatlas.wire.listener import ORDINARY, StreamEnded
from fedatlas.wire.messages import (
    NodeEvent,
    NodeHello,
    NoticeEvent,
    Place,
    Refusal,
    RoundLanded,
    RoundVerdicts,
    RunEvent,
    RunStart,
    RunStarted,
    RunUnknown,
    TaskReply,
    TaskRequest,
    TrainerReady,
    Verdicts,
    sayable,
)

CLOSED, ANSWERS = "closed.jsonl", "answers.jsonl"
BEGUN = -1  # replaces an ask's number: the attempt began
TOLD = 3  # times that a node may be sent a run again during one ask
REPLY = 4  # a reply may be this many times as long as its request, plus the limit of any message
LOOK = 0.5  # seconds after which a waiting ask looks for nodes that have been gone too long
StartMessage = Callable[[int, int], RunStart]
"""(number of a node, the last landed round) -> the message that sets the node up."""


class TooFew(FedatlasError):
    """Fewer nodes answered than the run needs. ``refused``: whether one of them refused."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


class AskJournal:
    """The journal of the replies that closed each ask, and of the attempts at a restarted round."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Place, tuple[int, ...]] = {}
        for line in whole_lines(path) if path.exists() else []:
            *place, who = json.loads(line)
            self.known[place[0], place[1], place[2]] = tuple(who)

    def close(self, place: Place, who: Collection[int]) -> None:
        """Write down whose replies closed an ask. The line is on the disk when this returns."""
        if place not in self.known:
            self.known[place] = tuple(sorted(who))
            append(self.path, json.dumps([*place, sorted(who)]))

    def attempt(self, round: int) -> int:
        """Return the last attempt at a round."""
        return max((place[1] for place in self.known if place[0] == round), default=0)

    def forget(self, round: int) -> None:
        """Forget all rounds up to this one. They have landed, so their asks are not repeated."""
        self.known = {place: who for place, who in self.known.items() if place[0] > round}


class NodesLink:
    """The link. ``begin`` makes the message for a node that reconnects without knowing the run."""

    def __init__(
        self,
        run: str,
        names: Sequence[str],
        nodes: Nodes,
        rules: RoundConfig,
        folder: Path,
        begin: StartMessage,
        event: Callable[[RunEvent], None] = lambda event: None,
    ) -> None:
        self.event = event  # informs the watchers
        self.seconds: dict[int, dict[str, float]] = {}  # round -> node -> seconds until its replies came
        self.run, self.names, self.nodes, self.rules = run, list(names), nodes, rules
        self.agreed = ""  # digest of the run
        self.folder, self.begin = folder, begin
        without_torn_line(folder / ANSWERS)
        self.closed = AskJournal(folder / CLOSED)
        self.work: dict[int, Work] = {}  # of the replies to the current ask
        self.verdicts: dict[int, tuple[int, ...]] = {}  # rounds that some node has not acknowledged: who counted
        self.rollbacks: dict[int, int] = {}  # rounds that were passed over by a rollback -> its version
        self.acknowledged: dict[int, int] = {}  # client -> the last round that it reported as landed
        self.check: Callable[[Request, Reply, Work], str] = lambda request, reply, work: unlikely(reply, work)
        self.whole = self.patient = False  # whether an ask needs all nodes, and waits for absent ones (`together`)
        self.most = 0  # bytes of a reply, if they do not follow from those of its request

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:  # noqa: ARG002
        """Yield replies as they come, except from a node that is lost, refuses, or sends an unusable reply."""
        ask = _OpenAsk(self, requests)
        yield from ask.replies()

    @contextlib.contextmanager
    def together(self, *, patient: bool) -> Iterator[None]:
        """Raise TooFew within this context unless all nodes answer an ask.

        With ``patient``, an ask also waits for absent nodes.
        """
        self.whole, self.patient = True, patient
        try:
            yield
        finally:
            self.whole = self.patient = False

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:  # noqa: ARG002
        """Note the verdict. It is sent once the round has landed (`landed`)."""
        self.verdicts.setdefault(round, tuple(sorted(counted)))

    def told(self, client: int) -> Verdicts:
        """Return the verdicts that a node has not acknowledged."""
        after = self.acknowledged.get(client, -1)
        due = [(at, who) for at, who in sorted(self.verdicts.items()) if at > after]
        return tuple((at, client in who, self.rollbacks.get(at, -1)) for at, who in due)

    def landed(self, number: int) -> None:
        """Send the verdicts to all connected nodes."""
        self.closed.forget(number)
        for k, name in enumerate(self.names):
            self.nodes.send(name, RoundVerdicts(self.run, self.told(k)))

    def heard(self, client: int, landed: int) -> None:
        """Note the last round that has landed at a node."""
        self.acknowledged[client] = max(landed, self.acknowledged.get(client, -1))
        least = min(self.acknowledged.get(k, -1) for k in range(len(self.names)))
        self.verdicts = {at: who for at, who in self.verdicts.items() if at > least}

    def note(self, **line: Any) -> None:
        """Add a line to the record of replies."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with open(self.folder / ANSWERS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": at, **line}) + "\n")


def without_torn_line(path: Path) -> None:
    """Cut off an incomplete last line, which a full disk or a kill may leave."""
    if path.exists() and not (data := path.read_bytes()).endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


class _OpenAsk:
    """One ask under way."""

    def __init__(self, link: NodesLink, requests: Sequence[Request]) -> None:
        self.link, self.nodes, self.what = link, link.nodes, requests[0].what
        self.requests = {request.client: request for request in requests}
        self.place: Place = requests[0].ask[1:]
        self.messages: dict[int, TaskRequest] = {}
        for k, request in self.requests.items():
            body = codec.encode(request.plain())
            self.messages[k] = TaskRequest(link.run, self.place, digest_of(body), link.agreed, (), body)
        self.number = {name: k for k, name in enumerate(link.names)}
        self.began = time.monotonic()
        self.answered: set[int] = set()
        self.lost: dict[int, str] = {}
        self.dropped = ""  # why one node cannot continue a round of several questions
        if self.place[1] and not self.place[2]:  # an attempt is in the journal before anybody learns of it
            link.closed.close((*self.place[:2], BEGUN), ())
        self.begun: Counter[int] = Counter()  # per node: how often it was sent the run again
        self.known = link.closed.known.get(self.place)  # if repeated: exactly these replies were taken
        self.due = {*self.requests} if self.known is None else {*self.known} & {*self.requests}
        least = len(requests) if link.whole else min(link.rules.minimum, len(requests))
        self.needed = least if self.known is None else len(self.known)
        self.refused = False  # whether a node refused for another reason than lost keys
        link.work = {}

    def replies(self) -> Iterator[Reply]:
        """Yield replies until none is due."""
        until = self.began + self.link.rules.deadline if self.known is None else math.inf
        for k in sorted(self.due):
            self._send(k)
        self._lose_gone()
        while self.due:
            event = self.nodes.next(min(until, time.monotonic() + LOOK))
            if event is not None:
                if (reply := self._heard(*event)) is not None:
                    yield reply
            elif time.monotonic() >= until:
                for k in sorted(self.due):
                    self._give_up(k)
            self._lose_gone()
        few = len(self.answered) < self.needed
        if few and self.dropped and not self.link.whole:
            self.link.event(NoticeEvent(sayable(f"Round {self.place[0]} is begun again: {self.dropped}.")))
        elif few:
            reasons = "; ".join(f"{self.link.names[k]}: {why}" for k, why in sorted(self.lost.items()))
            answered = f"{len(self.answered)} of {len(self.requests)} nodes answered, and the run needs {self.needed}"
            raise TooFew(f"round {self.place[0]}: {answered} ({reasons}).", refused=self.refused)
        self.link.closed.close(self.place, self.answered)

    def _lose_gone(self) -> None:
        """Give up absent nodes while enough others are left."""
        hurried = self.known is None and self.link.rules.on_loss == "continue" and not self.link.patient
        for k in sorted(self.due) if hurried else ():
            why = self.nodes.lost(self.link.names[k])
            if why and (self.link.whole or len(self.answered) + len(self.due) > self.needed):
                self._lose(k, why)

    def _send(self, k: int) -> None:
        message = self.messages[k]._replace(verdicts=self.link.told(k))
        self.nodes.send(self.link.names[k], message, self.link.most or ORDINARY + REPLY * len(message.body))

    def _heard(self, name: str, said: Any) -> Reply | None:
        k = self.number.get(name)
        if k is None or getattr(said, "run", None) not in {None, self.link.run}:
            return None
        if isinstance(said, TaskReply | RoundLanded):
            self.link.heard(k, said.landed)
        here = getattr(said, "place", None) == self.place
        if isinstance(said, RunStarted | NodeHello | TrainerReady):
            if k in self.due and name in self.nodes.there:
                self._send(k)
        elif isinstance(said, StreamEnded) and said.broken and k in self.due:
            self._lose(k, f"its message cannot be read ({said.why.rstrip('.')})")
        elif isinstance(said, TaskReply):
            if here:
                return self._taken(k, said)
            self._note(k, "passed over: it answers another ask")
        elif isinstance(said, RunUnknown) and here and k in self.due:
            self.begun[k] += 1
            if self.begun[k] > TOLD:
                self._lose(k, "it does not know the run, however often it is told")
            else:
                self.nodes.send(name, self.link.begin(k, self.place[0] - 1))
        elif isinstance(said, Refusal) and k in self.due and (here or said.to == "begin"):
            if said.dropped:
                self.dropped = f"'{name}' {said.why}"
            self.refused = self.refused or not said.dropped
            self._lose(k, f"refused: {said.why}")
        return None

    def _taken(self, k: int, said: TaskReply) -> Reply | None:
        if k not in self.due:
            self._note(k, "passed over: it has answered already" if k in self.answered else "passed over: it came late")
            return None
        try:
            loss = math.nan if said.work[4] is None else said.work[4]
            reply, work = read_reply(self.requests[k], self.messages[k].digest, said), Work(*said.work[:4], loss)
            why = self.link.check(self.requests[k], reply, work)
        except Exception as error:  # noqa: BLE001  # foreign bytes may lead to any error
            why = f"its reply cannot be read ({first_line(error)})"
        if why:
            self._lose(k, why)
            return None
        self.due.discard(k)
        self.answered.add(k)
        self.link.work[k] = work
        self._note(k, "answered", work=reply.seconds)
        return reply

    def _give_up(self, k: int) -> None:
        """Give up a node that did not reply in time. If it is absent, the next ask waits less for it."""
        why, name = f"no reply within {self.link.rules.deadline:g} s", self.link.names[k]
        if name not in self.nodes.there:
            self.nodes.gone.setdefault(name, why)
        self._lose(k, why)

    def _lose(self, k: int, why: str) -> None:
        self.due.discard(k)
        self.lost[k] = why
        self._note(k, f"lost: {why}")

    def _note(self, k: int, outcome: str, **more: Any) -> None:
        (at, attempt, number), name = self.place, self.link.names[k]
        took = time.monotonic() - self.began
        about = {"round": at, "attempt": attempt, "ask": number, "what": self.what, "node": name, "outcome": outcome}
        self.link.note(**about, seconds=took, **more)
        if outcome == "answered":
            taken = self.link.seconds.setdefault(at, {})
            taken[name] = taken.get(name, 0.0) + took
        else:
            self.link.event(NodeEvent(at, name, sayable(outcome)))


def read_reply(request: Request, digest: str, said: TaskReply) -> Reply:
    """Read the reply in a message. TransportError if it belongs to another ask, party or run."""
    if said.digest != digest:
        raise TransportError("it answers another request")
    reply: Reply = decoded(Reply, said.body)
    if reply.ask != request.ask or reply.client != request.client:
        raise TransportError("it is another party's, or of another ask")
    return reply


def misshapen(update: Update, model: Mapping[str, Any] | None) -> str:
    """Return why an update cannot be added up, or "" if it can: it is not finite, or has other tensors than the model."""
    for part, value in update.items():
        if isinstance(value, Tree) and model and part != "buffers":
            odd = [name for name in value if name not in model or value[name].shape != model[name].shape]
            if odd or (part == "model" and value.keys() != model.keys()):
                return f"'{part}' of its reply has other tensors than the model (see '{(odd or [*model])[0]}')"
            if any(value[name].dtype != model[name].dtype for name in value if part == "model"):
                return f"'{part}' of its reply has tensors of another type than the model"
        for x in value.values() if isinstance(value, Mapping) else [value]:
            if isinstance(x, torch.Tensor) and x.is_floating_point() and not bool(torch.isfinite(x).all()):
                return f"'{part}' of its reply is not finite"
    return ""
