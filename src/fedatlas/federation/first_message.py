"""The first messages of a run, as a party works them out. It draws the initial model too, or reads it from the agreement.

Two things are compared: the model that is judged before round 1, and the first message of an algorithm without a custom set-up
(`grammar.Form.broadcast`). Another processor may draw different last bits from the seed, so tensors have to be close, not equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from fedatlas.algorithm import Algorithm, State
from fedatlas.federation.link import Request
from fedatlas.grammar import Form
from fedatlas.rounds import messages
from fedatlas.tree import Tree

NEAR, LEAST = 1e-5, 1e-7  # relative and absolute
JUDGED = "judged"


class FirstMessages:
    """The first messages of one run. ``begin`` makes the server's state before round 1; None if a party cannot know it."""

    def __init__(self, algorithm: Algorithm, begin: Callable[[], State] | None) -> None:
        self.algorithm, self.begin = algorithm, begin
        self.state: State | None = None
        self.alike: WeakValueDictionary[tuple[int, int], Tree] = WeakValueDictionary()  # trees already compared

    def allow(self, request: Request, form: Form | None) -> bool:
        """Whether a request holds what an honest server sends; True if a party cannot know."""
        if self.begin is None or request.round > 1:
            self.state = None  # messages of later rounds are not compared
            return True
        sent = form is not None and form.broadcast and request.sender is None
        if not (sent if request.round else JUDGED in request.message):
            return True
        if self.state is None:
            self.state = self.begin()
        if request.round == 0:
            return self._judged(request.message[JUDGED])
        return self._same(request.message, messages(self.algorithm, self.state, (request.client,))[request.client])

    def _judged(self, told: Any) -> bool:
        """Whether these are the tensors of the first model, including its statistics."""
        assert self.state is not None
        found = [{**model, **self.state.get("buffers", {})} for model in self.algorithm.models(self.state).values()]
        shared = [{name: x for name, x in model.items() if name in told} for model in found]
        return any(one and self._same({name: told[name] for name in one}, one) for one in shared)

    def _same(self, told: Any, known: Any) -> bool:
        if isinstance(known, Mapping):
            if isinstance(told, Tree) and (id(told), id(known)) in self.alike:
                return True
            same = isinstance(told, Mapping) and told.keys() == known.keys()
            same = same and all(self._same(told[name], x) for name, x in known.items())
            if same and isinstance(told, Tree):
                self.alike[id(told), id(known)] = told
            return same
        if isinstance(known, list | tuple):
            alike = isinstance(told, list | tuple) and len(told) == len(known)
            return alike and all(map(self._same, told, known))
        return close(told, known)


def close(told: Any, known: Any) -> bool:
    """Whether a leaf of a message equals the known one up to rounding."""
    if isinstance(known, float):
        return isinstance(told, float) and math.isclose(told, known, rel_tol=NEAR, abs_tol=LEAST)
    if not isinstance(known, Tensor):
        return not isinstance(known, bool | int | str) or bool(told == known)
    if not isinstance(told, Tensor) or (told.shape, told.dtype) != (known.shape, known.dtype):
        return False
    return torch.equal(told, known) or (
        known.is_floating_point() and torch.allclose(told, known, rtol=NEAR, atol=LEAST)
    )
