"""The course of a run whose parties hold rows of the same columns, and of the roles without data that help them.

Each owner splits its own rows. A round is a phase of the protocol, and the model is judged after the last, by sums over the owners. Figures
of single rows, such as intervals and the area under a curve, are of a simulation, which holds all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.algorithm import RoundGenerator, State
from fedatlas.course import columns_end
from fedatlas.course.columns import Growing
from fedatlas.record.fields import RoundRow, RunSummary
from fedatlas.vertical import owners
from fedatlas.vertical.judging import Judged, drawn
from fedatlas.vertical.owners import Side


class Solving(Growing):
    """The course of a run whose parties hold rows."""

    @property
    def lines(self) -> Sequence[str]:
        """One line with the owners, their rows and columns, and the training."""
        who = ", ".join(f"{one.name} ({len(one.ids):,} rows)" for one in self.held.tables)
        classes, columns = len(self.held.holder.class_names), len(self.held.holder.schema)
        return [f"{who}, of the same {columns} columns; {self.scheme.said(self.how, classes)}, seed {self.config.seed}"]

    def first(self) -> RoundGenerator:
        """Return round 0: the split of each owner's rows, and the agreement on the fixed point."""
        server = yield from owners.split(self.server, self.held.test)
        server = yield from self.scheme.begin(self.how, server)
        return {**server, "quality": {}}

    def judged(self, server: State) -> RoundGenerator:
        """Add the figures of all owners' test rows to the coordinator's state."""
        return owners.judged(server)

    def judges(self, number: int) -> bool:
        """Return whether the model is judged after a round: there is none before the last."""
        return number == self.config.rounds

    def side(self) -> Side:
        """Return all parties with their states, which this process holds."""
        states = [self.federation.states.get(one.party) or {} for one in self.held.parties]
        return Side(self.held.parties, tuple(states))

    def figures(self, rows: Sequence[RoundRow], diverged: str) -> RunSummary:  # noqa: ARG002
        """Return the run's part of summary.json."""
        judged, side = joint(self.scheme.outputs, self.side()), self.side()
        (one,), (state,) = owners.pooled(side)
        known = judged.figures()
        quality = {**self.server["quality"], **({"auc": known["auc"]} if "auc" in known else {})}
        server = {**self.server, "quality": quality, "intervals": drawn(judged, one.seed)}
        found = columns_end.figures(
            self.held, server, rows, judged, {"test": columns_end.of_judged(self.held, one, state)}
        )
        return {**found, "solved": dict(self.scheme.found(side, self.how))}

    def models(self) -> Mapping[str, Any]:
        """Return the files of each owner, and the figures of the test rows."""
        return {**super().models(), **columns_end.judged_rows(joint(self.scheme.outputs, self.side()))}


def joint(outputs: Any, side: Side) -> Judged:
    """Return what the model says of the test rows of all owners. ``outputs``: those of a scheme."""
    import numpy as np

    pooled = owners.pooled(side)
    said = [outputs(state) for one, state in zip(*side, strict=True) if one.y is not None]
    return Judged(pooled.parties[0], pooled.states[0], np.concatenate(said), "test")
