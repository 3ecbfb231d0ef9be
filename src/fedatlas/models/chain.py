"""Modules read as a chain of layers of units, for algorithms that reorder or add units, and modules with variable widths.

A trial decides whether a module is such a chain. Its units are shuffled and one of each hidden layer is split in two,
and the outputs must not change. Skip connections, normalisation over units or layers used twice would change them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.errors import ConfigError
from fedatlas.layers import Axis, Layer, LayerTensor, picked
from fedatlas.models.dropout import Dropout, evaluating, noting
from fedatlas.models.inspection import NORMS
from fedatlas.rng import torch_stream
from fedatlas.tree import Tensors, Tree

GATES = 4
ROWS = 8  # rows of noise on which outputs are compared
TOLERANCE = 1e-3  # relative to the outputs' size: far above float32 rounding, far below the effect of a misplaced unit
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)


class ElasticLSTM(nn.LSTM):
    """An ``nn.LSTM`` whose widths are read from its weights at each call, so that every layer may have a different one.

    One direction, without projections, from zero states: the only kind that `find_chain` accepts.
    """

    def forward(self, x: Any, hx: Any = None) -> Any:
        """Compute ``nn.LSTM``, but return only the last layer's final states."""
        if hx is not None:
            raise ConfigError("an LSTM whose width may change starts from zero states: do not pass it any.")
        states = x.new_zeros(0), x.new_zeros(0)
        for i in range(self.num_layers):
            weights = [getattr(self, f"{name}_l{i}") for name in self.tensors()]
            zeros = x.new_zeros(1, len(x) if self.batch_first else x.shape[1], weights[1].shape[1])
            x, *states = torch.lstm(  # type: ignore[assignment]
                x, (zeros, zeros), weights, self.bias, 1, 0.0, self.training, False, self.batch_first
            )
        return x, tuple(states)

    def units(self, i: int) -> int:
        """Return the width of layer ``i``."""
        hidden: Tensor = getattr(self, f"weight_hh_l{i}")
        return hidden.shape[1]

    def tensors(self) -> tuple[str, ...]:
        """Return the names of a layer's tensors, as torch names them."""
        return ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if self.bias else ()))


def elastic(module: nn.Module) -> nn.Module:
    """Replace every ``nn.LSTM`` inside ``module``, in place, by one that follows its weights' widths; return the module."""
    for path, layer in list(module.named_modules()):
        if type(layer) is nn.LSTM and path and not (layer.bidirectional or layer.proj_size):
            with torch.device("meta"):  # draws no random numbers
                ours = ElasticLSTM(
                    layer.input_size,
                    layer.hidden_size,
                    layer.num_layers,
                    bias=layer.bias,
                    batch_first=layer.batch_first,
                )
            ours.load_state_dict(layer.state_dict(keep_vars=True), assign=True)
            module.set_submodule(path, ours.train(layer.training))
    return module


def resized(module: nn.Module, state: Tensors) -> nn.Module:
    """Give ``module`` the widths of ``state``, in place; `load_state_dict` then sets the values."""
    elastic(module)
    for path, layer in module.named_modules():
        for name, x in layer.named_parameters(recurse=False):
            x.data = x.new_empty(state[f"{path}.{name}".lstrip(".")].shape)
        if isinstance(layer, nn.Linear):
            layer.out_features, layer.in_features = layer.weight.shape
        elif isinstance(layer, CONVOLUTIONS):
            layer.out_channels, layer.in_channels = layer.weight.shape[:2]
        elif isinstance(layer, nn.Embedding):
            layer.embedding_dim = layer.weight.shape[1]
        elif isinstance(layer, ElasticLSTM):
            layer.input_size = layer.get_parameter("weight_ih_l0").shape[1]
            layer.hidden_size = layer.units(layer.num_layers - 1)
    return module


def find_chain(module: nn.Module, sample: Tensor) -> tuple[Layer, ...]:
    """Return the layers of an `elastic` module, from rows to outputs; ConfigError, in one sentence, if it is not a chain.

    ``sample`` (n, ...) gives the shape and type of the rows.
    """
    refuse_parts(module)
    visits = visited(module, sample)
    layers: list[Layer] = []
    for name, layer in visits:
        layers += layers_of(module, name, layer, layers)
    if not layers or not isinstance(visits[-1][1], nn.Linear):
        raise refusal(module, "does not end with a Linear layer")
    if not keeps_outputs(module, layers, noise(sample, visits[0][1])):
        raise refusal(
            module, "changes its outputs when its units are shuffled or one is split (skip connections do that)"
        )
    return tuple(layers)


def refusal(module: nn.Module, what: str) -> ConfigError:
    """Return the ConfigError for a module that is not a chain."""
    return ConfigError(
        f"the model {type(module).__name__} {what}: this algorithm matches the units of layers that follow one another, "
        "Linear, Conv, Embedding and LSTM, without skip connections, normalisation or dropout."
    )


