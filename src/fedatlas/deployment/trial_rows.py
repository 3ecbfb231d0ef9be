"""The rows that `fedatlas deploy trial` deals: a file for each node, and the test rows for the server.

    python -m fedatlas.deployment.trial_rows FOLDER NODES server|nodes EXPERIMENT|- [table.key=value ...]

It is a process that ends, so that the program that starts it needs no torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from fedatlas.config import ExperimentConfig, read
from fedatlas.data.partition import make_partition
from fedatlas.deployment.node_rows import SUFFIX, write_stored
from fedatlas.deployment.refusals import deployable, with_values
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.rng import numpy_stream
from fedatlas.setup.assembly import load

TEST = f"test{SUFFIX}"


def deal(config: ExperimentConfig, names: list[str], folder: Path, judge: str = "server") -> None:
    """Write ``NAME.rows`` for each node, and the test rows, or deal these, too. ConfigError for an experiment that cannot be deployed.

    Parties that hold columns have their tables already.
    """
    whole = deployable(with_values(config), names)
    if whole.columns:
        return
    config, part = whole.config, whole.config.partition
    dataset = load(config, whole.algorithm)
    partition = make_partition(part.name, part.parameters(), dataset, part.clients, config.seed, part.min_size)
    if partition.feature_skew:
        raise ConfigError(
            f"partition.name = '{part.name}' changes rows as they are read: not in a trial; take another."
        )
    test = dataset.test._replace(client=None, row=None)
    order = numpy_stream(config.seed, "deal", "test").permutation(len(test.y))
    for name, rows, judged in zip(names, partition.clients, np.array_split(order, len(names)), strict=True):
        own = dataset.train.take(np.ascontiguousarray(rows))._replace(client=None, row=None)
        more = {"test": test.take(np.sort(judged))} if judge == "nodes" else {}
        write_stored(folder / f"{name}{SUFFIX}", dataset, {"train": own, **more})
    if judge == "server":
        write_stored(folder / TEST, dataset, {"test": test})


def main() -> None:
    """Deal, or say in one sentence why not."""
    folder, names, judge, experiment, *overrides = sys.argv[1:]
    try:
        config = read(None if experiment == "-" else Path(experiment), overrides)
        deal(config, names.split(","), Path(folder), judge)
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
