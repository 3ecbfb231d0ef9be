"""The partitioners of flwr-datasets for fedatlas. The other direction is in `export.py`.

Needs ``pip install "fedatlas[hub]"``, imported only on use. Written against flwr-datasets 0.6.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedatlas.data.dataset import Partition
from fedatlas.data.partition.common import check_clients, finish
from fedatlas.errors import ConfigError, first_line, unknown_name
from fedatlas.rng import derive, numpy_stream

FLOWER = "flwr:"  # prefix of the partitioners that flwr-datasets brings


def from_flower(
    name: str,
    params: Mapping[str, Any],
    labels: np.ndarray,
    owners: np.ndarray | None,
    clients: int,
    seed: int,
) -> Partition:
    """Return the partition by ``flwr_datasets.partitioner.<name>(**params)``.

    The partitioner sees a table with the columns ``row``, ``label`` (if a row has one) and ``client`` (its natural
    owner, if any), in seeded random order, as ``FederatedDataset`` shuffles by default. Keys that the user does not set
    follow the experiment: ``num_partitions`` is the number of clients, ``partition_by`` is ``label`` (``client`` for
    natural ids), ``seed`` is derived from the experiment's. clients = 0 takes all clients that it makes.
    """
    kind = partitioner_of(name)
    keys = _keys(name, kind, params, clients, seed)
    table = _table(labels, owners, seed)
    if (column := keys.get("partition_by", "row")) not in table.column_names:
        raise ConfigError(
            f"flwr:{name} splits by '{column}', but these data have only: {', '.join(table.column_names)}."
        )
    try:
        maker = kind(**keys)
        maker.dataset = table
        rows = [np.array(maker.load_partition(k)["row"], dtype=np.int64) for k in range(maker.num_partitions)]
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"flwr:{name} refuses these settings: {first_line(error)}.") from error
    if clients and len(rows) != clients:
        raise ConfigError(f"flwr:{name} makes {len(rows)} clients, not {clients}: write clients = {len(rows)}.")
    check_clients(len(rows), len(labels))
    return finish(rows, len(labels))


def partitioner_of(name: str) -> Any:
    """Return the class of that name.

    ConfigError if flwr-datasets is not installed, or has no such partitioner of rows.
    """
    try:
        from flwr_datasets import partitioner
    except ImportError:
        raise ConfigError('partitioners of flwr-datasets need: pip install "fedatlas[hub]".') from None
    known = [n for n in partitioner.__all__ if not n.startswith("Vertical") and n != "Partitioner"]
    if name.startswith("Vertical"):
        raise ConfigError(f"flwr:{name} deals out columns, and an experiment deals out rows: choose another partition.")
    if name not in (*known, "Partitioner"):
        raise unknown_name("partitioner of flwr-datasets", name, known)
    return getattr(partitioner, name)


def _keys(name: str, kind: Any, params: Mapping[str, Any], clients: int, seed: int) -> dict[str, Any]:
    known = {k: p for k, p in inspect.signature(kind.__init__).parameters.items() if k != "self"}
    for key in params:
        if key not in known:
            raise unknown_name(f"key of flwr:{name}", key, known)
    usual = {
        "num_partitions": clients,
        "partition_by": "client" if "NaturalId" in name else "label",
        "seed": derive(seed, "partition") & 0xFFFFFFFF,
    }
    keys = {key: value for key, value in usual.items() if key in known} | dict(params)
    if missing := [key for key, p in known.items() if p.default is p.empty and key not in keys]:
        raise ConfigError(f"flwr:{name} needs partition.{missing[0]}.")
    if keys.get("num_partitions", clients) != clients:
        raise ConfigError(f"num_partitions = {keys['num_partitions']} but clients = {clients}: write clients only.")
    if "distribution_array" in keys:  # TOML has no arrays of numpy
        keys["distribution_array"] = np.array(keys["distribution_array"])
    return keys


def _table(labels: np.ndarray, owners: np.ndarray | None, seed: int) -> Any:
    from datasets import Dataset as Table

    order = numpy_stream(seed, "partition").permutation(len(labels))
    columns = {"row": order}
    if labels.ndim == 1:
        columns["label"] = labels[order]
    if owners is not None:
        columns["client"] = owners[order]
    return Table.from_dict(columns)
