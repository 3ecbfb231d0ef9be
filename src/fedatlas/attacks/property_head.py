"""The active form of property inference (A6): an attacker's local loss has a second task, to tell rows with a property from others.

    L = loss(head(z), y) + weight * BCE(v . z + b, p)        z = features(x)

======  =============================================  ====  ================================================
z       (n, h) inputs of the network's last layer      p     (n,) 1 for rows with the property, else 0
v, b    (h,), () the attacker's own head, never sent   y     (n,) targets of the run's task
======  =============================================  ====  ================================================

So the features that all clients share learn to separate the property, and later updates tell more of it. The head begins each
round at the same random place, and the batches are those of honest work, by plain gradient descent.

Source: Melis, Song, De Cristofaro, Shmatikov, S&P 2019, section 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedatlas.algorithm import Batch
from fedatlas.attacks.properties import Property
from fedatlas.tree import Tree

LossAndFeatures = Callable[[Tree, Batch], tuple[Tensor, Tensor]]
"""(weights, batch) -> the mean loss of the run's task, and the features (n, h)."""


class PropertyHead(NamedTuple):
    """The second task of an attacker."""

    sought: Property
    weight: float  # of its loss; that of the run's task has 1
    inputs: tuple[str, ...] = ()  # names of a table's model inputs

    def trained(
        self,
        start: Tree,
        batches: Iterable[Batch],
        of: LossAndFeatures,
        lr: float,
        decay: float,
        stream: torch.Generator,
    ) -> Tree:
        """Return the weights after one step for each batch on both losses, from ``start``; ``stream`` draws the head."""
        weights, head = start, None
        for batch in batches:
            mine = Tree({name: w.detach().requires_grad_(w.is_floating_point()) for name, w in weights.items()})
            loss, z = of(mine, batch)
            if head is None:
                head = (torch.randn(z.shape[1] + 1, generator=stream) / z.shape[1] ** 0.5).to(z)
            head = head.detach().requires_grad_(True)
            has = self.sought.marks(batch.x, batch.y, self.inputs).to(z)
            both = loss + self.weight * F.binary_cross_entropy_with_logits(z @ head[:-1] + head[-1], has)
            learnt = {name: w for name, w in mine.items() if w.requires_grad}
            *grads, of_head = torch.autograd.grad(both, [*learnt.values(), head], allow_unused=True)
            slope = dict(zip(learnt, grads, strict=True))
            head = head - lr * of_head
            weights = Tree({name: _stepped(w, slope.get(name), lr, decay) for name, w in mine.items()})
        return Tree({name: w.detach() for name, w in weights.items()})


def _stepped(w: Tensor, slope: Tensor | None, lr: float, decay: float) -> Tensor:
    w = w.detach()
    return w if slope is None else w - lr * (slope + decay * w)
