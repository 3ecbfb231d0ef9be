"""Our partitions as partitioners of flwr-datasets.

Needs ``pip install "fedatlas[hub]"``; nothing is imported before it is asked for. Written against flwr-datasets 0.6.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedatlas.data.dataset import Partition
from fedatlas.data.partition.build import split
from fedatlas.data.partition.flower import FLOWER, partitioner_of
from fedatlas.errors import ConfigError


def to_flower(
    name: str, clients: int, seed: int, *, partition_by: str = "label", min_size: int = 1, **params: Any
) -> Any:
    """Return a flwr-datasets ``Partitioner`` that splits by the fedatlas partition ``name`` with its keys.

    partition_by: the column with the labels (for ``natural``: with the owners; any values that sort). Example::

        FederatedDataset(dataset="mnist", partitioners={"train": to_flower("majority_even", 12, seed=1)})

    ``feature_skew`` is refused: a flwr-datasets partitioner chooses rows and cannot change them.
    """
    if name == "feature_skew" or name.startswith(FLOWER):
        raise ConfigError(f"'{name}' cannot be handed to flwr-datasets: its partitioners only choose rows.")
    base = partitioner_of("Partitioner")

    class FedatlasPartitioner(base):  # type: ignore[misc, valid-type]
        """Rows by a fedatlas partition, computed once, at the first use."""

        _split: Partition | None = None

        def _partition(self) -> Partition:
            if self._split is None:
                column = np.array(self.dataset[partition_by])
                if not np.issubdtype(column.dtype, np.number):
                    column = np.unique(column, return_inverse=True)[1]
                self._split = split(name, params, column, column, clients, seed, min_size)
            return self._split

        def load_partition(self, partition_id: int) -> Any:
            return self.dataset.select(self._partition().clients[partition_id])

        @property
        def num_partitions(self) -> int:
            return len(self._partition().clients)

    return FedatlasPartitioner()
