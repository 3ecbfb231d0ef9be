"""Facts about the machine that produces a result: versions, processor, memory, commit; and the number of threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fedatlas import registry

PACKAGES = ("fedatlas", "torch", "numpy", "scipy", "scikit-learn")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "bf16")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version(), **_packages(), **registry.INSTALLED}


@cache  # of what is loaded, so that many runs of one process read the packages' files once
def _packages() -> dict[str, str]:
    out = {}
    for name in PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            continue
    return out


def processor() -> registry.PlainValues:
    """Return the CPU's model, the number of cores this process may use, and the CPU flags that affect speed."""
    model, flags = platform.processor() or platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            if key.strip() in {"flags", "Features"}:
                flags |= set(value.split())
    return {"model": model, "cores": cores(), "flags": [f for f in FLAGS if f in flags]}


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def commit() -> str | None:
    """Return the commit of the working tree that fedatlas runs from, with ``-dirty`` if it has uncommitted changes.

    None for an installed package, even inside the working tree of another project.
    """
    here = Path(__file__).resolve()
    package = here.parent.parent

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(package), *words]
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
        except (OSError, subprocess.SubprocessError):
            return None
        return out.stdout.strip() if out.returncode == 0 else None

    if git("ls-files", "--error-unmatch", str(here)) is None or not (found := git("rev-parse", "HEAD")):
        return None
    return found + ("-dirty" if git("status", "--porcelain", "--", ".") else "")


def peak_memory() -> int:
    """Return the largest resident set of this process so far, in bytes; 0 if the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def describe() -> registry.PlainValues:
    """Return versions, processor, system and commit, for ``summary.json``."""
    return {"versions": versions(), "cpu": processor(), "system": platform.platform(), "commit": commit()}


def accelerator() -> str | None:
    """Return the name of the GPU that torch sees, or None."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


@contextmanager
def one_thread_an_operator() -> Iterator[None]:
    """Use one thread per torch operator, in this thread and those started inside; restore the number afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
