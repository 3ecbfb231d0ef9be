"""A torch network as a `Model`: its tensors, and the modules that compute with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.engine.device import CPU, placing
from fedatlas.engine.job import Built
from fedatlas.engine.model import Network, with_tied
from fedatlas.engine.step import channels_last, moved
from fedatlas.errors import ConfigError
from fedatlas.machine import one_thread_an_operator
from fedatlas.metrics import quality
from fedatlas.model import Scores
from fedatlas.models import Loss
from fedatlas.models.chain import resized
from fedatlas.models.dropout import evaluating
from fedatlas.models.lstm import RecurrentBody

PIECE, PICTURES = 2000, 125  # rows per forward pass; for pictures so few that activations stay in the cache
TWO = 2
SHARED = 1e8  # operations above which threads share the pieces


class Networks:
    """Factory that makes models of tensors, to be evaluated with these threads or on a device."""

    def __init__(self, built: Mapping[str, Built], loss: Loss, threads: int = 1, device: torch.device = CPU) -> None:
        self.built, self.loss, self.threads, self.device = built, loss, threads, device
        self._modules: dict[str, list[nn.Module]] = {}

    def __call__(
        self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], architecture: str = ""
    ) -> TorchModel:
        """Return the model of these tensors; ``architecture``: the one they belong to, if there are several."""
        return TorchModel(params, buffers, self, architecture)

    def initial(self) -> dict[str, TorchModel]:
        """Map each architecture to its initial model."""
        return {name: self(one.params, one.buffers, name) for name, one in self.built.items()}

    def modules(self, architecture: str, count: int) -> list[nn.Module]:
        """Return ``count`` networks, one per thread, since a network holds the parameters while it is called."""
        if architecture not in self._modules:
            network = self.built[architecture].network
            self._modules[architecture] = [(network if self.device == CPU else network.on(self.device)).module]
        found = self._modules[architecture]
        found += [copy.deepcopy(found[0]) for _ in range(count - len(found))]
        for module in found:
            module.eval()
        return found[:count]


@dataclass(frozen=True, eq=False)
class TorchModel:
    """A network's trainable tensors and its buffers. Two models are equal only if they hold the very same tensors."""

    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    networks: Networks
    architecture: str = ""  # its name, if there are several

    def _tensors(self) -> tuple[int, ...]:
        return tuple(id(x) for x in (*self.params.values(), *self.buffers.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchModel) and self._tensors() == other._tensors()

    def __hash__(self) -> int:
        return hash(self._tensors())

    @property
    def built(self) -> Built:
        """The initial network of its architecture."""
        return self.networks.built[self.architecture]

    @property
    def module(self) -> nn.Module:
        """The network's module; for a loaded model it contains the model's tensors."""
        return self.built.network.module

    @property
    def size(self) -> int:
        """Number of trainable parameters; a tensor that two layers share counts once."""
        return sum(x.numel() for x in self.params.values())

    @property
    def flops(self) -> int:
        """Floating-point operations of a forward pass of one row, at the widths of the initial network."""
        return self.built.flops

    def predict(self, x: Tensor) -> Tensor:
        """Return the outputs of all classes in evaluation mode, in the network's precision; if per step, those at the last token."""
        module, state = self.module, {**self.params, **self.buffers}
        x = x.to(dtype_of(module)) if x.is_floating_point() else x
        pieces = range(0, max(len(x), 1), PIECE)
        with evaluating(module), torch.inference_mode():
            outputs = torch.cat([functional_call(module, state, (x[at : at + PIECE],)) for at in pieces])
        outputs = self.networks.loss.predicting(outputs)
        return outputs if outputs.dim() <= TWO else outputs[torch.arange(len(x)), last_tokens(module, x)]

    def scores(self, x: Tensor, y: Tensor) -> Scores:
        """Return predictions and losses in evaluation mode (C10), computed in pieces.

        Each thread gets whole pieces, so the results do not depend on the number of threads, bit for bit. Threads that
        share every operator would wait for each other at each one. On a busy machine that takes twenty times as long as
        the work.
        """
        device = self.networks.device
        here = device == CPU
        state = {name: channels_last(t.to(device)) for name, t in {**self.params, **self.buffers}.items()}
        size = PICTURES if x.dim() == 4 and here else PIECE
        starts = range(0, max(len(x), 1), size)
        several = self.flops * len(x) >= SHARED and here
        modules = self.networks.modules(self.architecture, min(self.networks.threads, len(starts)) if several else 1)

        def part(number: int) -> list[Scores]:
            with torch.inference_mode(), placing(device):
                return [one(at) for at in starts[number :: len(modules)]]

        def one(at: int) -> Scores:
            rows, targets = channels_last(x[at : at + size].to(device)), y[at : at + size].to(device)
            scores = self._score(functional_call(modules[at // size % len(modules)], state, (rows,)), targets)
            return scores if here else moved(scores, CPU)

        with one_thread_an_operator():
            if len(modules) == 1:
                parts = [part(0)]
            else:
                with ThreadPoolExecutor(len(modules)) as pool:
                    parts = list(pool.map(part, range(len(modules))))
        pieces = [parts[i % len(modules)][i // len(modules)] for i in range(len(starts))]
        margins = [piece.margin for piece in pieces if piece.margin is not None]
        predicted, losses = torch.cat([p.predicted for p in pieces]), torch.cat([p.losses for p in pieces])
        return Scores(predicted, losses, torch.cat(margins) if margins else None)

    def _score(self, outputs: Tensor, y: Tensor) -> Scores:
        loss = self.networks.loss
        losses = loss.elements(outputs, y)
        outputs = loss.predicting(outputs)
        if loss.task == "numbers":
            return Scores(outputs.reshape(-1).double(), losses, None)
        two = loss.task == "classes" and loss.classes == TWO
        return Scores(quality.predictions(outputs), losses, quality.margins(outputs) if two else None)

    def finite(self) -> bool:
        """Return whether all trainable tensors are finite; constants among the buffers may be infinite on purpose."""
        return all(bool(torch.isfinite(x).all()) for x in self.params.values())

    def save(self) -> dict[str, Tensor]:
        """Return the state dict, under torch's names and in its order."""
        return self.built.network.state_dict(self.params, self.buffers)

    def load(self, state: Mapping[str, Tensor]) -> TorchModel:
        """Return a copy of the network with this state; an algorithm that adds units may have changed its widths.

        ConfigError if the tensors are named differently.
        """
        module, own = copy.deepcopy(self.module), with_tied(self.module, state)
        if odd := sorted(state.keys() ^ module.state_dict().keys()):
            raise ConfigError(
                f"these tensors do not belong to {type(module).__name__}; names that differ: {', '.join(odd[:3])}."
            )
        if any(own[name].shape != x.shape for name, x in module.state_dict().items()):
            module = resized(module, own)
        module.load_state_dict(own)
        built = Built.of(Network(module.eval(), self.built.network.mean_loss), flops=self.flops)
        return Networks({"": built}, self.networks.loss)(built.params, built.buffers)


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the precision in which a network computes; float32 for one without parameters."""
    parameter = next(module.parameters(), None)
    return torch.float32 if parameter is None else parameter.dtype


def last_tokens(module: nn.Module, x: Tensor) -> Tensor:
    """Return (n,), the position of each row's last token, before padding if the network knows the padding token."""
    body = next((part for part in module.modules() if isinstance(part, RecurrentBody)), None)
    return torch.full((len(x),), x.shape[1] - 1) if body is None else body.last(x)
