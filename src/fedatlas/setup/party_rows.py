"""The rows of each party as the model sees them: a client's, the union of all, and the server's public rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.algorithm import SERVER, UNION
from fedatlas.data.batches import Rows
from fedatlas.data.dataset import Dataset, Partition, Split
from fedatlas.data.partition import apply_feature_skew
from fedatlas.errors import ConfigError
from fedatlas.rng import numpy_stream, torch_stream
from fedatlas.wire import codec

VALIDATION, HELD_OUT = "validation", "held out"  # the rows that clients keep out of training (`Partition.kept`)


def split_clients(partition: Partition, seed: int, validation: float, own: float) -> Partition:
    """Take shares of each client's rows out of training, for validation and for the client's own figures.

    Validation rows are pooled for the global figures. ConfigError if a client is left without training rows, or a
    share holds out no row of any client.
    """
    train, judged, kept = [], {}, {}
    for k, rows in enumerate(partition.clients):
        order = numpy_stream(seed, "split", k).permutation(rows)
        a = round(validation * len(rows))
        b = a + round(own * len(rows))
        if len(rows) and b >= len(rows):
            raise ConfigError(
                f"client {k} has {len(rows)} rows, too few to hold out the shares of [evaluation] and still train."
            )
        judged[k] = np.sort(order[:a])
        kept[k] = np.sort(order[a:b])
        train.append(np.sort(order[b:]))
    for key, share, found in (("validation", validation, judged), ("clients", own, kept)):
        if share and not any(map(len, found.values())):
            raise ConfigError(
                f"evaluation.{key} = {share:g} holds out no row of any client, as the largest has "
                f"{max(map(len, partition.clients))}: ask for a larger share."
            )
    shares = {VALIDATION: judged if validation else {}, HELD_OUT: kept if own else {}}
    return partition._replace(clients=tuple(train), kept={name: rows for name, rows in shares.items() if rows})


def join(parts: Iterable[Rows]) -> Rows:
    """Concatenate the rows of several parties."""
    return Rows(*(None if p[0] is None else torch.cat(p) for p in zip(*parts, strict=True)))  # type: ignore[arg-type]


def raw_bytes(dataset: Dataset, sizes: Iterable[int]) -> int:
    """Return the bytes of all clients' rows in stored form (x, y, weights), encoded as one message per client."""
    rows = dataset.train
    parts = {"x": rows.x, "y": rows.y, "weight": rows.weight}

    def message(n: int) -> dict[str, Any]:
        shaped = {name: (n, *x.shape[1:]) for name, x in parts.items() if x is not None}
        return {name: torch.empty(s, dtype=parts[name].dtype, device="meta") for name, s in shaped.items()}  # type: ignore[union-attr]

    return sum(codec.size(message(n)) for n in sizes)


class PartyRows:
    """Source of a party's rows as the model sees them. A client's rows are gathered each time they are needed."""

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        seed: int,
        dtype: torch.dtype,
        marked: Callable[[int, Rows, int], Rows] = lambda party, rows, classes: rows,
    ) -> None:
        self.dataset, self.partition, self.seed, self.dtype, self.marked = dataset, partition, seed, dtype, marked
        self.public = self.common("public") if "public" in dataset.splits else None

    def __call__(self, party: int) -> Rows:
        """Return the rows that client ``party`` trains on, all rows for UNION, or the public rows for SERVER.

        ConfigError for SERVER without public rows.
        """
        if party == SERVER:
            if self.public is None:
                raise ConfigError("this algorithm works with public rows: add a [public] table.")
            return self.public
        if party == UNION:
            if self.partition.feature_skew:
                return join(self(k) for k in range(len(self.partition.clients)))
            return self.rows(np.sort(np.concatenate(self.partition.clients)))
        rows = self._seen(party, self.partition.clients[party])
        return self.marked(party, rows, self.dataset.classes)

    def kept(self, party: int, name: str) -> Rows:
        """Return a client's rows kept out of training for ``name``; their feature noise is drawn separately."""
        return self._seen(party, self.partition.kept[name][party], name)

    def targets(self) -> tuple[Tensor, Tensor | None]:
        """Return stored targets and weights of all rows that clients train on."""
        rows = self.dataset.train.take(np.sort(np.concatenate(self.partition.clients)))
        return rows.y, rows.weight

    def in_round(self, number: int) -> PartyRows:  # noqa: ARG002
        """Return the source of rows in a round: another one from some round on under ``[drift]`` (`DriftingRows`)."""
        return self

    def _seen(self, party: int, index: np.ndarray, *purpose: str) -> Rows:
        """Return training rows by index, with the client's feature skew if there is one."""
        rows = self.rows(index)
        if self.partition.feature_skew:
            stream = torch_stream(self.seed, "partition", "feature", party, *purpose)
            rows = rows._replace(x=apply_feature_skew(rows.x, self.partition.feature_skew[party], stream).contiguous())
        return rows

    def rows(self, index: np.ndarray) -> Rows:
        """Return training rows by index."""
        rows = self._read(self.dataset.train.take(np.ascontiguousarray(index)))
        # a derived step views its batches, so rows must be contiguous: turned pictures would keep their strides
        return rows._replace(x=rows.x.contiguous())

    def common(self, name: str) -> Rows:
        """Return all rows of a split that belongs to no client: "test" or "public"."""
        return self._read(self.dataset.splits[name])

    def _read(self, split: Split) -> Rows:
        """Convert stored rows to what model and loss see."""
        y = self.dataset.targets(split.y)
        weight = None if split.weight is None else split.weight.to(self.dtype)
        return Rows(self.dataset.inputs(split.x, self.dtype), y.to(self.dtype) if y.is_floating_point() else y, weight)
