"""Checks that a forward pass leaves the network as it was. Its weights are lent to it, and only tensors travel.

Examples of refused passes: ``nn.Embedding(max_norm=...)``, ``self.layer.weight.data.clamp_(...)``, a buffer that is
reassigned (``self.mean = 0.9 * self.mean``), a count in a plain attribute. In training, batch norm and other layers may
write into their buffers, because buffers travel with the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fedatlas.errors import ConfigError
from fedatlas.models.draws import refuse_hidden_draws, some_rows, trained
from fedatlas.models.dropout import evaluating
from fedatlas.models.inspection import Watching
from fedatlas.tree import Tensors


def refuse_impure(name: str, module: nn.Module, sample_x: Tensor) -> None:
    """Raise ConfigError if a pass writes into parameters, or into buffers in evaluation, keeps other state, or draws itself."""
    parameters = dict(module.named_parameters())
    rows = some_rows(sample_x)
    with Writes({**parameters, **dict(module.named_buffers())}) as evaluation, evaluating(module), torch.no_grad():
        module(sample_x)
    with Writes(parameters) as training, _refusing_kept(name, module):
        trained(module, rows)
        with evaluating(module), torch.no_grad():
            module(rows)
    if written := sorted(evaluation.written | training.written):
        raise ConfigError(
            f"the model {name} writes into its own '{written[0]}' in its forward pass, which would change the server's "
            "model: compute with a clipped or normalised copy instead."
        )
    refuse_hidden_draws(module, rows)


@contextmanager
def _refusing_kept(name: str, module: nn.Module) -> Iterator[None]:
    """Raise ConfigError after each pass inside the block that rebinds a tensor or changes a plain attribute."""
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def note(*_: Any) -> None:
        before.append((_tensors(module), _plain(module)))

    def compare(*_: Any) -> None:
        tensors, plain = before.pop()
        for path, x in _tensors(module).items():
            if x is not tensors.get(path):
                raise ConfigError(
                    f"the model {name} assigns its '{path}' anew in its forward pass, and what is assigned gets lost: "
                    f"write into it instead, as in self.{path}.copy_(...)."
                )
        after = _plain(module)
        if changed := [path for path in sorted(after | plain) if after.get(path) != plain.get(path)]:
            raise ConfigError(
                f"the model {name} changes its attribute '{changed[0]}' in its forward pass, but only tensors travel between "
                "server and clients: register it as a buffer and write into it in place, or do without it."
            )

    hooks = module.register_forward_pre_hook(note), module.register_forward_hook(compare)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _tensors(module: nn.Module) -> dict[str, Any]:
    """Return the parameters and buffers that are bound now, also those that are None."""
    bound = ((path, {**m._parameters, **m._buffers}) for path, m in module.named_modules())  # noqa: SLF001  # also None
    return {f"{path}.{name}".lstrip("."): x for path, held in bound for name, x in held.items()}


def _plain(module: nn.Module) -> dict[str, Any]:
    """Return a comparable value of each attribute outside the module's tensors and torch's book-keeping."""
    own = vars(nn.Module()).keys()
    kept = ((path, key, x) for path, m in module.named_modules() for key, x in vars(m).items() if key not in own)
    return {f"{path}.{key}".lstrip("."): _contents(x) for path, key, x in kept}


def _contents(x: Any) -> Any:
    """Return values that reveal a change of an attribute: contents of containers, the identity of other objects."""
    if isinstance(x, dict):
        return [(_contents(key), _contents(each)) for key, each in x.items()]
    if isinstance(x, list | tuple | deque):
        return [_contents(each) for each in x]
    if isinstance(x, bool | int | float | complex | str | bytes | None):
        return type(x), repr(x)  # a NaN equals itself
    if isinstance(x, set | frozenset):
        return frozenset(map(repr, x))
    if isinstance(x, np.ndarray):
        return x.tobytes()
    return id(x), 0 if not isinstance(x, Tensor) or x.is_inference() else x._version  # noqa: SLF001


class Writes(Watching):
    """Recorder of the tensors that operators write into, even if no value changes."""

    def __init__(self, held: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {x.untyped_storage().data_ptr(): name for name, x in held.items() if x.numel()}
        self.written: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        declared = func._schema.arguments  # noqa: SLF001  # where an operator declares what it writes
        given = {**dict(zip((a.name for a in declared), args, strict=False)), **(kwargs or {})}
        for argument in declared:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
                tree_map_only(Tensor, self.note, given[argument.name])
        return func(*args, **(kwargs or {}))

    def note(self, x: Tensor) -> None:
        """Record one tensor that is written."""
        name = self.names.get(x.untyped_storage().data_ptr())
        if name is not None and x.numel():
            self.written.add(name)
