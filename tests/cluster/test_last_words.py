"""A sentence for a process that Ray ends without an exception."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.mark.parametrize("taken_back", [False, True])
def test_it_is_printed_unless_it_is_taken_back(taken_back: bool) -> None:
    end = "words.take_back()" if taken_back else "os._exit(1)"
    code = f"import os; from fedatlas.cluster.last_words import LastWords; words = LastWords('all is kept'); {end}"
    process = [sys.executable, "-c", code]
    done = subprocess.run(process, env={"PYTHONPATH": SOURCE}, capture_output=True, text=True, check=False)
    assert done.stderr == ("" if taken_back else "\nfedatlas: all is kept\n"), "read until the last writer has ended"
    assert done.returncode == (0 if taken_back else 1)
