"""The best step that we can write by hand, for two networks: what the derived step is measured against.

Every trick that is known to help on a CPU is here: no autograd, gradients of dense layers multiplied straight into the
weights, the loss's gradient in closed form with its 1/n folded into the learning rate, memory laid out once, views made
once, channels-last pictures, ReLU behind the pool, biases of convolutions summed apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Step = Callable[[Tensor, Tensor], Tensor]


class Correction(NamedTuple):
    """A direction g + mu w + constant, a constant for every parameter: FedProx (mu, -mu w_t), SCAFFOLD (0, c - c_k)."""

    mu: float
    constants: Sequence[Tensor]


def correct(params: Sequence[Tensor], correction: Correction | None, lr: float) -> Callable[[], None]:
    """w <- (1 - lr mu) w - lr constant, one pass over each parameter."""
    if correction is None:
        return lambda: None
    beta = 1 - lr * correction.mu
    pairs = [(x, -lr * constant) for x, constant in zip(params, correction.constants, strict=True)]
    add = torch.add

    def run() -> None:
        for x, constant in pairs:
            add(constant, x, alpha=beta, out=x)

    return run


def mlp1(params: Mapping[str, Tensor], rows: int, lr: float, correction: Correction | None = None) -> Step:
    """784-200-10 with ReLU and mean cross-entropy; ``params`` (two layers' weights and biases, in order) change in place."""
    w1, b1, w2, b2 = params.values()
    h, z, dh = torch.empty(rows, len(b1)), torch.empty(rows, len(b2)), torch.empty(rows, len(b1))
    p = torch.empty(rows, len(b2))
    w1_t, w2_t, p_t, dh_t = w1.t(), w2.t(), p.t(), dh.t()
    ones, minus, rate = torch.ones(rows), torch.full((rows, 1), -1.0), -lr / rows
    addmm, mm = torch.addmm, torch.mm
    log_softmax, nll_loss = torch._log_softmax, torch._C._nn.nll_loss_nd  # noqa: SLF001  # a microsecond less each
    relu_backward = torch.ops.aten.threshold_backward.grad_input
    corrected = correct([w1, b1, w2, b2], correction, lr)

    def step(x: Tensor, y: Tensor) -> Tensor:
        addmm(b1, x, w1_t, out=h).relu_()
        addmm(b2, h, w2_t, out=z)
        log_softmax(z, 1, False, out=p)
        loss: Tensor = nll_loss(p, y, None, 1, -100)
        p.exp_().scatter_add_(1, y.unsqueeze(1), minus)
        mm(p, w2, out=dh)
        relu_backward(dh, h, 0, grad_input=dh)
        corrected()
        w2.addmm_(p_t, h, alpha=rate)
        b2.addmv_(p_t, ones, alpha=rate)
        w1.addmm_(dh_t, x, alpha=rate)
        b1.addmv_(dh_t, ones, alpha=rate)
        return loss

    return step


def cnn2(params: Mapping[str, Tensor], rows: int, lr: float, correction: Correction | None = None) -> Step:
    """conv5x5(1, 32)-pool, conv5x5(32, 64)-pool, 3136-512-10; the convolutions' weights must be channels-last."""
    k1, c1, k2, c2, w1, b1, w2, b2 = params.values()
    aten, last = torch.ops.aten, torch.channels_last

    def picture(channels: int, side: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(rows, channels, side, side, dtype=dtype, memory_format=last)

    p1, i1, dp1 = picture(32, 14), picture(32, 14, torch.int64), picture(32, 28)
    p2, i2, dp2, g2 = picture(64, 7), picture(64, 7, torch.int64), picture(64, 14), picture(64, 7)
    flat, h, z, p = torch.empty(rows, 3136), torch.empty(rows, 512), torch.empty(rows, 10), torch.empty(rows, 10)
    dh, df = torch.empty(rows, 512), torch.empty(rows, 3136)
    flat_picture, df_picture = flat.view(rows, 64, 7, 7), df.view(rows, 64, 7, 7)
    w1_t, w2_t, p_t, dh_t = w1.t(), w2.t(), p.t(), dh.t()
    s1, s2, ones = torch.empty(32), torch.empty(64), torch.ones(rows)
    minus, rate = torch.full((rows, 1), -1.0), -lr / rows
    conv, conv_backward = torch.conv2d, aten.convolution_backward.default
    pool, pool_backward = aten.max_pool2d_with_indices.out, aten.max_pool2d_with_indices_backward.grad_input
    addmm, mm = torch.addmm, torch.mm
    log_softmax, nll_loss = torch._log_softmax, torch._C._nn.nll_loss_nd  # noqa: SLF001  # a microsecond less each
    relu_backward, total = aten.threshold_backward.grad_input, torch.sum
    two, none, one, all_but_channels = [2, 2], [0, 0], [1, 1], [0, 2, 3]
    corrected = correct([k1, c1, k2, c2, w1, b1, w2, b2], correction, lr)

    def step(x: Tensor, y: Tensor) -> Tensor:
        x = x.as_strided((rows, 1, 28, 28), (784, 1, 28, 1))
        a1 = conv(x, k1, c1, 1, 2)
        pool(a1, two, two, out=p1, indices=i1)
        p1.relu_()
        a2 = conv(p1, k2, c2, 1, 2)
        pool(a2, two, two, out=p2, indices=i2)
        p2.relu_()
        flat_picture.copy_(p2)
        addmm(b1, flat, w1_t, out=h).relu_()
        addmm(b2, h, w2_t, out=z)
        log_softmax(z, 1, False, out=p)
        loss: Tensor = nll_loss(p, y, None, 1, -100)
        p.exp_().scatter_add_(1, y.unsqueeze(1), minus)
        mm(p, w2, out=dh)
        relu_backward(dh, h, 0, grad_input=dh)
        mm(dh, w1, out=df)
        relu_backward(df, flat, 0, grad_input=df)
        g2.copy_(df_picture)
        pool_backward(g2, a2, two, two, none, one, False, i2, grad_input=dp2)
        dx, dk2, _ = conv_backward(dp2, p1, k2, [64], one, two, one, False, none, 1, [True, True, False])
        relu_backward(dx, p1, 0, grad_input=dx)
        pool_backward(dx, a1, two, two, none, one, False, i1, grad_input=dp1)
        _, dk1, _ = conv_backward(dp1, x, k1, [32], one, two, one, False, none, 1, [False, True, False])
        corrected()
        w2.addmm_(p_t, h, alpha=rate)
        b2.addmv_(p_t, ones, alpha=rate)
        w1.addmm_(dh_t, flat, alpha=rate)
        b1.addmv_(dh_t, ones, alpha=rate)
        k2.add_(dk2, alpha=rate)
        c2.add_(total(dp2, all_but_channels, out=s2), alpha=rate)
        k1.add_(dk1, alpha=rate)
        c1.add_(total(dp1, all_but_channels, out=s1), alpha=rate)
        return loss

    return step
