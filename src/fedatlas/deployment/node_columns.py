"""A node that holds columns: its own table, which plays the party of the node's name, and its part of a run of trees.

What a tree keeps in memory alone (gradients, histograms, keys) goes with the process that held it; the tree is then begun anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.columns import fingerprint, questions
from fedatlas.course.columns_end import named, write_part
from fedatlas.data.party_tables import PartyTable, read_party
from fedatlas.deployment.node_state import NodeState
from fedatlas.errors import ConfigError, DataError
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.machine import cores
from fedatlas.record.run_folder import SUMMARY, RunFolder
from fedatlas.reporting import write_report
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.consortium import columns_of, files_of, refuse_labels
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


class NodeColumnsRun:
    """One run at a node that holds columns."""

    def __init__(self, bundle: Bundle, told: Mapping[str, Any], table: PartyTable) -> None:
        self.told, self.name, self.number, self.table = told, told["run"], told["number"], table
        self.config, self.how = method_of(parse(told["config"]))
        self.private = True
        if (found := fingerprint([table])) != told.get("rows", found):
            raise DataError("its table is not the one that the run began with: put the original file back.")
        self.rows = found
        self.folder = bundle.path / "state" / self.name
        self.state = NodeState(self.folder, self.number)
        names, workers = tuple(told["names"]), self.config.engine.workers or cores()
        self.data = columns_of(self.number, table, told["active"], names, self.config.seed, workers)
        self.half = party_half("secureboost", questions(self.how), self.data, self.state.party)

    def asked(self, request: Request, head: Mapping[str, Any]) -> Asked:  # noqa: ARG002
        """What a request means to the policy."""
        cohort = len(self.told["names"])
        return Asked(self.told["operator"], "secureboost", 0.0, self.config.rounds, cohort, self.how.encrypted)

    def add_own_part(self, folder: Path) -> None:
        """Writes its part of the model, with its own columns by their names, and its report."""
        state, run = self.state.party.get(self.number), RunFolder(folder)
        if state is None or "boost" not in state:
            return
        splits = {name: one.numpy() for name, one in state["boost"]["table"].items()}
        gains = np.bincount(splits["column"], np.nan_to_num(splits["gain"]), len(self.table.names))
        own = named(self.table, gains.tolist())
        summary = run.read_json(SUMMARY)
        run.write_json(SUMMARY, {**summary, "importance": {**summary["importance"], self.table.name: own}})
        write_part(self.config, self.data, self.table, state, own, run)
        write_report([folder])
