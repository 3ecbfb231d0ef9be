"""Messages between processes: every field is read by its type, and programs of different protocols refuse each other."""

from __future__ import annotations

import hashlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedatlas.deployment.node_columns import ColumnsFacts
from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.terms import RowsSetup, Sums, SumTerms
from fedatlas.deployment.trainer import Trainer
from fedatlas.errors import ProtocolError, TransportError
from fedatlas.federation.link import Reply, Request
from fedatlas.wire import messages
from fedatlas.wire.agreement import Agreement
from fedatlas.wire.bundle import Bundle, init
from fedatlas.wire.fields import Bound, record
from fedatlas.wire.frames import Assembler, Body, RawMessage, frames, parsed
from fedatlas.wire.messages import PROTOCOL, Count, MessageKind, NodeHello, Open, RunFile, RunName, read, written
from fedatlas.wire.speaker import Speaker
from test_deploy_admission import PATIENCE, VERSION, Site, Talk, let_in

pytestmark = pytest.mark.timing

TABLES = {
    "TO_NODE": messages.TO_NODE,
    "FROM_NODE": messages.FROM_NODE,
    "FROM_TRAINER": messages.FROM_TRAINER,
    "FROM_OPERATOR": messages.FROM_OPERATOR,
    "TO_OPERATOR": messages.TO_OPERATOR,
}
KINDS = [(way, kind) for way, table in TABLES.items() for kind in table]
BODIES = (RowsFacts, ColumnsFacts, Agreement, SumTerms, Sums, RowsSetup, Request, Reply)
SCHEMA = (6, "60ce99e618f5")
"""PROTOCOL, and the digest of the messages and bodies that it stands for. A change of one raises the number; both are then written here."""

site = pytest.fixture(lambda tmp_path: (yield from listening(tmp_path)))


def listening(folder: Path) -> Iterator[Site]:
    made = Site(folder)
    yield made
    made.listener.stop()


# ------------------------------------------------------------------------------------------------------------ the schema


