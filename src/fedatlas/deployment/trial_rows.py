"""The rows that `fedatlas deploy trial` deals: one file per node, and the test rows for the server.

    python -m fedatlas.deployment.trial_rows FOLDER NODES server|nodes EXPERIMENT|- [table.key=value ...]

It is a separate process that ends, so the program that starts it does not keep the rows. NODES "" makes one node per
natural owner. ``owners.json`` then tells whose rows each node holds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedatlas.config import ExperimentConfig, parse, read
from fedatlas.data.dataset import Dataset, Partition, Split
from fedatlas.data.partition import make_partition
from fedatlas.deployment.node_rows import SUFFIX, write_stored
from fedatlas.deployment.plain_refusals import dealt_refused
from fedatlas.deployment.refusals import deployable, with_values
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.files import write_json
from fedatlas.rng import numpy_stream
from fedatlas.setup.assembly import load
from fedatlas.setup.resolution import resolve

TEST, OWNERS = f"test{SUFFIX}", "owners.json"
MOST = 20  # most natural owners that become nodes by default: every node is three processes
NATURAL = "natural"  # the partition whose clients are the rows' owners


def of_nodes(config: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment as submitted after its rows are dealt: each node then holds one owner's rows, without the owner."""
    if config.data.name != "file" or not config.data.options().get("client"):
        return config
    plain = config.plain()
    for key in ("client", "same_owner"):
        plain["data"].pop(key, None)
    return parse(plain)


def site(number: int) -> str:
    """Return the name of a node, counted from 0."""
    return f"site-{number + 1}"


def deal(config: ExperimentConfig, names: Sequence[str], folder: Path, judge: str = "server") -> None:
    """Write ``NAME.rows`` for each node, and either the server's test rows or test rows at the nodes.

    ConfigError for an experiment that cannot be deployed. Without ``names`` each natural owner is a node. Parties that
    hold columns have their tables already.
    """
    if names and deployable(with_values(of_nodes(config)), names).columns:
        return
    whole = resolve(config)
    config, part = whole.config, whole.config.partition
    dataset = load(config.model_copy(update={"guard": None}), whole.algorithm)  # the server takes its rows out itself
    partition = make_partition(part.name, part.parameters(), dataset, part.clients, config.seed, part.min_size)
    if partition.feature_skew:
        raise ConfigError(dealt_refused(part.name))
    if not names and len(partition.clients) > MOST:
        raise ConfigError(
            f"these rows have {len(partition.clients)} owners, and each node is a process of its own: say how many of them take part, "
            "as in --nodes 5."
        )
    names = names or [site(k) for k in range(len(partition.clients))]
    owners = partition.info.get("names", partition.info.get("owners", names))
    write_json(folder / OWNERS, dict(zip(names, map(str, owners), strict=True)))
    judged = dealt_tests(dataset, partition, config.seed) if judge == "nodes" else None
    for place, (name, rows) in enumerate(zip(names, partition.clients, strict=True)):
        own = unnamed(dataset.train.take(np.ascontiguousarray(rows)))
        more = {} if judged is None else {"test": unnamed(dataset.test.take(judged[place]))}
        write_stored(folder / f"{name}{SUFFIX}", dataset, {"train": own, **more})
    if judge == "server":
        write_stored(folder / TEST, dataset, {"test": unnamed(dataset.test)})


def unnamed(rows: Split) -> Split:
    """Return rows without their owners and numbers."""
    return rows._replace(client=None, row=None)


def dealt_tests(dataset: Dataset, partition: Partition, seed: int) -> list[np.ndarray]:
    """Return the test rows of each node: those of its owner if rows and clients have owners, else an equal share."""
    test = dataset.test
    owners = partition.info.get("owners")
    if owners is None or test.client is None:
        order = numpy_stream(seed, "deal", "test").permutation(len(test.y))
        return [np.sort(rows) for rows in np.array_split(order, len(partition.clients))]
    found = [np.flatnonzero(test.client.numpy() == owner) for owner in owners]
    if empty := [place for place, rows in enumerate(found) if not len(rows)]:
        raise ConfigError(f"the owner of {site(empty[0])} has no test rows: let the server judge (--judge server).")
    return found


def main() -> None:
    """Deal the rows, or print in one sentence why that is not possible."""
    folder, names, judge, experiment, *overrides = sys.argv[1:]
    try:
        config = read(None if experiment == "-" else Path(experiment), overrides)
        deal(config, names.split(",") if names else [], Path(folder), judge)
    except FedatlasError as error:
        sys.stderr.write(f"fedatlas: {error}\n")
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
