"""Updates as vectors: rules use all float numbers of a client's change, concatenated, in float64."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.tree import Tree

COORDINATES = 8192  # processed together: few enough for a processor's cache
Place = tuple[str, ...]
"""The keys that lead to a leaf."""


def leaves(value: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield (path, tensor or number) of nested mappings, in their order."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, (*path, str(key)))
    else:
        yield path, value


def map_leaves(f: Callable[[Place, Any], Any], value: Any, path: Place = ()) -> Any:
    """Return the same nested mappings, trees as trees, with each leaf replaced by ``f(path, leaf)``."""
    if not isinstance(value, Mapping):
        return f(path, value)
    out = {key: map_leaves(f, x, (*path, str(key))) for key, x in value.items()}
    return Tree(out) if isinstance(value, Tree) else out


def shape_of(update: Any) -> tuple[tuple[Place, Any], ...]:
    """Return the names and shapes of an update, which all updates of a sum have in common."""
    return tuple(
        (path, (tuple(x.shape), x.is_floating_point()) if isinstance(x, Tensor) else type(x).__name__)
        for path, x in leaves(update)
    )


def counts(x: Any) -> bool:
    """Return whether a leaf is a tensor of whole numbers, such as batch norm's counter, which is not part of a vector."""
    return isinstance(x, Tensor) and not x.is_floating_point()


def finite(x: Tensor) -> bool:
    """Return whether all numbers are finite. A sum is finite only if they are, and takes a thirtieth of the time of a full check."""
    return math.isfinite(x.sum().item()) or bool(torch.isfinite(x).all())


def flat(update: Any, base: Any = None) -> Tensor:
    """Return all float numbers of ``update - base`` in float64, (d,); numbers missing from ``base`` count as zero there."""
    known = dict(leaves(base or {}))
    parts = []
    for path, x in leaves(update):
        if counts(x):
            continue
        parts.append(numbers(x) - numbers(known[path]) if path in known else numbers(x))
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def difference(update: Any, base: Any) -> Any:
    """Return ``update - base`` in float64, with the update's names; whole numbers are those of the update."""
    return rebuilt(flat(update, base), update)


def numbers(x: Any) -> Tensor:
    """Return a leaf's numbers, in float64."""
    return x.double().reshape(-1) if isinstance(x, Tensor) else torch.tensor([float(x)], dtype=torch.float64)


def rebuilt(vector: Tensor, like: Any) -> Any:
    """Invert `flat`, with the names and shapes of ``like``, in float64; whole numbers are those of ``like``."""
    at = 0

    def build(path: Place, value: Any) -> Any:
        nonlocal at
        if counts(value):
            return value
        size = value.numel() if isinstance(value, Tensor) else 1
        piece, at = vector[at : at + size], at + size
        return piece.reshape(value.shape) if isinstance(value, Tensor) else float(piece)

    return map_leaves(build, like)


class Changes:
    """Vectors of one length, in float64: in memory up to a budget of bytes, the rest in a file that is deleted with them.

    ``root``: the change of the server's own rows, for a rule that trusts it. ``seed``: of the draws of what comes before a rule.
    """

    def __init__(self, budget: int = 4 << 30, root: Tensor | None = None, seed: int = 0) -> None:
        self.budget, self.root, self.seed = budget, root, seed
        self.size = 0  # of a vector
        self._rows: list[Tensor] = []
        self._file: Any = None

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, vector: Tensor) -> None:
        """Add one vector."""
        self.size = vector.numel()
        if 8 * self.size * (len(self._rows) + 1) > self.budget and self.size:
            vector = self._spilled(vector)
        self._rows.append(vector)

    def row(self, k: int) -> Tensor:
        """Return the k-th vector."""
        return self._rows[k]

    def blocks(self) -> Iterator[Tensor]:
        """Yield all vectors, some coordinates at a time, (n, coordinates)."""
        for at in range(0, self.size, COORDINATES):
            yield torch.stack([row[at : at + COORDINATES] for row in self._rows])

    def finite(self) -> bool:
        """Return whether every number is finite."""
        return all(map(finite, self._rows))

    def gram(self) -> Tensor:
        """Return the inner products of all pairs, (n, n)."""
        found = torch.zeros(len(self), len(self), dtype=torch.float64)
        for block in self.blocks():
            found += block @ block.T
        return found

    def norms(self) -> Tensor:
        """Return the Euclidean length of each vector, (n,)."""
        return torch.tensor([float(row.norm()) for row in self._rows], dtype=torch.float64)

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner product of each vector with another one, (n,)."""
        return torch.tensor([float(row @ vector) for row in self._rows], dtype=torch.float64)

    def combined(self, weights: Tensor) -> Tensor:
        """Return sum w_k x_k, in the order of the vectors."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for k, weight in enumerate(weights.tolist()):
            if weight:
                total.add_(self._rows[k], alpha=weight)
        return total

    def distances(self, to: Tensor) -> Tensor:
        """Return the distance of each vector to another one, (n,)."""
        squares, at = torch.zeros(len(self), dtype=torch.float64), 0
        for block in self.blocks():
            end = at + block.shape[1]
            squares, at = squares + (block - to[at:end]).square_().sum(dim=1), end
        return squares.sqrt()

    def _spilled(self, vector: Tensor) -> Tensor:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="fedatlas-changes-")  # noqa: SIM115  (lives as long as the vectors)
            weakref.finalize(self, self._file.close)
        at = self._file.seek(0, 2)
        self._file.write(vector.numpy().tobytes())
        self._file.flush()
        return torch.from_numpy(np.memmap(self._file, np.float64, "r+", offset=at, shape=(self.size,)))


class Mixed(Changes):
    """Vectors M x of others x, which are not held a second time. ``matrix``: M, (rows, n)."""

    def __init__(self, of: Changes, matrix: Tensor) -> None:
        super().__init__(of.budget, of.root, of.seed)
        self.of, self.matrix, self.size = of, matrix, of.size

    def __len__(self) -> int:
        return len(self.matrix)

    def row(self, k: int) -> Tensor:
        """Return the k-th vector."""
        return self.of.combined(self.matrix[k])

    def blocks(self) -> Iterator[Tensor]:
        """Yield all vectors, some coordinates at a time, (rows, coordinates)."""
        for block in self.of.blocks():
            yield self.matrix @ block

    def gram(self) -> Tensor:
        """Return the inner products of all pairs, (rows, rows)."""
        return self.matrix @ self.of.gram() @ self.matrix.T

    def norms(self) -> Tensor:
        """Return the Euclidean length of each vector, (rows,)."""
        return self.distances(torch.zeros(self.size, dtype=torch.float64))

    def products(self, vector: Tensor) -> Tensor:
        """Return the inner product of each vector with another one, (rows,)."""
        return self.matrix @ self.of.products(vector)

    def combined(self, weights: Tensor) -> Tensor:
        """Return sum w_i (M x)_i."""
        return self.of.combined(self.matrix.T @ weights)
