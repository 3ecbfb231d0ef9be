"""The messages between server, nodes and operators: one record each, and tables of senders and answers.

A message has a kind, fields and, if its record ends with ``body``, bytes that only its receiver reads. Only `read` turns a message
into its record, and only `written` turns it back. The record's annotations give the fields and their bounds (`wire.fields`).

To add a message, write its record, add its line to its sender's table, and raise PROTOCOL (CONTRIBUTING.md has the recipe).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fedatlas.errors import ProtocolError
from fedatlas.wire.fields import Bound, plain, record
from fedatlas.wire.frames import Body, RawMessage

PROTOCOL = 6
"""The protocol number, raised by every change of a message. Programs with different numbers refuse each other."""

NAME = r"[a-z0-9][a-z0-9._-]{0,39}"
PART = r"(?!\.\.?(?:/|$))[^/\\:\0\ud800-\udfff]{1,200}"
Name = Annotated[str, Bound(pattern=NAME, what="the name of a party")]
RunName = Annotated[str, Bound(pattern=r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", what="the name of a run")]
FileName = Annotated[str, Bound(pattern=rf"{PART}(?:/{PART}){{0,9}}", what="the name of a file in a folder")]
Digest = Annotated[str, Bound(pattern="[0-9a-f]{32}", what="a digest")]
Text = Annotated[str, Bound(most=10_000)]
Count = Annotated[int, Bound(least=0)]
Landed = Annotated[int, Bound(least=-1)]
"""The last round that landed; -1 before the first."""
Place = tuple[Count, Count, Count]
"""(round, attempt, number of the ask)."""
Verdicts = tuple[tuple[Count, bool, Landed], ...]
"""(a round that landed, whether the node counted in it, the round to whose state it goes back; -1: to none)."""
Measured = Annotated[float, Bound(nan=True)] | None
"""A figure of a model; None if the model was not judged."""
Work = tuple[Count, Count, Count, float, Measured]
"""(rows, steps, examples, sum of learning rates, training loss) of a task."""
Open = Annotated[Mapping[str, Any], Bound(most=1 << 24, open=True)]
"""Plain values whose fields are checked where they are used: an experiment, facts about rows."""


# ---------------------------------------------------------------------------------------------- from the server to a node


class Signed(NamedTuple):
    """An agreement that an operator has signed (`wire.agreement`)."""

    text: Annotated[str, Bound(most=1 << 20)]
    certificate: Text
    signature: Text


class ServerHello(NamedTuple):
    """The server's first word on a stream that it has accepted. ``revoked``: the authority's signed list of revocations."""

    protocol: Count
    version: Text
    revoked: Annotated[str, Bound(most=1 << 20)] = ""


class FactsQuestion(NamedTuple):
    """Asks a node for facts about its rows."""

    run: RunName
    agreement: Signed


class SumQuestion(NamedTuple):
    """Asks for the answer to the current question of round 0 (`deployment.terms.SumTerms`)."""

    run: RunName
    agreement: Signed
    index: Count  # type: ignore[assignment]  # hides tuple.index
    body: Body


class RunStart(NamedTuple):
    """Asks to prepare a run: its agreement, and what round 0 settled (`deployment.terms.RowsSetup` or `ColumnsSetup`), the same for all."""

    run: RunName
    agreement: Signed
    landed: Landed
    body: Body


class TaskRequest(NamedTuple):
    """Asks for a task of a round (`federation.link.Request`)."""

    run: RunName
    place: Place
    digest: Digest  # of the body
    agreed: Digest  # of the run: its agreement and what round 0 settled (`wire.agreement.run_digest`)
    verdicts: Verdicts  # that the node has not acknowledged
    body: Body


class RoundVerdicts(NamedTuple):
    """Tells a node which rounds have landed."""

    run: RunName
    verdicts: Verdicts


class FinishedModel(NamedTuple):
    """Asks a node to keep the files of a run that has ended."""

    run: RunName
    body: Body


# ------------------------------------------------------------------------------------------------------------ from a node


class NodeHello(NamedTuple):
    """A node's first word on a stream."""

    protocol: Count
    instance: Annotated[str, Bound(most=100, pattern=".+", what="the number of a node's folder")]
    version: Text
    ready: bool  # whether its trainer is ready
    runs: Mapping[RunName, Landed] = {}


class TrainerLost(NamedTuple):
    """A node's trainer has ended."""

    why: Text


class TrainerReady(NamedTuple):
    """A node's trainer is ready."""

    runs: Mapping[RunName, Landed]


