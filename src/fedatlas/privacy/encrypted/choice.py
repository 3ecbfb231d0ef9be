"""The tensors of a model that are encrypted: all, those of the layers nearest the output, or those named. Read without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedatlas.errors import ConfigError, unknown_name


def check_choice(name: str, encrypt: str | tuple[str, ...]) -> None:
    """Raise ConfigError for a choice of layers that ``encrypt`` does not support."""
    kind, colon, number = encrypt.partition(":") if isinstance(encrypt, str) else ("", "", "")
    if isinstance(encrypt, str):
        some = kind == "outermost" and colon and number.isdigit() and int(number)
        if not (encrypt in {"all", "output"} or some):
            raise ConfigError(
                f"privacy.{name}.encrypt = '{encrypt}': expected 'all', 'output', 'outermost:N' or a list of parameters."
            )
    elif not encrypt:
        raise ConfigError(f"privacy.{name}.encrypt: an empty list encrypts nothing; remove the table.")


def chosen(name: str, encrypt: str | tuple[str, ...], parameters: Sequence[str]) -> Any:
    """Return the names of the parameters to encrypt: those of the layers nearest the output, or as given; "all" for all.

    ConfigError for a name that the network does not have.
    """
    if encrypt == "all":
        return encrypt
    layers = list(dict.fromkeys(one.rpartition(".")[0] for one in parameters))
    if isinstance(encrypt, str):
        count = 1 if encrypt == "output" else int(encrypt.partition(":")[2])
        if count >= len(layers) > 1:
            raise ConfigError(
                f"privacy.{name}.encrypt = '{encrypt}': the network has {len(layers)} layers; write 'all' for the whole of it."
            )
        return tuple(one for one in parameters if one.rpartition(".")[0] in layers[-count:])
    for one in encrypt:
        if one not in parameters:
            raise unknown_name("parameter", one, parameters)
    return encrypt
