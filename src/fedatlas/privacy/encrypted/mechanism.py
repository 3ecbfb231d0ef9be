"""The common part of the records of encryptions: clients share a key, the server adds ciphertexts, one client opens the sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.privacy.encrypted.choice import check_choice, chosen
from fedatlas.privacy.mechanism import Extra, Learns, Limits, Mechanism, Words, Work
from fedatlas.privacy.reasons import HIDING

LEARNS = Learns(
    "the sum of a round's updates, which one client opens for it, and how many rows each client has where these are its weight; "
    "what `encrypt` leaves out, client by client",
    "the one that opens learns the sum; all hold the key, and could read an update that they got hold of",
    "the server with any one client reads every update: this is for parties that do not collude",
)
SHARED = "All clients hold the same key: a client that helps the server, or gets hold of what another one sent, reads every update."
CLEAR = "What was not chosen to be encrypted went in the clear: the server read it, client by client."


def encryption(
    build: Callable[..., Mechanism],
    keys: Mapping[str, Any],
    done: str,
    work: Callable[[], Work],
    extras: tuple[Extra, ...],
    *,
    warnings: tuple[str, ...] = (),
    notices: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    learns: Learns = LEARNS,
) -> Mechanism:
    """Return the record of an encryption.

    build: its builder, whose name is the mechanism's.
    done: the first sentences of the report's section; ``{what}`` stands for what was encrypted.
    warnings, notices: sentences of the report, and before a run, besides those that hold for every shared key.
    """
    name, encrypt = build.__name__, keys["encrypt"]
    check_choice(name, encrypt)
    wholly = encrypt == "all"
    notice = f"'{name}': what privacy.{name}.encrypt does not name is sent in the clear, and the server reads it."
    return Mechanism(
        name=name,
        keys=keys,
        place=4,
        trust="clients",
        learns=learns,
        work=work,
        words=Words(
            done.replace("{what}", "its whole update" if wholly else "a part of its update ({encrypt})"),
            (SHARED, *warnings) if wholly else (SHARED, CLEAR, *warnings),
            notices if wholly else (notice, *notices),
        ),
        phase="encrypt",
        sums_only="wholly" if wholly else "partly",
        hides=("steps",),
        named=lambda parameters: build(**{**keys, "encrypt": chosen(name, encrypt, parameters)}),
        limits=Limits(why_not=HIDING, columns=columns, extras=extras),
    )
