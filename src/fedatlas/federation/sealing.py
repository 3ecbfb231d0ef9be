"""Where a transform acts: an update is sealed after the client's work and opened before the server reduces it.

A part that both ends know the origin of (`Sealing.base`: the model) is handed over as its change, formed in float64 and
rounded to the run's precision; other parts as they are. A part that comes back as a tree (clipped, or left alone)
travels as an ordinary part of the update; one that comes back as anything else is opened on the server by ``decode``.
Statistics of batch norm, and layers that stay with the client (`Sealing.beside`), pass untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedatlas.algorithm import SERVER, Message, Question, State, Task, Transform, Update
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.federation.link import Request
from fedatlas.tree import Tree

MEMORY = "$memory"  # beside the algorithm's own state of a client: task -> memory of the transform
BUFFERS = "buffers"  # never transformed (C9)
BESIDE = "beside"  # where a model's tensors of `Sealing.beside` travel


def sealed(transform: Transform | None, task: Task | Question, request: Request) -> bool:
    """Whether the update is sealed: those of rounds that reach the server are, but not sums such as class counts, or answers.

    A reducer of one's own is handed each update as it was opened.

    A set-up (round 0) is sent whole: what is left out of a model that is sent once would never come.
    """
    own = request.word is None and request.reduce not in {"sum", "neighbours"}  # a protected one goes its own way
    to_server = not request.peer and (own or request.reduce in {"mean", "each"}) and request.client != SERVER
    return transform is not None and isinstance(task, Task) and request.round > 0 and to_server


def told(message: Message, anchor: Tree | None) -> Message:
    """What a client whose update will be sealed is told: its message, and the model that the server knows (`Route.anchors`)."""
    return message if anchor is None else {**message, "anchor": anchor}


def seal(
    transform: Transform, task: Task, message: Message, update: Update, memory: State, rng: torch.Generator
) -> tuple[Update, State]:
    """The update as it is sent, and the new memory. Memory is made at the first use, but for parts that a state tracks."""
    update, beside = _parted(task, message, update)
    base = _base(task, message, update)
    parts = {name: _change(value, base.get(name)) for name, value in update.items()}
    if not memory and transform.memory_init is not None:
        memory = transform.memory_init({name: x for name, x in parts.items() if name not in task.sealing.tracked})
    encoded, memory = transform.encode(parts, memory, rng)
    sent = dict(update)
    for name, value in encoded.items():
        if value is not parts[name]:
            whole = isinstance(value, Tree) and name in base
            sent[name] = _apply(value, base[name]) if whole else value
    return {**sent, **beside}, memory


def unseal(transform: Transform | None, task: Task, message: Message, sent: Update) -> Update:
    """The update as the server sees it. The client calls it, too, where its state follows what the server sees."""
    if transform is None:
        return sent
    opened: Update = {name: value for name, value in sent.items() if name not in {BUFFERS, BESIDE}}
    if transform.decode is not None:
        opened = transform.decode(opened)
    base = task.sealing.base(message, opened)
    changes = [name for name in opened if name in base and not isinstance(sent[name], Tree)]
    seen = {**sent, **opened, **{name: _apply(opened[name], base[name]) for name in changes}}
    return _joined(message, seen) if BESIDE in seen else seen


def _parted(task: Task, message: Message, update: Update) -> tuple[Update, Update]:
    """What a transform acts on, and what passes beside it."""
    names, model = task.sealing.beside(message), update.get("model", {})
    acted = {name: value for name, value in update.items() if name != BUFFERS}
    beside = {BUFFERS: update[BUFFERS]} if BUFFERS in update else {}
    if not any(name in model for name in names):
        return acted, beside
    kept = Tree({name: x for name, x in model.items() if name in names})
    return {**acted, "model": Tree({name: x for name, x in model.items() if name not in names})}, {
        **beside,
        BESIDE: kept,
    }


def _joined(message: Message, seen: Update) -> Update:
    """The update with a whole model again, its tensors in the order of the model that was told."""
    model = {**seen["model"], **seen[BESIDE]}
    whole = Tree({name: model[name] for name in message["model"] if name in model})
    return {**{name: value for name, value in seen.items() if name != BESIDE}, "model": whole}


def _base(task: Task, message: Message, update: Update) -> Mapping[str, Tree]:
    """What the parts are changes of. ProtocolError for a model of unknown origin: a whole model cannot be thinned out."""
    base = task.sealing.base(message, update)
    odd = [name for name, x in base.items() if any(x[i].shape != update[name][i].shape for i in x)]
    if odd or (update.get("model") and "model" not in base):
        raise ProtocolError("a client returned a model that is no change of one it was told: remove [compression].")
    return base


def _change(value: Any, base: Tree | None) -> Any:
    """``value - base`` of a part, in the precision of ``value``; DivergedError where it is not finite."""
    if isinstance(value, Tree) and base is not None:
        value = value.map(lambda x, b: (x.double() - b.double()).to(x.dtype), base)
    if isinstance(value, Tree) and not all(bool(torch.isfinite(x).all()) for x in value.values()):
        raise DivergedError("a client's update is not finite")
    return value


def _apply(change: Tree, base: Tree) -> Tree:
    """``base + change`` in the precision of ``base``."""
    return change.map(lambda x, b: (x.double() + b.double()).to(b.dtype), base)
