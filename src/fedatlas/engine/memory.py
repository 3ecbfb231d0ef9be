"""Reuse of freed memory between one batch and the next."""

from __future__ import annotations

import ctypes
import functools
import os
import platform

TRIM, MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt
KEPT, LARGE = 64 << 20, 32 << 20  # bytes: most kept by a process, and size from which a block is mapped separately


@functools.cache
def keep_freed_memory() -> bool:
    """Let this process and its forks reuse one epoch's memory for the next. Return False if that is impossible.

    glibc returns blocks of a few MB to the system as soon as they are free. Every page taken again is a fault, which costs a tenth of
    a round of a small network. This works only with glibc, and not if the user has set its limits (``MALLOC_TRIM_THRESHOLD_``).
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP, LARGE) and mallopt(TRIM, KEPT))
