"""The bodies of messages before round 1: what a node is told of a run, and the sums that parties ask each other for.

They are the codec's bytes, and hold tensors. A task and its reply are a `federation.link.Request` and a `Reply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.node_setup import LearntSum
from fedatlas.engine.executors import Plan
from fedatlas.errors import FedatlasError, ProtocolError, first_line
from fedatlas.wire import codec
from fedatlas.wire.fields import plain, record
from fedatlas.wire.frames import Body
from fedatlas.wire.messages import Count, Landed, Name, Open, RunName


class SumTerms(NamedTuple):
    """A question of round 0."""

    about: RowsFacts  # what the rows of all nodes are
    message: Mapping[str, Any]


class Sums(NamedTuple):
    """A node's answer to it."""

    answer: Mapping[str, Any]


class RowsTerms(NamedTuple):
    """A run on rows, as a node is told of it."""

    run: RunName
    config: Open
    operator: Name
    names: tuple[Name, ...]
    number: Count  # of the node
    about: RowsFacts
    totals: tuple[LearntSum, ...]
    plan: Plan
    worth: tuple[Count, ...]  # batch sizes that get a program, which follow from all nodes' rows
    most: Count  # rows of the largest node
    stateful: bool  # whether nodes keep a state
    landed: Landed
    judging: bool  # whether nodes judge the model
    rows: str = ""  # fingerprint of the node's own rows, which it writes down


class ColumnsTerms(NamedTuple):
    """A run of parties that hold columns, as a node is told of it."""

    run: RunName
    config: Open
    operator: Name
    names: tuple[Name, ...]
    number: Count
    active: Count  # the node that has the label
    stateful: bool
    landed: Landed
    rows: str = ""


def terms_of(value: Any, at: str) -> RowsTerms | ColumnsTerms:
    """The terms of a run in a table: on columns where it names an active node."""
    terms: RowsTerms | ColumnsTerms = record(ColumnsTerms if "active" in value else RowsTerms, value, at)
    return terms


def encoded(terms: Any) -> bytearray:
    """A record as a body."""
    return codec.encode(plain(terms))


def decoded(kind: Any, body: Body) -> Any:
    """The record in a body. ProtocolError for bytes that hold none."""
    try:
        return record(kind, codec.decode(bytearray(body), copy=False), kind.__name__)
    except FedatlasError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever foreign bytes lead to
        raise ProtocolError(f"the bytes of a message cannot be read ({first_line(error)}).") from None
