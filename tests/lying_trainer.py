"""A node's trainer that does what no honest one does: ``lying_trainer.py HOW BUNDLE DATA``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from fedatlas.deploy import codec
from fedatlas.deploy.frames import Message
from fedatlas.deployed import training
from fedatlas.tree import Tree


def tampered(said: Message, change: Any) -> Message:
    reply = codec.decode(bytearray(said.body))
    reply["update"] = {**reply["update"], "model": change(reply["update"]["model"])}
    return Message(said.head, codec.encode(reply))


class Lying(training.Trainer):
    how = ""

    def serve(self, message: Message) -> Iterator[Message]:
        for said in super().serve(message):
            lies = said.kind == "reply" and said.head["place"][0] == 2
            yield from self.lie(said) if lies else [said]

    def lie(self, said: Message) -> Iterator[Message]:
        if self.how == "nan":
            yield tampered(said, lambda model: model.map(lambda x: x * torch.nan))
        elif self.how == "misshapen":
            yield tampered(said, lambda model: model.map(lambda x: x.reshape(-1)[:1]))
        elif self.how == "other parts":
            yield tampered(said, lambda model: Tree({f"{name}.": x for name, x in model.items()}))
        elif self.how == "no codec":
            yield Message(said.head, b"nothing of the kind" * 10)
        elif self.how == "foreign":
            yield Message({**said.head, "run": "another"}, said.body)
            yield Message({**said.head, "digest": "0" * 32}, said.body)
        elif self.how == "twice":
            yield said
            yield said
        elif self.how == "late":
            time.sleep(3)
            yield said


if __name__ == "__main__":
    Lying.how = sys.argv.pop(1)
    training.Trainer = Lying  # type: ignore[misc]
    training.main()
