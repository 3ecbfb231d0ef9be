"""What becomes of memory that is freed between one batch and the next."""

from __future__ import annotations

import ctypes
import functools
import os
import platform

TRIM, MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's mallopt
KEPT, LARGE = 64 << 20, 32 << 20  # bytes: what a process keeps at most, and from where on a block is the system's own


@functools.cache
def keep_freed_memory() -> bool:
    """Lets this process, and those forked from it, take the memory of one epoch's rows again for the next; False where it cannot.

    glibc gives blocks of a few MB back to the system as soon as they are free, and every page taken anew is a fault: a tenth of
    a round of a small network. Only with glibc, and not where the user has set its limits (``MALLOC_TRIM_THRESHOLD_``).
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(MMAP, LARGE) and mallopt(TRIM, KEPT))
