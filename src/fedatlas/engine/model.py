"""A network as an algorithm and an engine see it: pure functions of its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.errors import ConfigError
from fedatlas.tree import Tree

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(outputs, targets, row weights or None) -> mean loss."""


class Network:
    """An ``nn.Module`` with a loss. The module itself is never trained: its parameters are passed in."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self.module = module
        self.mean_loss = loss
        self.projection = int(getattr(module, "projection", 0) or 0)

    def initial(self) -> tuple[Tree, Tree]:
        """The module's trainable tensors, and the rest of its state: buffers and parameters that are not trained."""
        params = Tree({name: x.detach().clone() for name, x in self.module.named_parameters() if x.requires_grad})
        state = self.module.state_dict()
        return params, Tree({name: x.detach().clone() for name, x in state.items() if name not in params})

    def roles(self) -> dict[str, str]:
        """Parameter name -> the part it plays: linear, convolution, norm, embedding, recurrent or other."""
        kinds: dict[str, tuple[type[nn.Module], ...]] = {
            "linear": (nn.Linear,),
            "convolution": (nn.modules.conv._ConvNd,),
            "norm": (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm),
            "embedding": (nn.Embedding,),
            "recurrent": (nn.RNNBase,),
        }
        out: dict[str, str] = {}
        for prefix, module in self.module.named_modules():
            role = next((kind for kind, types in kinds.items() if isinstance(module, types)), "other")
            out |= {f"{prefix}.{name}" if prefix else name: role for name, _ in module.named_parameters(recurse=False)}
        return out

    def _call(self, params: Mapping[str, Tensor], batch: Batch, method: str | None = None) -> Tensor:
        module = self.module if method is None else Method(self.module, method)
        state = {**params, **batch.extra}
        if method is not None:
            state = {f"module.{name}": x for name, x in state.items()}
        out: Tensor = functional_call(module, state, (batch.x,))
        return out

    def logits(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Raw outputs, (rows, outputs)."""
        return self._call(params, batch)

    def features(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """What enters the last linear layer (with a projection head: its output z)."""
        if not hasattr(self.module, "features"):
            name = type(self.module).__name__
            raise ConfigError(f"this algorithm works on features, but the model {name} has no method 'features'.")
        return self._call(params, batch, "features")

    def loss(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Mean loss over the rows of a batch."""
        return self.mean_loss(self.logits(params, batch), batch.y, batch.weight)

    def state_dict(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors under torch's names and in its order, contiguous, ready to be saved."""
        both: dict[str, Any] = {**params, **buffers}
        return {name: both[name].detach().contiguous() for name in self.module.state_dict() if name in both}


class Method(nn.Module):
    """Lets `functional_call` reach a method other than ``forward``."""

    def __init__(self, module: nn.Module, method: str) -> None:
        super().__init__()
        self.module = module
        self.method = method
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = getattr(self.module, self.method)(x)
        return out


def detached(tree: Mapping[str, Tensor]) -> Tree:
    """The same tensors, known to no autograd graph."""
    return Tree({name: x.detach() for name, x in tree.items()})


def with_grad(tree: Mapping[str, Tensor]) -> Tree:
    """Leaves that collect gradients, sharing memory with ``tree``."""
    return Tree({name: x.detach().requires_grad_() for name, x in tree.items()})


def grad(loss: Tensor, leaves: Tree) -> Tree:
    """d loss / d leaf for every leaf; zeros where a leaf plays no part."""
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), grads, strict=True)
    return Tree({name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs})  # type: ignore[redundant-expr]
