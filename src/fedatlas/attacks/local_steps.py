"""From the change of a client's model to the gradients of its local steps (A7, A8, A10).

    v_s = g_s + lambda w_s,   u_s = m u_(s-1) + v_s,   w_(s+1) = w_s - eta u_s   (Nesterov: w_s - eta (v_s + m u_s))

Each model is linear in the first one and in the gradients g_1 to g_tau, so of tau steps

    (w_1 - w_(tau+1)) / eta = a w_1 + sum_s b_s g_s

with numbers a and b_s that follow from eta, m, lambda and tau. So a view reveals the mean of the gradients, weighted by b_s:
((w_1 - w_(tau+1)) / eta - a w_1) / b, where b = sum_s b_s. For one step this is its gradient: b = 1, or 1 + m of Nesterov's, and
a = lambda b. For several steps it is exact, too, but each gradient is taken at another model, so it only approximates that at the first.

======  ==============================================  ======  ==============================================
w_s     model before step s                             eta     the local rate
g_s     gradient of the step's rows at w_s              m       momentum
u_s     memory of the optimizer, u_0 = 0                lambda  weight decay
======  ==============================================  ======  ==============================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedatlas.data.batches import cut
from fedatlas.tree import Tree


class Parts(NamedTuple):
    """The parts of a change over the local rate."""

    start: float  # a: how often the first model is in it
    gradients: float  # b: how often gradients are

    def gradient(self, change: Tree, start: Tree) -> Tree:
        """Return the weighted mean of the steps' gradients; ``change``: (w_1 - w_(tau+1)) / eta."""
        return (1 / self.gradients) * (change - self.start * start)


def parts_of(steps: int, lr: float, momentum: float, decay: float, nesterov: bool = False) -> Parts:
    """Return a and b of so many steps."""

    def moved(w: float, g: float) -> float:
        """Return the change over the rate from the number ``w``, with ``g`` as the gradient of each step."""
        far = u = 0.0
        for _ in range(steps):
            v = g + decay * (w - lr * far)
            u = momentum * u + v
            far += v + momentum * u if nesterov else u
        return far

    return Parts(moved(1.0, 0.0), moved(0.0, 1.0))


def steps_of(local: Any, rows: int) -> int:
    """Return how many steps a client with so many rows takes in a round."""
    if local.steps is not None:
        return int(local.steps)
    whole, rest = cut(rows, local.batch_size, local.merges)
    return int(local.epochs) * (whole + (rest > 0))


def parts_in(local: Any, lr: float, rows: Sequence[int] = ()) -> Parts:
    """Return a and b of the mean, by rows, of clients with so many ``rows`` each. Without any, those of one step.

    ``local``: the table of the experiment; ``lr``: the local rate of the round.
    """
    how = (lr, local.momentum, local.weight_decay, local.nesterov)
    if not rows:
        return parts_of(1, *how)
    of = {n: parts_of(steps_of(local, n), *how) for n in {*rows}}
    start, gradients = (sum(n * of[n][i] for n in rows) / sum(rows) for i in (0, 1))
    return Parts(start, gradients)
