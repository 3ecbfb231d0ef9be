"""A node that holds columns: its own table, which plays the party of the node's name, and its part of a run of trees.

Gradients, histograms and keys of a tree are only in memory. They go with the process that held them, and the tree is restarted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedatlas.config import ExperimentConfig
from fedatlas.course.columns_end import named, part
from fedatlas.data.party_tables import PartyTable, read_party
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_rows import RowCounts
from fedatlas.deployment.node_state import NodeState, same_rows
from fedatlas.errors import ConfigError
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.machine import cores
from fedatlas.record.fingerprint import fingerprint, of_tables
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.reporting import write_report
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


def active_of(config: ExperimentConfig) -> int:
    """Return the number of the party that has the label, as the experiment says."""
    return next(k for k, one in enumerate(config.parties) if one.label)


class NodeColumnsRun:
    """One run at a node that holds columns."""

    private = True

    def __init__(self, bundle: Bundle, agreed: AgreedRun, digest: str, rows: str, table: PartyTable) -> None:
        self.agreed, self.digest = agreed, digest
        self.number, self.table, self.whole = agreed.number, table, agreed.whole
        self.rows = same_rows(rows, fingerprint(of_tables([table])))
        self.state = NodeState(bundle.path / "state" / agreed.agreement.run, self.number)
        config, asked, names = self.whole.config, self.whole.algorithm, agreed.agreement.names
        workers = config.engine.workers or cores()
        self.data = columns_of(self.number, table, active_of(config), names, config.seed, workers)
        self.half = party_half(asked.name, asked.tasks, self.data, self.state.party)

    def asked(self, request: Request) -> Asked:  # noqa: ARG002
        """A request as the policy sees it: all nodes are asked."""
        return self.agreed.asked()

    def add_own_part(self, folder: Path) -> None:
        """Write the node's part of the model, with its columns by their names, and its report."""
        state, run = self.state.party.get(self.number), RunFolder(folder)
        if state is None or "split" not in state:
            return
        gains, summary = self.whole.of_columns().own(self.data, state), run.summary()
        summary["importance"] = {**summary["importance"], self.table.name: named(self.table, gains)}
        write_summary(run, summary)
        run.save_models(part(self.whole, self.data, self.table, state, gains))
        write_report([folder])
