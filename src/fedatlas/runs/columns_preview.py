"""A look at a run of parties that hold columns before it: what matching and trees would send, and about how long they would take.

A tree is grown from a few rows that are paired by their places, not by their ids, and thrown away; under encryption twice, of few and of
twice as many, because its cost is a straight line in the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedatlas import machine
from fedatlas.algorithm import State
from fedatlas.config import ExperimentConfig
from fedatlas.runs import alignment
from fedatlas.runs.columns_baselines import Side, trial
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.vertical.boosting import SecureBoost
from fedatlas.vertical.parties import tensor
from fedatlas.vertical.split import parted

FEW, MANY = 200, 20_000  # rows of a trial on ciphertexts, and of one in the clear


class Trial(NamedTuple):
    """What a tree cost."""

    rows: int
    bytes: int
    seconds: float


@machine.one_thread_an_operator()
def rehearsed(config: ExperimentConfig) -> dict[str, Any]:
    """Who holds what, bytes and seconds of alignment and trees, as far as they are known before anything is matched."""
    config, how = method_of(config)
    held = consortium(config)
    matching = alignment.looked_at(held)
    most = min(len(one.x) for one in held.parties)
    sizes = [FEW, 2 * FEW] if how.key_bits else [MANY]
    made = [one_tree(held, how, min(size, most)) for size in sizes]
    found = expected(made, most)
    return {
        **matching,
        "bytes_alignment": matching["bytes"],
        "seconds_alignment": matching["seconds"],
        "trees": how.trees,
        "protected": how.key_bits > 0,
        "rows_at_most": most,
        "bytes_per_tree": found.bytes,
        "seconds_per_tree": found.seconds,
        "bytes": matching["bytes"] + how.trees * found.bytes,
        "seconds": matching["seconds"] + how.trees * found.seconds,
    }


def expected(made: list[Trial], rows: int) -> Trial:
    """A tree of so many rows: along the line through two trials; of one, in proportion."""
    if len(made) == 2 and made[0].rows < made[1].rows:
        few, many = made
        share = (rows - few.rows) / (many.rows - few.rows)
        more = max(many.seconds - few.seconds, 0.0)
        return Trial(rows, round(few.bytes + share * (many.bytes - few.bytes)), few.seconds + share * more)
    one = made[-1]
    return Trial(rows, round(one.bytes * rows / one.rows), one.seconds * rows / one.rows)


def one_tree(held: Consortium, how: SecureBoost, rows: int) -> Trial:
    """A tree of so many rows of each party, whoever they are."""
    active = held.parties[held.active]
    assert active.y is not None
    at = np.arange(rows)
    y = active.y[:rows]
    split = parted(y, active.task, {"test": held.test, "held": held.held}, active.seed)
    state: State = {"align": {"order": tensor(at)}, "split": {part: tensor(places) for part, places in split.items()}}
    cost = trial(Side(held.parties, tuple(state for _ in held.parties)), how)
    seconds = sum(cost.seconds.values()) - cost.seconds.get("keys", 0.0)
    return Trial(rows, cost.bytes_up + cost.bytes_down, seconds)
