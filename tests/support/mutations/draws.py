"""Faults of what surrounds every algorithm: who trains on which rows, in which order, under which masks, at which rate."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.data import batches
from fedatlas.data.dataset import Partition
from fedatlas.setup import assembly
from fedatlas.setup.party_rows import HELD_OUT, VALIDATION
from invariants import (
    every_batch_has_a_mask_of_its_own,
    every_epoch_has_an_order_of_its_own,
    rates_are_those_of_their_round,
    rows_held_out_train_nobody,
)
from mutations import Build, Check, Mutation, patched

RIGHT = ALGORITHMS["fedavg"]
# The package's `run` is a function; the module of that name holds the rounds.
rounds = import_module("fedatlas.course.rounds")
SPLIT, RATE, STREAM = assembly.split_clients, rounds.learning_rate, batches.torch_stream


def held_out(key: str) -> Check:
    """The check of `rows_held_out_train_nobody` for one kind of rows."""

    def check(build: Build) -> None:
        rows_held_out_train_nobody(build, key)

    check.__name__ = f"{key}_rows_train_nobody"
    return check


def trained_on(split: str, *given: Any) -> Partition:
    """The partition whose rows of ``split`` stay among those that train."""
    found: Partition = SPLIT(*given)
    kept = found.kept.get(split, {})
    clients = (np.sort(np.append(rows, kept.get(k, []))) for k, rows in enumerate(found.clients))
    return found._replace(clients=tuple(rows.astype(np.int64) for rows in clients))


def rate_of(later: int, schedule: Any, lr: float, number: int, total: int) -> float:
    """The rate of another round."""
    found: float = RATE(schedule, lr, number + later, total)
    return found


def of_both_halves(later: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's, and the one that its parties expect: else these would refuse it before anything could be checked."""
    for module in (rounds, assembly):
        monkeypatch.setattr(module, "learning_rate", partial(rate_of, later))


def without_the_epoch(purpose: str, seed: int, asked: str, *key: int) -> torch.Generator:
    """The same stream for all epochs, and all batches, of a client and round."""
    return STREAM(seed, asked, *(key[:2] if asked == purpose else key))


MUTATIONS = [
    Mutation(
        "fedavg",
        "validation rows trained on",
        RIGHT,
        (held_out("validation"),),
        patched(assembly, "split_clients", partial(trained_on, VALIDATION)),
    ),
    Mutation(
        "fedavg",
        "clients' held-out rows trained on",
        RIGHT,
        (held_out("held_out"),),
        patched(assembly, "split_clients", partial(trained_on, HELD_OUT)),
    ),
    *(
        Mutation(
            "fedavg",
            f"learning rate of the round {words}",
            RIGHT,
            (rates_are_those_of_their_round,),
            partial(of_both_halves, later),
        )
        for words, later in (("before", -1), ("after", 1))
    ),
    Mutation(
        "fedavg",
        "the same shuffle in every epoch of a round",
        RIGHT,
        (every_epoch_has_an_order_of_its_own,),
        patched(batches, "torch_stream", partial(without_the_epoch, "shuffle")),
    ),
    Mutation(
        "fedavg",
        "one dropout mask for all batches of a client and round",
        RIGHT,
        (every_batch_has_a_mask_of_its_own,),
        patched(batches, "torch_stream", partial(without_the_epoch, "dropout")),
    ),
]
