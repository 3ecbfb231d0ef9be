"""A second device made of the processor's memory: tensors on it refuse to be mixed with others, as a GPU's do, and give the same bits.

As there, operators that work element by element take numbers without dimensions from the processor, and a generator of the processor
draws nothing on the device. What works on it puts every tensor where it belongs; how fast a GPU is, and what its own kernels make of the
last bits, it cannot say. torch lets a backend be written in Python (`_setup_privateuseone_for_python_backend`): this one runs every
operator on the tensors it wraps.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "elsewhere"
aten = torch.ops.aten
# Operators that may read tensors of both devices: copies from one to the other, and places that an index names.
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}


class Elsewhere(Tensor):
    """A tensor on the second device; ``near`` holds its elements."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Self:
        with torch.inference_mode(near.is_inference()):  # inside, a view of an outer tensor is an outer one
            made: Self = Tensor._make_wrapper_subclass(
                cls, near.shape, near.stride(), near.storage_offset(), dtype=near.dtype, device=torch.device(NAME, 0)
            )
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return operate(func, args, kwargs or {})

    def untyped_storage(self) -> Any:
        return self.near.untyped_storage()


def operate(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator of which an operand, or the result, is on the second device."""
    found = tree_leaves((args, kwargs))
    far = [x for x in found if isinstance(x, Elsewhere)]
    pointwise = torch.Tag.pointwise in func.tags
    near = [x for x in found if isinstance(x, Tensor) and not isinstance(x, Elsewhere) and (x.dim() or not pointwise)]
    indexed = func in INDEXED and isinstance(args[0], Elsewhere)
    if far and near and func not in COPIES and not indexed:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found {NAME} and cpu")
    asked = kwargs.get("device")
    there = bool(far) if asked is None else is_there(asked)
    if there and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: expected a generator of {NAME}, but found one of the processor")
    plain = tree_map(
        lambda x: x.near if isinstance(x, Elsewhere) else torch.device("cpu") if is_there(x) else x, (args, kwargs)
    )
    result = func(*plain[0], **plain[1])
    if func is aten.copy_.default:
        return args[0]
    known = {id(x.near): x for x in far}  # an operator that writes returns what it was given

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        if not there:
            return x.clone() if func is aten._to_copy.default else x
        return known[id(x)] if id(x) in known else Elsewhere(x)

    return tree_map(placed, result)


def is_there(device: Any) -> bool:
    return isinstance(device, torch.device) and device.type == NAME


class Backend(_DummyBackendModule):
    """The device has no generator of its own."""

    def device_count(self) -> int:
        return 0


_setup_privateuseone_for_python_backend(NAME, Backend())
_FACTORIES = torch.library.Library("_", "IMPL")  # operators without operands: zeros, arange ...
_FACTORIES.fallback(lambda func, *args, **kwargs: operate(func, args, kwargs), "PrivateUse1")
