"""Limits on simultaneous streams and calls (of all nodes, all operators, one certificate) and on connections."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import Any

from fedatlas.wire.certificates import Caller

SLOTS = {"node": 768, "operator": 192}
"""Streams or calls of all parties of a role. Neither role can take the other's."""
OF_ONE = {"node": 2, "operator": 16}
"""Streams or calls of one certificate: for a node that reconnects before its old stream has ended, or an operator's windows."""
FILES, KEPT = 65_536, 256  # open files that are requested; those that are not connections


class Slots:
    """The slots in use."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()  # by role, and by certificate
        self._lock = threading.Lock()

    def take(self, caller: Caller, context: Any) -> str:
        """Take a slot until a call ends; return why none is free, or ""."""
        keys = caller.role, f"{caller.role} {caller.serial}"
        with self._lock:
            if self.held[keys[1]] >= OF_ONE[caller.role]:
                return f"it has {OF_ONE[caller.role]} open already"
            if self.held[keys[0]] >= SLOTS[caller.role]:
                return "the server has no slot left for its role"
            self.held.update(keys)
        if not context.add_callback(lambda: self._give(keys)):
            self._give(keys)
            return "it ended"
        return ""

    def _give(self, keys: tuple[str, str]) -> None:
        with self._lock:
            self.held.subtract(keys)
            self.held += Counter()  # without zero counts


def most_connections() -> int:
    """Return the most connections at once. Some open files stay free, and the limit of open files is raised as far as possible."""
    if sys.platform == "win32":
        return FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(min(soft, FILES) - KEPT, 16) if soft != resource.RLIM_INFINITY else FILES
