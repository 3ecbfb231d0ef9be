"""Freed memory is taken again for the next epoch's rows, unless its user has set the limits."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

EPOCHS = """
import resource, torch
from fedatlas.engine.memory import keep_freed_memory

kept, rows, epoch = keep_freed_memory(), torch.zeros(600, 784), None
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    for each in [rows.clone() for _ in range(3)]:
        epoch = each
    del each, epoch
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told what to keep")
def test_memory_is_taken_again_and_the_user_is_asked_first() -> None:
    """600 rows of MNIST are 460 pages; what is given back to the system costs a fault a page to have again."""

    def faults(**limits: str) -> tuple[bool, int]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        found = subprocess.run([sys.executable, "-c", EPOCHS], env={**plain, **limits}, capture_output=True, check=True)
        kept, number = found.stdout.split()
        return kept == b"True", int(number)

    kept, few = faults()
    assert kept
    left_alone, many = faults(MALLOC_MMAP_THRESHOLD_="1000000")
    assert not left_alone
    assert few < 15000, "3 x 460 once, and what torch itself touches first"
    assert many > 60000, "and 50 times"