def schema(kind: Any) -> str:
    """A type in words that do not depend on the version of Python."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        return f"{schema(inner[0])} within {tuple(inner[1])}"
    if hasattr(kind, "_fields"):
        fields = get_type_hints(kind, include_extras=True).items()
        return str([(name, schema(one), repr(kind._field_defaults.get(name, "due"))) for name, one in fields])
    if inner:
        return (
            f"{getattr(get_origin(kind), '__name__', '')}{[schema(one) if one is not ... else '...' for one in inner]}"
        )
    return getattr(kind, "__name__", repr(kind))


def test_a_message_that_changes_raises_the_number_of_the_protocol():
    heads = [(way, kind, TABLES[way][kind].answers, schema(TABLES[way][kind].record)) for way, kind in KINDS]
    text = str([heads, [(one.__name__, schema(one)) for one in BODIES]])
    assert (PROTOCOL, hashlib.sha256(text.encode()).hexdigest()[:12]) == SCHEMA, "raise PROTOCOL, then write both here"


def test_what_answers_a_message_is_sent_by_the_other_end():
    ends = {"TO_NODE": ("FROM_NODE", "FROM_TRAINER"), "FROM_NODE": ("TO_NODE",), "FROM_OPERATOR": ("TO_OPERATOR",)}
    for way, kind in KINDS:
        there = {name for end in ends.get(way, ()) for name in TABLES[end]}
        assert {*TABLES[way][kind].answers} <= there, (way, kind)
    assert len({TABLES[way][kind].record for way, kind in KINDS}) == len(KINDS)


# ------------------------------------------------------------------------------------------------------------ the reader


def sample(kind: Any, bound: Bound = Bound()) -> Any:  # noqa: B008
    """A value of a type."""
    inner = get_args(kind)
    if get_origin(kind) is Annotated:
        return sample(*inner)
    if NoneType in inner:
        return sample(inner[0], bound)
    if bound.open:
        return {"a": [1, 0.5, None, {"b": True}]}
    if get_origin(kind) is tuple:
        return tuple(sample(one) for one in inner if one is not ...)
    if get_origin(kind) is Mapping:
        return {sample(inner[0]): sample(inner[1])}
    if hasattr(kind, "_fields"):
        return kind(*(sample(hint) for hint in get_type_hints(kind, include_extras=True).values()))
    if kind is str:
        return next(text for text in ("some", "0" * 32) if re.fullmatch(bound.pattern, text))
    return {bool: True, int: 3, float: 0.5}.get(kind, b"bytes")


ODD: list[Any] = [
    None, True, 1, -2, 1 << 63, -(10**400), 0.5, float("nan"), float("inf"), "", "x" * 200_000_0, "\ud800", "../up",
    [], [1], [[[]]], {}, {"x": "abc"}, {"": {}}, [None] * 200_000,
]  # fmt: skip
FORM = re.compile(r"the field '[\w. -]{1,100}' is .{1,200}\.")


def refused_because(head: Mapping[str, Any], body: Body, table: Mapping[str, MessageKind]) -> str:
    """Why a message is refused, or ""; an error of another kind passes through."""
    try:
        read(RawMessage(head, body), table)
    except ProtocolError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("way", "kind"), KINDS)
def test_a_message_is_read_as_it_was_written_and_a_field_that_does_not_fit_is_named(way: str, kind: str):
    table = TABLES[way]
    made = sample(table[kind].record)
    message = written(made)
    (frame,) = frames(message)
    raw = Assembler().feed(frame)
    assert raw is not None
    assert read(raw, table) == made
    fields = [name for name in message.head if name != "kind"]
    heads = [{**message.head, name: odd} for name in fields for odd in ODD]
    heads += [{other: one for other, one in message.head.items() if other != name} for name in fields]
    heads += [{**message.head, "more": 1}, {**message.head, "body": "x"}]
    refused = 0
    for head in heads:
        why = refused_because(head, message.body, table)
        refused += bool(why)
        assert not why or FORM.fullmatch(why) or "body" in why, why
    assert refused >= 2 + 5 * len(fields)
    if not message.body:
        with pytest.raises(ProtocolError, match="has a body that it should not have"):
            read(RawMessage(message.head, b"x"), table)


@given(
    kind=st.sampled_from(KINDS),
    head=st.dictionaries(
        st.sampled_from(["run", "runs", "place", "work", "why", "names", "config", "facts", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
    ),
)
def test_nothing_but_a_sentence_comes_of_foreign_fields(kind: tuple[str, str], head: dict[str, Any]):
    way, name = kind
    why = refused_because({**head, "kind": name}, b"", TABLES[way])
    assert not why or why.endswith(".")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (int, True, "is not a whole number"),
        (float, "1", "is not a number"),
        (float, float("nan"), "is not finite, or out of its range"),
        (Count, -1, "is not finite, or out of its range"),
        (tuple[int, int], [1], "is not a list of 2 items"),
        (Literal["a", "b"], "c", "is not one of a, b"),
        (RunName, "../other", "is not the name of a run"),
        (RunName, "", "is not the name of a run"),
        (Annotated[str, Bound(most=3)], "four", "is longer than 3 characters"),
        (Annotated[Mapping, Bound(most=8, open=True)], {"a": "longer"}, "is not plain values of at most 8 characters"),
        (Open, {"a": b""}, "is not plain values of at most 16,777,216 characters"),
        (RunFile, {"name": "a/../../b", "body": b""}, "is not the name of a file in a folder"),
        (RunFile, {"name": "/etc/some", "body": b""}, "is not the name of a file in a folder"),
        (Body, "text", "is of another type"),
    ],
)
def test_a_value_that_does_not_fit_its_type(kind: Any, value: Any, why: str):
    with pytest.raises(ProtocolError, match=re.escape(why)):
        record(kind, value, "some")


def test_a_field_that_is_given_twice_is_refused():
    head = b'{"kind":"landed","run":"r","landed":1,"landed":2}'
    with pytest.raises(TransportError, match="names a field twice"):
        parsed(bytearray(len(head).to_bytes(4, "little") + head))


def test_a_node_refuses_a_message_that_it_cannot_read(tmp_path: Path):
    trainer = Trainer(
        Bundle.open(init(tmp_path / "some", ["north"], "localhost")["north"], "node"), tmp_path / "no.csv"
    )
    for message, why in [
        (RawMessage({"kind": "train", "run": "r"}), f"the message 'train' is not one of protocol {PROTOCOL}."),
        (
            RawMessage({"kind": "commit", "run": "r", "verdicts": [[1, 1, -1]]}),
            "'commit.verdicts.0.1' is not true or false",
        ),
        (RawMessage({"kind": "begin", "run": "r"}, b"\0" * 64), "the field 'begin.agreement' is missing"),
    ]:
        (said,) = trainer.serve(message)
        refused = read(said, messages.FROM_TRAINER)
        assert (refused.to, refused.run) == (message.kind, "r")
        assert why in refused.why


# ----------------------------------------------------------------------------------------------------------- over streams


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ({"protocol": PROTOCOL - 1}, f"protocol {PROTOCOL - 1}"),
        ({}, "no protocol number"),
        ({"protocol": str(PROTOCOL)}, "no protocol number"),
    ],
)
def test_the_server_refuses_a_node_of_another_protocol(site: Site, protocol: dict[str, Any], said: str):
    hello = RawMessage({"kind": "hello", "instance": "1", "version": VERSION, "ready": True, **protocol})
    why = Talk(site.node(), first=hello).ended()
    assert why.startswith(f"refused: it speaks {said}")
    assert why.endswith(f"and the server protocol {PROTOCOL}: install the same version of fedatlas")
    assert site.listener.events.empty()


TRAINER = """
import sys
from fedatlas.wire.frames import read, write
from fedatlas.wire.messages import TrainerReady, written
write(sys.stdout.buffer, written(TrainerReady({})))
read(sys.stdin.buffer)
"""


def speaking(bundle: Bundle, code: str, logged: list[str]) -> Speaker:
    speaker = Speaker(bundle, [sys.executable, "-c", code], logged.append)
    threading.Thread(target=speaker.speak, daemon=True).start()
    return speaker


@pytest.mark.parametrize(("theirs", "said"), [(PROTOCOL + 1, f"protocol {PROTOCOL + 1}"), (None, "no protocol number")])
def test_a_node_refuses_a_server_of_another_protocol(
    site: Site, monkeypatch: pytest.MonkeyPatch, theirs: int | None, said: str
):
    """A server that says another number, or one from before there was a number: its first word is a sign of life."""

    def greet(stream: Any, message: RawMessage) -> None:
        if theirs:
            stream.out.put(RawMessage({"kind": "hello", "protocol": theirs, "version": VERSION}))
        stream.instance = "1"

    monkeypatch.setattr(site.listener, "_greet", greet)
    logged: list[str] = []
    speaker = speaking(site.node(), TRAINER, logged)
    wait(lambda: bool(logged))
    speaker.end()
    assert (
        logged[0] == f"the server speaks {said} and this node protocol {PROTOCOL}: install the same version of fedatlas"
    )


def wait(true: Callable[[], bool]) -> None:
    waited = threading.Event()
    assert any(true() or waited.wait(0.05) for _ in range(int(20 * PATIENCE)))


def test_a_hello_that_cannot_be_read_loses_its_node_and_no_other(site: Site):
    hello = written(NodeHello(PROTOCOL, "1", VERSION, ready=True))
    bad = RawMessage({**hello.head, "runs": {"x": "abc"}})
    assert Talk(site.node(), first=bad).ended() == "refused: the field 'hello.runs.x' is not a whole number."
    talk, (name, said) = let_in(site, "south")
    assert (name, said.instance) == ("south", "1")
    talk.more = [*frames(RawMessage({"kind": "landed", "run": "r", "landed": True}))]
    assert talk.ended() == "refused: the field 'landed.landed' is not a whole number."


# ------------------------------------------------------------------------------------------- the recipe in CONTRIBUTING.md


class TemperatureQuestion(NamedTuple):
    """How warm is it at the node?"""

    run: RunName


class TemperatureAnswer(NamedTuple):
    """Degrees at the node."""

    run: RunName
    degrees: float


NEW = """
import sys
from typing import NamedTuple
from fedatlas.wire import messages
from fedatlas.wire.agreement import Agreement
from fedatlas.wire.frames import read, write
from fedatlas.wire.messages import MessageKind, RunName, TrainerReady, written

