"""The rows that parties hold as the model sees them: the clients', the union's, the server's public ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from fedatlas.algorithm import SERVER, UNION
from fedatlas.data.batches import Rows
from fedatlas.data.dataset import Dataset, Partition, Split
from fedatlas.data.partition import apply_feature_skew
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream, torch_stream

VALIDATION, HELD_OUT = "validation", "held out"  # the rows that clients keep out of training (`Partition.kept`)


def split_clients(partition: Partition, seed: int, validation: float, own: float) -> Partition:
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
    shares = {VALIDATION: judged if validation else {}, HELD_OUT: kept if own else {}}
    return partition._replace(clients=tuple(train), kept={name: rows for name, rows in shares.items() if rows})


def join(parts: Iterable[Rows]) -> Rows:
    """The rows of several parties, one after another."""
    return Rows(*(None if p[0] is None else torch.cat(p) for p in zip(*parts, strict=True)))  # type: ignore[arg-type]


class PartyRows:
    """A party's rows as the model sees them; a client's are gathered when it works and dropped after."""

    def __init__(self, dataset: Dataset, partition: Partition, seed: int, dtype: torch.dtype) -> None:
        self.dataset, self.partition, self.seed, self.dtype = dataset, partition, seed, dtype
        self.public = self.common("public") if "public" in dataset.splits else None

    def __call__(self, party: int) -> Rows:
        """The rows that client ``party`` trains on, those of all for UNION, or the public ones for SERVER, in ascending row order."""
        if party == SERVER:
            if self.public is None:
                raise ConfigError("this algorithm works with public rows: add a [public] table.")
            return self.public
        if party == UNION:
            if self.partition.feature_skew:
                return join(self(k) for k in range(len(self.partition.clients)))
            return self.rows(np.sort(np.concatenate(self.partition.clients)))
        return self._seen(party, self.partition.clients[party])

    def kept(self, party: int, name: str) -> Rows:
        """The rows of client ``party`` that no training sees, by what they are kept for; their noise is their own."""
        return self._seen(party, self.partition.kept[name][party], name)

    def _seen(self, party: int, index: np.ndarray, *purpose: str) -> Rows:
        """Training rows by index, through the client's own instrument."""
        rows = self.rows(index)
        if self.partition.feature_skew:
            stream = torch_stream(self.seed, "partition", "feature", party, *purpose)
            rows = rows._replace(x=apply_feature_skew(rows.x, self.partition.feature_skew[party], stream).contiguous())
        return rows

    def rows(self, index: np.ndarray) -> Rows:
        """Training rows by index."""
        rows = self._read(self.dataset.train.take(np.ascontiguousarray(index)))
        # a derived step views its batches: rows of turned pictures, or of arrays in another order, keep their strides
        return rows._replace(x=rows.x.contiguous())

    def common(self, name: str) -> Rows:
        """All rows of a split that belongs to no client: "test" or "public"."""
        return self._read(self.dataset.splits[name])

    def _read(self, split: Split) -> Rows:
        """Stored rows -> what model and loss see."""
        y = self.dataset.targets(split.y)
        weight = None if split.weight is None else split.weight.to(self.dtype)
        return Rows(self.dataset.inputs(split.x, self.dtype), y.to(self.dtype) if y.is_floating_point() else y, weight)
