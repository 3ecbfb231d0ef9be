"""The agreements of a node: experiments that operators signed, checked by the node's own code, and pinned.

    state/RUN/agreement.json   the digest of the one agreement on that run, and the number of the rules by which its file is read

Every message about a run is checked against this first. A second agreement on a run with the same name is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.config import parse
from fedatlas.data.cells import NEWEST, Reading
from fedatlas.deployment.node_rows import RowsFacts
from fedatlas.deployment.refusals import deployable
from fedatlas.deployment.terms import RowsSetup
from fedatlas.errors import ProtocolError
from fedatlas.files import write_json
from fedatlas.setup.checked import Checked
from fedatlas.wire import agreement as agreements
from fedatlas.wire.agreement import Agreement, run_digest
from fedatlas.wire.bundle import IDENTITY, Bundle
from fedatlas.wire.messages import Signed
from fedatlas.wire.policy import Asked

PIN = "agreement.json"


class AgreedRun(NamedTuple):
    """A run that this node takes part in, as its agreement says."""

    signed: Signed
    agreement: Agreement
    whole: Checked  # the experiment, resolved and checked by the node itself
    number: int  # of this node

    def asked(self, **more: Any) -> Asked:
        """Return an ask of this run as a policy sees it."""
        config = self.whole.config
        masked = any(one.sums_only == "wholly" for one in self.whole.mechanisms)
        epochs, names = float(config.local.epochs or 0), self.agreement.names
        known = Asked(
            self.agreement.operator,
            self.whole.algorithm.name,
            epochs,
            config.rounds,
            len(names),
            masked,
            data=self.agreement.config.get("data", {}),
            members=names,
            columns=self.whole.columns,
            tells_labels=self.whole.scheme is not None and self.whole.scheme.labels_known,
        )
        return known._replace(**more)


class NodeAgreements:
    """The agreements of one node."""

    def __init__(self, bundle: Bundle, accepted: Callable[[AgreedRun], None] = lambda agreed: None) -> None:
        self.bundle, self.accepted = bundle, accepted  # accepted: told of each agreement once, before it is pinned
        self.known: dict[str, AgreedRun] = {}

    def accept(self, run: str, signed: Signed) -> AgreedRun:
        """Return the run that an agreement is about.

        ProtocolError or ConfigError if this node does not accept the agreement.
        """
        agreed = self.known.get(run)
        if agreed is None or agreed.signed != signed:
            agreed = self._checked(run, signed)
            self.known = {run: agreed}
        self.stands(agreed)
        return agreed

    def pin(self, agreed: AgreedRun) -> None:
        """Keep an agreement before anything is sent under it.

        ProtocolError if another one was kept for a run of this name.
        """
        path, digest = self._pinned(agreed), run_digest(agreed.signed)
        if not path.exists():
            self.accepted(agreed)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"digest": digest, "reading": {"rules": NEWEST}})
        elif json.loads(path.read_text(encoding="utf-8"))["digest"] != digest:
            raise ProtocolError("the agreement is refused: this node accepted another one on a run of this name.")

    def reading(self, agreed: AgreedRun) -> Reading:
        """Return how this node reads its file for a run whose agreement is kept: by the rules in force when it was kept."""
        return Reading.from_json(json.loads(self._pinned(agreed).read_text(encoding="utf-8")).get("reading"))

    def _pinned(self, agreed: AgreedRun) -> Path:
        return self.bundle.path / "state" / agreed.agreement.run / PIN

    def stands(self, agreed: AgreedRun) -> None:
        """Raise ProtocolError if an agreement has expired, or its operator has been revoked."""
        if why := agreements.standing(self.bundle, agreed.signed, agreed.agreement):
            raise ProtocolError(f"the agreement is refused: {why}.")

    def _checked(self, run: str, signed: Signed) -> AgreedRun:
        found = agreements.verified(self.bundle, signed)
        if found.run != run:
            raise ProtocolError("the agreement is on another run than the message.")
        if self.bundle.name not in found.names:
            raise ProtocolError("the agreement is refused: this node is not one of its nodes.")
        number = found.names.index(self.bundle.name)
        if found.identities[number] != own_identity(self.bundle):
            raise ProtocolError("the agreement is refused: it names an old key of this node; submit the run again.")
        whole = deployable(parse(found.config), found.names)
        if whole.config.plain() != found.config:
            raise ProtocolError("the agreement is refused: its experiment is not written out with all defaults.")
        return AgreedRun(signed, found, whole, number)


def own_identity(bundle: Bundle) -> str:
    """Return the public key of a node's identity, in hexadecimal. ProtocolError if the private one is gone."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = Ed25519PrivateKey.from_private_bytes((bundle.path / IDENTITY).read_bytes())
    except (OSError, ValueError):
        raise ProtocolError("this node's identity.key is gone or damaged: copy its bundle again.") from None
    return private.public_key().public_bytes_raw().hex()


def check_facts(about: RowsFacts, own: RowsFacts) -> None:
    """Raise ProtocolError if the facts of all rows cannot include this node's own."""
    alike = all(getattr(about, key) == getattr(own, key) for key in ("task", "x", "y", "scale", "shift", "ignore"))
    columns = [name for name, _ in about.schema] == [name for name, _ in own.schema]
    inside = columns and all(
        {*mine} <= {*theirs} for (_, mine), (_, theirs) in zip(own.schema, about.schema, strict=True)
    )
    if not (alike and inside and {*own.class_names} <= {*about.class_names}):
        raise ProtocolError("the facts of all rows do not fit this node's own.")


def check_setup(setup: RowsSetup, agreed: AgreedRun, own: RowsFacts) -> None:
    """Raise ProtocolError if the outcome of round 0 does not fit this node's rows or the experiment."""
    rows, clients = own.rows.train, len(agreed.agreement.names)
    check_facts(setup.about, own)
    numbers = {*setup.holders, *setup.judging}
    inside = numbers <= {*range(clients)} and (agreed.number in setup.holders) == (rows > 0)
    if not (inside and rows <= setup.most <= setup.examples):
        raise ProtocolError("the numbers of rows do not fit this node's own.")
    if any(not 0 < size <= setup.most for size in setup.worth):
        raise ProtocolError("a batch of that size is larger than the largest node.")
    if setup.judging and agreed.whole.config.data.test_file:
        raise ProtocolError("the experiment does not let nodes judge.")
    if setup.judging and (agreed.number in setup.judging) != (own.rows.test > 0):
        raise ProtocolError("the nodes that judge are not those with test rows.")
