"""A node that holds columns: its table, which is the table of the party of its name, and its part of a run of trees.

Gradients, histograms and keys of a tree are only in memory. They are lost if the process ends, and the tree is
restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.config import ExperimentConfig
from fedatlas.course.columns_end import named, part
from fedatlas.data.party_tables import PartyTable, read_party
from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.deployment.node_rows import RowCounts
from fedatlas.deployment.node_state import NodeState, same_rows
from fedatlas.errors import ConfigError, PrivacyError, ProtocolError
from fedatlas.federation.columns_federation import party_half
from fedatlas.federation.link import Request
from fedatlas.federation.signed_letters import SignedLetters
from fedatlas.machine import cores
from fedatlas.privacy.ask_protocol import ATTEMPTS
from fedatlas.record.fingerprint import fingerprint, of_tables
from fedatlas.record.run_folder import RunFolder
from fedatlas.record.summary import write_summary
from fedatlas.reporting import write_report
from fedatlas.secret import Secret
from fedatlas.setup.consortium import columns_of, files_of, refuse_labels, rows_asked
from fedatlas.vertical.align import asked_about, with_ids
from fedatlas.vertical.ids import seed_key
from fedatlas.vertical.letters import LETTERS
from fedatlas.vertical.scheme import due
from fedatlas.wire.bundle import IDENTITY, POLICY, Bundle
from fedatlas.wire.messages import Count
from fedatlas.wire.policy import Asked, Policy


def own_table(config: ExperimentConfig, name: str, data: Path, form: Mapping[str, Any] = {}) -> PartyTable:
    """Read the table of this node, which is the table of the party of its name.

    ConfigError or DataError if it cannot be used. ``form``: format of its file, from the node's policy.
    """
    file = next((one for one in files_of(config) if one.name == name), None)
    if file is None:
        raise ConfigError(f"'{name}' is none of the experiment's [[parties]].")
    table = read_party(file._replace(path=str(data), **form), config.data.missing == "drop")
    refuse_labels(config, [table])
    return table


USUAL = {**Request._field_defaults, "reduce": "each", "single": True}
"""Usual values of the request fields that have no use where parties hold columns."""


class ColumnsFacts(NamedTuple):
    """Facts of a node's table: counts, and the kind of its label."""

    rows: RowCounts
    without_id: Count
    left_out: Count
    columns: Count  # of the file
    spread: Count  # numeric columns that these become
    label: bool
    task: str
    class_names: tuple[str, ...]
    weighted: bool


def facts_of(table: PartyTable) -> ColumnsFacts:
    """Return the facts of a table."""
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


def letters_of(bundle: Bundle, agreed: AgreedRun, digest: str) -> SignedLetters:
    """Return the keys that sign this node's letters and open those of others. ConfigError if its own key is gone."""
    path = bundle.path / IDENTITY
    if not path.exists():
        raise ConfigError(f"'{path}' is gone: copy the bundle again.")
    known = agreed.agreement
    identities = dict(enumerate(map(bytes.fromhex, known.identities)))
    return SignedLetters(agreed.number, known.names, digest, Secret(path.read_bytes()), identities)


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
        data = columns_of(self.number, table, active_of(config), names, config.seed, workers)
        self.data = data._replace(row_order=Policy.read(bundle.path / POLICY).row_order)
        letters = letters_of(bundle, agreed, digest)
        self.half = party_half(asked.name, asked.tasks, self.data, self.state.party, letters)

    def asked(self, request: Request) -> Asked:
        """Return a request as the policy sees it: all nodes are asked.

        ProtocolError if the experiment does not ask this now.
        """
        self._check_due(request)
        self._check_order()
        opened, session = self.half.opened(request), self.half.sessions.get(self.number)
        ids = asked_about(self.data, request.what, opened.message, session)
        return self.agreed.asked(ids=ids, own_ids=len(with_ids(self.data)))

    def _check_due(self, request: Request) -> None:
        """Raise ProtocolError unless the experiment asks this party for this in this round, with exactly these values and letters."""
        usual = all(getattr(request, name) == value for name, value in USUAL.items())
        if not usual or request.attempt >= ATTEMPTS:
            raise ProtocolError(f"a party with columns is asked alone and as it is, at most {ATTEMPTS} times a round.")
        config = self.whole.config
        asks = due(self.whole.of_columns(), rows_asked(config), request.round, config.rounds)
        role = "active" if self.number == self.data.active else "passive"
        who, told = asks.get(request.what, ("nobody", ()))
        if who not in {role, "all"}:
            raise ProtocolError(
                f"the experiment does not ask this party for '{request.what}' in round {request.round}."
            )
        if {name: one for name, one in request.message.items() if name != LETTERS} not in told:
            raise ProtocolError(f"the experiment asks for '{request.what}' in other words.")

    def _check_order(self) -> None:
        """Raise PrivacyError if the order of the rows is not allowed by the policy any more."""
        kept = (self.state.party.get(self.number) or {}).get("align")
        by_seed = kept is not None and kept["key"].numpy().tobytes() == seed_key(self.data.seed)
        if by_seed and self.data.row_order == "secret":
            raise PrivacyError(
                "its policy.toml refuses the order of the rows, which follows from the seed: row_order = 'secret' forbids it; submit the "
                "experiment again."
            )

    def add_own_part(self, folder: Path) -> None:
        """Write the node's part of the model, with the names of its columns, and its report."""
        state, run = self.state.party.get(self.number), RunFolder(folder)
        if state is None or "split" not in state:
            return
        gains, summary = self.whole.of_columns().own(self.data, state), run.summary()
        summary["importance"] = {**summary["importance"], self.table.name: named(self.table, gains)}
        write_summary(run, summary)
        run.save_models(part(self.whole, self.data, self.table, state, gains))
        write_report([folder])
