"""A check that a forward pass leaves the weights unchanged: they are lent to it, and belong to the server.

Examples that write into them: ``nn.Embedding(max_norm=...)``, ``self.layer.weight.data.clamp_(...)``. In training,
the running statistics of batch norm and other buffers may change: buffers travel with the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fedatlas.errors import ConfigError
from fedatlas.models.dropout import evaluating, refuse_hidden_draws
from fedatlas.models.inspection import Watching
from fedatlas.tree import Tensors


def refuse_impure(name: str, module: nn.Module, sample_x: Tensor) -> None:
    """Raise ConfigError if a pass writes into parameters, or into buffers in evaluation, or draws random numbers itself."""
    parameters = dict(module.named_parameters())
    with Writes({**parameters, **dict(module.named_buffers())}) as evaluation, evaluating(module), torch.no_grad():
        module(sample_x)
    with Writes(parameters) as training:
        refuse_hidden_draws(module, sample_x)
    if written := sorted(evaluation.written | training.written):
        raise ConfigError(
            f"the model {name} writes into its own '{written[0]}' in its forward pass, which would change the server's "
            "model: compute with a clipped or normalised copy instead."
        )


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
