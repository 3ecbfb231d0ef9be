"""What a round of split learning costs; a part of vertical.py.

``split``: one round (an epoch) of two parties on credit_default_taiwan, the label and 11 columns against 12, by rows, with the R^2
of a straight line, beside the joined network trained in one place by torch's own SGD. Core seconds are of one thread that plays
both parties; bytes are counted up to the coordinator and down from it, and ``payload`` is 4 bytes a number of the embeddings of
training rows and of their gradients.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from vertical_boosting import Row, read, training_rows, yes

from boosting_federation import Table, federation_of, parties_of
from fedatlas.federation.start import RoundStart
from fedatlas.vertical.networks import SPLIT, CutNetworks, split_learning

ROWS = (4_000, 8_000, 12_000, 16_000, 22_500)
TIMES = 5  # of which the fastest counts
OWNERS = [list(range(11)), list(range(11, 23))]


def joined(x: torch.Tensor, y: torch.Tensor, batch: int) -> float:
    """Core seconds of one epoch of the same network in one place."""
    hidden = [
        [torch.nn.Linear(len(own), 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU()] for own in OWNERS
    ]
    bodies, head = torch.nn.ModuleList(torch.nn.Sequential(*layers) for layers in hidden), torch.nn.Linear(32, 2)
    optimiser = torch.optim.SGD([*bodies.parameters(), *head.parameters()], lr=0.01)
    began = time.process_time()
    for rows in torch.randperm(len(x)).split(batch):
        parts = [body(x[rows][:, own]) for body, own in zip(bodies, OWNERS, strict=True)]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(head(torch.cat(parts, dim=1)), y[rows]).backward()
        optimiser.step()
    return time.process_time() - began


def one_round(table: Table, train: np.ndarray, how: CutNetworks) -> tuple[float, int]:
    """Core seconds of a round, and its bytes."""
    held, server = federation_of(parties_of(table, OWNERS), how, train, scheme=SPLIT)
    server = held.drive(lambda: SPLIT.begin(how, server), RoundStart(1, 0.0))
    began = time.process_time()
    held.drive(lambda: SPLIT.step(how, server, 1), RoundStart(2, 0.0))
    return time.process_time() - began, held.cost.bytes_up + held.cost.bytes_down


def split() -> list[Row]:
    """One round by rows."""
    torch.set_num_threads(1)
    table, how, found = read("credit_default_taiwan"), split_learning(rounds=1), []
    x = torch.from_numpy(np.nan_to_num((table.x - table.x.mean(0)) / table.x.std(0))).float()
    for n in ROWS:
        train = np.sort(training_rows(len(table.y))[:n])
        y = torch.from_numpy(table.y[train].astype(np.int64))
        work, sent = min(one_round(table, train, how) for _ in range(TIMES))
        alone = min(joined(x[train], y, how.batch_size) for _ in range(TIMES))
        payload = 2 * 2 * 4 * how.width * n  # embeddings and gradients, each up and down
        judged = 2 * 4 * how.width * (len(table.y) - n)
        found.append((n, work, alone, sent - judged, payload))
    r2 = float(np.corrcoef(np.array(ROWS, float), [one[1] for one in found])[0, 1] ** 2)
    return [
        {
            "rows": f"{n:,}",
            "core seconds": round(work, 2),
            "ms a row": round(1000 * work / n, 3),
            "in one place": round(alone, 2),
            "MB of training": round(sent / 1e6, 2),
            "payload": round(payload / 1e6, 2),
            "R^2": round(r2, 4),
            ">= 0.95": yes(r2 >= 0.95),
        }
        for n, work, alone, sent, payload in found
    ]
