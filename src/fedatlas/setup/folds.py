"""``evaluation.fold``: each client's rows in five folds, by class. One fold is for judging, the others for training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedatlas.config import ExperimentConfig
from fedatlas.config.experiment import FOLDS
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.errors import ConfigError
from fedatlas.rng import derive, numpy_stream
from fedatlas.setup.party_rows import HELD_OUT, VALIDATION

FEWEST = 10  # rows; a client with fewer trains on all of them


def with_fold(config: ExperimentConfig, dataset: Dataset, partition: Partition) -> Partition:
    """Return a partition whose clients keep one fold of their rows for judging; unchanged if no fold is asked for.

    Rows that ``evaluation.clients`` holds out are in no fold: they are neither trained on nor judged on. ConfigError if
    no client has enough rows.
    """
    fold = config.evaluation.fold
    if fold is None:
        return partition
    labels = dataset.train.y.numpy() if dataset.classes and dataset.train.y.ndim == 1 else None
    train, judged = [], {}
    for k, rows in enumerate(partition.clients):
        mine = np.zeros(len(rows), np.int64) if labels is None else labels[rows]
        own = folds_of(mine, config.seed, k)
        train.append(rows[own != fold])
        judged[k] = rows[own == fold]
    if not any(map(len, judged.values())):
        raise ConfigError(
            f"evaluation.fold: no client has {FEWEST} rows, the fewest of which a fold is taken; use fewer clients, or more rows."
        )
    kept = {name: rows for name, rows in partition.kept.items() if name != HELD_OUT}
    return partition._replace(clients=tuple(train), kept={**kept, VALIDATION: judged})


def course_seed(config: ExperimentConfig) -> int:
    """Return the seed of all draws after the rows are dealt.

    Each fold has its own, so runs on two folds are like two seeds.
    """
    fold = config.evaluation.fold
    return config.seed if fold is None else derive(config.seed, "fold", fold)


def folds_of(labels: NDArray[np.int64], seed: int, client: int) -> NDArray[np.int64]:
    """Return (n,) the fold, from 1, of each row of a client; 0 for all if there are fewer than `FEWEST` rows.

    The rows of a class are dealt to the folds in turn, in an order drawn from the seed. Each class continues where the
    one before it ended. So two folds differ by at most one row, in all and in each class. ``labels``: (n,) the rows'
    classes.
    """
    out = np.zeros(len(labels), np.int64)
    if len(labels) >= FEWEST:
        stream = numpy_stream(seed, "split", "folds", client)
        order = stream.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        out[order] = (np.arange(len(labels)) + stream.integers(FOLDS)) % FOLDS + 1
    return out
