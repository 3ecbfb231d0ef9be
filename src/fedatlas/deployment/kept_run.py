"""A run as a node keeps it (``state/RUN/run.bin``): its agreement, the outcome of round 0, and the rows it began with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from fedatlas.errors import DataError
from fedatlas.wire.fields import record
from fedatlas.wire.messages import Signed


class KeptRun(NamedTuple):
    """A run as a node keeps it on its disk."""

    agreement: Signed
    setup: bytes  # `terms.RowsSetup`, as received
    rows: str  # fingerprint of the rows that it began with
    landed: int  # the last round that had landed when this node joined the run

    def plain(self) -> dict[str, Any]:
        """Return it as the codec carries it."""
        setup = (
            torch.frombuffer(bytearray(self.setup), dtype=torch.uint8)
            if self.setup
            else torch.zeros(0, dtype=torch.uint8)
        )
        return {**self._asdict(), "agreement": self.agreement._asdict(), "setup": setup}


def kept_run(value: Mapping[str, Any], at: str) -> KeptRun:
    """Return the run in a node's file. DataError for a run begun by an earlier version."""
    if "agreement" not in value:
        raise DataError("an earlier version began this run, without a signed agreement: submit it again.")
    return KeptRun(
        record(Signed, value["agreement"], at), value["setup"].numpy().tobytes(), value["rows"], value["landed"]
    )
