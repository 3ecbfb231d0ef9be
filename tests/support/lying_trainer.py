"""A node's trainer that does what no honest one does: ``lying_trainer.py HOWS BUNDLE DATA``; the first in round 2, the next in round 3.

``facts``: before round 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from fedatlas.deployment import trainer
from fedatlas.tree import Tree
from fedatlas.wire import codec
from fedatlas.wire.frames import RawMessage


def tampered(said: RawMessage, change: Any) -> RawMessage:
    reply = codec.decode(bytearray(said.body))
    reply["update"] = {**reply["update"], "model": change(reply["update"]["model"])}
    return RawMessage(said.head, codec.encode(reply))


def in_part(value: Any) -> Callable[[RawMessage], RawMessage]:
    """Something else in the place of the first tensor of a part beside the model."""

    def lie(said: RawMessage) -> RawMessage:
        reply = codec.decode(bytearray(said.body))
        part = next(name for name in reply["update"] if name != "model")
        reply["update"] = {**reply["update"], part: value}
        return RawMessage(said.head, codec.encode(reply))

    return lie


def in_work(place: int, value: Any) -> Callable[[RawMessage], RawMessage]:
    """Something else in a reply's account of its work."""
    return lambda said: RawMessage(
        {**said.head, "work": [*said.head["work"][:place], value, *said.head["work"][place + 1 :]]}, said.body
    )


PLAIN: Mapping[str, Callable[[RawMessage], RawMessage]] = {
    "text for tensors": in_part("none of the kind"),
    "None for tensors": in_part(None),
    "5 for tensors": in_part(5),
    "inf for tensors": in_part(torch.inf),
    "another's tensors": in_part(Tree({"x": torch.zeros(3)})),
    "text for a model": lambda said: tampered(said, lambda model: "text"),
    "rows": in_work(0, 1 << 40),
    "examples": in_work(2, 1 << 40),
    "loss": in_work(4, torch.inf),
    "rates": in_work(3, 1e308),
    "seconds": lambda said: RawMessage(
        said.head, codec.encode({**codec.decode(bytearray(said.body)), "seconds": 1e308})
    ),
}
"""Lies about a reply that has several parts."""


class Lying(trainer.Trainer):
    hows: tuple[str, ...] = ()

    def serve(self, message: RawMessage) -> Iterator[RawMessage]:
        for said in super().serve(message):
            if said.kind == "facts" and "facts" in self.hows:
                yield RawMessage({**said.head, "facts": {**said.head["facts"], "rows": "many"}})
                continue
            lies = dict(enumerate(self.hows, 2)) if said.kind == "reply" else {}
            at = said.head["place"][0] if lies else 0
            yield from self.lie(said, lies[at]) if at in lies else [said]

    def lie(self, said: RawMessage, how: str) -> Iterator[RawMessage]:
        if how == "nan":
            yield tampered(said, lambda model: model.map(lambda x: x * torch.nan))
        elif how == "misshapen":
            yield tampered(said, lambda model: model.map(lambda x: x.reshape(-1)[:1]))
        elif how == "other parts":
            yield tampered(said, lambda model: Tree({f"{name}.": x for name, x in model.items()}))
        elif how == "no codec":
            yield RawMessage(said.head, b"nothing of the kind" * 10)
        elif how == "foreign":
            yield RawMessage({**said.head, "run": "another"}, said.body)
            yield RawMessage({**said.head, "digest": "0" * 32}, said.body)
        elif how == "twice":
            yield said
            yield said
        elif how in PLAIN:
            yield PLAIN[how](said)
        elif how == "late":
            time.sleep(12)  # longer than the deadline of the round
            yield said


if __name__ == "__main__":
    Lying.hows = tuple(sys.argv.pop(1).split(","))
    trainer.Trainer = Lying  # type: ignore[misc]
    trainer.main()
