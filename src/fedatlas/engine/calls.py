"""How operators of a flat graph are called so that their results land in memory that is already there."""

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
        """Whether the result may take the first operand's memory."""
        return bool(self.method) or self.over


_UNARY = ("exp", "log", "log1p", "neg", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "reciprocal", "sin", "cos", "erf")
CALLS: dict[Any, Call] = {
    aten.mm.default: Call("torch.mm"),
    aten.bmm.default: Call("torch.bmm"),
    aten.addmm.default: Call("torch.addmm"),
    aten.baddbmm.default: Call("torch.baddbmm"),
    aten.add.Tensor: Call("torch.add", "add_"),
    aten.sub.Tensor: Call("torch.sub", "sub_"),
    aten.mul.Tensor: Call("torch.mul", "mul_"),
    aten.div.Tensor: Call("torch.div", "div_"),
    aten.add.Scalar: Call("torch.add", "add_"),
    aten.mul.Scalar: Call("torch.mul", "mul_"),
    aten.div.Scalar: Call("torch.div", "div_"),
    aten.pow.Tensor_Scalar: Call("torch.pow", "pow_"),
    aten.maximum.default: Call("torch.maximum"),
    aten.minimum.default: Call("torch.minimum"),
    aten.relu.default: Call("torch.ops.aten.relu.out", "relu_"),
    aten.threshold_backward.default: Call("torch.ops.aten.threshold_backward.grad_input", "", "grad_input", over=True),
    aten.tanh_backward.default: Call("torch.ops.aten.tanh_backward.grad_input", "", "grad_input", over=True),
    aten.sigmoid_backward.default: Call("torch.ops.aten.sigmoid_backward.grad_input", "", "grad_input", over=True),
    aten.mse_loss_backward.default: Call("torch.ops.aten.mse_loss_backward.grad_input", "", "grad_input"),
    aten._log_softmax.default: Call("torch._log_softmax"),
    aten._softmax.default: Call("torch._softmax"),
    aten.sum.dim_IntList: Call("torch.sum"),
    aten.mean.dim: Call("torch.mean"),
    aten.amax.default: Call("torch.amax"),
    aten.gather.default: Call("torch.gather"),
    aten.scatter_add.default: Call("torch.scatter_add", "scatter_add_"),
    aten.max_pool2d_with_indices_backward.default: Call(
        "torch.ops.aten.max_pool2d_with_indices_backward.grad_input", "", "grad_input"
    ),
    **{getattr(aten, name).default: Call(f"torch.{name}", f"{name}_") for name in _UNARY},
}
COPIES = {aten.clone.default, aten._to_copy.default}
TAKE_NUMBER = {aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.mul_.Tensor}
"""Second operand: a plain number in place of a tensor without dimensions."""
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
