"""The server's host of a run whose parties are elsewhere: a `ServerHalf` whose link is the nodes' streams.

What makes it survive: a journal line on the disk says who closed an ask before the round goes on with it, so that a round that is
driven again after a crash takes the replies it took; the verdict of a round (who counted) stands in the checkpoint that lands it,
and is told with every request until the node has said that it knows.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedatlas.algorithm import Algorithm, Ask, Facts, RoundGenerator, State, Update, Work
from fedatlas.deployment.node_judging import JUDGE, NodeJudge
from fedatlas.deployment.nodes import Nodes
from fedatlas.deployment.trainer import digest_of
from fedatlas.engine.job import Bench
from fedatlas.errors import FedatlasError, ProtocolError, TransportError, first_line
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.host import Host, Rounds
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.federation.secrets import append, whole_lines
from fedatlas.federation.server import Guard, ServerHalf
from fedatlas.federation.start import RoundStart
from fedatlas.setup.assembly import Setup
from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.frames import Message

CLOSED, ANSWERS, VERDICTS = "closed.jsonl", "answers.jsonl", "verdicts"
BEGUN = -1  # in the place of an ask's number: the attempt was begun
LOOK = 0.5  # seconds after which somebody who waits looks who has been gone for too long
Place = tuple[int, int, int]
Begin = Callable[[int, int], Message]
"""(number of a node, the last round that landed) -> the message that sets it up."""


class Patience(NamedTuple):
    """What becomes of a round in which a node is lost."""

    on_loss: str = "continue"  # | "wait"
    deadline: float = 600.0  # seconds that an ask waits for its replies
    minimum: int = 2  # nodes without whose replies a round does not go on


class TooFew(FedatlasError):
    """Fewer nodes answered than the run needs."""


class Closed:
    """The journal of who closed which ask, and of the attempts at a round that was begun anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Place, tuple[int, ...]] = {}
        for line in whole_lines(path) if path.exists() else []:
            *place, who = json.loads(line)
            self.known[place[0], place[1], place[2]] = tuple(who)

    def close(self, place: Place, who: Collection[int]) -> None:
        """On the disk when this returns."""
        if place not in self.known:
            self.known[place] = tuple(sorted(who))
            append(self.path, json.dumps([*place, sorted(who)]))

    def attempt(self, round: int) -> int:
        """The last that was begun at a round."""
        return max((place[1] for place in self.known if place[0] == round), default=0)

    def forget(self, round: int) -> None:
        """Rounds up to this one have landed: none of their asks is driven again."""
        self.known = {place: who for place, who in self.known.items() if place[0] > round}


