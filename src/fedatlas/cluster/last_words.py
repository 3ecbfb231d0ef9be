"""A sentence that is printed when this process ends without having taken it back.

Ray ends a process at once, without an exception, when the Ray node of its machine is lost while it reads or writes objects. The
sentence cannot tell that from a kill, so it names both.
"""

from __future__ import annotations

import subprocess
import sys

SAY = "import sys; sys.stdin.buffer.read() or sys.stderr.write(sys.argv[1])"
"""A byte before the end of its input takes the sentence back."""
ENDED = "this process was ended by a signal, or by Ray because the Ray node of this machine is lost."
"""The beginning of such a sentence."""


class LastWords:
    """A small process that outlives this one by a sentence."""

    def __init__(self, sentence: str) -> None:
        command = [sys.executable, "-I", "-S", "-c", SAY, f"\nfedatlas: {sentence}\n"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def take_back(self) -> None:
        """End the small process; nothing is printed."""
        self.process.communicate(b".")
