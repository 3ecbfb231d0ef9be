"""The run's network as an attacker builds it: from the configuration and the form of a row, without data or weights."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedatlas.config import ExperimentConfig
from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import ConfigError
from fedatlas.models import Loss, make_loss, make_model
from fedatlas.models.registry import OWN
from fedatlas.record.run_folder import RunFolder

WHITE = {"digits": 16.0}  # the largest pixel of a data set whose pixels are no bytes


class Known(NamedTuple):
    """What everybody in the federation knows."""

    config: ExperimentConfig
    done: Preprocess
    loss: Loss

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.done.class_names)

    def network(self, seed: int) -> nn.Module:
        """Untrained; in evaluation it has neither dropout nor batches."""
        model = self.config.model.model_copy(update={"init": ""})
        return make_model(model, self.done.shape, self.loss.width(), seed).eval()

    def box(self) -> tuple[Tensor, Tensor]:
        """What black and white are to the network, to be broadcast over (channels, h, w). ConfigError for rows that are no pictures."""
        done = self.done
        if done.kind != "pictures" or len(done.shape) != 3:
            raise ConfigError(
                f"gradients are inverted to pictures, and a row here is none ({done.kind} of shape {tuple(done.shape)})."
            )
        if done.scale == "client":
            raise ConfigError(
                "data.scale = 'client' gives each client pixels of its own: gradients are inverted with data.scale = 'auto'."
            )
        white = WHITE.get(self.config.data.name, 2.0**done.depth - 1)
        return tuple(done.apply(torch.full((1, *done.shape), v))[0] for v in (0.0, white))  # type: ignore[return-value]


def known(folder: Path) -> Known:
    """ConfigError where no file can build the network."""
    home = RunFolder.open(folder)
    config = home.config()
    done = Preprocess.from_json(home.read_json("preprocess.json", *Preprocess.KEYS))
    if config.models or config.model.name.startswith(OWN):
        raise ConfigError(
            "attacks need one network that the file names: [[models]] and a network of one's own are refused."
        )
    if done.task != "classes":
        raise ConfigError(f"attacks are on classes, and this run predicts {done.task}.")
    return Known(config, done, make_loss(config.model.loss, done.task, len(done.class_names)))
