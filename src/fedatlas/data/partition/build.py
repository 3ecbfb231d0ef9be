"""From the name and the keys of the ``[partition]`` table to a partition."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.partition.classes import majority, majority_even, pick_two, shards
from fedatlas.data.partition.common import check_keys, check_sizes, check_some
from fedatlas.data.partition.dirichlet import dirichlet, dirichlet_class, dirichlet_fedseq
from fedatlas.data.partition.flower import FLOWER, from_flower, partitioner_of
from fedatlas.data.partition.sizes import feature_skew, iid, natural, quantity_skew, random
from fedatlas.errors import ConfigError, DataError
from fedatlas.registry import PlainValues, arguments, find

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "iid": iid,
    "random": random,
    "majority_even": majority_even,
    "majority": majority,
    "pick_two": pick_two,
    "shards": shards,
    "dirichlet": dirichlet,
    "dirichlet_class": dirichlet_class,
    "dirichlet_fedseq": dirichlet_fedseq,
    "natural": natural,
    "quantity_skew": quantity_skew,
    "feature_skew": feature_skew,
}
REDRAWN = ("dirichlet_class", "quantity_skew")  # these keep a minimum by drawing again


def make_partition(
    name: str, params: Mapping[str, Any], dataset: Dataset, clients: int, seed: int, min_size: int = 1
) -> Partition:
    """Return the partition that an experiment names, over the training rows of ``dataset``.

    name: a key of `PARTITIONS`, a plugin's, or ``flwr:ClassName`` for a partitioner of flwr-datasets. params: its further
    keys. clients: number of clients; 0 = all natural owners (``natural`` only). min_size: fewest rows of a client.
    ``info`` holds the name and, for ``natural``, the clients' ``names``. ConfigError in one sentence for an unknown
    name or key, a value of the wrong type or range, and for a client that would hold fewer rows than asked for.
    """
    labels = dataset.train.y.numpy()
    owners = None if dataset.train.client is None else dataset.train.client.numpy()
    try:
        part = split(name, params, labels, owners, clients, seed, min_size, dataset.facts.get("owners", ""))
    except ConfigError as error:
        if owners is None or name == "natural":
            raise
        raise ConfigError(f"{error} These rows have owners: partition.name = 'natural' makes each a client.") from None
    _check_inputs(part, dataset)
    info: PlainValues = {"name": name, **part.info}
    if "owners" in info and dataset.client_names:
        info["names"] = [dataset.client_names[i] for i in info["owners"]]
    return part._replace(info=info)


def split(
    name: str,
    params: Mapping[str, Any],
    labels: np.ndarray,
    owners: np.ndarray | None,
    clients: int,
    seed: int,
    min_size: int = 1,
    why: str = "",
) -> Partition:
    """Return a partition as `make_partition` does, from plain arrays: ``labels`` (n,) and, if rows have owners, ``owners`` (n,).

    ``why``: the reason if rows have no owners.
    """
    keys = check_split(name, params, clients)
    if name.startswith(FLOWER):
        part = from_flower(name.removeprefix(FLOWER), params, labels, owners, clients, seed)
    else:
        builder = find("partitions", PARTITIONS, name)
        if name in REDRAWN:
            keys["min_rows"] = max(min_size, keys["min_rows"])
        part = builder(_source(name, builder, labels, owners, why), clients, seed, **keys)
        if not isinstance(part, Partition):
            raise ConfigError(
                f"partition '{name}': its builder returned {type(part).__name__}, not a fedatlas.Partition."
            )
    _check_disjoint(name, part, len(labels))
    if name != "dirichlet_fedseq" or min_size > 1:  # D9 promises no minimum
        check_sizes(part.sizes, min_size)
    return part


def check_split(name: str, params: Mapping[str, Any], clients: int) -> PlainValues:
    """Return the builder's keys with defaults.

    ConfigError for a name, key or number of clients that no rows could be split by.
    """
    if name.startswith(FLOWER):
        partitioner_of(name.removeprefix(FLOWER))
        return dict(params)
    keys = arguments("partition", find("partitions", PARTITIONS, name), params)
    if name in PARTITIONS:
        check_keys(**keys)
        if name != "natural":
            check_some(clients)
    return keys


def _source(
    name: str, builder: Callable[..., Partition], labels: np.ndarray, owners: np.ndarray | None, why: str
) -> np.ndarray:
    """Return the array that the builder splits by: its first parameter is called ``owners`` or ``labels``."""
    if next(iter(inspect.signature(builder).parameters)) != "owners":
        return labels
    if owners is None:
        why = why or "these data name none: set data.client to the column that says who owns a row"
        raise ConfigError(f"partition '{name}' needs rows with an owner, and {why}; or choose another partition.")
    return owners


def _check_disjoint(name: str, part: Partition, n: int) -> None:
    """Check what an external partitioner might break: rows exist, and each has at most one holder."""
    held = np.bincount(np.concatenate(part.clients), minlength=n)
    if len(held) > n or held.max() > 1:
        odd = f"row {len(held) - 1}, but there are {n}" if len(held) > n else f"row {held.argmax()} to two clients"
        raise DataError(f"partition '{name}' gives {odd}.")
    if (given := int(held.sum())) + part.left_out != n:
        raise DataError(
            f"partition '{name}' gives {given} of {n} rows to clients and says that {part.left_out} are nobody's: Partition(clients, "
            f"left_out={n - given}) would say so."
        )


def _check_inputs(part: Partition, dataset: Dataset) -> None:
    if any(spec["rotate"] for spec in part.feature_skew) and len(dataset.shape) != 3:
        raise ConfigError(
            f"partition.rotate turns pictures, but the rows of '{dataset.name}' are not pictures: use noise instead."
        )
    if part.feature_skew and dataset.task == "tokens":
        raise ConfigError("feature_skew changes measurements, and these data are token ids: choose another partition.")
