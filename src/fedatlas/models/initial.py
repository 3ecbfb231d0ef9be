"""The file of `model.init`: read from its path or, between real parties, received as bytes that match the agreed digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

from fedatlas.errors import ConfigError

BY_DIGEST = "sha256:"
_GIVEN: ContextVar[bytes] = ContextVar("given", default=b"")


def named(data: bytes) -> str:
    """Return the name that replaces the file's name in an agreement: the digest of these bytes."""
    return BY_DIGEST + hashlib.sha256(data).hexdigest()


def by_digest(init: str) -> bool:
    """Return whether `model.init` names bytes by their digest."""
    return init.startswith(BY_DIGEST)


@contextmanager
def given(data: bytes) -> Iterator[None]:
    """Within this context, read a `model.init` that is the digest of ``data`` from ``data``."""
    token = _GIVEN.set(data)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def read_initial(path: str | Path) -> dict[str, Tensor]:
    """Return the state dict of a ``.safetensors`` file; ConfigError if it is missing or unreadable."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        state: dict[str, Tensor] = load(bytes_of(path))
    except SafetensorError as error:
        raise ConfigError(f"model.init: '{path}' cannot be read as safetensors ({error}).") from error
    return state


def bytes_of(path: str | Path) -> bytes:
    """Return the bytes of the file. ConfigError if it is missing, or did not come with the agreement."""
    if by_digest(str(path)):
        if named(found := _GIVEN.get()) != str(path):
            raise ConfigError(f"model.init: the file of {path} did not come with it; submit the experiment again.")
        return found
    try:
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ConfigError(f"model.init: there is no file '{path}'.") from error
    except OSError as error:
        raise ConfigError(f"model.init: '{path}' cannot be read ({error.strerror}).") from error
