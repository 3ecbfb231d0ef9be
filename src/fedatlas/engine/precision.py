"""Convolutions in bfloat16 with float32 master weights, for CPUs that multiply bfloat16 faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LOW = torch.bfloat16
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d}
# These keep a convolution's bfloat16 result: they round nothing.
_STAY = {F.relu, torch.relu, Tensor.relu, F.max_pool2d, torch.max_pool2d}


class _LowConvolutions(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[Any], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _CONVOLUTIONS:
            return func(*(_cast(a, torch.float32, _LOW) for a in args), **(kwargs or {}))
        if func in _STAY or getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        return func(*(_cast(a, _LOW, torch.float32) for a in args), **(kwargs or {}))


def _cast(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    return value.to(target) if isinstance(value, Tensor) and value.dtype == source else value


def convolutions_in(precision: str) -> AbstractContextManager[Any]:
    """Return a context; for ``"bfloat16"``, convolutions run in bfloat16 and return to float32 after ReLU and pool."""
    return _LowConvolutions() if precision == "bfloat16" else nullcontext()
