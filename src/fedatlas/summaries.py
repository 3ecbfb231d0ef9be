"""What clients say about their columns so that all can prepare rows alike: sums, sets of categories, counts.

No rows, though the sums of a client with a single row are that row. Each function takes a list with one client's rows or
summary an entry and combines them. `Traffic` counts the messages in which they would travel, as the codec writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.deploy import codec


class Traffic(NamedTuple):
    """Bytes of an exchange over all clients."""

    up: int = 0
    down: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Both exchanges."""
        return Traffic(self.up + other.up, self.down + other.down)


def told(messages: Sequence[Any], answer: Any = None) -> Traffic:
    """Each client sends its message; the server answers all of them alike, unless there is no ``answer``."""
    down = 0 if answer is None else codec.size(answer) * len(messages)
    return Traffic(sum(codec.size(message) for message in messages), down)


class Sums(NamedTuple):
    """n, sum x, sum x^2 per column (float64): of one client, or added up over clients."""

    n: int
    total: Tensor
    squares: Tensor

    def plus(self, other: Sums) -> Sums:
        """The sums over both."""
        return Sums(self.n + other.n, self.total + other.total, self.squares + other.squares)

    def mean(self) -> Tensor:
        """Sum / n."""
        return self.total / max(self.n, 1)

    def sd(self) -> Tensor:
        """sqrt(sum x^2 / n - mean^2), the standard deviation of a population; 1 where it is 0, a constant column."""
        mean = self.mean()
        variance = self.squares / max(self.n, 1) - mean**2
        # Rounding leaves about 1e-16 of the squares in a constant column: below that there is no spread.
        constant = variance <= 1e-12 * (self.squares / max(self.n, 1))
        return torch.where(constant, 1.0, variance.clamp_min(0).sqrt())


def sums_of(x: Tensor) -> Sums:
    """One client's summary of its rows (n, columns)."""
    x = x.to(torch.float64)
    return Sums(len(x), x.sum(0), (x**2).sum(0))


def sums_of_pictures(x: Tensor) -> Sums:
    """One client's summary of its pictures (n, channels, h, w): n counts pixels; bytes are counted by value, exactly."""
    if x.dtype != torch.uint8:
        return sums_of(x.movedim(1, -1).reshape(-1, x.shape[1]))
    counts = torch.stack([torch.bincount(x[:, c].reshape(-1).long(), minlength=256) for c in range(x.shape[1])])
    value = torch.arange(256, dtype=torch.float64)
    counts = counts.to(torch.float64)
    return Sums(int(counts[0].sum()), counts @ value, counts @ value**2)


def combine_sums(parts: Sequence[Sums]) -> tuple[Sums, Traffic]:
    """The sums over all clients, in client order; mean and deviation go back to each."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.plus(part)
    return whole, told([part._asdict() for part in parts], {"mean": whole.mean(), "sd": whole.sd()})


def held_categories(x: Tensor, names: Mapping[int, Sequence[str]]) -> dict[str, list[str]]:
    """One client's summary of its columns of categories (``names`` by column): which it holds, in the order given."""
    held = {}
    for j, known in names.items():
        codes = x[:, j][~torch.isnan(x[:, j])].long()
        held[str(j)] = [known[code] for code in torch.unique(codes).tolist()]
    return held


def union_categories(
    parts: Sequence[Mapping[str, Sequence[str]]], names: Mapping[int, Sequence[str]]
) -> tuple[dict[int, tuple[str, ...]], Traffic]:
    """Names by column that any client holds, in the order given; each client sends its own names and is sent all."""
    any_of = {j: set[str]().union(*(part[str(j)] for part in parts)) for j in names}
    kept = {j: tuple(name for name in known if name in any_of[j]) for j, known in names.items()}
    return kept, told(parts, {str(j): list(known) for j, known in kept.items()}) if names else Traffic()


def missing_counts(parts: Sequence[Tensor]) -> tuple[Tensor, Traffic]:
    """Missing cells per column over all clients; each client says how many rows it has, and one number a column."""
    counts = [torch.isnan(x).sum(0) for x in parts]
    return torch.stack(counts).sum(0), told([{"n": len(x), "missing": c} for x, c in zip(parts, counts, strict=True)])


def medians(parts: Sequence[Tensor]) -> tuple[Tensor, Traffic]:
    """The exact median of each column over all clients' cells that are not missing, from counts alone; NaN where there is none.

    Bisection over float32's ordered bit patterns: 32 times the server sends two thresholds a column and each client says
    how many of its cells are at most that; the two middle ranks, which follow from `missing_counts`, are found at once, and
    their mean is the median.
    """
    keys = [_sorted_keys(x) for x in parts]
    n = torch.stack([(~torch.isnan(x)).sum(0) for x in parts]).sum(0)
    ranks = torch.stack([(n + 1) // 2, n // 2 + 1], 1)
    low = torch.full_like(ranks, -(1 << 31))
    high = torch.full_like(ranks, (1 << 31) - 1)
    for _ in range(32):
        middle = (low + high) >> 1
        count = sum((torch.searchsorted(k, middle, right=True) for k in keys), torch.zeros_like(ranks))
        enough = count >= ranks
        high = torch.where(enough, middle, high)
        low = torch.where(enough, low, middle + 1)
    values = _unkey(high).to(torch.float64).mean(1)
    ask, say = codec.size({"threshold": middle.to(torch.int32)}), codec.size({"at_most": ranks})
    return torch.where(n > 0, values, torch.nan), Traffic(32 * say * len(parts), 32 * ask * len(parts))


def _sorted_keys(x: Tensor) -> Tensor:
    """float32 (n, columns) -> int64 (columns, n), ascending, in the order of the numbers; missing cells last."""
    bits = x.to(torch.float32).contiguous().view(torch.int32).long()
    keys = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    keys = torch.where(torch.isnan(x), torch.tensor((1 << 31) - 1), keys)
    return keys.T.contiguous().sort(1).values


def _unkey(keys: Tensor) -> Tensor:
    """The inverse of the order: int64 keys -> float32 numbers."""
    bits = torch.where(keys >= 0, keys, keys ^ 0x7FFFFFFF)
    return bits.to(torch.int32).view(torch.float32)
