"""The device that does the jobs: the processor or a GPU."""

from __future__ import annotations

import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fedatlas.errors import ConfigError

CPU = torch.device("cpu")


def find_device(name: str) -> torch.device:
    """Return the named device, set up to give the processor's results; ConfigError if torch sees no such device."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(
                "engine.device = 'cuda': torch sees no GPU here (see fedatlas doctor). Use 'cpu' or 'auto'; resume a run that began on a "
                "GPU on a machine that has one."
            )
        make_exact()
    return torch.device(name)


def placing(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which tensors made without a device are made on this one."""
    return nullcontext() if device.type == "cpu" else device


def without_cudnn(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which gradients pass through recurrent layers in evaluation mode, which cuDNN refuses."""
    return torch.backends.cudnn.flags(enabled=False) if device.type == "cuda" else nullcontext()


def free_memory(name: str) -> int | None:
    """Return the free bytes of a device with its own memory; None for the processor."""
    return int(torch.cuda.mem_get_info()[0]) if name == "cuda" else None


def make_exact() -> None:
    """Make GPU operators deterministic where possible, and compute float32 products in full float32."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # otherwise its sums depend on concurrent work
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    # The weights are passed in one by one.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
