"""The rows that parties hold as the model sees them: the clients', the union's, the server's public ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import SERVER, UNION
from fedatlas.data.batches import Rows
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.partition import apply_feature_skew
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream, torch_stream


def split_clients(
    partition: Partition, seed: int, validation: float, own: float
) -> tuple[Partition, dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Takes shares of each client's rows out of training: for validation (pooled by the server's metric) and for its own figures."""
    train, judged, kept = [], {}, {}
    for k, rows in enumerate(partition.clients):
        order = numpy_stream(seed, "split", k).permutation(rows)
        a = round(validation * len(rows))
        b = a + round(own * len(rows))
        if len(rows) and b >= len(rows):
            raise ConfigError(
                f"client {k} has {len(rows)} rows: too few to hold out the shares of [evaluation] and train."
            )
        judged[k] = np.sort(order[:a])
        kept[k] = np.sort(order[a:b])
        train.append(np.sort(order[b:]))
    for key, share, found in (("validation", validation, judged), ("clients", own, kept)):
        if share and not any(map(len, found.values())):
            raise ConfigError(
                f"evaluation.{key} = {share:g} holds out no row of any client, the largest has "
                f"{max(map(len, partition.clients))}: ask for a larger share."
            )
    out = partition._replace(clients=tuple(train))
    return out, judged if validation else {}, kept if own else {}


def join(parts: Iterable[Rows]) -> Rows:
    """The rows of several parties, one after another."""
    return Rows(*(None if p[0] is None else torch.cat(p) for p in zip(*parts, strict=True)))  # type: ignore[arg-type]


class PartyRows:
    """A party's training rows as the model sees them; a client's rows are gathered when it works and dropped after."""

    def __init__(
        self, dataset: Dataset, partition: Partition, seed: int, dtype: torch.dtype, public: Rows | None = None
    ) -> None:
        self.dataset, self.partition, self.seed, self.dtype, self.public = dataset, partition, seed, dtype, public

    def __call__(self, party: int) -> Rows:
        """The rows of client ``party``, of all clients for UNION, or the public ones for SERVER, in ascending row order."""
        if party == SERVER:
            if self.public is None:
                raise ConfigError("this algorithm works with public rows: add a [public] table.")
            return self.public
        if party == UNION:
            if self.partition.feature_skew:
                return join(self(k) for k in range(len(self.partition.clients)))
            return self.rows(np.sort(np.concatenate(self.partition.clients)))
        return self.of(party, self.partition.clients[party])

    def of(self, party: int, index: np.ndarray, *purpose: str) -> Rows:
        """Rows of the training set as client ``party`` would see them; ``purpose``: of those held out, so that their noise is their own."""
        rows = self.rows(index)
        if self.partition.feature_skew:
            stream = torch_stream(self.seed, "partition", "feature", party, *purpose)
            rows = rows._replace(x=apply_feature_skew(rows.x, self.partition.feature_skew[party], stream).contiguous())
        return rows

    def rows(self, index: np.ndarray) -> Rows:
        """Training rows by index."""
        at = torch.from_numpy(np.ascontiguousarray(index))
        d = self.dataset
        y = d.targets(d.y_train[at])
        weight = None if d.weight_train is None else d.weight_train[at].to(self.dtype)
        # a derived step views its batches: rows of turned pictures, or of arrays in another order, keep their strides
        return Rows(
            d.inputs(d.x_train[at], self.dtype).contiguous(), y.to(self.dtype) if y.is_floating_point() else y, weight
        )


def with_public(dataset: Dataset, x: Tensor, y: Tensor) -> Dataset:
    """The public rows behind the test rows, so that all are preprocessed alike."""
    weight = dataset.weight_test
    weight = None if weight is None else torch.cat([weight, weight.new_ones(len(y))])
    both = torch.cat([dataset.x_test, x]), torch.cat([dataset.y_test, y])
    rows = None if dataset.rows_test is None else torch.cat([dataset.rows_test, torch.full((len(y),), -1)])
    return replace(dataset, x_test=both[0], y_test=both[1], weight_test=weight, rows_test=rows)


def own_test(dataset: Dataset, count: int) -> Dataset:
    """The data set without its last ``count`` test rows."""
    n = len(dataset.y_test) - count
    weight = None if dataset.weight_test is None else dataset.weight_test[:n]
    rows = None if dataset.rows_test is None else dataset.rows_test[:n]
    return replace(dataset, x_test=dataset.x_test[:n], y_test=dataset.y_test[:n], weight_test=weight, rows_test=rows)


def without_public(dataset: Dataset, count: int, dtype: torch.dtype) -> tuple[Dataset, Rows | None]:
    """Undoes `with_public`: the data set without its last ``count`` test rows, and these as the model sees them."""
    if not count:
        return dataset, None
    n = len(dataset.y_test) - count
    x, y = dataset.inputs(dataset.x_test[n:], dtype), dataset.targets(dataset.y_test[n:])
    return own_test(dataset, count), Rows(x, y.to(dtype) if y.is_floating_point() else y)
