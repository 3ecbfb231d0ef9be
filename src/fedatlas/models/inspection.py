"""Properties of any module: batch normalisation, number of parameters, cost of a forward pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fedatlas.models.dropout import evaluating
from fedatlas.tree import Tensors

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (*_BATCH_NORMS, *_INSTANCE_NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def parameter_count(module: nn.Module) -> int:
    """Return the number of trainable parameters; a tensor shared by two layers counts once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def has_batch_norm(module: nn.Module) -> bool:
    """Return whether any layer keeps running statistics of its batches."""
    return any(isinstance(layer, _BATCH_NORMS) for layer in module.modules())


def flops(module: nn.Module, x: Tensor, state: Tensors | None = None) -> int:
    """Return the floating-point operations of a forward pass for one row of ``x`` (n, ...), in evaluation mode.

    ``state``: tensors that replace the module's own; their shapes may differ. Counted are matrix products and convolutions, two
    operations per multiplication and addition; biases, activations, pools and norms are not counted. A training
    step is about three of these (C13).
    """
    counter = _FlopCounter()
    with evaluating(module), torch.no_grad(), counter:
        functional_call(module, dict(state or {}), (x,))
    return counter.total // len(x)


class Watching(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A hook on every operator called."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports its whole compiler to skip it


class _FlopCounter(Watching):
    """Counter that adds up torch's own formulas over the operators called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.mkldnn_rnn_layer:
            self.total += _recurrent_flops(*(x.shape for x in args[:3]))
        elif func.overloadpacket in flop_registry:
            self.total += int(flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result))
        return result


def _recurrent_flops(x: torch.Size, input_weight: torch.Size, hidden_weight: torch.Size) -> int:
    """Return the operations of one direction of one fused CPU layer, unknown to the counter: x (length, n, in), weights (gates, in)."""
    return 2 * x[0] * x[1] * (math.prod(input_weight) + math.prod(hidden_weight))


def is_recurrent(module: nn.Module) -> bool:
    """Return whether a network has recurrent layers."""
    return any(isinstance(layer, nn.RNNBase | nn.RNNCellBase) for layer in module.modules())
