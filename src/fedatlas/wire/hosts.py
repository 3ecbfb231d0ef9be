"""Names of machines: which are valid, which mean this machine, and which are called through a proxy."""

from __future__ import annotations

import ipaddress
import os
import re

from fedatlas.errors import ConfigError

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables that gRPC takes a proxy from, in its order."""
EXCEPT = ("no_grpc_proxy", "no_proxy")
"""Variables that list the machines that gRPC calls without a proxy."""


def check_host(host: str) -> None:
    """Raise ConfigError, with a correction, if a text is neither a machine's name nor its address."""
    if "://" in host:
        bare = re.split(r"[/:]", host.partition("://")[2])[0]
        raise ConfigError(f"--host {host}: give the name alone, as in --host {bare or 'fed.example.org'}.")
    if is_address(host):
        return
    name, colon, port = host.partition(":")
    if colon and port.isdigit():
        raise ConfigError(f"--host {host}: give the port by itself, as in --host {name or 'NAME'} --port {port}.")
    if not host.isascii():
        try:
            coded = host.encode("idna").decode()
        except UnicodeError:
            coded = ""
        hint = f"which network programs know as --host {coded}" if coded else "take another name or the address"
        raise ConfigError(f"--host {host}: certificates and names of machines have the letters a to z only; {hint}.")
    label = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
    if len(host) > 253 or not re.fullmatch(rf"{label}(\.{label})*\.?", host):
        raise ConfigError(
            f"--host '{host}' is no name or address of a machine: give the one by which nodes find the server, "
            "such as fed.example.org or 192.0.2.7."
        )


def is_address(host: str) -> bool:
    """Return whether a text is an address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a name or an address means this machine, which is reached without a network."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def proxy_of(host: str) -> str:
    """Return, as the end of a sentence, the variable whose proxy gRPC uses for a machine; "" if there is none."""
    name = next((each for each in PROXIES if os.environ.get(each)), "")
    excepted = next((os.environ[each] for each in EXCEPT if os.environ.get(each)), "")
    if (
        not name
        or is_loopback(host)
        or any(host.endswith(each.strip()) for each in excepted.split(",") if each.strip())
    ):
        return ""
    return f" through the proxy of the variable {name} ({os.environ[name]}); 'export no_proxy={host}' goes past it"
