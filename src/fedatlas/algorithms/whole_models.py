"""Models with the statistics of their batch norm: in a state, in one tree, and kept by a client (local_only, Ditto, FedMD)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.algorithm import Facts, State
from fedatlas.tree import Tree


def model_part(state: State) -> dict[str, Any]:
    """Return what makes a model: its parameters, and its buffers where it has any."""
    return {name: state[name] for name in ("model", "buffers") if state.get(name)}


def whole_model(held: Mapping[str, Any], name: str = "model") -> Tree:
    """Return parameters and buffers in one tree."""
    return Tree({**held[name], **(held.get("buffers") or {})})


def kept_model(params: Tree, facts: Facts, name: str = "model") -> dict[str, Any]:
    """Return what a client keeps of a model that it has trained."""
    return {name: params, **({"buffers": facts.buffers} if facts.buffers else {})}
