"""The fields of a client's word: what it seals its update by.

    clients           of the ask
    mean, sums        whether the sum becomes a mean; parts that are added up as they are
    weights           part -> [group, coefficient, the same again]
    send              False where the sum was opened before: the client works, and sends nothing
    chain             whether models went from client to client; the server half adds it to the word of every mechanism
    session           shares, present, head of the masked session; with ``send`` alone

A client reads them before it works. Their values are compared with its line of the head (`head`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import CHAIN, SEND, SESSION
from fedatlas.privacy.secagg.keys import MOST

ROWS, ALL, TOLD = "rows", "all", "told"  # weights n_k over those who answered; n_k over all rows; told beforehand
NONE = "what a client is to seal its update by is not of this protocol: a field is missing, unknown or of another type."


def check_fields(word: Mapping[str, Any]) -> None:
    """ProtocolError unless a word has its fields, of their types, and no others."""
    names = {"clients", "mean", "sums", "weights", SEND, *([SESSION] if word.get(SEND) is True else [])}
    if not (word.keys() - {CHAIN} == names and _typed(word)):
        raise ProtocolError(NONE)


def _typed(word: Mapping[str, Any]) -> bool:
    clients, sums, weights = word["clients"], word["sums"], word["weights"]
    good = type(clients) is int and 0 < clients <= MOST
    good = good and all(type(x) is bool for x in (word["mean"], word[SEND], word.get(CHAIN, False)))
    good = good and isinstance(sums, list) and all(isinstance(x, str) for x in sums)
    good = good and isinstance(word.get(SESSION, {}), Mapping)
    return good and isinstance(weights, Mapping) and bool(weights) and all(map(_weight, weights.values()))


def _weight(way: Any) -> bool:
    if not (isinstance(way, list) and len(way) == 3 and isinstance(way[0], str)):
        return False
    return way[0] in {ROWS, ALL, TOLD} and all(type(x) is float and math.isfinite(x) for x in way[1:])
