"""Gradient matching: search for rows whose gradient matches the one that a client sent, many problems in one stack.

    A10   min_x  1 - <g(x), g> / (|g(x)| |g|) + lambda TV(x)      Adam on signs, the label known or read off the last bias (A7)
    A8    min_{x, y}  sum_l |g_l(x, softmax(y)) - g_l|^2           L-BFGS of step 1, row and label sought together
    A9    the same with y as read off the last bias (A7)          L-BFGS of step 1, only the row sought

A client that takes several steps, or a step on several rows, sends the sum of what its steps added. A10 then seeks all its rows at once,
and g(x) is that sum as `LocalSteps` unrolls it.

===========  ============================================  ===========  =================================================
T            problems in the stack (targets x restarts)    g            observed gradients, a tree of (T, ...)
x            rows sought, (T, *shape), pixels from 0 to 1  TV(x)        mean of |differences| of neighbouring pixels
===========  ============================================  ===========  =================================================

The problems are independent: costs and derivatives are mapped over the leading axis (``torch.func.vmap``), whose operations are
recorded once and then replayed. Convolutions are first unfolded into matrix products, because each mapped problem has its own weights.

Source: Zhu, Liu, Han, NeurIPS 2019 (A8); Zhao, Mopuri, Bilen, 2020 (A9); Geiping, Bauermeister, Droege, Moeller, NeurIPS 2020 (A10).
Deviations: restarts share the stack; L-BFGS halves a step that would raise the cost (the original takes every step and often diverges).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, vmap

from fedatlas.attacks.local_steps import parts_of
from fedatlas.tree import Tree

Tensors = Mapping[str, Tensor]
"""Name of a parameter -> its values, or its gradient."""

LOWERED = (3, 5, 7)  # eighths of the steps after which the rate falls to a tenth (A10)
TINY = 1e-12  # C15
KEPT = 20  # pairs of steps and gradient changes that L-BFGS keeps
HALVINGS = 12  # most halvings of a step that would raise the cost
ARMIJO = 1e-4  # share of the predicted decrease that a step must achieve


class Unfolded(nn.Module):
    """A convolution as a matrix product over patches; same values, parameters under the same names."""

    def __init__(self, of: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = of.weight, of.bias
        self.kernel, self.stride, self.padding = of.kernel_size, of.stride, of.padding

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels, h, w) to (n, out, h', w')."""
        assert not isinstance(self.padding, str)
        sides = zip(x.shape[-2:], self.kernel, self.stride, self.padding, strict=True)
        h, w = ((side + 2 * pad - k) // stride + 1 for side, k, stride, pad in sides)
        patches = F.unfold(x, self.kernel, padding=self.padding, stride=self.stride)
        y = self.weight.flatten(1) @ patches
        return (y if self.bias is None else y + self.bias[:, None]).view(len(x), -1, h, w)


def unfolded(module: nn.Module) -> nn.Module:
    """Return the module, changed in place: its plain convolutions as matrix products, everything in evaluation mode."""
    for parent in list(module.modules()):
        for name, one in list(parent.named_children()):
            if isinstance(one, nn.Conv2d) and plain(one):
                setattr(parent, name, Unfolded(one))
    return module.eval()


def plain(one: nn.Conv2d) -> bool:
    """Return whether a convolution has no groups, no dilation and zero padding."""
    around = one.padding_mode == "zeros" and not isinstance(one.padding, str)
    return around and one.groups == 1 and one.dilation == (1, 1)


class Problem(NamedTuple):
    """The attacker's knowledge: the network, the model that it received, the range of a pixel."""

    module: nn.Module  # `unfolded`
    loss: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> mean loss
    params: Tree
    buffers: Tensors
    low: Tensor  # black as the network reads it, broadcast over a row
    high: Tensor  # white

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return tuple(self.low.shape)

    def gradient(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the gradient of the loss of one row, by parameter; ``x`` has pixels from 0 (black) to 1 (white)."""
        return self.gradient_at(self.params, x[None], y[None])

    def gradient_at(self, params: Tensors, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the gradient of the mean loss of a batch ``x`` (n, *shape), ``y`` (n,), at other parameters than the received ones."""
        seen = self.low + (self.high - self.low) * x

        def loss(params: Tensors) -> Tensor:
            outputs = functional_call(self.module, {**params, **self.buffers}, (seen,))
            return self.loss(outputs, y)

        found: dict[str, Tensor] = grad(loss)(dict(params))
        return found


class LocalSteps(NamedTuple):
    """A client's local work as the attacker assumes it: SGD from the received model."""

    places: tuple[Tensor, ...]  # of each step, (T, rows of its batch): their places among the rows sought
    lr: float
    momentum: float = 0.0
    decay: float = 0.0  # weight decay
    ordered: bool = False  # labels belong to places; otherwise each restart draws which label stands where

    @property
    def rows(self) -> int:
        """Number of rows sought."""
        return 1 + max(int(one.max()) for one in self.places)

    def change(self, problem: Problem, x: Tensor, y: Tensor, places: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the mean gradient of one client's steps (`local_steps`), by parameter, for ``x`` (n, *shape), ``y`` (n,).

        u <- momentum u + gradient + decay w, w' <- w' - lr u. A view's update is read in the same form.
        """
        start, moved, u = problem.params, problem.params.zeros(), problem.params.zeros()
        for rows in places:
            w = start - moved * self.lr
            g = Tree(problem.gradient_at(w, x[rows], y[rows])) + w * self.decay
            u = u * self.momentum + g
            moved = moved + u
        return dict(parts_of(len(places), self.lr, self.momentum, self.decay).gradient(moved, start))


class Reconstruction(NamedTuple):
    """The best of the restarts of each target."""

    x: Tensor  # (targets, *shape), pixels of 0 (black) to 1 (white)
    cost: Tensor  # (targets,) without the total variation
    labels: Tensor  # (targets,)
    steps: int


def total_variation(x: Tensor) -> Tensor:
    """Return the mean |difference| of neighbours down and across, for (channels, h, w); 0 for a row that is not a picture."""
    if x.dim() < 3:
        return x.new_zeros(())
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()


def cosine_distance(one: Tensors, other: Tensors) -> Tensor:
    """Return 1 - <a, b> / (|a| |b|) of two trees as vectors."""

    def dot(a: Tensors, b: Tensors) -> Tensor:
        return torch.stack([(a[name] * b[name]).sum() for name in a]).sum()

    return 1 - dot(one, other) / (dot(one, one) * dot(other, other)).clamp_min(TINY**2).sqrt()


def squared_distance(one: Tensors, other: Tensors) -> Tensor:
    """Return the sum of (a - b)^2 of two trees as vectors."""
    return torch.stack([((one[name] - other[name]) ** 2).sum() for name in one]).sum()


def recorded(f: Callable[..., Any], *sample: Any) -> Callable[..., Any]:
    """Return ``f`` as a recorded list of operations for arguments of these shapes: the same values without retracing every step."""
    from torch.fx.experimental.proxy_tensor import make_fx  # a second to import, for those who attack

    traced: Callable[..., Any] = make_fx(f)(*sample)
    return traced


def repeated(tree: Tensors, times: int) -> Tree:
    """Map (T, ...) to (T x times, ...): the restarts of a target are adjacent."""
    return Tree({name: x.repeat_interleave(times, 0) for name, x in tree.items()})


def best_of(x: Tensor, cost: Tensor, labels: Tensor, restarts: int, steps: int) -> Reconstruction:
    """Return the restart of least cost for each target; one with a non-finite cost is the last choice."""
    table = torch.where(torch.isfinite(cost), cost, torch.inf).view(-1, restarts)
    pick = table.argmin(1) + torch.arange(len(table), device=table.device) * restarts
    return Reconstruction(x[pick], cost[pick], labels[pick], steps)


def invert(
    problem: Problem,
    gradients: Tensors,
    labels: Tensor,
    rng: torch.Generator,
    *,
    iterations: int,
    restarts: int = 1,
    tv: float = 1e-4,
    lr: float = 0.1,
    work: LocalSteps | None = None,
) -> Reconstruction:
    """Run A10 on all targets together. ``gradients``: (T, ...) by parameter; ``labels`` (T,), known or inferred.

    With ``work`` each target is a client that took these steps: ``labels`` (T, n) of its n rows, ``x`` of the answer (T, rows, *shape).
    """
    g, y = repeated(gradients, restarts), labels.repeat_interleave(restarts, 0)
    places: tuple[Tensor, ...] = ()
    if work is not None:
        places = tuple(one.repeat_interleave(restarts, 0) for one in work.places)
        y = y if work.ordered else torch.stack([one[torch.randperm(len(one), generator=rng)][: work.rows] for one in y])

    def distance(x: Tensor, y: Tensor, g: Tensors, places: Sequence[Tensor]) -> Tensor:
        simulated = problem.gradient(x, y) if work is None else work.change(problem, x, y, places)
        return cosine_distance(simulated, g)

    def cost(x: Tensor, y: Tensor, g: Tensors, places: Sequence[Tensor]) -> Tensor:
        return distance(x, y, g, places) + tv * total_variation(x)

    x = torch.rand((*y.shape, *problem.shape), generator=rng).to(problem.low.device)
    slope = recorded(vmap(grad(cost)), x, y, dict(g), places)
    first, second = torch.zeros_like(x), torch.zeros_like(x)
    for t in range(1, iterations + 1):
        sign = slope(x, y, dict(g), places).sign()
        first, second = 0.9 * first + 0.1 * sign, 0.999 * second + 0.001 * sign**2
        rate = lr * 0.1 ** sum(8 * t > iterations * eighth for eighth in LOWERED)
        step = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
        x = (x - rate * step).clamp(0, 1)
    return best_of(x, vmap(distance)(x, y, dict(g), places), y, restarts, iterations)


def deep_leakage(
    problem: Problem,
    gradients: Tensors,
    classes: int,
    rng: torch.Generator,
    *,
    iterations: int,
    restarts: int = 1,
    labels: Tensor | None = None,
) -> Reconstruction:
    """Run A8 on all targets together: row and label start as N(0, 1). With ``labels`` (T,) only the rows are sought (A9)."""
    g = repeated(gradients, restarts)
    many, size = len(next(iter(g.values()))), int(torch.tensor(problem.shape).prod())
    z = torch.randn((many, size + classes), generator=rng)
    if labels is None:
        fixed = torch.zeros(many, 0)
    else:  # rows start where those of A8 do
        z, fixed = z[:, :size], F.one_hot(labels.repeat_interleave(restarts), classes).float()

    def cost(z: Tensor, fixed: Tensor, g: Tensors) -> Tensor:
        y = torch.softmax(z[size:], 0) if labels is None else fixed
        return squared_distance(problem.gradient(z[:size].view(problem.shape), y), g)

    both = recorded(vmap(grad_and_value(cost)), z, fixed, dict(g))
    z, last = lbfgs(lambda z: both(z, fixed, dict(g)), z, iterations)
    found = z[:, size:] if labels is None else fixed
    return best_of(z[:, :size].view(many, *problem.shape), last, found.argmax(1), restarts, iterations)


def lbfgs(f: Callable[[Tensor], tuple[Tensor, Tensor]], z: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """Minimise each row of ``z`` (T, n) separately; ``f`` gives (slopes (T, n), costs (T,)). Return rows and costs.

    Steps of 1 along the L-BFGS direction, halved while they do not lower the cost enough; a row that cannot progress drops its history
    and takes a plain gradient step.
    """
    slope, cost = f(z)
    steps: list[Tensor] = []
    turns: list[Tensor] = []
    for _ in range(iterations):
        down = -product(slope, steps, turns)
        fall = (down * slope).sum(1)
        uphill = ~(fall < 0)
        down = torch.where(uphill[:, None], -slope, down)
        fall = torch.where(uphill, -(slope**2).sum(1), fall)
        size = torch.ones_like(cost) if steps else 1 / slope.abs().sum(1).clamp_min(1.0)
        z_next, slope_next, cost_next = z, slope, cost
        waiting = torch.ones_like(cost, dtype=torch.bool)
        for _ in range(HALVINGS):
            tried = z + size[:, None] * down
            found_slope, found_cost = f(tried)
            good = waiting & torch.isfinite(found_cost) & (found_cost <= cost + ARMIJO * size * fall)
            z_next = torch.where(good[:, None], tried, z_next)
            slope_next = torch.where(good[:, None], found_slope, slope_next)
            cost_next = torch.where(good, found_cost, cost_next)
            waiting &= ~good
            if not bool(waiting.any()):
                break
            size = torch.where(waiting, size / 2, size)
        steps, turns = [*steps[-KEPT + 1 :], z_next - z], [*turns[-KEPT + 1 :], slope_next - slope]
        forgetful = waiting[:, None]
        steps = [torch.where(forgetful, 0.0, s) for s in steps]
        turns = [torch.where(forgetful, 0.0, y) for y in turns]
        z, slope, cost = z_next, slope_next, cost_next
    return z, cost


def product(slope: Tensor, steps: list[Tensor], turns: list[Tensor]) -> Tensor:
    """Return the inverse Hessian's estimate times the slope, row by row (Nocedal 1980, two loops); pairs without curvature are ignored."""
    q, kept = slope, []
    for s, y in zip(reversed(steps), reversed(turns), strict=True):
        curvature = (s * y).sum(1)
        rho = torch.where(curvature > 1e-10 * (y * y).sum(1), 1 / curvature, 0.0)
        rho = torch.where((curvature > 0) & torch.isfinite(rho), rho, 0.0)
        alpha = rho * (s * q).sum(1)
        q = q - alpha[:, None] * y
        kept.append((alpha, rho, s, y))
    if kept:
        newest = (steps[-1] * turns[-1]).sum(1) / (turns[-1] ** 2).sum(1)
        q = q * torch.where(torch.isfinite(newest) & (newest > 0), newest, 1.0)[:, None]
    for alpha, rho, s, y in reversed(kept):
        q = q + (alpha - rho * (y * q).sum(1))[:, None] * s
    return q


def inferred_labels(bias: Tensor) -> Tensor:
    """Map (T, classes) gradients of the last bias, of one row each, to the labels: the one negative entry, p_y - 1 (A7)."""
    return bias.argmin(1)