class NodeFacts(NamedTuple):
    """Facts of a node's rows or table (`deployment.node_rows.RowsFacts` or `deployment.node_columns.ColumnsFacts`)."""

    run: RunName
    facts: Open


class SumAnswer(NamedTuple):
    """A node's answer to a question of round 0 (`deployment.terms.Sums`)."""

    run: RunName
    index: Count  # type: ignore[assignment]  # hides tuple.index
    few: bool  # left out of the question: the node holds fewer rows than its policy's min_rows
    body: Body


class RunStarted(NamedTuple):
    """A node has prepared a run."""

    run: RunName


class TaskReply(NamedTuple):
    """The reply to a task (`federation.link.Reply`)."""

    run: RunName
    place: Place
    digest: Digest  # of the request
    landed: Landed
    work: Work
    body: Body


class RunUnknown(NamedTuple):
    """A node was asked something of a run that it was not prepared for."""

    run: RunName
    place: Place


class RoundLanded(NamedTuple):
    """A node has saved its state as of a round that landed."""

    run: RunName
    landed: Landed


class ModelStored(NamedTuple):
    """A node has the folder of a run that has ended."""

    run: RunName
    where: Text


class Refusal(NamedTuple):
    """A node refuses a request."""

    to: Text  # the kind of the message
    why: Text
    run: RunName | None = None
    place: Place | None = None
    index: Count | None = None  # type: ignore[assignment]  # hides tuple.index
    dropped: bool = False  # the round cannot continue with this node: state held only in memory is lost


# ------------------------------------------------------------------------------------------------------- from an operator


class Submission(NamedTuple):
    """Asks to run an experiment that the operator has signed."""

    agreement: Signed
    round: Open | None = None  # the table [round], which belongs to the server and is not part of the agreement
    body: Body = b""  # the file of model.init, whose digest is in the agreement


class WatchRun(NamedTuple):
    """Asks for the events of a run after this number."""

    run: RunName
    after: Count = 0


class FetchRun(NamedTuple):
    """Asks for the files of a run."""

    run: RunName


class StopRun(NamedTuple):
    """Asks to stop a run after the current round."""

    run: RunName


class StatusQuestion(NamedTuple):
    """Asks who is connected and how each run stands."""


# ------------------------------------------------------------------------------------------ from the server to an operator


class Submitted(NamedTuple):
    """A run waits for its turn."""

    run: RunName


class StartEvent(NamedTuple):
    """A run begins or continues. In each event, ``number`` counts the events of the run from 1; ``time`` is in seconds since 1970."""

    rounds: Count
    landed: Landed
    time: float = 0.0
    number: Count = 0


class NoticeEvent(NamedTuple):
    """A notice of a run."""

    text: Text
    time: float = 0.0
    number: Count = 0


class RoundEvent(NamedTuple):
    """A round has landed."""

    round: Count
    seconds: float
    nodes: Mapping[Name, float]  # seconds that the replies of each node took
    accuracy: Measured = None
    rmse: Measured = None
    loss: Measured = None
    time: float = 0.0
    number: Count = 0


class NodeEvent(NamedTuple):
    """A node's reply to an ask does not count."""

    round: Count
    node: Name
    outcome: Text
    time: float = 0.0
    number: Count = 0


class StatusEvent(NamedTuple):
    """The status of a run has changed: queued, running, finished, diverged, failed, stopped."""

    status: Text
    why: Text
    time: float = 0.0
    number: Count = 0


OVER = {"finished", "diverged", "failed", "stopped"}
"""The statuses of a run that has ended."""
RunEvent = StartEvent | NoticeEvent | RoundEvent | NodeEvent | StatusEvent
"""An event of a run; one line of its ``events.jsonl``."""


class NoEvent(NamedTuple):
    """Nothing has happened for a while."""


class RunFile(NamedTuple):
    """A file of a run."""

    name: FileName
    body: Body


class EndOfFiles(NamedTuple):
    """All files of a run have been sent."""


class Stopping(NamedTuple):
    """A run is told to stop."""

    run: RunName
    status: Text


class NodeStatus(NamedTuple):
    """A node as the server sees it."""

    name: Name
    connected: bool
    heard: float | None  # seconds since 1970


class RunStatus(NamedTuple):
    """The state of a run."""

    run: RunName
    status: Text
    why: Text
    operator: Name
    nodes: tuple[Name, ...]
    submitted: float
    rounds: Count | None
    done: Count


