"""The bodies of messages before round 1: questions of round 0, and its outcome.

They are bytes of the codec, and hold tensors. A task and its reply are a `federation.link.Request` and a `Reply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.node_setup import LearntSum
from fedatlas.errors import FedatlasError, ProtocolError, first_line
from fedatlas.wire import codec
from fedatlas.wire.fields import plain, record
from fedatlas.wire.frames import Body
from fedatlas.wire.messages import Count


class SumTerms(NamedTuple):
    """The state of round 0 before a question. A node works out the question that is due (`node_setup.question_due`)."""

    about: RowsFacts  # facts of the rows of all nodes
    totals: tuple[LearntSum, ...]  # the sums so far


class Sums(NamedTuple):
    """A node's answer to the question."""

    answer: Mapping[str, Any]


class RowsSetup(NamedTuple):
    """The second part of the agreement on a run on rows: the outcome of round 0. All nodes receive the same bytes."""

    about: RowsFacts
    totals: tuple[LearntSum, ...]
    worth: tuple[Count, ...]  # batch sizes that get a compiled program, from all nodes' rows
    most: Count  # rows of the largest node
    examples: Count  # training rows of all nodes
    holders: tuple[Count, ...]  # numbers of the nodes that hold training rows
    judging: tuple[Count, ...]  # numbers of the nodes that judge the model; empty: the server judges
    initial: Tensor | None = None  # bytes of the file of model.init, if the experiment has one

    def file(self) -> bytes:
        """Return the file of model.init; b"" without one. ProtocolError for a tensor that does not hold bytes."""
        if self.initial is None:
            return b""
        if self.initial.dtype != torch.uint8 or self.initial.dim() != 1:
            raise ProtocolError("the file of model.init is not bytes.")
        return self.initial.numpy().tobytes()


def carried(data: bytes) -> Tensor | None:
    """Return the bytes of a file as a record carries them; None without a file."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else None


def encoded(terms: Any) -> bytearray:
    """Return a record as a body."""
    return codec.encode(plain(terms))


def decoded(kind: Any, body: Body) -> Any:
    """Return the record in a body. ProtocolError if the bytes do not hold one."""
    try:
        return record(kind, codec.decode(bytearray(body)), kind.__name__)
    except FedatlasError:
        raise
    except Exception as error:  # noqa: BLE001  # foreign bytes may lead to any error
        raise ProtocolError(f"the bytes of a message cannot be read ({first_line(error)}).") from None
