"""The fields of a client's word under encryption: the instructions by which it encrypts its update.

    send              False if the sum was opened before: the client works and sends nothing
    mean, sums        whether the sum becomes a mean; parts that are summed unweighted
    weights           part -> [group, factor of its values, factor of its reals]
    layouts           group -> its layout, for words of reals under `REALS`
    chain             whether models went from client to client; the server half adds it
    session           under a key in shares: the table that all clients sign

A client checks them before it works. A layout is one that its own cryptosystem would choose for some total.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import CHAIN, SEND, SESSION
from fedatlas.privacy.encrypted.cryptosystem import Cryptosystem, chosen
from fedatlas.privacy.numbers import REALS
from fedatlas.privacy.protocol import Weighed

NONE = (
    "what a client is to encrypt its update by is not of this protocol: a field is missing, unknown or of another type."
)


def check_word(system: Cryptosystem, word: Mapping[str, Any]) -> None:
    """Raise ProtocolError unless a word has exactly its fields, with their types, and its layouts are the cryptosystem's."""
    if not (word.keys() - {CHAIN, SESSION} == {SEND, "mean", "sums", "layouts", "weights"} and _typed(word)):
        raise ProtocolError(NONE)
    layouts = word["layouts"]
    groups = {group for group, *_ in word["weights"].values()} | {REALS}
    if not (isinstance(layouts, Mapping) and layouts.keys() >= groups):
        raise ProtocolError(NONE)
    if not all(chosen(system.layout, group == REALS, one) for group, one in layouts.items()):
        raise ProtocolError(NONE)


def weighed(system: Cryptosystem, word: Mapping[str, Any], due: Weighed) -> bool:
    """Whether a word asks for the sum that is ``due``. ProtocolError if it cannot be read."""
    check_word(system, word)
    return (word["mean"], tuple(word["sums"])) == (due.mean, due.sums)


def _typed(word: Mapping[str, Any]) -> bool:
    sums, weights = word["sums"], word["weights"]
    good = all(type(x) is bool for x in (word["mean"], word[SEND], word.get(CHAIN, False)))
    good = good and isinstance(sums, list) and all(isinstance(x, str) for x in sums)
    return good and isinstance(weights, Mapping) and bool(weights) and all(map(_weight, weights.values()))


def _weight(way: Any) -> bool:
    if not (isinstance(way, list) and len(way) == 3 and isinstance(way[0], str)):
        return False
    return not way[0].startswith(REALS) and all(type(x) is float and math.isfinite(x) for x in way[1:])
