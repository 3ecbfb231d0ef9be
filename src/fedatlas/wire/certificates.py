"""Identities: a federation's authority, a certificate per party with its role and name, and the lists that the authority signs.

Keys are ECDSA on P-256. A certificate's name is a URI, ``fedatlas:FEDERATION/ROLE/NAME``. Two lists are signed with the authority's
key. One lists the registered parties, with certificate numbers and the public keys by which nodes sign their part in secure sums. The
other lists the revoked certificates. Python's TLS reads no revocation list, so the server checks its own list at every ask.
"""

from __future__ import annotations

import base64
import datetime
import functools
import ipaddress
import json
from pathlib import Path
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError
from fedatlas.files import write_bytes, write_secret, write_text

YEARS = 2  # validity of a party's certificate
SCHEME = "fedatlas:"
CA, CERT, KEY = "ca.pem", "cert.pem", "key.pem"
MEMBERS, REVOKED = "members.json", "revoked.json"


class Caller(NamedTuple):
    """The party at the other end, by its certificate."""

    federation: str
    role: str  # "server" | "node" | "operator"
    name: str
    serial: str
    until: datetime.datetime


def installed() -> None:
    """Raise ConfigError if the extra ``deploy`` is not installed."""
    try:
        import cryptography  # noqa: F401
        import grpc  # noqa: F401
    except ImportError as error:
        raise ConfigError(f'deployment needs {error.name}: pip install "fedatlas[deploy]".') from error


class Authority:
    """The folder that makes a federation's certificates. No bundle contains it."""

    def __init__(self, folder: Path) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not (folder / KEY).exists():
            raise ConfigError(f"'{folder}' holds no authority: make one with 'fedatlas deploy init'.")
        self.folder = folder
        self.key: Any = load_pem_private_key((folder / KEY).read_bytes(), None)
        self.certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())

    @classmethod
    def make(cls, folder: Path, federation: str) -> Authority:
        """Make a new authority."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"fedatlas {federation}")
        made = (
            _begin(name, name, key.public_key(), 10)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_secret(folder / KEY, _pem_of(key))
        write_bytes(folder / CA, _pem(made))
        return cls(folder)

    def issue(
        self, bundle: Path, federation: str, role: str, name: str, host: str = "", days: float = 365 * YEARS
    ) -> str:
        """Write a key and a certificate into a bundle; return the certificate's number."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Use

        key = ec.generate_private_key(ec.SECP256R1())
        names: list[Any] = [x509.UniformResourceIdentifier(f"{SCHEME}{federation}/{role}/{name}")]
        if role == "server":
            names += [_host(each) for each in dict.fromkeys([host, "localhost", "127.0.0.1"]) if each]
        made = (
            _begin(_name(name), self.certificate.subject, key.public_key(), days / 365)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([Use.SERVER_AUTH if role == "server" else Use.CLIENT_AUTH]), False)
            .sign(self.key, hashes.SHA256())
        )
        write_secret(bundle / KEY, _pem_of(key))
        write_bytes(bundle / CERT, _pem(made))
        write_bytes(bundle / CA, (self.folder / CA).read_bytes())
        return f"{made.serial_number:x}"

    def sign(self, path: Path, value: Any) -> None:
        """Write a list with the authority's signature."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        text = json.dumps(value, sort_keys=True)
        seal = self.key.sign(f"{path.name}\n{text}".encode(), ec.ECDSA(hashes.SHA256()))
        write_text(path, json.dumps({"list": text, "signature": base64.b64encode(seal).decode()}, indent=1) + "\n")


def signed_list(path: Path, ca: Path) -> Any:
    """Read a list that `Authority.sign` wrote. ConfigError if the authority did not sign it."""
    try:
        return list_in(path.read_text(encoding="utf-8"), path.name, ca)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"'{path}' cannot be trusted ({error}): copy it again from where 'deploy init' was run."
        ) from None


def list_in(signed: str, name: str, ca: Path) -> Any:
    """Return the list ``name`` in a signed text. ValueError if the authority did not sign it."""
    return json.loads(_verified(signed, name, ca.read_bytes()))


@functools.lru_cache(maxsize=64)  # nodes read their lists at every ask
def _verified(signed: str, name: str, ca: bytes) -> str:
    """Return the text of the list ``name`` in a signed text, as `list_in`."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        whole = json.loads(signed)
        key = x509.load_pem_x509_certificate(ca).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        seal = base64.b64decode(whole["signature"])
        key.verify(seal, f"{name}\n{whole['list']}".encode(), ec.ECDSA(hashes.SHA256()))
        return str(whole["list"])
    except InvalidSignature:
        raise ValueError("its signature is not the authority's") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def caller_of(pem: bytes) -> Caller | None:
    """Return the party that a certificate names; None if it names none."""
    from cryptography import x509

    try:
        made = x509.load_pem_x509_certificate(pem)
        san = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return None
    for uri in san.get_values_for_type(x509.UniformResourceIdentifier):
        parts = uri.removeprefix(SCHEME).split("/")
        if uri.startswith(SCHEME) and len(parts) == 3:
            return Caller(parts[0], parts[1], parts[2], f"{made.serial_number:x}", made.not_valid_after_utc)
    return None


def issued_by(pem: bytes, ca: bytes) -> bool:
    """Whether the authority with the certificate ``ca`` issued the certificate ``pem``."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except (InvalidSignature, TypeError, ValueError):
        return False
    return True


def _name(text: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _begin(subject: Any, issuer: Any, key: Any, years: float) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
    return made.not_valid_after(now + datetime.timedelta(days=365 * years))


def _usage(*, signs: bool) -> Any:
    """Return the usage of a key that ``signs`` certificates and lists, or of one that signs for its party."""
    from cryptography import x509

    no = False
    return x509.KeyUsage(not signs, no, no, no, no, signs, signs, no, no)


def _pem(certificate: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    made: bytes = certificate.public_bytes(Encoding.PEM)
    return made


def _pem_of(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    made: bytes = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    return made
