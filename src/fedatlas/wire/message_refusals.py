"""Refusals: of a message that a node does not answer, and of a program with another protocol."""

from __future__ import annotations

from typing import Any

from fedatlas.errors import ProtocolError
from fedatlas.wire.fields import record
from fedatlas.wire.frames import RawMessage
from fedatlas.wire.messages import PROTOCOL, Refusal, sayable


def refusal(message: RawMessage, why: str, *, dropped: bool = False) -> Refusal:
    """Make the refusal of a message. It names the run, the place and the number of the question if these can be read."""
    about = {name: one for name, one in message.head.items() if name in {"run", "place", "index"}}
    said: dict[str, Any] = {"to": message.kind[:40], "why": sayable(why), "dropped": dropped}
    try:
        made: Refusal = record(Refusal, {**said, **about}, "refused")
    except ProtocolError:
        made = Refusal(**said)
    return made


def other_protocol(message: RawMessage, who: str, other: str) -> str:
    """Return why two programs cannot talk, judged by the ``hello`` of one; "" if both speak this protocol."""
    theirs = message.head.get("protocol")
    if type(theirs) is int and theirs == PROTOCOL:
        return ""
    said = f"protocol {theirs}" if type(theirs) is int and 0 <= theirs < 1 << 31 else "no protocol number"
    return f"{who} speaks {said} and {other} protocol {PROTOCOL}: install the same version of fedatlas"
