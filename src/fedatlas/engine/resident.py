"""Clients' rows that stay on a GPU from one round to the next."""

from __future__ import annotations

import torch

from fedatlas.data.batches import Rows
from fedatlas.engine.job import RowSource


class ResidentRows:
    """A source of rows on a device. Each party's are gathered and sent there once, as long as all kept rows fit in ``room`` bytes."""

    def __init__(self, source: RowSource, device: torch.device, room: int) -> None:
        self.source, self.device, self.room = source, device, room
        self.kept: dict[int, Rows] = {}

    def __call__(self, party: int) -> Rows:
        """Return a party's rows, which nobody changes in place."""
        if party in self.kept:
            return self.kept[party]
        rows = self.source(party).on(self.device)
        size = sum(x.numel() * x.element_size() for x in rows if x is not None)
        if size <= self.room:
            self.room -= size
            self.kept[party] = rows
        return rows
