"""The device that jobs are done on: the processor, or a GPU."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fedatlas.errors import ConfigError

CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """A device that is there and computes what the processor does; ConfigError where torch sees none."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "engine.device = 'cuda': torch sees no GPU here (fedatlas doctor): use 'cpu' or 'auto', or resume a run that began on a "
                "GPU where there is one."
            )
        make_exact()
    return torch.device(name)


def placing(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, a tensor that is made without saying where is made on the device."""
    return nullcontext() if device.type == "cpu" else device


def without_cudnn(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, gradients in evaluation mode pass through recurrent layers, which cuDNN refuses."""
    return torch.backends.cudnn.flags(enabled=False) if device.type == "cuda" else nullcontext()


def free_memory(name: str) -> int | None:
    """Bytes that are free on a device of its own; None of the processor."""
    return int(torch.cuda.mem_get_info()[0]) if name == "cuda" else None


def make_exact() -> None:
    """Operators of a GPU that give the same bits every time where there are such, and float32 products that are float32's."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else its sums depend on what else is under way
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    # They are handed in one by one.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
