"""What clients say about their columns so that all can prepare rows alike: sums, sets of categories, counts.

No rows, though the sums of a client with a single row are that row. Each function takes a list with one client's rows an
entry, asks each entry for its summary alone, and combines the summaries. `Traffic` counts what would travel: 8 bytes a
number, 4 a threshold, the names of categories in UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Traffic(NamedTuple):
    """Bytes of an exchange over all clients."""

    up: int = 0
    down: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Both exchanges."""
        return Traffic(self.up + other.up, self.down + other.down)


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
    numbers = 2 * whole.total.numel()
    return whole, Traffic(8 * (numbers + 1) * len(parts), 8 * numbers * len(parts))


def held_categories(codes: Tensor, size: int) -> Tensor:
    """One client's summary of a column of categories: which of ``size`` it holds (bool)."""
    held = torch.zeros(size, dtype=torch.bool)
    held[codes[~torch.isnan(codes)].long()] = True
    return held


def union_categories(parts: Sequence[Tensor], names: Sequence[str]) -> tuple[tuple[str, ...], Traffic]:
    """Names that any client holds, in the order given; each client sends its own names and is sent all."""
    lengths = torch.tensor([len(name.encode()) + 1 for name in names])
    union = torch.stack(list(parts)).any(0)
    up = sum(int(lengths[held].sum()) for held in parts)
    kept = tuple(name for name, held in zip(names, union.tolist(), strict=True) if held)
    return kept, Traffic(up, len(parts) * int(lengths[union].sum()))


def missing_counts(parts: Sequence[Tensor]) -> tuple[Tensor, Traffic]:
    """Missing cells per column over all clients; each client says one number a column."""
    whole = torch.stack([torch.isnan(x).sum(0) for x in parts]).sum(0)
    return whole, Traffic(8 * whole.numel() * len(parts), 0)


def medians(parts: Sequence[Tensor]) -> tuple[Tensor, Traffic]:
    """The exact median of each column over all clients' cells that are not missing, from counts alone; NaN where there is none.

    Bisection over float32's ordered bit patterns: 32 times the server sends a threshold a column and each client says
    how many of its cells are at most that; the two middle ranks are found at once, and their mean is the median.
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
    per_step = ranks.numel() * len(parts)
    return torch.where(n > 0, values, torch.nan), Traffic(32 * 8 * per_step, 32 * 4 * per_step)


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
