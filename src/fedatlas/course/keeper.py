"""Rows and checkpoints of a run on disk; a checkpoint also identifies the data and the rows it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig
from fedatlas.errors import CheckpointError
from fedatlas.federation.client_states import PartyState
from fedatlas.privacy import ledger
from fedatlas.record.checkpoint import Checkpoints, Restored, RunState
from fedatlas.record.run_folder import RunFolder


class Keeper:
    """Write rows and checkpoints, and check that a resumed run finds the data it began with.

    ``data``: the fingerprint of the data; ``every``: rounds between two checkpoints, 0 for those of
    ``checkpoint.every``; ``spent``: the file of the ledger of releases.
    """

    def __init__(
        self, folder: RunFolder, config: ExperimentConfig, data: str, every: int = 0, spent: Path | None = None
    ) -> None:
        self.folder, self.data, self.spent = folder, data, spent
        self.rounds, self.every = config.rounds, every or config.checkpoint.every
        self.checkpoints = Checkpoints(folder.path / "checkpoint", config.hash(), config.checkpoint.keep)
        self.saved = -1  # round of the last checkpoint

    def take_up(self, restored: Restored) -> RunState:
        """Return the state of a checkpoint and drop later rows. CheckpointError if the data or rows differ."""
        if restored.extra.get("data", self.data) != self.data:
            raise CheckpointError(
                f"the data are not those that '{self.folder.path}' began with (rows, labels or their holders changed): "
                "restore the original data, or start a new run."
            )
        if self.spent is not None and (seen := restored.extra.get("ledger")):
            ledger.verify(self.spent, ledger.Mark(*seen))
        self.folder.truncate(restored.run.rows, restored.extra.get("rows_sha256"))
        self.checkpoints.forget_versions(after=restored.run.round)
        self.saved = restored.run.round
        return restored.run

    def land(self, row: Mapping[str, Any], state: RunState) -> RunState:
        """Append a round's row and return the state after it."""
        return RunState(row["round"], state.server, self.folder.append(row))

    def due(self, number: int) -> bool:
        """Return whether a checkpoint is due after this round."""
        return number == self.rounds or number % self.every == 0

    def save(
        self,
        state: RunState,
        parties: PartyState,
        beside: Mapping[str, Any],
        version: Mapping[str, Any] | None = None,
    ) -> None:
        """Write a checkpoint with the states and, in addition, ``beside``. ``version``: the record of the round's version."""
        extra = {"data": self.data, "rows_sha256": self.folder.rows_sha256(), **beside}
        if self.spent is not None:
            extra["ledger"] = list(ledger.mark(self.spent))
        self.checkpoints.save(state, parties, extra, version)
        self.saved = state.round
