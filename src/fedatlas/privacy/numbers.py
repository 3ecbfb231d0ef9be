"""The numbers of an update as rows that can be summed under masks or encryption, and back: what of an update becomes which kind of number.

**Values** are the floating tensors of a mean: changes of a model, controls, scores. They travel in the agreed steps across
[-range, range). **Reals** are everything else: sums (class counts, moments), parts that are added up as they are, plain numbers. They are
few, of any size, and travel in steps of 2^-104. Whole numbers of a sum are reals that come out exactly. Counters of batch norm have no
sum and stay at home.

The form of an update (which parts, which names, which shapes) is no secret and goes along in the clear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.algorithm import Update
from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import way_of
from fedatlas.tree import Tree

REALS = "reals"


class Spec(NamedTuple):
    """How a part is weighted: the group that its values are summed in, and what they, and its reals, are multiplied by before."""

    group: str
    values: float = 1.0
    reals: float = 1.0


class Leaf(NamedTuple):
    """Numbers of one tensor, or a plain number, on their way into a group."""

    group: str
    name: str  # for messages: part and tensor
    numbers: Tensor  # (n,) float64, not yet multiplied
    factor: float

    @property
    def real(self) -> bool:
        """Whether they travel as reals."""
        return self.group.startswith(REALS)


def leaves(
    update: Update, spec: Callable[[str], Spec], *, mean: bool, sums: Collection[str] = ()
) -> tuple[list[Leaf], dict[str, Any]]:
    """(the numbers in their order, the form that `rebuilt` needs). ``sums``: parts of a mean that are added up as they are."""
    out: list[Leaf] = []
    form = {}
    for part, value in update.items():
        summed = not mean or part in sums
        form[part] = _flatten(value, part, Spec("", 1.0, 1.0) if summed else spec(part), not summed, out)
    return out, form


def coded(
    update: Update, word: Mapping[str, Any], code: Callable[[Leaf], tuple[Any, Tensor]]
) -> tuple[dict[str, list[Any]], dict[str, Any], Update]:
    """Return whole numbers by group, the form, and the update as it will be decoded. ``code``: both of one leaf."""
    ways, words, seen = word["weights"], dict[str, list[Any]](), dict[str, list[Tensor]]()
    found, form = leaves(update, lambda part: Spec(*way_of(ways, part)), mean=word["mean"], sums=word["sums"])
    for leaf in found:
        whole, decoded = code(leaf)
        words.setdefault(leaf.group, []).append(whole)
        seen.setdefault(leaf.group, []).append(decoded)
    return words, form, rebuilt(form, {group: torch.cat(rows) for group, rows in seen.items()})


def rebuilt(form: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Update:
    """The update of a form with the numbers of each group, one behind the other. ProtocolError where they do not fit."""
    ways = {group: _Row(group, x) for group, x in rows.items()}
    try:
        update = {part: _fill(one, ways) for part, one in form.items()}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        raise ProtocolError("an opened sum is not of the form that its clients say.") from None
    if left := [group for group, way in ways.items() if way.at < len(way.x)]:
        raise ProtocolError(f"an opened sum has more numbers in '{left[0]}' than its form names.")
    return update


def _flatten(value: Any, name: str, spec: Spec, mean: bool, out: list[Leaf]) -> Any:
    if isinstance(value, Mapping):
        kept = {k: x for k, x in value.items() if not (mean and isinstance(x, Tensor) and not x.is_floating_point())}
        inner = {k: _flatten(x, f"{name}.{k}", spec, mean, out) for k, x in kept.items()}
        return {"tree": isinstance(value, Tree), "of": inner}
    if isinstance(value, Tensor):
        values = mean and value.is_floating_point()
        group = spec.group if values else f"{REALS}{spec.group}" if mean else REALS
        out.append(Leaf(group, name, value.detach().double().reshape(-1), spec.values if values else spec.reals))
        return {"group": group, "shape": list(value.shape), "whole": not value.is_floating_point()}
    group = f"{REALS}{spec.group}" if mean else REALS
    out.append(Leaf(group, name, torch.tensor([float(value)], dtype=torch.float64), spec.reals))
    return {"group": group, "shape": None, "whole": isinstance(value, int)}


class _Row:
    """Hands out the numbers of a group piece by piece."""

    def __init__(self, group: str, x: Tensor) -> None:
        self.group, self.x, self.at = group, x, 0

    def take(self, count: int) -> Tensor:
        """The next ``count`` of them."""
        if self.at + count > len(self.x):
            raise ProtocolError(f"an opened sum has too few numbers in '{self.group}' for its form.")
        self.at += count
        return self.x[self.at - count : self.at]


def _fill(form: Any, ways: Mapping[str, _Row]) -> Any:
    if "of" in form:
        out = {name: _fill(one, ways) for name, one in form["of"].items()}
        return Tree(out) if form["tree"] else out
    shape = form["shape"]
    if form["group"] not in ways:
        raise ProtocolError(f"an opened sum lacks the numbers of '{form['group']}'.")
    x = ways[form["group"]].take(1 if shape is None else math.prod(shape))
    if shape is None:
        return round(float(x[0])) if form["whole"] else float(x[0])
    return (x.round().long() if form["whole"] else x.clone()).reshape(shape)
