"""The agreement on a run: an operator signs it, and each node checks it before it tells anything about its rows.

The text is canonical JSON, so two parties that agree hold the same bytes. The signature is ECDSA on P-256 by the key of the operator's
certificate. Round 0 settles a run's second part. Its digest, together with this text, pins it (`run_digest`).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import time
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

from fedatlas.errors import ProtocolError
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.certificates import CERT, KEY, caller_of, issued_by
from fedatlas.wire.fields import Bound, plain, record
from fedatlas.wire.messages import PROTOCOL, Count, Digest, Name, Open, RunName, Signed, Text

DAYS = 30  # how long an agreement is valid
PURPOSE = b"fedatlas agreement 1\n"
Identity = Annotated[str, Bound(pattern="[0-9a-f]{64}", what="a public key in hexadecimal")]


class Agreement(NamedTuple):
    """Everything that the parties of a run know before it begins."""

    run: RunName
    federation: Text
    config: Open  # the experiment with all defaults
    names: tuple[Name, ...]  # the nodes, in the order of their numbers
    identities: tuple[Identity, ...]  # their public keys, in the same order
    operator: Name
    protocol: Count
    version: Text  # of the operator's program; noted, not compared
    expires: float  # seconds since 1970


def agreement_of(bundle: Bundle, run: str, config: Open, names: tuple[str, ...]) -> Agreement:
    """Return the agreement that an operator would sign. ProtocolError for a name that is not a registered node."""
    members = bundle.members()
    if odd := [name for name in names if name not in members or members[name].role != "node"]:
        raise ProtocolError(f"'{odd[0]}' is not a registered node.")
    expires = time.time() + DAYS * 86400
    identities = tuple(members[name].identity for name in names)
    return Agreement(
        run, bundle.federation, config, names, identities, bundle.name, PROTOCOL, version("fedatlas"), expires
    )


def sign(bundle: Bundle, agreement: Agreement) -> Signed:
    """Sign an agreement with the key of an operator's bundle."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = json.dumps(plain(agreement), sort_keys=True, separators=(",", ":"))
    key: Any = load_pem_private_key((bundle.path / KEY).read_bytes(), None)
    seal = key.sign(PURPOSE + text.encode(), ec.ECDSA(hashes.SHA256()))
    certificate = (bundle.path / CERT).read_text(encoding="ascii")
    return Signed(text, certificate, base64.b64encode(seal).decode())


def verified(bundle: Bundle, signed: Signed) -> Agreement:
    """Return the agreement in a signed text, checked by the party that holds ``bundle``.

    ProtocolError if an operator of this federation, registered and not revoked, did not sign it, or if it has expired, is of
    another federation or protocol, or names a node or a key that is not in this party's list of members.
    """
    try:
        agreement: Agreement = record(Agreement, json.loads(signed.text), "agreement")
    except (ValueError, RecursionError):
        raise ProtocolError("the agreement is not JSON.") from None
    if why := objection(bundle, signed, agreement) or standing(bundle, signed, agreement):
        raise ProtocolError(f"the agreement is refused: {why}.")
    return agreement


def objection(bundle: Bundle, signed: Signed, agreement: Agreement) -> str:
    """Return why a signed text is not an agreement of this federation, or ""."""
    caller = caller_of(signed.certificate.encode()) if "BEGIN CERTIFICATE" in signed.certificate else None
    if caller is None or caller.role != "operator" or caller.federation != bundle.federation:
        return "its certificate is not that of an operator of this federation"
    if not issued_by(signed.certificate.encode(), bundle.pem()[2]) or not _seals(signed):
        return "its signature does not hold"
    if (agreement.operator, agreement.federation) != (caller.name, bundle.federation):
        return "it names another operator or federation than its certificate"
    if agreement.protocol != PROTOCOL:
        return f"it is of protocol {agreement.protocol}, and this program speaks {PROTOCOL}"
    if len(agreement.names) != len(agreement.identities) or len({*agreement.names}) != len(agreement.names):
        return "its list of nodes does not fit"
    members = bundle.members()
    for name, identity in zip(agreement.names, agreement.identities, strict=True):
        if name not in members or (members[name].role, members[name].identity) != ("node", identity):
            return f"'{name}' is not a node in this party's members.json, or has another key there"
    return ""


def standing(bundle: Bundle, signed: Signed, agreement: Agreement) -> str:
    """Return why an agreement that was accepted no longer holds, or ""."""
    caller = caller_of(signed.certificate.encode())
    now = datetime.datetime.now(datetime.UTC)
    if caller is None or caller.until <= now or agreement.expires <= now.timestamp():
        return "it has expired, or the operator's certificate has"
    known = bundle.members().get(caller.name)
    if caller.serial in bundle.revoked() or known is None or known.serial != caller.serial:
        return "the operator's certificate is revoked or not registered"
    return ""


def valid_nodes(bundle: Bundle, agreement: Agreement) -> set[str]:
    """Return the nodes of a run that are still members with the same keys and whose certificates are not revoked."""
    members, revoked = bundle.members(), bundle.revoked()
    pairs = zip(agreement.names, agreement.identities, strict=True)
    known = ((name, members[name], identity) for name, identity in pairs if name in members)
    return {name for name, one, identity in known if one.identity == identity and one.serial not in revoked}


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of a message's bytes: 32 hexadecimal digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def run_digest(signed: Signed, setup: bytes | bytearray | memoryview = b"") -> Digest:
    """Return the digest of a run: of its agreement and of what round 0 settled."""
    found = hashlib.blake2b(hashlib.blake2b(signed.text.encode()).digest(), digest_size=16)
    found.update(setup)
    return found.hexdigest()


def _seals(signed: Signed) -> bool:
    """Whether the certificate's key made the signature."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = x509.load_pem_x509_certificate(signed.certificate.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        seal = base64.b64decode(signed.signature, validate=True)
        key.verify(seal, PURPOSE + signed.text.encode(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, AssertionError):
        return False
    return True
