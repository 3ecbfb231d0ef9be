"""A client's rows as a survey or a question sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.data.batches import Rows
from fedatlas.tree import Tensors


class ClientData:
    """A client's rows as a survey sees them."""

    PIECE = 1024  # rows per piece, so that a survey of a large client fits in memory

    def __init__(
        self,
        rows: Rows,
        classes: int,
        buffers: Tensors,
        result_of: Callable[[], Iterable[Batch]],
        ordered: Callable[[Tensor], Tensor],
    ) -> None:
        self.rows, self.classes, self.n, self.buffers = rows, classes, rows.n, buffers
        self.trained, self.ordered = result_of, ordered

    def pieces(self) -> Sequence[Batch]:
        """Return the rows in ascending order, with dropout off."""
        out = []
        for at in range(0, self.n, self.PIECE):
            x, y, weight = self.rows.x[at:][: self.PIECE], self.rows.y[at:][: self.PIECE], self.rows.weight
            out.append(Batch(self.ordered(x), y, None if weight is None else weight[at:][: self.PIECE], self.buffers))
        return out

    def batches(self) -> Sequence[Batch]:
        """Return the batches that this job's steps will see, in their order."""
        return [
            batch._replace(x=self.ordered(batch.x), extra={**self.buffers, **batch.extra}) for batch in self.trained()
        ]
