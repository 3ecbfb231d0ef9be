"""What of a run is on the disk between rounds: its rows and its checkpoints, with what these hold beside the two states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.engine.executors import Plan
from fedatlas.errors import CheckpointError
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.secrets import LEDGER
from fedatlas.privacy import ledger
from fedatlas.record.checkpoint import Checkpoints, Restored, RunState
from fedatlas.record.fingerprint import fingerprint
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.assembly import Setup


class Keeper:
    """Writes checkpoints every so many rounds, and checks that a run goes on from what it began with."""

    def __init__(self, setup: Setup, plan: Plan, folder: RunFolder, checkpoints: Checkpoints, every: int) -> None:
        self.plan, self.folder, self.checkpoints, self.every = plan, folder, checkpoints, every
        self.data = fingerprint(setup)
        protection = setup.bench.protection
        self.ledger = folder.path / LEDGER if protection is not None and protection.noising is not None else None
        self.saved = -1  # round of the last checkpoint

    def take_up(self, restored: Restored) -> RunState:
        """The state of a checkpoint; rows after it are dropped. CheckpointError for other data or rows."""
        if restored.extra.get("data", self.data) != self.data:
            raise CheckpointError(
                f"the data are not those that '{self.folder.path}' began with (rows, labels or who holds them changed): "
                "put the original data back, or start a new run."
            )
        if seen := restored.extra.get("ledger"):
            ledger.verify(self.folder.path / LEDGER, ledger.Mark(*seen))
        self.folder.truncate(restored.run.rows, restored.extra.get("rows_sha256"))
        self.saved = restored.run.round
        return restored.run

    def save(self, state: RunState, party: PartyState, beside: Mapping[str, Any]) -> None:
        """Writes a checkpoint, with what the federation holds ``beside`` the states."""
        extra: dict[str, Any] = {"plan": self.plan.plain(), "data": self.data, "rows_sha256": self.folder.rows_sha256()}
        if self.ledger is not None:
            mark = ledger.mark(self.ledger)
            extra["ledger"] = [mark.bytes, mark.sha256]
        self.checkpoints.save(state, party, {**extra, **beside})
        self.saved = state.round
