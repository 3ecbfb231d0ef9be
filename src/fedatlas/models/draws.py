"""Random numbers that torch's layers draw by themselves: supplied from a stream, or found and refused.

No global generator is set or read. torch's modes and Python's profile function affect only one thread, so draws of
other threads at the same time change nothing.
"""

from __future__ import annotations

import random  # noqa: TID251  # recognised where a model draws from it; nothing is drawn
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedatlas.errors import ConfigError
from fedatlas.models.dropout import dropout_shapes, evaluating, training
from fedatlas.models.inspection import Watching
from fedatlas.rng import torch_stream

_PASSES = 4  # of equal rows, whose answers must be equal to the bit


def draws(func: Any, kwargs: Any) -> bool:
    """Return whether an operator draws from torch's default generator when it is called with these keywords."""
    declared = {argument.name for argument in func._schema.arguments}  # noqa: SLF001  # where an operator says what it takes
    fused = "dropout_p" in declared  # fused attention: on a processor it runs only without dropout
    return torch.Tag.nondeterministic_seeded in func.tags and not fused and (kwargs or {}).get("generator") is None


class Supplied(Watching):
    """Take every draw inside the block, in this thread, from ``stream`` instead of torch's default generator.

    The numbers are those of a default generator with the stream's seed. ConfigError for an operator that takes no generator.
    """

    def __init__(self, stream: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if draws(func, kwargs):
            func, kwargs = _with_generator(func), {**(kwargs or {}), "generator": self.stream}
        return func(*args, **(kwargs or {}))


def _with_generator(func: Any) -> Any:
    """Return the form of an operator that takes a generator and otherwise the same arguments."""
    taken = [argument.name for argument in func._schema.arguments]  # noqa: SLF001
    if "generator" in taken:
        return func
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        declared = [argument.name for argument in other._schema.arguments]  # noqa: SLF001
        if "generator" in declared and [each for each in declared if each != "generator"] == taken:
            return other
    raise ConfigError(
        f"the model draws by torch's '{func.overloadpacket.__name__}', which takes no generator: "
        "draw its initial weights by torch.rand, torch.randn or torch.nn.init."
    )


class _Found(Watching):
    """Recorder of the layers in which a pass draws from torch's or Python's global generator."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module, self.open, self.layers = module, [""], list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if draws(func, kwargs):
            self.layers.append(self.open[-1])
        return func(*args, **(kwargs or {}))

    def profile(self, _frame: Any, event: str, called: Any) -> None:
        """Note a call of Python's global generator, which is an object of C."""
        if event == "c_call" and getattr(called, "__self__", None) is random._inst:  # noqa: SLF001
            self.layers.append(self.open[-1])

    def _close(self, *_: Any) -> None:
        self.open.pop()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Observe inside the block what this thread draws, and in which layer."""
        hooks, before = [], sys.getprofile()
        for name, layer in self.module.named_modules():
            hooks.append(layer.register_forward_pre_hook(lambda *_, name=name: self.open.append(name)))
            hooks.append(layer.register_forward_hook(self._close, always_call=True))
        sys.setprofile(self.profile)
        try:
            with self:
                yield
        finally:
            sys.setprofile(before)
            for hook in hooks:
                hook.remove()


def refuse_hidden_draws(module: nn.Module, sample_x: Tensor) -> None:
    """Raise ConfigError if a pass draws random numbers by itself (``F.dropout``, an LSTM's ``dropout=`` ...).

    Such draws come from a global generator, so the run would not depend only on its seed (C7). Draws of torch and
    Python are observed directly. Draws of NumPy and of the model's own generators are detected by their effect: passes
    of equal rows differ.
    """
    found = _Found(module)
    with found.looking():
        answers = [trained(module, sample_x) for _ in range(_PASSES)]
        with evaluating(module), torch.no_grad():
            functional_call(module, _buffers(module), (sample_x,))
    if not found.layers and all(_bits(answer) == _bits(answers[0]) for answer in answers):
        return
    name = found.layers[0] if found.layers else ""
    layer = module.get_submodule(name)
    way = "use nn.Dropout layers, whose masks fedatlas supplies from the run's seed"
    if getattr(layer, "dropout", None) and isinstance(layer.dropout, float):
        way = f"build it with dropout = 0 (it has {layer.dropout:g}), and where units should drop {way}"
    where = f" in its layer '{name}' ({type(layer).__name__})" if name else ""
    raise ConfigError(f"the model {type(module).__name__} draws random numbers inside its forward pass{where}: {way}.")


def trained(module: nn.Module, sample_x: Tensor) -> Any:
    """Return the answer of a training pass that drops nothing and leaves the module's buffers as they are."""
    state = _buffers(module)
    for name, shape in dropout_shapes(module, sample_x).items():
        state[name] = torch.ones((len(sample_x), *shape), dtype=state[name].dtype)
    with training(module), torch.no_grad():
        return functional_call(module, state, (sample_x,))


def some_rows(like: Tensor) -> Tensor:
    """Return rows that are not all equal, of the same shape and type; token ids stay as they are."""
    if not like.is_floating_point():
        return like
    return torch.rand(like.shape, generator=torch_stream(0, "init"), dtype=torch.float32).to(like.dtype)


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the buffers: batch norm writes into its own."""
    return {name: x.detach().clone() for name, x in module.named_buffers()}


def _bits(answer: Any) -> Any:
    """Return a value that is equal only for answers of equal bits."""
    return bytes(answer.flatten().contiguous().view(torch.uint8).numpy()) if isinstance(answer, Tensor) else None
