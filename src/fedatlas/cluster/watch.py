"""A thread that follows which nodes a Ray cluster has, since Ray's own calls wait for a minute when the head is lost.

After that minute Ray ends the process of the driver, so the head is tried by a plain connection first.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Any

EVERY = 0.5  # seconds between looks
PATIENCE = 6.0  # seconds without an answer after which a head counts as lost


def reachable(address: str, seconds: float = 2.0) -> bool:
    """Return whether a port accepts connections; ``address`` is HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


class NodeWatch:
    """The nodes that are alive, by id, as Ray lists them; ``lost`` once the head has not answered for `PATIENCE`."""

    def __init__(self, ray: Any, address: str) -> None:
        self.ray, self.address = ray, address
        self.seen: dict[str, dict[str, Any]] = {}
        self.heard = time.monotonic()
        self.over = threading.Event()
        self.look()
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    @property
    def lost(self) -> bool:
        """Whether the head is lost."""
        return time.monotonic() - self.heard > PATIENCE

    def look(self) -> None:
        """Look once."""
        if reachable(self.address):
            self.seen = {one["NodeID"]: one for one in self.ray.nodes() if one["Alive"]}
            self.heard = time.monotonic()

    def follow(self) -> None:
        """Look again and again until the end."""
        while not self.over.wait(EVERY):
            with contextlib.suppress(Exception):  # one that cannot look counts as lost soon
                self.look()

    def end(self) -> None:
        """Look no more."""
        self.over.set()
        self.thread.join(PATIENCE / 2)
