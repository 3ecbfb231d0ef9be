"""The form of an honest reply: its parts, types and shapes, and the most work that it can report.

The server knows the experiment, so it derives the form itself. It asks a party that holds two rows of zeros the same
question. A reply of another form cannot be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fedatlas.algorithm import Budget, Question, Task, Update, Work
from fedatlas.data.batches import examples_of
from fedatlas.deployment.node_judging import JUDGE, impossible
from fedatlas.engine.job import Bench
from fedatlas.federation.link import Reply, Request
from fedatlas.federation.party import PartyHalf
from fedatlas.tree import Tree

SECONDS, LARGEST = 1e7, 1e30  # limits: seconds of a task, size of a loss


class ReplyForms:
    """The forms of one run's replies. ``example``: makes the party that is asked for an example."""

    def __init__(self, example: Callable[[], PartyHalf]) -> None:
        self.example = example
        self.party: PartyHalf | None = None
        self.known: dict[tuple[str, ...], Update | None] = {}

    def of(self, request: Request, opened: Callable[[Request, Update], Update]) -> Update | None:
        """Return an honest update, ``opened`` as the server opens it; None if the example gives none."""
        key = request.what, request.reduce, *sorted(request.message)
        if key not in self.known:
            made = self._made(request)
            self.known[key] = None if made is None else opened(request, made)
        return self.known[key]

    def _made(self, request: Request) -> Update | None:
        self.party = self.party or self.example()
        budget = None if request.budget is None and request.round == 0 else Budget(steps=1)
        asked = request._replace(client=0, budget=budget)
        try:
            (answer,) = self.party.answer([asked])
        except Exception:  # noqa: BLE001  # two rows of zeros may be too few for an honest question: then only types are checked
            return None
        return None if answer.lost else answer.reply.update


def unlike(form: Any, value: Any, at: str) -> str:
    """Return why a value does not have a form, or "". Numbers must be finite."""
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping) or isinstance(form, Tree) != isinstance(value, Tree):
            return f"{at} is no table of the expected kind"
        if odd := sorted({*form} ^ {*value}):
            return f"{at} has other parts than were asked for (see '{odd[0]}')"
        found = (unlike(form[name], value[name], f"'{name}' of its reply") for name in form)
        return next((why for why in found if why), "")
    if isinstance(form, Tensor):
        if not isinstance(value, Tensor) or (value.dtype, value.shape) != (form.dtype, form.shape):
            return f"{at} is not a tensor of the expected type and shape"
    elif _number(form) != _number(value) or not (_number(form) or type(form) is type(value)):
        return f"{at} is not of the expected kind"
    return not_finite(value, at)


def not_finite(value: Any, at: str) -> str:
    """Return why a value of a reply is not finite, or ""."""
    if isinstance(value, Mapping | list):
        inside = value.items() if isinstance(value, Mapping) else enumerate(value)
        return next((why for name, one in inside if (why := not_finite(one, f"'{name}' of its reply"))), "")
    if isinstance(value, Tensor):
        finite = not value.is_floating_point() or bool(torch.isfinite(value).all())
    else:
        finite = not isinstance(value, float) or math.isfinite(value)
    return "" if finite else f"{at} is not finite"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def unlikely(reply: Reply, work: Work) -> str:
    """Return why the seconds and bytes that a reply reports are impossible, or ""."""
    seconds = 0 <= reply.seconds <= SECONDS and 0 <= reply.sealing <= SECONDS
    if not (seconds and 0 <= reply.bare < 1 << 40):
        return "the seconds or bytes of its reply cannot be"
    if work.examples < work.steps or bool(work.steps) != bool(work.examples) or work.lr_sum < 0:
        return "the work of its reply cannot be"
    return ""


def overworked(request: Request, work: Work, rows: int, bench: Bench) -> str:
    """Return why a node cannot have done this much work for a request, or "".

    ``rows``: the number that it announced.
    """
    task: Task | Question = bench.algorithm.tasks[request.what]
    if work.n_k > rows:
        return f"it says that it has {work.n_k} rows, and announced {rows}"
    local, least = bench.local, bench.network.least
    cut = (local.batch_size, least, local.merge)
    most = examples_of(request.budget or local.budget, rows, *cut) if isinstance(task, Task) else 0
    if work.examples > most:
        return f"it says that it went through {work.examples} examples, and was asked for {most}"
    if work.lr_sum > work.steps * max(10 * request.lr, 1.0):
        return "the learning rates of its reply cannot be"
    kept = math.isnan(work.loss) and bench.protection is not None  # under masks a node does not report its loss
    if work.steps and not kept and not abs(work.loss) < LARGEST:
        return "the training loss of its reply is not finite"
    return ""


def misjudged(request: Request, update: Update) -> str:
    """Return why the sums of a judgement are impossible, or ""."""
    if request.what != JUDGE:
        return ""
    return "the sums of its judgement cannot be" if impossible(update) else ""
