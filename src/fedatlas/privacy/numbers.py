"""The numbers of an update as rows that can be summed under masks or encryption, and the way back.

**Values** are the floating tensors of a mean: changes of a model, controls, scores. They travel in the agreed steps across
[-range, range). **Reals** are everything else: sums (class counts, moments), parts that are summed unweighted, plain numbers. They are
few, of any size, and travel in steps of 2^-104. Whole numbers of a sum are reals that come out exactly. Counters of batch norm are
not summed and stay with the client.

The form of an update (its parts, names and shapes) is not secret and travels in the clear.
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
    """The weighting of a part: the group in which its values are summed, and the factors of its values and of its reals."""

    group: str
    values: float = 1.0
    reals: float = 1.0


class Leaf(NamedTuple):
    """Numbers of one tensor, or one plain number, on their way into a group."""

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
    """Return (the numbers in order, the form that `rebuilt` needs). ``sums``: parts of a mean that are summed unweighted."""
    out: list[Leaf] = []
    form = {}
    for part, value in update.items():
        summed = not mean or part in sums
        form[part] = _flatten(value, part, Spec("", 1.0, 1.0) if summed else spec(part), not summed, out)
    return out, form


def coded(
    update: Update, word: Mapping[str, Any], code: Callable[[Leaf], tuple[Any, Tensor]]
) -> tuple[dict[str, list[Any]], dict[str, Any], Update]:
    """Return whole numbers by group, the form, and the update as decoded. ``code`` gives a leaf's whole and decoded numbers."""
    ways, words, seen = word["weights"], dict[str, list[Any]](), dict[str, list[Tensor]]()
    found, form = leaves(update, lambda part: Spec(*way_of(ways, part)), mean=word["mean"], sums=word["sums"])
    for leaf in found:
        whole, decoded = code(leaf)
        words.setdefault(leaf.group, []).append(whole)
        seen.setdefault(leaf.group, []).append(decoded)
    return words, form, rebuilt(form, {group: torch.cat(rows) for group, rows in seen.items()})


def rebuilt(form: Mapping[str, Any], rows: Mapping[str, Tensor]) -> Update:
    """Return the update of a form from the numbers of each group, in order. ProtocolError if they do not fit."""
    at = dict.fromkeys(rows, 0)

    def fill(one: Any) -> Any:
        if "of" in one:
            out = {name: fill(inner) for name, inner in one["of"].items()}
            return Tree(out) if one["tree"] else out
        shape, group, whole = one["shape"], one["group"], one["whole"]
        size = 1 if shape is None else math.prod(shape)
        x = rows[group][at[group] : at[group] + size]
        at[group] += size
        if shape is None:
            return round(float(x[0])) if whole else float(x[0])
        return (x.round().long() if whole else x.clone()).reshape(shape)

    try:
        update = {part: fill(one) for part, one in form.items()}
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        raise ProtocolError("an opened sum is not of the form that its clients say.") from None
    if left := [group for group, x in rows.items() if at[group] < len(x)]:
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
