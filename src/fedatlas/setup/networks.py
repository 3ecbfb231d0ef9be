"""The initial networks of a run: one for all clients, or one for each architecture of ``[[models]]``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Dataset
from fedatlas.engine.job import Built
from fedatlas.engine.model import Network
from fedatlas.errors import ConfigError
from fedatlas.models import Loss, ModelConfig, draw_masks, dropout_shapes, flops, make_loss, make_model
from fedatlas.models.config import dealt, names
from fedatlas.models.dropout import evaluating

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}


def checked_loss(config: ExperimentConfig, dataset: Dataset) -> Loss:
    """Return the loss that ``[model]`` names; ConfigError if these targets are outside its domain."""
    loss = make_loss(config.model.loss, dataset.task, dataset.classes, dataset.ignore)
    loss.check(dataset.targets(dataset.train.y))
    if dataset.task == "numbers":
        loss.check(dataset.targets(dataset.test.y), "test label")
    return loss


def reads_units(config: ExperimentConfig, dataset: Dataset) -> bool:
    """Return whether the loss reads the target in its unit, because its domain is bounded.

    A standardised target would leave that domain.
    """
    return make_loss(config.model.loss, dataset.task, dataset.classes, dataset.ignore).bounded


def build(
    config: ExperimentConfig, dataset: Dataset, seed: int, module: nn.Module | None, model: ModelConfig | None = None
) -> Built:
    """Return the initial network: the user's ``module``, else ``model``, else that of ``[model]``."""
    loss, dtype = checked_loss(config, dataset), DTYPES[config.engine.precision]
    wanted = module if module is not None else model or config.model
    tokens = dataset.train.x.dtype == torch.int64
    made = make_model(wanted, dataset.shape, loss.width(), seed, dtype, tokens)
    sample = dataset.inputs(dataset.train.x[:2], dtype)
    name = type(wanted).__name__ if isinstance(wanted, nn.Module) else wanted.name
    check_answers(name, made, dataset, sample)
    shapes = dropout_shapes(made, sample)
    masks = partial(draw_masks, made, shapes, dtype=dtype) if shapes else None
    return Built.of(Network(made, loss.mean), masks, flops(made, sample))


def check_answers(name: str, module: nn.Module, dataset: Dataset, sample: Tensor) -> None:
    """Raise ConfigError if the model's outputs do not match the data.

    That is if it has an output per step and the data one target per row, or the reverse, or if it lacks a token.
    """
    with evaluating(module), torch.no_grad():
        if sample.dtype == torch.int64:
            largest = int(max(split.x.max() for split in dataset.splits.values()))
            try:
                module(torch.full_like(sample, largest))
            except IndexError:
                raise ConfigError(
                    f"model '{name}' does not know token {largest}, the largest of these data: "
                    f"set model.vocabulary = {largest + 1}."
                ) from None
        every_step = module(sample).dim() > 2
    if every_step != (dataset.task == "tokens"):
        one, other = ("per step", "per row") if every_step else ("per row", "per step")
        raise ConfigError(
            f"model '{name}' has one output {one}, but these data have one target {other}: set model.targets and data.target "
            "both to 'per_step' or both to 'last_step', if they have these keys, or use another model."
        )


def make_networks(
    config: ExperimentConfig, dataset: Dataset, seed: int, clients: int, module: nn.Module | None = None
) -> tuple[dict[str, Built], tuple[str, ...]]:
    """Return the networks by architecture, and the architecture of each client.

    The networks are those of ``[[models]]``, else one called "" that all share, and () for the clients.
    """
    if not config.models:
        return {"": build(config, dataset, seed, module)}, ()
    called = names(config.models)
    built = [build(config, dataset, seed, None, each.under(config.model)) for each in config.models]
    places = dealt([each.share for each in config.models], clients, seed)
    return dict(zip(called, built, strict=True)), tuple(called[at] for at in places)
