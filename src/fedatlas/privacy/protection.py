"""Protect a client's update before it leaves, by the mechanisms of an experiment.

In their sound order (P16): clip, noise, compress, mask or encrypt. All act on changes of what the client was told, except a mechanism
that noises whole models.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch

from fedatlas.aggregation.changes import leaves
from fedatlas.algorithm import Algorithm, Message, Question, State, Task, Transform, Update
from fedatlas.errors import DivergedError, ProtocolError
from fedatlas.privacy.ask_protocol import CHAIN, SESSION, way_of
from fedatlas.privacy.clipping import in_precision
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protocol import Doing
from fedatlas.transforms.change import BUFFERS, bases, change, decoded, encoded, restore

MADE = "made"  # in a node's session: digests of the answer under the masks (`deployment.opened_answers`)


class Protected(NamedTuple):
    """A client's update after protection: the sent part, the memory of its transform, its protocol's session, and the server's view."""

    sent: Update
    memory: State | None
    session: Any
    seen: Update


def under(algorithm: Algorithm, how: Protection) -> Algorithm:
    """Return the algorithm with the phases of its protection's protocol added to its tasks."""
    return algorithm._replace(tasks={**algorithm.tasks, **(how.protocol.questions if how.protocol else {})})


def protect(
    how: Protection,
    transform: Transform | None,
    task: Task | Question,
    message: Message,
    update: Update,
    memory: State | None,
    rng: torch.Generator,
    word: Mapping[str, Any],
    session: Any,
    doing: Doing,
) -> Protected:
    """Return what a client sends of its update and what it keeps."""
    if not update:
        return Protected({}, memory, session, {})
    check_finite(update, doing.client)
    if how.noising is not None and how.noising.unit == "client":
        check_parts(update)
    base = {} if how.whole else bases(task, message, update, chain=bool(word.get(CHAIN)))
    parts: Update = change(update, base)
    beside: dict[str, Any] = {}
    for work in how.works:
        beside |= {} if work.beside is None else work.beside(parts, how, doing)
        parts = parts if work.update is None or doing.hostile else work.update(parts, how, doing)
    seen = parts
    if transform is not None and isinstance(task, Task) and memory is not None:
        coded, memory = encoded(transform, task, {name: x for name, x in parts.items() if name != BUFFERS}, memory, rng)
        parts = {**parts, **coded}
        seen = decoded(transform, parts)
    if how.protocol is not None:
        if isinstance(session, Mapping) and MADE in session:
            session = {**session, MADE: made_of(parts, word, doing.what)}
        parts, session, seen = how.protocol.seal(parts, doing._replace(seed=how.seed), word, session)
    return Protected({**parts, **beside}, memory, session, in_precision(restore(seen, base), update))


def unaided(sent: Update, update: Update) -> Update:
    """Return what is sent of an update without what a mechanism adds next to it."""
    return {part: x for part, x in sent.items() if part in update}


def covered(how: Protection | None, word: Mapping[str, Any] | None) -> bool:
    """Whether noise covers a client's change. A failed client then sends a change of zero, and the run does not end by naming it.

    Noise inside local steps does not: a change of zero would reveal that a client failed.
    """
    return how is not None and how.noising is not None and how.noising.unit == "client" and word is not None


class Sparing(Protocol):
    """Decides whether a client that failed is left out of a round (`engine.job.Bench`)."""

    @property
    def spares(self) -> bool: ...
    @property
    def protection(self) -> Protection | None: ...


def left_out(bench: Sparing, word: Mapping[str, Any] | None, error: Exception) -> bool:
    """Return whether a client that failed sends nothing. If noise covers it, a client that diverged stays, with a change of zero."""
    return bench.spares and not (isinstance(error, DivergedError) and covered(bench.protection, word))


def made_of(parts: Update, word: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the task of an answer, a digest of it with its noise, a digest of all weights in its sum, and the same for each of ``parts``.

    The digest of an answer of zeros is "", since it reveals nothing. Algorithms may share a part, such as FedAvg's and SCAFFOLD's models.
    """
    table = word.get(SESSION, {}).get("head", {}).get("weights", word.get("weights"))
    each = {
        digest: weights_digest(way_of(table, part) if table else None)
        for part, x in parts.items()
        if isinstance(x, Mapping | torch.Tensor) and (digest := answer_digest({part: x}))
    }
    return {"what": what, "answer": answer_digest(parts), "weights": weights_digest(table), "parts": each}


def answer_digest(parts: Update) -> str:
    """Return a digest of these parts; "" if all are zeros."""
    found, zero = hashlib.sha256(), True
    for path, x in leaves(parts):
        if isinstance(x, torch.Tensor):
            zero = zero and not bool(x.any())
            found.update(f"{path} {x.dtype} {tuple(x.shape)}".encode())
            found.update(x.detach().contiguous().numpy().tobytes())
        else:
            zero = zero and not x
            found.update(f"{path} {x!r}".encode())
    return "" if zero else found.hexdigest()


def weights_digest(weights: Any) -> str:
    """Return a digest of all clients' weights."""
    return hashlib.sha256(json.dumps(weights, sort_keys=True, default=torch.Tensor.tolist).encode()).hexdigest()


def check_finite(update: Mapping[str, Any], client: int) -> None:
    """Raise DivergedError, as without a mechanism, before an update that is not finite is clipped, masked or encrypted."""
    for value in update.values():
        if isinstance(value, Mapping):
            check_finite(value, client)
        elif not (value.isfinite().all() if isinstance(value, torch.Tensor) else math.isfinite(value)):
            raise DivergedError(f"the update of client {client} is not finite")


def check_parts(update: Update) -> None:
    """Raise ProtocolError for an update whose parts have no common norm, since noise could not cover it."""
    for part, value in update.items():
        if not isinstance(value, Mapping) or part == BUFFERS:
            raise ProtocolError(
                f"'{part}' of an update would leave its client without noise: this algorithm cannot be kept private so."
            )
