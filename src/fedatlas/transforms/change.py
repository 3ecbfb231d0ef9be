"""An update as a change from a base known to both ends, and back: the only place where compression and ``[[privacy]]`` do this.

Both ends know the base of some parts of an update (`Sealing.base`: the model it was trained from). Such a part becomes its change
in float64, rounded to the run's precision, is transformed, and is added to its base again; other parts are transformed unchanged.
Integers (counters of batch norm) have no change and stay with the base.

`seal` and `unseal` apply a transform to an update that the server opens by itself. A part that comes back as a tree (clipped, or
unchanged) travels as an ordinary part of the update; anything else is opened on the server by ``decode``. Statistics of
batch norm, and layers that stay with the client (`Sealing.beside`), pass unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedatlas.algorithm import Message, Question, State, Task, Transform, Update
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.tree import Tree

BUFFERS = "buffers"  # never transformed (C9)
BESIDE = "beside"  # part that carries a model's tensors in `Sealing.beside`


def bases(
    task: Task | Question, message: Message, update: Mapping[str, Any], *, chain: bool = False
) -> dict[str, Tree]:
    """Return, by part, the base known to both ends: `Sealing.base`, and the buffers that came with the message.

    In a ``chain`` the buffers are those of the previous client, which the server does not know.
    """
    if not isinstance(task, Task):
        return {}
    found = {name: Tree(base) for name, base in task.sealing.base(message, update).items()}
    told = None if chain else message.get(BUFFERS)
    return {**found, BUFFERS: Tree(told)} if told and BUFFERS in update else found


def change(update: Update, base: Mapping[str, Tree]) -> dict[str, Any]:
    """Return the parts as changes of their base, in the precision of the update; integers are left out."""
    out = dict(update)
    for part, known in base.items():
        if isinstance(value := update.get(part), Tree):
            floats = {name: x for name, x in value.items() if x.is_floating_point()}
            out[part] = Tree({name: (x.double() - known[name].double()).to(x.dtype) for name, x in floats.items()})
    return out


def restore(changes: Update, base: Mapping[str, Tree], *, exact: bool = False) -> dict[str, Any]:
    """Return the parts added to their base, in its precision or, if ``exact``, in float64. ValueError if names differ."""
    out = dict(changes)
    for part, known in base.items():
        if isinstance(value := changes.get(part), Tree):
            floats = {name: b for name, b in known.items() if b.is_floating_point()}
            whole = value.map(lambda x, b: x.double() + b.double(), floats)
            out[part] = Tree({name: _in(whole.get(name, b), b, exact) for name, b in known.items()})
    return out


def _in(x: torch.Tensor, base: torch.Tensor, exact: bool) -> torch.Tensor:
    return x if exact else x.to(base.dtype)


def encoded(
    transform: Transform, task: Task, parts: Update, memory: State, rng: torch.Generator
) -> tuple[Update, State]:
    """Return the encoded parts and the new memory; memory is created at the first use, except for parts that a state tracks."""
    if not memory and transform.memory_init is not None:
        memory = transform.memory_init({name: x for name, x in parts.items() if name not in task.sealing.tracked})
    return transform.encode(parts, memory, rng)


def decoded(transform: Transform | None, sent: Update) -> Update:
    """Return the update as the server decodes it, if it can be decoded."""
    if transform is None or transform.decode is None:
        return sent
    return {**sent, **transform.decode({name: x for name, x in sent.items() if name not in {BUFFERS, BESIDE}})}


def seal(
    transform: Transform, task: Task, message: Message, update: Update, memory: State, rng: torch.Generator
) -> tuple[Update, State]:
    """Return the update as it is sent, and the new memory. DivergedError if a change is not finite."""
    update, beside = _parted(task, message, update)
    base = _known(task, message, update)
    parts = change(update, base)
    if not all(bool(x.isfinite().all()) for tree in parts.values() if isinstance(tree, Tree) for x in tree.values()):
        raise DivergedError("a client's update is not finite")
    coded, memory = encoded(transform, task, parts, memory, rng)
    acted = {name: value for name, value in coded.items() if value is not parts[name]}
    return {**update, **restore(acted, base), **beside}, memory


def unseal(transform: Transform | None, task: Task, message: Message, sent: Update) -> Update:
    """Return the update as the server sees it. Also called by a client whose state follows what the server sees."""
    if transform is None:
        return sent
    seen = decoded(transform, sent)
    base = task.sealing.base(message, {name: x for name, x in seen.items() if name not in {BUFFERS, BESIDE}})
    seen = {
        **seen,
        **restore({name: seen[name] for name in base if not isinstance(sent.get(name, Tree()), Tree)}, base),
    }
    return _joined(message, seen) if BESIDE in seen else seen


def _parted(task: Task, message: Message, update: Update) -> tuple[Update, Update]:
    """Return the parts that a transform acts on, and those that bypass it."""
    acted = {name: value for name, value in update.items() if name != BUFFERS}
    beside: dict[str, Any] = {BUFFERS: update[BUFFERS]} if BUFFERS in update else {}
    names, model = task.sealing.beside(message), update.get("model", {})
    if any(name in model for name in names):
        beside[BESIDE] = Tree({name: x for name, x in model.items() if name in names})
        acted["model"] = Tree({name: x for name, x in model.items() if name not in names})
    return acted, beside


def _joined(message: Message, seen: Update) -> Update:
    """Return the update with a complete model, its tensors in the order of the model that was sent."""
    model = {**seen["model"], **seen[BESIDE]}
    whole = Tree({name: model[name] for name in message["model"] if name in model})
    return {**{name: value for name, value in seen.items() if name != BESIDE}, "model": whole}


def _known(task: Task, message: Message, update: Update) -> Mapping[str, Tree]:
    """Return the bases of the parts. ProtocolError for a model without a base: a whole model cannot be thinned out."""
    base = task.sealing.base(message, update)
    odd = [name for name, x in base.items() if any(x[i].shape != update[name][i].shape for i in x)]
    if odd or (update.get("model") and "model" not in base):
        raise ProtocolError("a client returned a model that is not a change of one it received: remove [compression].")
    return base
