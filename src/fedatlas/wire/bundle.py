"""A party's bundle: a folder with its key, its certificate, the lists that the authority signed, and the server's address.

bundle.toml   federation, role, name, host, port; the server's may set operators_see = "all"
key.pem cert.pem ca.pem   mutual TLS; only its owner can read the key's file
members.json  the registered parties, signed by the authority
identity.key  of a node: signs its part in secure sums
policy.toml   of a node: the runs it takes part in
README.md     what to do with it
"""

from __future__ import annotations

import datetime
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedatlas import secret
from fedatlas.errors import ConfigError
from fedatlas.files import write_secret, write_text
from fedatlas.wire import certificates
from fedatlas.wire.certificates import CA, CERT, KEY, MEMBERS, REVOKED, Authority, list_in, signed_list
from fedatlas.wire.hosts import check_host
from fedatlas.wire.messages import NAME
from fedatlas.wire.policy import TEMPLATE

FILE, IDENTITY, POLICY = "bundle.toml", "identity.key", "policy.toml"
AUTHORITY = "authority"
PORT = 8443
RESERVED = {"server", AUTHORITY}
SEE = {"own", "all"}
"""The runs that an operator may see: its own, or those of all operators."""


class Member(NamedTuple):
    """A registered party."""

    role: str
    serial: str
    identity: str = ""  # hexadecimal; of a node


