"""Rows that stay on a device from one round to the next."""

from __future__ import annotations

import torch

from fedatlas.data.batches import Rows
from fedatlas.engine.resident import ResidentRows


def test_rows_are_gathered_once_while_there_is_room() -> None:
    asked: list[int] = []

    def source(party: int) -> Rows:
        asked.append(party)
        return Rows(torch.full((4, 2), float(party)), torch.zeros(4, dtype=torch.int64))

    one = 4 * 2 * 4 + 4 * 8  # bytes of a party
    kept = ResidentRows(source, torch.device("cpu"), 2 * one + 1)
    for _ in range(2):
        for party in (3, 1, 2):
            assert kept(party).x[0, 0] == party
    assert asked == [3, 1, 2, 2]  # the third found no room
