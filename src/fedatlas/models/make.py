"""From ``[model]`` of an experiment file, or a user's own module, to the initial model of a run."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.errors import ConfigError, FedatlasError, first_line, raised
from fedatlas.models.config import ModelConfig
from fedatlas.models.draws import Supplied
from fedatlas.models.dropout import adopt_dropout, evaluating
from fedatlas.models.initial import read_initial
from fedatlas.models.inspection import has_batch_norm, parameter_count
from fedatlas.models.network import Shape
from fedatlas.models.registry import MODELS, Builder, find_model
from fedatlas.models.writes import refuse_impure
from fedatlas.rng import torch_stream


def init_model(builder: Builder, shape: Shape, outputs: int, seed: int, **keys: Any) -> nn.Module:
    """Return the builder's module with torch's default initialisation, drawn from the stream (seed, ``init``).

    The numbers are those of a default generator with that seed, which is neither set nor read. The draws are float32
    for every precision, so that all runs with one seed start from the same model.
    """
    with _init_stream(seed):
        return builder(tuple(shape), outputs, **keys)


def make_model(
    model: ModelConfig | nn.Module,
    shape: Shape,
    outputs: int,
    seed: int,
    dtype: torch.dtype = torch.float32,
    tokens: bool = False,
) -> nn.Module:
    """Return the initial model of a run for rows of ``shape`` (token ids if ``tokens``) and ``outputs`` outputs.

    A user's own module is copied and keeps its weights. Its dropout layers are replaced by `Dropout`, whose masks are
    inputs. ConfigError, in one sentence, if the model cannot read such rows or returns other outputs.
    """
    if isinstance(model, nn.Module):
        name, module = type(model).__name__, copy.deepcopy(model)
    else:
        name, module = model.name, _build(model, shape, outputs, seed)
    sample = torch.zeros((2, *shape), dtype=torch.int64 if tokens else dtype)
    with _init_stream(seed):  # a lazy layer draws its weights at the first pass
        module = adopt_dropout(_checked(name, module, sample)).to(dtype)
        _try_out(name, module, sample, outputs)
    if isinstance(model, ModelConfig):
        if model.bn != "average" and not has_batch_norm(module):
            raise ConfigError(f"bn = '{model.bn}' has nothing to act on in model '{name}': set norm = 'batch' as well.")
        if model.init:
            load_initial(module, model.init)
    return module


def load_initial(module: nn.Module, path: str | Path) -> None:
    """Fill ``module`` from a ``.safetensors`` file of its state dict; ConfigError if names or shapes differ."""
    state = read_initial(path)
    own = module.state_dict()
    for what, names in (("lacks", own.keys() - state.keys()), ("also holds", state.keys() - own.keys())):
        if names:
            listed = ", ".join(sorted(names)[:3]) + (" ..." if len(names) > 3 else "")
            raise ConfigError(f"model.init: '{path}' does not fit this model: it {what} {listed}.")
    for name, value in own.items():
        if state[name].shape != value.shape:
            there, here = tuple(state[name].shape), tuple(value.shape)
            raise ConfigError(
                f"model.init: '{path}' does not fit this model: {name} has shape {there} in the file, {here} in the model."
            )
    module.load_state_dict(state)


def _build(model: ModelConfig, shape: Shape, outputs: int, seed: int) -> nn.Module:
    """Return `init_model`, with a ConfigError for errors raised by a builder (also a third party's)."""
    builder, keys = find_model(model.name), model.builder_arguments()
    try:
        inspect.signature(builder).bind(shape, outputs, **keys)
    except TypeError:
        raise ConfigError(
            f"model '{model.name}': its builder cannot be called as {model.name}(shape, outputs, *, keys of the [model] table)."
        ) from None
    try:
        return init_model(builder, shape, outputs, seed, **keys)
    except FedatlasError:
        raise
    except Exception as error:
        why = first_line(error) if model.name in MODELS else raised(error)
        raise ConfigError(f"model '{model.name}' cannot be built: {why}.") from error


def _init_stream(seed: int) -> Supplied:
    """Return the block inside which every draw of torch's layers comes from the stream (seed, ``init``)."""
    return Supplied(torch_stream(seed, "init"))


def _checked(name: str, module: nn.Module, sample: Tensor) -> nn.Module:
    """Return ``module`` if it is a network that one tensor of rows can be passed through; else raise ConfigError."""
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ConfigError(
            f"the model {name} spreads batches over devices, which is the engine's work: pass the network inside it, model.module."
        )
    try:
        inspect.signature(module.forward).bind(sample)
    except TypeError:
        takes = ", ".join(inspect.signature(module.forward).parameters)
        raise ConfigError(
            f"the model {name} takes ({takes}) in its forward pass, but is called with one tensor, the rows: "
            "join its inputs into one tensor, or give the others defaults."
        ) from None
    except ValueError:  # a function of C: the pass itself will show it
        pass
    return module


def _try_out(name: str, module: nn.Module, sample: Tensor, outputs: int) -> None:
    """Check one pass of two rows of zeros.

    The model must read them, return ``outputs`` numbers each, have something to train, and be pure (`refuse_impure`).
    """
    rows, readers = _describe(sample)
    try:
        with evaluating(module), torch.no_grad():
            answer = module(sample)
        if not isinstance(answer, Tensor) or answer.dim() < 2 or len(answer) != 2 or answer.shape[-1] != outputs:
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise ConfigError(f"model '{name}' must return a tensor (2, {outputs}) for two {rows}, but returned {got}.")
        refuse_impure(name, module, sample)
    except FedatlasError:
        raise
    except Exception as error:
        if name in MODELS:
            raise ConfigError(f"model '{name}' cannot read {rows}: {readers}.") from error
        raise ConfigError(f"model '{name}' cannot read {rows}: {raised(error)}.") from error
    if not parameter_count(module):
        how = "all its parameters are frozen" if next(module.parameters(), None) is not None else "it has no parameters"
        raise ConfigError(f"model '{name}' has nothing to train: {how}.")


def _describe(sample: Tensor) -> tuple[str, str]:
    """Return a description of the rows, and the models that read such rows."""
    row = tuple(sample.shape[1:])
    if sample.dtype == torch.int64:
        return f"rows of {row[0]} token ids", "'shakespeare_lstm' and 'stackoverflow_lstm' read token ids"
    if len(row) == 3:
        return f"pictures of shape {row}", "'cnn2', 'resnet1' and 'mlp' read pictures"
    return f"rows of shape {row}", "'mlp' and 'logistic' read tables"
