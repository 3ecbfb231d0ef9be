"""Dropout whose masks are inputs, so that a run depends only on its seed and no traced step has a fixed mask.

Masks are drawn with the batches, from the stream (seed, ``dropout``, round, client, epoch, batch); the
module only multiplies. A user's own ``nn.Dropout`` layers are replaced by these (`adopt_dropout`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedatlas.errors import ConfigError

_TINY = 1e-12  # C15: at p = 1 every unit is dropped, and 0 / 0 must be 0
_CHANNELWISE = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Dropout(nn.Module):
    """y = x * mask in training, y = x in evaluation; E[mask] = 1 (Srivastava et al. 2014, scaled in training).

    ``mask`` is a buffer outside the state dict: pass it with ``functional_call(module, {"NAME.mask": mask}, x)``.
    It starts empty, so that training without a mask fails at once instead of silently omitting dropout.
    """

    mask: Tensor

    def __init__(self, p: float, channelwise: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ConfigError(f"dropout is a probability between 0 and 1, not {p}.")
        self.p, self.channelwise = p, channelwise
        self.register_buffer("mask", torch.empty(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, ...) to (n, ...)."""
        return x * self.mask if self.training else x

    def extra_repr(self) -> str:
        """Return the text for ``print(module)``."""
        return f"p={self.p}"


def adopt_dropout(module: nn.Module) -> nn.Module:
    """Replace every ``nn.Dropout`` (also 1d, 2d, 3d) inside ``module``, in place, by `Dropout`; return the module."""
    for path, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, (nn.Dropout, *_CHANNELWISE)):
            ours = Dropout(layer.p, channelwise=isinstance(layer, _CHANNELWISE)).train(layer.training)
            if not path:
                return ours
            module.set_submodule(path, ours)
    return module


def dropout_shapes(module: nn.Module, sample_x: Tensor) -> dict[str, tuple[int, ...]]:
    """Return buffer name -> shape of one row's mask, in the order of use, found by one pass of ``sample_x`` (n, ...)."""
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str, layer: Any, x: Tensor) -> None:
        if name in shapes:
            where = name.removesuffix(".mask")
            raise ConfigError(
                f"the dropout layer '{where}' is used more than once in a pass: use a separate layer each time."
            )
        shapes[name] = (x.shape[1], *(1,) * (x.dim() - 2)) if layer.channelwise else tuple(x.shape[1:])

    held = {f"{name}.mask".lstrip("."): m for name, m in module.named_modules() if isinstance(m, Dropout)}
    if held:
        with noting(held, note), evaluating(module), torch.no_grad():
            module(sample_x)
    return shapes


def draw_masks(
    module: nn.Module,
    shapes: Mapping[str, tuple[int, ...]],
    rows: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Return one mask (rows, ...) for each name of `dropout_shapes`: 0 with probability p, else 1 / (1 - p)."""
    masks = {}
    for name, shape in shapes.items():
        layer = module.get_submodule(name.rpartition(".")[0])
        kept = 1.0 - float(layer.p)  # type: ignore[arg-type]  # a Dropout, as the names are those of `dropout_shapes`
        # Drawn in float32 for every precision, so that the same units drop in each.
        draw = torch.rand((rows, *shape), device="cpu", generator=generator, dtype=torch.float32)
        masks[name] = (draw < kept).to(dtype) / max(kept, _TINY)
    return masks


@contextmanager
def in_mode(mode: bool, module: nn.Module) -> Iterator[None]:
    """Set training or evaluation mode inside the block; restore the mode of every part afterwards."""
    modes = [(m, m.training) for m in module.modules()]
    module.train(mode)
    try:
        yield
    finally:
        for m, before in modes:
            m.training = before


training, evaluating = partial(in_mode, True), partial(in_mode, False)


@contextmanager
def noting(held: Mapping[str, nn.Module], note: Callable[[str, nn.Module, Tensor], object]) -> Iterator[None]:
    """Call ``note(name, layer, x)`` inside the block each time one of the layers is about to process ``x``."""
    hooks = [
        layer.register_forward_pre_hook(lambda layer, args, name=name: note(name, layer, args[0]))
        for name, layer in held.items()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
