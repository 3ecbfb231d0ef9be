"""A node's part in secure aggregation: its private key, and the public keys of the others from its own bundle.

The server's word on which node is which is ignored. A cohort is refused if one of its members is not on the node's own
list, which the authority signed. So a relaying server cannot act as a man in the middle, and cannot invent nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.federation.secrets import BEGUN, OPENED, noted, whole_lines
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protection import MADE
from fedatlas.privacy.protocol import Insists
from fedatlas.wire.agreement import Agreement, valid_nodes
from fedatlas.wire.bundle import IDENTITY, POLICY, Bundle, Member
from fedatlas.wire.policy import Policy

SESSIONS = "begun.jsonl"


def identities_of(members: Mapping[str, Member], names: tuple[str, ...]) -> dict[int, bytes]:
    """Return the public keys of a run's nodes by number. PrivacyError for a node that is not on the list."""
    for name in names:
        if name not in members or members[name].role != "node" or not members[name].identity:
            raise PrivacyError(f"'{name}' is not a node in this node's members.json.")
    return {k: bytes.fromhex(members[name].identity) for k, name in enumerate(names)}


def federation_of(federation: str, digest: str) -> str:
    """Return the name of the federation in the signatures of a masked session: its name and the digest of the agreement."""
    return f"{federation} {digest}"


def counting_nodes(bundle: Bundle, agreement: Agreement, policy: Policy) -> list[int]:
    """Return the numbers of the nodes that count for ``min_cohort``."""
    valid = valid_nodes(bundle, agreement)
    return [k for k, name in enumerate(agreement.names) if name in valid and policy.counts(name)]


def lines_of(path: Path) -> dict[str, list[Any]]:
    """Return a node's notes in a file, by run."""
    found: dict[str, list[Any]] = {}
    for line in whole_lines(path) if path.exists() else ():
        run, asked = json.loads(line)
        found.setdefault(run, []).append(asked)
    return found


class NodeKeys:
    """`federation.party.Secrets` of one node.

    ``begins``: makes the state that its questions begin with, from the sums that it has opened so far. ``policy``: the
    node's own file, read each time a session begins. ``counting``: the numbers of the nodes that count under it.
    """

    def __init__(
        self,
        begins: Callable[[Mapping[str, Any], Insists], Any],
        folder: Path,
        policy: Path,
        counting: Callable[[Policy], Sequence[int]] | None = None,
    ) -> None:
        self.begins, self.folder, self.policy, self.counting = begins, folder, policy, counting
        self.record, self.begun = lines_of(folder / OPENED), lines_of(folder / SESSIONS)

    @classmethod
    def of(
        cls, bundle: Bundle, agreed: AgreedRun, digest: str, how: Protection | None, folder: Path
    ) -> NodeKeys | None:
        """Return the keys for a run, or None if its protocol gives nodes no keys.

        ``digest``: of the run, named in every signature.
        """
        protocol = None if how is None else how.protocol
        if protocol is None or protocol.node is None:
            return None
        public = dict(enumerate(map(bytes.fromhex, agreed.agreement.identities)))
        path = bundle.path / IDENTITY
        if not path.exists():
            raise ConfigError(f"'{path}' is gone: copy the bundle again.")
        of_run = federation_of(bundle.federation, digest)
        begins = partial(protocol.node, agreed.number, of_run, path.read_bytes(), public)
        return cls(begins, folder, bundle.path / POLICY, partial(counting_nodes, bundle, agreed.agreement))

    def session(self, client: int) -> Any:  # noqa: ARG002
        """Return the state that the questions of a round begin with."""
        policy = Policy.read(self.policy)
        counting = None if self.counting is None else self.counting(policy)
        # No deployed algorithm gives each client a model.
        most = policy.max_weight_share or 1.0
        insists = Insists(policy.min_cohort, policy.threshold, alike=True, counting=counting, most=most)
        return {**self.begins(self.record, insists), BEGUN: self.begun, MADE: {}}

    def keep(self, client: int, session: Any) -> None:  # noqa: ARG002
        """Write down the sums that this node helped to open, and the sessions that it began, before its reply leaves."""
        self.record = noted(self.folder / OPENED, self.record, session)
        self.begun = noted(self.folder / SESSIONS, self.begun, session, of=BEGUN)
