"""A network as an algorithm and an engine see it: pure functions of its parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.algorithm import Batch
from fedatlas.engine.step import channels_last, contiguous
from fedatlas.errors import ConfigError
from fedatlas.models.dropout import evaluating, noting
from fedatlas.models.inspection import has_batch_norm
from fedatlas.tree import Tensors, Tree

MeanLoss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(outputs, targets, row weights or None) -> mean loss."""

Wanted = Callable[[Any, Tensor], Any]
"""(module, inputs) -> the values wanted of it."""

NO_FEATURES = "needs a method 'features' and a layer 'head' with forward(x) = head(features(x)); add both."


class Network:
    """An ``nn.Module`` with a loss. The module itself is never trained: its parameters are passed in."""

    def __init__(self, module: nn.Module, loss: MeanLoss) -> None:
        self.module = module
        self.mean_loss = loss
        convolves = any(x.dim() == 4 for x in module.parameters())
        self.ordered = channels_last if convolves else contiguous  # rows in the fastest layout for the network
        self.least = 2 if has_batch_norm(module) else 1  # least number of rows in a batch

    def on(self, device: torch.device) -> Network:
        """Return a copy on a device."""
        return Network(copy.deepcopy(self.module).to(device), self.mean_loss)

    def initial(self) -> tuple[Tree, Tree]:
        """Return the module's trainable tensors, and the rest of its state: buffers and parameters that are not trained."""
        return parts_of(self.module)

    def buffers(self) -> Tree:
        """Return only the second part of `initial`."""
        return copied(untrained(self.module))

    def roles(self) -> dict[str, str]:
        """Map each parameter's name to its part: linear, convolution, norm, embedding, recurrent or other."""
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

    def _call(self, params: Tensors, batch: Batch, part: Wanted | None = None) -> Any:
        state = {**params, **batch.extra}
        if part is None:
            return functional_call(self.module, state, (batch.x,))
        if not self.has_features:
            raise ConfigError(f"this algorithm works on features, but the model {self.name} {NO_FEATURES}")
        state = {f"module.{name}": x for name, x in state.items()}
        return functional_call(Partly(self.module, part), state, (batch.x,))

    @property
    def has_features(self) -> bool:
        """Return whether the module is head(features(x))."""
        return hasattr(self.module, "features") and hasattr(self.module, "head")

    @property
    def name(self) -> str:
        """Name of the module's class."""
        return type(self.module).__name__

    def logits(self, params: Tensors, batch: Batch) -> Tensor:
        """Return the raw outputs, (rows, outputs)."""
        out: Tensor = self._call(params, batch)
        return out

    def features(self, params: Tensors, batch: Batch, frozen: bool = False) -> Tensor:
        """Return the input of the last linear layer, (rows, h); with a projection head, its output z.

        ``frozen``: features of an untrained reference, in evaluation mode (no dropout, BatchNorm by the running
        statistics of ``batch.extra``) and no gradient.
        """
        if not frozen:
            z: Tensor = self._call(params, batch, lambda module, x: module.features(x))
            return z
        with evaluating(self.module), torch.no_grad():
            return self.features(params, batch)

    def loss_and_features(self, params: Tensors, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return `loss` and `features` of one forward pass."""
        z, outputs = self._call(params, batch, features_and_outputs)
        return self.mean_loss(outputs, batch.y, batch.weight), z

    def loss(self, params: Tensors, batch: Batch) -> Tensor:
        """Return the mean loss over the rows of a batch."""
        return self.mean_loss(self.logits(params, batch), batch.y, batch.weight)

    def statistics(self, params: Tensors, batch: Batch) -> tuple[Tree, Mapping[str, int]]:
        """Return the buffers with one batch's running statistics (variance over positions - 1), and the positions counted.

        Positions are given by the prefix of the layer's names: rows, times the places of a convolution.
        """
        norms = nn.modules.batchnorm._NormBase
        layers = {f"{name}." if name else "": m for name, m in self.module.named_modules() if isinstance(m, norms)}
        buffers, momenta = {name: x.clone() for name, x in batch.extra.items()}, [m.momentum for m in layers.values()]
        positions: dict[str, int] = {}

        def count(prefix: str, layer: nn.Module, x: Tensor) -> None:
            positions[prefix] = x.numel() // x.shape[1]  # values of each channel

        self.module.eval()
        try:
            for layer in layers.values():
                layer.momentum = 1.0
                layer.train()
            with noting(layers, count), torch.no_grad():
                functional_call(self.module, {**params, **buffers}, (batch.x,))
        finally:
            for layer, momentum in zip(layers.values(), momenta, strict=True):
                layer.momentum = momentum
                layer.eval()
        return Tree(buffers), positions

    def state_dict(self, params: Tensors, buffers: Tensors) -> dict[str, Tensor]:
        """Return all tensors under torch's names and in its order, contiguous, ready to be saved."""
        whole = with_tied(self.module, {**params, **buffers})
        return {name: x.detach().contiguous() for name, x in whole.items()}


def parts_of(module: nn.Module) -> tuple[Tree, Tree]:
    """Return copies of a module's trainable tensors, and of the rest of its state."""
    return copied({name: x for name, x in module.named_parameters() if x.requires_grad}), copied(untrained(module))


def untrained(module: nn.Module) -> dict[str, Tensor]:
    """Return buffers and untrained parameters; a tensor with several names appears only under its first."""
    other = tied(module) | {name: name for name, x in module.named_parameters() if x.requires_grad}
    return {name: x for name, x in module.state_dict().items() if name not in other}


def tied(module: nn.Module) -> dict[str, str]:
    """Map each further name of a tensor to its first name. Only the first is used, and ``functional_call`` fills in the others."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first[id(x)] for name, x in named if first.setdefault(id(x), name) != name}


def with_tied(module: nn.Module, state: Tensors) -> dict[str, Tensor]:
    """Return a state dict in torch's order, with a copy under each further name of a tensor. Names missing in ``state`` are left out."""
    first = tied(module)
    names = [name for name in module.state_dict() if first.get(name, name) in state]
    return {name: state[first[name]].clone() if name in first else state[name] for name in names}


def copied(tensors: Tensors) -> Tree:
    """Return copies with contiguous elements, in the layout of messages."""
    return Tree({name: x.detach().clone(memory_format=torch.contiguous_format) for name, x in tensors.items()})


def features_and_outputs(module: Any, x: Tensor) -> Any:
    """Return the input of the last layer, and its output."""
    z = module.features(x)
    return z, module.head(z)


class Partly(nn.Module):
    """A wrapper through which `functional_call` reaches more of a module than its ``forward``."""

    def __init__(self, module: nn.Module, part: Wanted) -> None:
        super().__init__()
        self.module = module
        self.part = part

    def forward(self, x: Tensor) -> Any:
        return self.part(self.module, x)


def detached(tree: Tensors) -> Tree:
    """Return the same tensors, detached from autograd."""
    return Tree({name: x.detach() for name, x in tree.items()})