class Streams:
    """The link. ``begin``: for a node that comes back without anything."""

    def __init__(
        self,
        run: str,
        names: Sequence[str],
        nodes: Nodes,
        patience: Patience,
        folder: Path,
        begin: Begin,
        event: Callable[[Mapping[str, Any]], None] = lambda event: None,
    ) -> None:
        self.event = event  # tells whoever watches
        self.seconds: dict[int, dict[str, float]] = {}  # round -> node -> seconds that its replies took
        self.run, self.names, self.nodes, self.patience = run, list(names), nodes, patience
        self.folder, self.begin = folder, begin
        self.closed = Closed(folder / CLOSED)
        self.work: dict[int, Work] = {}  # of the replies of the ask under way
        self.verdicts: dict[int, tuple[int, ...]] = {}  # rounds that not everybody has acknowledged: who counted
        self.acknowledged: dict[int, int] = {}  # client -> the last round that it said has landed
        self.check: Any = None  # (request, update) -> why a reply cannot be used, "" where it can

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:  # noqa: ARG002
        """Replies as they come; of a node that is lost, refuses or sends what cannot be used none at all."""
        ask = _Ask(self, requests)
        yield from ask.replies()

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:  # noqa: ARG002
        """Notes the verdict; it is told once the round has landed (`landed`)."""
        self.verdicts.setdefault(round, tuple(sorted(counted)))

    def told(self, client: int) -> list[list[Any]]:
        """The verdicts that a node has not acknowledged."""
        after = self.acknowledged.get(client, -1)
        return [[at, client in who] for at, who in sorted(self.verdicts.items()) if at > after]

    def landed(self, number: int) -> None:
        """Tells everybody who is there."""
        self.closed.forget(number)
        for k, name in enumerate(self.names):
            self.nodes.send(name, Message({"kind": "commit", "run": self.run, "verdicts": self.told(k)}))

    def heard(self, client: int, landed: Any) -> None:
        """A node said which round has landed with it."""
        if isinstance(landed, int):
            self.acknowledged[client] = max(landed, self.acknowledged.get(client, -1))
            least = min(self.acknowledged.get(k, -1) for k in range(len(self.names)))
            self.verdicts = {at: who for at, who in self.verdicts.items() if at > least}

    def note(self, **line: Any) -> None:
        """One more line of who answered when."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with open(self.folder / ANSWERS, "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": at, **line}) + "\n")


class _Ask:
    """One ask on its way."""

    def __init__(self, streams: Streams, requests: Sequence[Request]) -> None:
        self.streams, self.nodes = streams, streams.nodes
        self.requests = {request.client: request for request in requests}
        first = requests[0]
        self.place: Place = (first.round, first.attempt, first.number)
        self.what = first.what
        self.bodies = {k: codec.encode(request.plain()) for k, request in self.requests.items()}
        self.digests = {k: digest_of(body) for k, body in self.bodies.items()}
        self.number = {name: k for k, name in enumerate(streams.names)}
        self.began = time.monotonic()
        self.answered: set[int] = set()
        self.lost: dict[int, str] = {}
        self.dropped = ""  # why a round of several questions cannot be answered any further by one of them
        if self.place[1] and not self.place[2]:  # an attempt stands in the journal before anybody hears of it
            streams.closed.close((*self.place[:2], BEGUN), ())
        known = streams.closed.known.get(self.place)
        self.due = {*self.requests} if known is None else {*known} & {*self.requests}
        self.again = known is not None  # driven again: exactly these replies were taken
        streams.work = {}

    def replies(self) -> Iterator[Reply]:
        """Until nobody is due any more."""
        for k in sorted(self.due):
            self._send(k)
        while self.due:
            if not self.again:
                for k in sorted(self.due):
                    if (why := self.nodes.lost(self.streams.names[k])) and self._may_lose():
                        self._lose(k, why)
                if not self.due:
                    break
            until = None if self.again else self.began + self.streams.patience.deadline
            soon = time.monotonic() + LOOK
            event = self.nodes.next(soon if until is None else min(until, soon))
            if event is None and (until is None or time.monotonic() < until):
                continue
            if event is None:
                for k in sorted(self.due):
                    self._give_up(k)
                break
            reply = self._heard(*event)
            if reply is not None:
                yield reply
        self._end()

    def _end(self) -> None:
        known = self.streams.closed.known.get(self.place)
        needed = min(self.streams.patience.minimum, len(self.requests)) if known is None else len(known)
        if len(self.answered) < needed and self.dropped:
            self.streams.event({"kind": "said", "text": f"Round {self.place[0]} is begun anew: {self.dropped}."})
        elif len(self.answered) < needed:
            names = self.streams.names
            reasons = "; ".join(f"{names[k]}: {why}" for k, why in sorted(self.lost.items()))
            raise TooFew(
                f"round {self.place[0]}: {len(self.answered)} of {len(self.requests)} nodes answered, and the run needs {needed} "
                f"({reasons})."
            )
        self.streams.closed.close(self.place, self.answered)

    def _may_lose(self) -> bool:
        """Whether a node that is gone is given up, and not waited for."""
        patience = self.streams.patience
        left = len(self.answered) + len(self.due) - 1
        return patience.on_loss == "continue" and left >= min(patience.minimum, len(self.requests))

    def _send(self, k: int) -> None:
        head = {
            "kind": "ask",
            "run": self.streams.run,
            "place": list(self.place),
            "digest": self.digests[k],
            "verdicts": self.streams.told(k),
            "cohort": len(self.requests),
        }
        self.nodes.send(self.streams.names[k], Message(head, self.bodies[k]))

    def _heard(self, name: str, said: Message) -> Reply | None:
        k = self.number.get(name)
        if k is None or (said.head.get("run", self.streams.run) != self.streams.run):
            return None
        if said.kind in {"reply", "landed"}:
            self.streams.heard(k, said.head.get("landed"))
        if said.kind in {"begun", "hello", "ready"}:
            if k in self.due and name in self.nodes.there:
                self._send(k)
            return None
        unwilling = said.kind == "refused" and said.head.get("to") == "begin"
        if said.head.get("place") != list(self.place) and not unwilling:
            if said.kind == "reply":
                self._note(k, "passed over: it answers another ask")
            return None
        if said.kind == "unknown":
            self.nodes.send(name, self.streams.begin(k, self.place[0] - 1))
        elif said.kind == "refused" and k in self.due:
            if said.head.get("dropped"):
                self.dropped = f"'{name}' {said.head.get('why', '')}"
            self._lose(k, f"refused: {said.head.get('why', '')}")
        elif said.kind == "reply":
            return self._taken(k, said)
        return None

    def _taken(self, k: int, said: Message) -> Reply | None:
        if k not in self.due:
            self._note(k, "passed over: it has answered already" if k in self.answered else "passed over: it came late")
            return None
        try:
            reply, work = read_reply(self.requests[k], self.digests[k], said)
            why = self.streams.check(self.requests[k], reply.update) if self.streams.check else ""
        except (FedatlasError, KeyError, TypeError, ValueError) as error:
            why = f"its reply cannot be read ({error})"
        if why:
            self._lose(k, why)
            return None
        self.due.discard(k)
        self.answered.add(k)
        self.streams.work[k] = work
        self._note(k, "answered", work=reply.seconds)
        return reply

    def _give_up(self, k: int) -> None:
        """Nothing came in time; who is not there at all is not waited for so long again."""
        why, name = f"no reply within {self.streams.patience.deadline:g} s", self.streams.names[k]
        if name not in self.nodes.there:
            self.nodes.gone.setdefault(name, why)
        self._lose(k, why)

    def _lose(self, k: int, why: str) -> None:
        self.due.discard(k)
        self.lost[k] = why
        self._note(k, f"lost: {why}")

    def _note(self, k: int, outcome: str, **more: Any) -> None:
        at, attempt, number = self.place
        about: dict[str, Any] = {
            "round": at,
            "attempt": attempt,
            "ask": number,
            "what": self.what,
            "node": self.streams.names[k],
        }
        took = time.monotonic() - self.began
        self.streams.note(**about, outcome=outcome, seconds=took, **more)
        if outcome == "answered":
            taken = self.streams.seconds.setdefault(at, {})
            taken[about["node"]] = taken.get(about["node"], 0.0) + took
        else:
            self.streams.event({"kind": "node", "round": at, "node": about["node"], "outcome": outcome})


def read_reply(request: Request, digest: str, said: Message) -> tuple[Reply, Work]:
    """The reply in a message. TransportError where it is of another ask, party or run."""
    if said.head.get("digest") != digest:
        raise TransportError("it answers another request")
    reply = Reply.of(codec.decode(bytearray(said.body), copy=False))
    if reply.ask != request.ask or reply.client != request.client:
        raise TransportError("it is another party's, or of another ask")
    n_k, steps, examples, lr_sum, loss = said.head["work"]
    nan = float("nan")
    return reply, Work(int(n_k), int(steps), int(examples), float(lr_sum), nan if loss is None else float(loss))


def misshapen(update: Update, model: Mapping[str, Any] | None) -> str:
    """Why an update cannot be added up: not finite, or a tree that is not of the model's tensors. "" for one that can."""
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


