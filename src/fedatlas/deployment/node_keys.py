"""A node's part in secure aggregation: its identity's private key, and the public keys of the others from its own bundle.

What the server says of who is who counts for nothing here: a cohort with somebody who is not on the node's own list, signed by the
authority, is refused. So a server that relays cannot stand in the middle, and cannot invent nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fedatlas.deployment.node_agreement import AgreedRun
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.federation.secrets import OPENED, noted, whole_lines
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.protection import MADE
from fedatlas.wire.bundle import IDENTITY, Bundle, Member


def identities_of(members: Mapping[str, Member], names: tuple[str, ...]) -> dict[int, bytes]:
    """Public keys of a run's nodes by their numbers. PrivacyError for a node that is not on the list."""
    for name in names:
        if name not in members or members[name].role != "node" or not members[name].identity:
            raise PrivacyError(f"'{name}' is not a node in this node's members.json.")
    return {k: bytes.fromhex(members[name].identity) for k, name in enumerate(names)}


def federation_of(federation: str, digest: str) -> str:
    """Return the name by which the signatures of a masked session know the federation: its own, and what all agreed on."""
    return f"{federation} {digest}"


class NodeKeys:
    """`federation.party.Secrets` of one node. ``begins``: what its questions begin with, of the sums that it has opened so far."""

    def __init__(self, begins: Callable[[Mapping[str, Any]], Any], folder: Path) -> None:
        self.begins, self.folder = begins, folder
        self.record: dict[str, list[Any]] = {}
        if (folder / OPENED).exists():
            for line in whole_lines(folder / OPENED):
                run, asked = json.loads(line)
                self.record.setdefault(run, []).append(asked)

    @classmethod
    def of(
        cls, bundle: Bundle, agreed: AgreedRun, digest: str, how: Protection | None, folder: Path
    ) -> NodeKeys | None:
        """Return the keys for a run; None where no protocol gives a node any. ``digest``: of the run, which every signature names."""
        protocol = None if how is None else how.protocol
        if protocol is None or protocol.node is None:
            return None
        public = dict(enumerate(map(bytes.fromhex, agreed.agreement.identities)))
        path = bundle.path / IDENTITY
        if not path.exists():
            raise ConfigError(f"'{path}' is gone: copy the bundle again.")
        of_run = federation_of(bundle.federation, digest)
        return cls(partial(protocol.node, agreed.number, of_run, path.read_bytes(), public), folder)

    def session(self, client: int) -> Any:  # noqa: ARG002
        """Return the state that the questions of a round begin with."""
        return {**self.begins(self.record), MADE: {}}

    def keep(self, client: int, session: Any) -> None:  # noqa: ARG002
        """Write down the sums that this node helped to open, before its reply leaves."""
        self.record = noted(self.folder / OPENED, self.record, session)
