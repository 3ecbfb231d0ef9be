"""The ground truth of a run, for scoring an attack on its views and for drawing the files that an attacker is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedatlas.attacks.view_attack import Truth
from fedatlas.setup.assembly import Setup
from fedatlas.setup.party_rows import HELD_OUT
from fedatlas.setup.pixels import pixel_range


def truth_of(setup: Setup, worked: Mapping[int, Sequence[int]] | None = None) -> Truth:
    """Return the ground truth of a run; ``worked``: round -> the clients that worked in it."""
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
        worked=worked or {},
        inputs=setup.held.preprocess.columns,
    )