def refuse_parts(module: nn.Module) -> None:
    """Raise ConfigError for layers not allowed in a chain, and for tensors outside allowed layers."""
    for name, layer in module.named_modules():
        what = f"'{name}' ({type(layer).__name__})"
        if isinstance(layer, (*NORMS, Dropout)):
            raise refusal(module, f"has the layer {what}")
        own = dict(layer.named_parameters(recurse=False))
        known = isinstance(layer, (nn.Linear, nn.Embedding, *CONVOLUTIONS, ElasticLSTM))
        if list(layer.buffers(recurse=False)) or (own and not known):
            raise refusal(module, f"holds extra tensors in {what}")
        if isinstance(layer, CONVOLUTIONS) and layer.groups > 1:
            raise refusal(module, f"has grouped convolutions in {what}")
        if not all(x.requires_grad for x in own.values()):
            raise refusal(module, f"has frozen weights in {what}")
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    if len(names) > len(list(module.parameters())):
        raise refusal(module, "shares a tensor between two layers")


def visited(module: nn.Module, sample: Tensor) -> list[tuple[str, nn.Module]]:
    """Return the layers with weights, in the order of a forward pass."""
    visits: list[tuple[str, nn.Module]] = []
    held = {name: layer for name, layer in module.named_modules() if list(layer.parameters(recurse=False))}
    with noting(held, lambda name, layer, x: visits.append((name, layer))), evaluating(module), torch.no_grad():
        module(sample[:2])
    times = Counter(name for name, _ in visits)
    for name in held:
        if times[name] != 1:
            raise refusal(module, f"uses the layer '{name}' {times[name]} times in a pass")
    return visits


def layers_of(module: nn.Module, name: str, layer: nn.Module, before: Sequence[Layer]) -> list[Layer]:
    """Return the layer of units, or several for an LSTM, that follows those found so far."""
    last = before[-1] if before else None
    if isinstance(layer, ElasticLSTM):
        out: list[Layer] = []
        for i in range(layer.num_layers):
            previous = out[-1] if out else last
            inputs = None if previous is None else Axis(1)
            units, own = Axis(0, GATES), Axis(1)
            names = [f"{name}.{tensor}_l{i}" for tensor in layer.tensors()]
            weights = LayerTensor(names[0], units, inputs), LayerTensor(names[1], units, None, own)
            parts = (*weights, *(LayerTensor(bias, units) for bias in names[2:]))
            out.append(Layer(f"{name}.{i}" if layer.num_layers > 1 else name, layer.units(i), parts))
        fits = last is None or layer.input_size == last.units
    elif isinstance(layer, nn.Embedding):
        out, fits = [Layer(name, layer.embedding_dim, (LayerTensor(f"{name}.weight", Axis(1)),))], last is None
    else:
        weight: Tensor = layer.weight  # type: ignore[assignment]  # Linear or a convolution
        times, rest = (1, 0) if last is None else divmod(weight.shape[1], last.units)
        fits = rest == 0 and times >= 1 and (times == 1 or isinstance(layer, nn.Linear))
        # a flattened picture holds the channels one after another, flattened steps hold the steps one after another
        picture = last is not None and isinstance(
            module.get_submodule(last.parts[0].name.rpartition(".")[0]), CONVOLUTIONS
        )
        inputs = None if last is None else Axis(1, 1, times) if picture else Axis(1, times)
        bias = (LayerTensor(f"{name}.bias", Axis(0)),) if getattr(layer, "bias", None) is not None else ()
        out = [Layer(name, weight.shape[0], (LayerTensor(f"{name}.weight", Axis(0), inputs), *bias))]
    if not fits:
        raise refusal(module, f"has a layer '{name}' that does not read the outputs of the one before it")
    return out


def noise(sample: Tensor, first: nn.Module) -> Tensor:
    """Return rows shaped like ``sample`` on which a misplaced unit changes the outputs."""
    stream, shape = torch_stream(0, "init", "chain"), (ROWS, *sample.shape[1:])
    if sample.is_floating_point():
        return torch.randn(shape, generator=stream, dtype=torch.float64).to(sample.dtype)
    symbols = first.num_embeddings if isinstance(first, nn.Embedding) else 2
    return torch.randint(0, symbols, shape, generator=stream)


def keeps_outputs(module: nn.Module, layers: Sequence[Layer], x: Tensor) -> bool:
    """Return whether the outputs stay if hidden units are shuffled and one per layer is duplicated at half its weight."""
    params = Tree({name: p.detach() for name, p in module.named_parameters()})
    stream, index = torch_stream(0, "init", "shuffle"), {}
    for layer in layers[:-1]:
        order = torch.randperm(layer.units, generator=stream)
        index[layer.name] = torch.cat([order, order[:1]])
    changed = halved(picked(params, layers, index), layers, index)
    try:
        with evaluating(module), torch.no_grad():
            there, here = (functional_call(module, dict(state), (x,)) for state in (params, changed))
    except (RuntimeError, IndexError):  # the split unit fits nowhere
        return False
    return bool((there - here).abs().max() <= TOLERANCE * there.abs().max())


def halved(params: Tree, layers: Sequence[Layer], index: Tensors) -> Tree:
    """Return the parameters with the weights that read a duplicated unit halved."""
    out, before = dict(params), None
    for layer in layers:
        mine = index.get(layer.name)
        for part in layer.parts:
            for axis, read in ((part.inputs, before), (part.own, mine)):
                if axis is None or read is None:
                    continue
                share = 1.0 / torch.bincount(read)[read].to(out[part.name].dtype)
                shape = [1] * out[part.name].dim()
                shape[axis.dim] = -1
                along = share[:, None].expand(-1, axis.block).reshape(-1).repeat(axis.gates)
                out[part.name] = out[part.name] * along.reshape(shape)
        before = mine
    return Tree(out)
