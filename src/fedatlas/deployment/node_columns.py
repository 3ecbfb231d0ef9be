"""A node that holds columns: its own table, which plays the party of the node's name, and its part of a run of trees.

What a tree keeps in memory alone (gradients, histograms, keys) goes with the process that held it; the tree is then begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.columns_end import named, part
from fedatlas.data.party_tables import PartyTable, read_party
from fedatlas.deployment.node_state import NodeState
from fedatlas.errors import ConfigError, DataError
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.machine import cores
from fedatlas.record.fingerprint import fingerprint, of_tables
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.reporting import write_report
from fedatlas.setup.consortium import columns_of, files_of, refuse_labels
from fedatlas.setup.refusals import checked
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.policy import Asked


def own_table(config: ExperimentConfig, name: str, data: Path) -> PartyTable:
    """The table of this node, which plays the party of its own name. ConfigError, DataError for what cannot be used."""
    file = next((one for one in files_of(config) if one.name == name), None)
    if file is None:
        raise ConfigError(f"'{name}' is none of the experiment's [[parties]].")
    table = read_party(file._replace(path=str(data)), config.data.missing == "drop")
    refuse_labels(config, [table])
    return table


def facts_of(table: PartyTable) -> dict[str, Any]:
    """What a node says of its table: counts; of the label, what kind it is."""
    return {
        "rows": {"train": len(table.ids)},
        "without_id": table.without_id,
        "left_out": table.left_out,
        "columns": len(table.schema),
        "spread": len(table.names),
        "label": table.y is not None,
        "task": table.task,
        "class_names": list(table.class_names),
        "weighted": table.weight is not None,
    }


class ColumnsRunning:
    """One run at a node that holds columns."""

    def __init__(self, bundle: Bundle, told: Mapping[str, Any], table: PartyTable) -> None:
        self.told, self.name, self.number, self.table = told, told["run"], told["number"], table
        self.whole = checked(parse(told["config"]))
        self.config = self.whole.config
        self.private = True
        if (found := fingerprint(of_tables([table]))) != told.get("rows", found):
            raise DataError("its table is not the one that the run began with: put the original file back.")
        self.rows = found
        self.folder = bundle.path / "state" / self.name
        self.state = NodeState(self.folder, self.number)
        names, workers = tuple(told["names"]), self.config.engine.workers or cores()
        self.data = columns_of(self.number, table, told["active"], names, self.config.seed, workers)
        asked = self.whole.algorithm
        self.half = party_half(asked.name, asked.tasks, self.data, self.state.party)

    def asked(self, request: Request, head: Mapping[str, Any]) -> Asked:  # noqa: ARG002
        """What a request means to the policy."""
        name, cohort = self.whole.algorithm.name, len(self.told["names"])
        return Asked(self.told["operator"], name, 0.0, self.config.rounds, cohort, bool(self.whole.mechanisms))

    def bring_home(self, folder: Path) -> None:
        """Writes its part of the model, with its own columns by their names, and its report."""
        state, run = self.state.party.get(self.number), RunFolder(folder)
        if state is None or "split" not in state:
            return
        gains, summary = self.whole.of_columns().own(self.data, state), run.summary()
        summary["importance"] = {**summary["importance"], self.table.name: named(self.table, gains)}
        write_summary(run, summary)
        run.save_models(part(self.whole, self.data, self.table, state, gains))
        write_report([folder])