class Bundle(NamedTuple):
    """The contents of a party's folder."""

    path: Path
    federation: str
    role: str
    name: str
    host: str
    port: int
    operators_see: str = "own"

    @classmethod
    def open(cls, path: Path, role: str) -> Bundle:
        """Read a bundle. ConfigError if there is none, or if it belongs to another role."""
        certificates.installed()
        try:
            given = tomllib.loads((path / FILE).read_text(encoding="utf-8"))
            names = (given["federation"], given["role"], given["name"], given["host"])
            made = cls(path, *names, int(given["port"]), given.get("operators_see", "own"))
        except FileNotFoundError:
            raise ConfigError(f"'{path}' is not a bundle: name a folder that 'fedatlas deploy init' made.") from None
        except (tomllib.TOMLDecodeError, KeyError, ValueError) as error:
            raise ConfigError(f"'{path / FILE}' is damaged ({error}): copy the bundle again.") from None
        if made.operators_see not in SEE:
            raise ConfigError(f"'{path / FILE}': operators_see is 'own' or 'all', not {made.operators_see!r}.")
        if made.role != role:
            raise ConfigError(
                f"'{path}' is the bundle of {with_article(made.role)} '{made.name}'; this command takes that of {with_article(role)}."
            )
        return made

    @property
    def address(self) -> str:
        """The server's host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def pem(self) -> tuple[bytes, bytes, bytes]:
        """Return (key, certificate, the authority's certificate)."""
        return tuple((self.path / name).read_bytes() for name in (KEY, CERT, CA))  # type: ignore[return-value]

    def members(self) -> dict[str, Member]:
        """Return the registered parties, in the order of registration."""
        found = signed_list(self.path / MEMBERS, self.path / CA)
        if found["federation"] != self.federation:
            raise ConfigError(f"'{self.path / MEMBERS}' is of another federation: copy the right one.")
        return {name: Member(*entry) for name, entry in found["members"].items()}

    def revoked(self) -> set[str]:
        """Return the numbers of the revoked certificates."""
        return {*self.revocations()["serials"]}

    def revocations(self) -> Mapping[str, Any]:
        """Return the newest known list of revocations: when it was signed, and the numbers of certificates."""
        path = self.path / REVOKED
        found = signed_list(path, self.path / CA) if path.exists() else {}
        return {"date": "", "serials": [], **found}

    def signed_revocations(self) -> str:
        """Return the text of that list with its signature; "" if there is none."""
        path = self.path / REVOKED
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def take_revocations(self, signed: str) -> bool:
        """Keep a list of revocations if it is newer than the known one. ValueError if the authority did not sign it."""
        found = list_in(signed, REVOKED, self.path / CA)
        if found.get("federation") != self.federation:
            raise ValueError("it is of another federation")
        if str(found.get("date", "")) <= self.revocations()["date"]:
            return False
        write_text(self.path / REVOKED, signed)
        return True


def with_article(role: str) -> str:
    """Return the role with its article."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role}"


def check_name(name: str) -> None:
    """Raise ConfigError for a text that cannot be a party's name."""
    if not re.fullmatch(NAME, name) or name in RESERVED:
        raise ConfigError(
            f"'{name}' cannot be a party's name: use small letters, digits, '-', '_' and '.', not 'server'."
        )


def init(
    folder: Path, nodes: Sequence[str], host: str, port: int = PORT, operator: str = "operator"
) -> dict[str, Path]:
    """Make a federation: its authority, and a bundle for the server, each node and an operator."""
    certificates.installed()
    if (folder / AUTHORITY).exists():
        raise ConfigError(
            f"'{folder}' holds a federation already: 'fedatlas deploy add {folder} NAME' adds a party to it."
        )
    check_host(host)
    for name in (*nodes, operator):
        check_name(name)
    if len({*nodes, operator}) < len(nodes) + 1:
        raise ConfigError(f"--nodes {','.join(nodes)}: give every party another name.")
    federation = f"{re.sub(r'[^a-z0-9-]', '-', folder.name.lower()) or 'federation'}-{secret.random_bytes(4).hex()}"
    authority = Authority.make(folder / AUTHORITY, federation)
    about = {"federation": federation, "host": host, "port": port}
    members: dict[str, Member] = {}
    for role, name in (("server", "server"), *(("node", name) for name in nodes), ("operator", operator)):
        members[name] = _party(authority, folder / name, about, role, name)
    write_text(folder / AUTHORITY / FILE, tomli_w.dumps(about))
    _publish(authority, folder, federation, members, [])
    return {name: folder / name for name in members}


def add(folder: Path, name: str, role: str = "node") -> Path:
    """Add a party, or make a new certificate for one whose old one was revoked."""
    authority, about, members, revoked = _known(folder)
    check_name(name)
    if name in members and members[name].serial not in revoked:
        raise ConfigError(f"'{name}' is registered already: revoke it first, or choose another name.")
    if (folder / name).exists():
        shutil.rmtree(folder / name)
    members[name] = _party(authority, folder / name, about, role, name)
    _publish(authority, folder, about["federation"], members, revoked)
    return folder / name


def revoke(folder: Path, name: str) -> None:
    """Revoke the certificate of a party."""
    authority, about, members, revoked = _known(folder)
    if name not in members:
        raise ConfigError(f"'{name}' is not registered; registered are {', '.join(members)}.")
    _publish(authority, folder, about["federation"], members, sorted({*revoked, members[name].serial}))


def _known(folder: Path) -> tuple[Authority, dict[str, Any], dict[str, Member], list[str]]:
    certificates.installed()
    home = folder / AUTHORITY
    authority = Authority(home)
    about = tomllib.loads((home / FILE).read_text(encoding="utf-8"))
    members = {name: Member(*entry) for name, entry in signed_list(home / MEMBERS, home / CA)["members"].items()}
    return authority, about, members, signed_list(home / REVOKED, home / CA)["serials"]


def _party(authority: Authority, bundle: Path, about: Mapping[str, Any], role: str, name: str) -> Member:
    bundle.mkdir(parents=True, mode=0o700)
    serial = authority.issue(bundle, about["federation"], role, name, about["host"])
    write_text(bundle / FILE, tomli_w.dumps({**about, "role": role, "name": name}))
    write_text(bundle / "README.md", README[role].format(name=name, **about))
    if role != "node":
        return Member(role, serial)
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    write_secret(
        bundle / IDENTITY, private.private_bytes(form.Encoding.Raw, form.PrivateFormat.Raw, form.NoEncryption())
    )
    write_text(bundle / POLICY, TEMPLATE)
    public = private.public_key().public_bytes(form.Encoding.Raw, form.PublicFormat.Raw)
    return Member(role, serial, public.hex())


def _publish(
    authority: Authority, folder: Path, federation: str, members: Mapping[str, Member], revoked: Sequence[str]
) -> None:
    """Write the lists into the authority's folder and into every bundle still next to it."""
    date = datetime.datetime.now(datetime.UTC).isoformat()
    listed = {"federation": federation, "members": {name: list(one) for name, one in members.items()}}
    for home in (folder / AUTHORITY, *(folder / name for name in members)):
        if home.is_dir():
            authority.sign(home / MEMBERS, listed)
            authority.sign(home / REVOKED, {"federation": federation, "date": date, "serials": list(revoked)})


README = {
    "server": """# The server of {federation}

Keep this folder on the machine called {host}. It listens on port {port}.

    pip install "fedatlas[deploy]"
    fedatlas deploy server .
    fedatlas deploy server . --test rows.csv      # where the server has test rows
""",
    "node": """# The node '{name}' of {federation}

Keep this folder where the rows are. It speaks to {host}:{port}, and nobody speaks to it: open no port.

    pip install "fedatlas[deploy]"
    edit policy.toml                              # what this site takes part in
    fedatlas deploy node . --data rows.csv
""",
    "operator": """# The operator '{name}' of {federation}

Keep this folder where experiments are started. It speaks to {host}:{port}.

    pip install "fedatlas[deploy]"
    fedatlas deploy run EXPERIMENT.toml --bundle .
    fedatlas deploy status --bundle .
""",
}
