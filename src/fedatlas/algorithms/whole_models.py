"""Models with their batch-norm statistics: in a state, in one tree, and as a client keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.algorithm import Facts, State
from fedatlas.tree import Tree


def model_part(state: State) -> dict[str, Any]:
    """Return the parts of a model: its parameters, and its buffers if it has any."""
    return {name: state[name] for name in ("model", "buffers") if state.get(name)}


def whole_model(held: Mapping[str, Any], name: str = "model") -> Tree:
    """Return parameters and buffers in one tree."""
    return Tree({**held[name], **(held.get("buffers") or {})})


def kept_model(params: Tree, facts: Facts, name: str = "model") -> dict[str, Any]:
    """Return the parts of a trained model that a client keeps."""
    return {name: params, **({"buffers": facts.buffers} if facts.buffers else {})}