class ServerStatus(NamedTuple):
    """The connected nodes and the state of each run."""

    federation: Text
    nodes: tuple[NodeStatus, ...]
    runs: tuple[RunStatus, ...]


# -------------------------------------------------------------------------------------------------------------- the tables


class MessageKind(NamedTuple):
    """A kind of message: its record, and the kinds that may answer it."""

    record: type[Any]
    answers: tuple[str, ...] = ()


TO_NODE = {
    "hello": MessageKind(ServerHello),
    "facts": MessageKind(FactsQuestion, ("facts", "refused")),
    "learn": MessageKind(SumQuestion, ("learnt", "refused")),
    "begin": MessageKind(RunStart, ("begun", "refused")),
    "ask": MessageKind(TaskRequest, ("reply", "unknown", "refused")),
    "commit": MessageKind(RoundVerdicts, ("landed", "refused")),
    "home": MessageKind(FinishedModel, ("at home", "refused")),
}
"""Messages that the server sends to a node."""
FROM_NODE = {"hello": MessageKind(NodeHello, ("hello",)), "trainer lost": MessageKind(TrainerLost)}
"""Messages sent by the process of a node that holds the stream."""
FROM_TRAINER = {
    "ready": MessageKind(TrainerReady),
    "facts": MessageKind(NodeFacts),
    "learnt": MessageKind(SumAnswer),
    "begun": MessageKind(RunStarted),
    "reply": MessageKind(TaskReply),
    "unknown": MessageKind(RunUnknown),
    "landed": MessageKind(RoundLanded),
    "at home": MessageKind(ModelStored),
    "refused": MessageKind(Refusal),
}
"""Messages sent by the process of a node that trains."""
EVENTS = {
    "started": MessageKind(StartEvent),
    "said": MessageKind(NoticeEvent),
    "row": MessageKind(RoundEvent),
    "node": MessageKind(NodeEvent),
    "run status": MessageKind(StatusEvent),
}
"""The events of a run."""
FROM_OPERATOR = {
    "submit": MessageKind(Submission, ("submitted",)),
    "watch": MessageKind(WatchRun, (*EVENTS, "waiting")),
    "fetch": MessageKind(FetchRun, ("file", "end")),
    "stop": MessageKind(StopRun, ("stopping",)),
    "status": MessageKind(StatusQuestion, ("status",)),
}
"""Messages that an operator sends."""
TO_OPERATOR = {
    "submitted": MessageKind(Submitted),
    **EVENTS,
    "waiting": MessageKind(NoEvent),
    "file": MessageKind(RunFile),
    "end": MessageKind(EndOfFiles),
    "stopping": MessageKind(Stopping),
    "status": MessageKind(ServerStatus),
}
"""Messages that the server sends to an operator."""


def read(message: RawMessage, *senders: Mapping[str, MessageKind]) -> Any:
    """Return the record of a message from one of these tables. ProtocolError for another kind or a field that does not fit."""
    kind = message.kind
    found = next((table[kind] for table in senders if kind in table), None)
    if found is None:
        raise ProtocolError(f"the message {kind[:40]!a} is not one of protocol {PROTOCOL}.")
    value = {name: one for name, one in message.head.items() if name != "kind"}
    has = "body" in found.record._fields
    if "body" in value or (len(message.body) and not has):
        raise ProtocolError(f"the message '{kind}' has a body that it should not have.")
    return record(found.record, {**value, "body": message.body} if has else value, kind)


def kind_of(value: Any) -> tuple[str, MessageKind]:
    """Return the kind of a record: its name on the wire and its line in the tables."""
    tables = (TO_NODE, FROM_NODE, FROM_TRAINER, FROM_OPERATOR, TO_OPERATOR)
    return next(line for table in tables for line in table.items() if line[1].record is type(value))


def written(value: Any) -> RawMessage:
    """Return the message of a record."""
    head = {"kind": kind_of(value)[0], **plain(value)}
    return RawMessage(head, head.pop("body", b""))


def sayable(text: str) -> str:
    """Make a text fit for a field: replace characters that are not valid Unicode, and cut a long text."""
    return text.encode(errors="replace").decode()[:10_000]


def answer(asked: Any, message: RawMessage) -> Any:
    """Return the record of the server's answer to an operator. ProtocolError for an answer that does not fit the question."""
    kind, line = kind_of(asked)
    if message.kind not in line.answers:
        raise ProtocolError(f"the server answers '{kind}' by {message.kind[:40]!a}.")
    return read(message, TO_OPERATOR)
