"""Calls of a flat graph's operators that write results into existing memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

aten = torch.ops.aten


class Call(NamedTuple):
    """A function that takes a place for its result, and the method that overwrites the first operand instead."""

    function: str
    method: str = ""
    out: str = "out"
    over: bool = False  # ``out`` may be the first operand itself

    @property
    def overwrites(self) -> bool:
        """Return whether the result may take the first operand's memory."""
        return bool(self.method) or self.over


_PLAIN = "mm bmm addmm baddbmm maximum minimum _log_softmax _softmax amax gather".split()
_UNARY = "exp log log1p neg sqrt rsqrt tanh sigmoid abs reciprocal sin cos erf scatter_add".split()
_BINARY = {"add": ("Tensor", "Scalar"), "sub": ("Tensor",), "mul": ("Tensor", "Scalar"), "div": ("Tensor", "Scalar")}
_BACKWARD = {  # whether the result may take the first operand's memory
    "threshold_backward": True,
    "tanh_backward": True,
    "sigmoid_backward": True,
    "mse_loss_backward": False,
    "max_pool2d_with_indices_backward": False,
}
CALLS: dict[Any, Call] = {
    aten.pow.Tensor_Scalar: Call("torch.pow", "pow_"),
    aten.relu.default: Call("torch.ops.aten.relu.out", "relu_"),
    aten.sum.dim_IntList: Call("torch.sum"),
    aten.mean.dim: Call("torch.mean"),
    **{getattr(aten, name).default: Call(f"torch.{name}") for name in _PLAIN},
    **{getattr(aten, name).default: Call(f"torch.{name}", f"{name}_") for name in _UNARY},
    **{
        getattr(getattr(aten, name), kind): Call(f"torch.{name}", f"{name}_")
        for name, kinds in _BINARY.items()
        for kind in kinds
    },
    **{
        getattr(aten, name).default: Call(f"torch.ops.aten.{name}.grad_input", "", "grad_input", over)
        for name, over in _BACKWARD.items()
    },
}
COPIES = {aten.clone.default, aten._to_copy.default}
TAKE_NUMBER = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.mul_.Tensor}
"""Operators whose second operand may be a plain number instead of a tensor without dimensions."""
COMMUTE = {aten.add.Tensor, aten.mul.Tensor}
METHODS = {
    aten.t.default: "t",
    aten.view.default: "view",
    aten._unsafe_view.default: "view",
    aten.unsqueeze.default: "unsqueeze",
    aten.permute.default: "permute",
    aten.expand.default: "expand",
    aten.as_strided.default: "as_strided",
}
