"""The messages of the five phases as plain values: their fields, widths and reading.

Only the cohort and the layout determine their widths. An absent client has a row of zeros, so that bytes reveal nothing. Of m clients each
shares masks with c, itself included: with all, or with those next to it in a sparse graph. Tables of c rows are in their order.

    phase    to a client                                               from a client
    keys     run, round, attempt, ask, cohort; graph if it is sparse   keys (64), signature (64)
    shares   keys (c, 64), signatures (c, 64), present (m)             shares (c, 94), digests (c, 2, 32), commitment (32)
    masked   shares (c, 94), present (m), head (`head`)                masked: name -> words, i32 or i64
    agree    survivors (m)                                             signature (64)
    unmask   signatures (c, 64), signed (m)                            shares (c, 33)

Keys are the public channel key followed by the public mask key. A row of 94 bytes is the nonce, the encrypted share of the private
mask key and of the seed, and the seal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg.keys import NONCE, SEAL, Place
from fedatlas.privacy.sharing.shamir import WIDTH

SEED = re.compile("[0-9a-f]{64}")
ENVELOPE = NONCE + 2 * WIDTH + SEAL
WORDS = {32: torch.int32, 64: torch.int64}
UNSIGNED = {32: np.uint32, 64: np.uint64}

Layout = Mapping[str, tuple[int, int]]  # name -> (bits of the ring, number of words)
Words = np.ndarray[Any, Any]


def told(place: Place) -> dict[str, Any]:
    """Return the message that begins a session. Federation and threshold are the party's own and are not in it."""
    plain = {"run": place.run, "round": place.round, "attempt": place.attempt, "ask": place.ask}
    sparse = {"graph": place.graph} if place.neighbours else {}
    return {**plain, "cohort": torch.tensor(place.cohort), **sparse}


def heard(message: Any, who: str) -> tuple[str, int, int, int | str, tuple[int, ...]]:
    """Return (run, round, attempt, ask, cohort) of ``told``. ProtocolError if one is missing or of the wrong type."""
    kinds: dict[str, set[type]] = {
        "run": {str},
        "round": {int},
        "attempt": {int},
        "ask": {int, str},
        "cohort": {Tensor},
    }
    good = isinstance(message, Mapping) and message.keys() - {"graph"} == kinds.keys()
    good = good and all(type(message[name]) in kind for name, kind in kinds.items()) and graph_in(message) is not None
    if not good or message["cohort"].dtype != torch.int64 or message["cohort"].dim() != 1:
        raise ProtocolError(
            f"the first message of {who} does not say run, round, attempt, ask and cohort, or says more."
        )
    return message["run"], message["round"], message["attempt"], message["ask"], tuple(message["cohort"].tolist())


def graph_in(message: Mapping[str, Any]) -> str | None:
    """Return the seed of the sparse graph in the first message of a session; "" if it names none, None if it is not one."""
    found = message.get("graph", "")
    return found if isinstance(found, str) and ("graph" not in message or SEED.fullmatch(found)) else None


def only(message: Any, names: Collection[str], who: str) -> None:
    """Raise ProtocolError if a message has any other entry."""
    if not isinstance(message, Mapping) or not message.keys() <= {*names}:
        raise ProtocolError(f"the message of {who} holds something else than {', '.join(names)}: refused.")


def field(message: Any, name: str, kind: torch.dtype, shape: tuple[int, ...], who: str) -> Tensor:
    """Return the tensor ``name`` of a message. ProtocolError, which names the sender ``who``, if its type or shape is wrong."""
    found = message.get(name) if isinstance(message, Mapping) else None
    if not isinstance(found, Tensor) or found.dtype != kind or tuple(found.shape) != shape:
        what = f"{str(kind).removeprefix('torch.')} of shape {list(shape)}"
        raise ProtocolError(
            f"'{name}' in the message of {who} is not {what}: it is cut short, or not of this protocol."
        )
    return found


def layout_of(parts: Any, who: str) -> dict[str, tuple[int, int]]:
    """Return the layout of a masked input. ProtocolError if it is not one."""
    rings = {kind: ring for ring, kind in WORDS.items()}
    if not isinstance(parts, Mapping) or not all(
        isinstance(x, Tensor) and x.dtype in rings and x.dim() == 1 for x in parts.values()
    ):
        raise ProtocolError(f"the masked input of {who} is no set of words: it is cut short, or not of this protocol.")
    return {str(name): (rings[x.dtype], len(x)) for name, x in parts.items()}


def raw(found: Tensor) -> bytes:
    """Return the bytes of a tensor of u8."""
    return found.numpy().tobytes()


def table(rows: Iterable[bytes], *shape: int) -> Tensor:
    """Return a tensor of u8 from consecutive rows of bytes."""
    found = np.frombuffer(b"".join(rows), np.uint8)
    return torch.from_numpy(found.copy()).reshape(shape)


def flags(positions: Iterable[int], clients: int) -> Tensor:
    """Mark positions of the cohort in a tensor of True and False."""
    out = torch.zeros(clients, dtype=torch.bool)
    out[list(positions)] = True
    return out


def positions(message: Any, name: str, clients: int, who: str) -> tuple[int, ...]:
    """Return the positions in the cohort that ``flags`` marks."""
    return tuple(np.flatnonzero(field(message, name, torch.bool, (clients,), who).numpy()).tolist())


def sent(words: Words) -> Tensor:
    """Return words of the ring in the codec's form: the same bits, read as signed."""
    return torch.from_numpy(words.view(f"i{words.dtype.itemsize}"))
