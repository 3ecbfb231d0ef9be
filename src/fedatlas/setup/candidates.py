"""The membership game: rows that clients trained on among rows that they held out, equal numbers a client and class (A5).

Half of the rows held out are the attacker's auxiliary rows, for shadow models only; the other half are non-members. Who is a member
follows from data, partition and seed alone, so that only whoever has the data can score.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedatlas.data.batches import Rows
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream
from fedatlas.setup.assembly import Setup
from fedatlas.setup.party_rows import HELD_OUT, join
from fedatlas.setup.views import NO_ROWS


class Candidates(NamedTuple):
    """The rows of the game as a model reads them, shuffled, and their truth."""

    x: Tensor
    y: Tensor
    member: np.ndarray  # bool
    auxiliary_x: Tensor
    auxiliary_y: Tensor


def candidates_of(setup: Setup) -> Candidates:
    """The game of a run. ConfigError where no class of any client has a row on both sides."""
    if not setup.config.evaluation.clients:
        raise ConfigError(NO_ROWS)
    inside, outside, spare = [], [], []
    for k in sorted(setup.sizes):
        if not (setup.sizes[k] and len(setup.held_out.get(k, ()))):
            continue
        stream = numpy_stream(setup.seed, "attack", "candidates", k)
        trained, kept = setup.bench.rows(k), setup.rows.kept(k, HELD_OUT)
        for c in range(setup.dataset.classes):
            members, others = (stream.permutation(np.flatnonzero(rows.y.numpy() == c)) for rows in (trained, kept))
            half = len(others) // 2
            n = min(len(members), len(others) - half)
            spare.append(_take(kept, others[:half]))
            inside.append(_take(trained, members[:n]))
            outside.append(_take(kept, others[half : half + n]))
    if not sum(len(rows.y) for rows in inside):
        raise ConfigError(
            "attack 'membership': no class of any client has a row that it trained on and one that it held out; raise "
            "evaluation.clients."
        )
    every, auxiliary = join([*inside, *outside]), join(spare)
    member = np.arange(len(every.y)) < sum(len(rows.y) for rows in inside)
    order = numpy_stream(setup.seed, "attack", "order").permutation(len(member))
    x, y = every.x[torch.from_numpy(order)], every.y[torch.from_numpy(order)]
    return Candidates(x, y, member[order], auxiliary.x, auxiliary.y)


def _take(rows: Rows, index: np.ndarray) -> Rows:
    chosen = torch.from_numpy(np.sort(index))
    return Rows(rows.x[chosen], rows.y[chosen], None)
