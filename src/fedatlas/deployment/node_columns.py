"""A node that holds columns: its own table, which plays the party of the node's name, and its part of a run of trees.

Gradients, histograms and keys of a tree are only in memory. They go with the process that held them, and the tree is restarted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedatlas.config import ExperimentConfig, parse
from fedatlas.course.columns import fingerprint, questions
from fedatlas.course.columns_end import named, write_part
from fedatlas.data.party_tables import PartyTable, read_party
from fedatlas.deployment.node_rows import RowCounts
from fedatlas.deployment.node_state import NodeState, same_rows
from fedatlas.deployment.terms import ColumnsTerms
from fedatlas.errors import ConfigError
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.machine import cores
from fedatlas.record.run_folder import SUMMARY, RunFolder
from fedatlas.reporting import write_report
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.consortium import columns_of, files_of, refuse_labels
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.messages import Count
from fedatlas.wire.policy import Asked


def own_table(config: ExperimentConfig, name: str, data: Path) -> PartyTable:
    """Read the table of this node, which plays the party of its name. ConfigError, DataError for a table that cannot be used."""
    file = next((one for one in files_of(config) if one.name == name), None)
    if file is None:
        raise ConfigError(f"'{name}' is none of the experiment's [[parties]].")
    table = read_party(file._replace(path=str(data)), config.data.missing == "drop")
    refuse_labels(config, [table])
    return table


class ColumnsFacts(NamedTuple):
    """Facts of a node's table: counts, and the kind of its label."""

    rows: RowCounts
    without_id: Count
    left_out: Count
    columns: Count  # of the file
    spread: Count  # columns of numbers that these are made into
    label: bool
    task: str
    class_names: tuple[str, ...]
    weighted: bool


def facts_of(table: PartyTable) -> ColumnsFacts:
    """The facts of a table."""
    return ColumnsFacts(
        RowCounts(len(table.ids)),
        table.without_id,
        table.left_out,
        len(table.schema),
        len(table.names),
        table.y is not None,
        table.task,
        table.class_names,
        table.weight is not None,
    )


class NodeColumnsRun:
    """One run at a node that holds columns."""

    private = True

    def __init__(self, bundle: Bundle, terms: ColumnsTerms, table: PartyTable) -> None:
        self.number, self.table = terms.number, table
        self.config, self.how = method_of(parse(terms.config))
        self.terms = terms._replace(rows=same_rows(terms.rows, fingerprint([table])))
        self.state = NodeState(bundle.path / "state" / terms.run, self.number)
        workers = self.config.engine.workers or cores()
        self.data = columns_of(self.number, table, terms.active, terms.names, self.config.seed, workers)
        self.half = party_half("secureboost", questions(self.how), self.data, self.state.party)

    def asked(self, request: Request, cohort: int) -> Asked:  # noqa: ARG002
        """A request as the policy sees it: all nodes are asked."""
        t = self.terms
        return Asked(t.operator, "secureboost", 0.0, self.config.rounds, len(t.names), self.how.encrypted)

    def add_own_part(self, folder: Path) -> None:
        """Write the node's part of the model, with its columns by their names, and its report."""
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
