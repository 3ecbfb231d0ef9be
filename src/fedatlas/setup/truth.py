"""The ground truth of a run, for scoring an attack on its views and for drawing the files that an attacker is given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedatlas.attacks.view_attack import Truth
from fedatlas.data.preprocess import Preprocess
from fedatlas.errors import ConfigError
from fedatlas.setup.assembly import Setup
from fedatlas.setup.party_rows import HELD_OUT

WHITE = {"digits": 16.0}  # the largest pixel value of data sets whose pixels are not bytes


def truth_of(setup: Setup, trained: Sequence[int] = ()) -> Truth:
    """Return the ground truth of a run; ``trained``: the clients of its first round."""
    test = setup.dataset.splits["test"]
    return Truth(
        seed=setup.seed,
        classes=setup.dataset.classes,
        sizes=setup.sizes,
        kept_sizes={k: len(rows) for k, rows in setup.held_out.items()},
        rows=setup.bench.rows,
        kept=lambda k: setup.rows.kept(k, HELD_OUT),
        test=lambda label: setup.dataset.inputs(test.x[test.y == label], torch.float32),
        box=lambda: pixel_range(setup.held.preprocess, setup.config.data.name),
        trained=trained,
    )


def pixel_range(done: Preprocess, data: str) -> tuple[Tensor, Tensor]:
    """Return black and white as the network reads them, to be broadcast over (channels, h, w).

    ConfigError if the rows are not pictures, or each client scales them differently.
    """
    if done.kind != "pictures" or len(done.shape) != 3:
        raise ConfigError(
            f"gradients can only be inverted to pictures, but these rows are {done.kind} of shape {tuple(done.shape)}."
        )
    if done.scale == "client":
        raise ConfigError(
            "data.scale = 'client' scales pixels differently at each client: use data.scale = 'auto' to invert gradients."
        )
    white = WHITE.get(data, 2.0**done.depth - 1)
    return tuple(done.apply(torch.full((1, *done.shape), v))[0] for v in (0.0, white))  # type: ignore[return-value]