class StreamsHost(Host):
    """A host whose parties are nodes: the verdicts of rounds stand in the checkpoint, and are told once it is there.

    It is the link of its server half: the nodes' streams, and beside them what the nodes say of their work. ``bench``: where that work is
    training. ``whole``: what stands around the generator of a round in which every party is needed.
    """

    def __init__(
        self,
        streams: Streams,
        algorithm: Algorithm,
        sizes: Mapping[int, int],
        seed: int,
        *,
        bench: Bench | None = None,
        guard: Guard | None = None,
        whole: Callable[[RoundGenerator], RoundGenerator] | None = None,
    ) -> None:
        super().__init__()
        self.streams, self.bench, self.whole = streams, bench, whole
        self.states = PartyState()  # none: a client's state lies with the client
        transform = None if bench is None else bench.transform
        self.server = ServerHalf(algorithm, self, sizes, seed, run=streams.run, transform=transform, guard=guard)
        self._half = None if bench is None else PartyHalf(bench, _NoExecutor(), self.states, sizes, seed)
        if bench is not None:
            streams.check = self._check

    def __call__(self, requests: Sequence[Request], deadline: float | None) -> Iterator[Reply]:
        """The link."""
        asked = {request.client: request for request in requests}
        for reply in self.streams(requests, deadline):
            if self.bench is not None and asked[reply.client].what != JUDGE:
                self.view.add(asked[reply.client], self.streams.work[reply.client], self.bench)
            yield reply

    def commit(self, run: str, round: int, counted: Collection[int]) -> None:
        """The link's commit."""
        self.streams.commit(run, round, counted)

    def drive(self, generator: Rounds, start: RoundStart, *, commit: bool = True) -> State | None:
        """As `Host.drive`. ProtocolError for replies that no party of a round of all sends."""
        whole = self.whole
        if whole is None:
            return super().drive(generator, start, commit=commit)
        make = generator if callable(generator) else lambda: generator
        try:
            return super().drive(lambda: whole(make()), start, commit=commit)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"a party's reply is not what it was asked for ({first_line(error)})") from None

    def attempt_of(self, number: int) -> int:
        """As the journal has it."""
        return self.streams.closed.attempt(number)

    def record(self) -> dict[str, Any]:
        """Return the verdicts that are still to be told."""
        return {VERDICTS: [[at, list(who)] for at, who in sorted(self.streams.verdicts.items())]}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Take up the verdicts after a restart."""
        self.streams.verdicts = {at: tuple(who) for at, who in extra.get(VERDICTS, [])}

    def landed(self, number: int) -> None:
        """Tell the nodes."""
        self.streams.landed(number)

    def judged(self, message: Mapping[str, Any], to: Sequence[int]) -> Update:
        """Return the sum of the nodes' figures of a model. It decides nothing of who counts in the round."""
        replies = self.server.aside(Ask(tuple(to), JUDGE, dict.fromkeys(to, message), "sum"))
        if replies.value is None:
            raise TooFew(f"round {self.server.now.start.round}: no node could judge the model.")
        return replies.value

    def _check(self, request: Request, update: Update) -> str:
        """Return why a reply cannot be added up, or "". What is masked says nothing that could be looked at."""
        if request.word is not None:
            return ""
        opened = self.server.opened(request, update)
        model = request.message.get("model")
        return misshapen(opened, model if isinstance(model, Tree) else None)

    def facts(self, client: int, number: int, lr: float) -> Facts:
        """Return what a party knows before its work."""
        assert self._half is not None
        return self._half.facts(client, number, lr, self.server.of.K, self.server.of.n)

    def state_of(self, client: int, message: Mapping[str, Any], facts: Facts) -> State:
        """A client's state lies with the client."""
        assert self._half is not None
        return self._half.state_of(client, message, facts)


def rows_host(
    setup: Setup, streams: Streams, guard: Guard | None = None, judging: Sequence[int] | None = None
) -> StreamsHost:
    """Return the host of a run whose nodes hold rows. ``judging``: the nodes that judge, where the server has no test rows."""
    host = StreamsHost(streams, setup.bench.algorithm, setup.sizes, setup.seed, bench=setup.bench, guard=guard)
    host.judge = None if judging is None else NodeJudge(setup, host.judged, judging)
    return host


class _NoExecutor:
    """Nothing is trained here."""

    run_job: Any = None

    def run(self, jobs: Any) -> Iterator[Any]:
        raise NotImplementedError("the server trains nothing.")

    def close(self) -> None: ...