class TemperatureQuestion(NamedTuple):
    run: RunName

class TemperatureAnswer(NamedTuple):
    run: RunName
    degrees: float

messages.TO_NODE["temperature"] = MessageKind(TemperatureQuestion, ("degrees",))
messages.FROM_TRAINER["degrees"] = MessageKind(TemperatureAnswer)
write(sys.stdout.buffer, written(TrainerReady({})))
asked = messages.read(read(sys.stdin.buffer), messages.TO_NODE)
write(sys.stdout.buffer, written(TemperatureAnswer(asked.run, 21.5)))
read(sys.stdin.buffer)
"""


def test_a_new_message_is_a_record_and_a_line_in_a_table(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(messages.TO_NODE, "temperature", MessageKind(TemperatureQuestion, ("degrees",)))
    monkeypatch.setitem(messages.FROM_TRAINER, "degrees", MessageKind(TemperatureAnswer))
    speaker = speaking(site.node(), NEW, [])
    name, hello = site.listener.events.get(timeout=PATIENCE)
    assert (name, type(hello)) == ("north", NodeHello)
    assert site.listener.send("north", TemperatureQuestion("r"))
    assert site.listener.events.get(timeout=PATIENCE) == ("north", TemperatureAnswer("r", 21.5))
    speaker.end()
