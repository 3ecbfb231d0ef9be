"""The fields of a client's word: the instructions by which it seals its update.

    clients           of the ask
        mean, sums        whether the sum becomes a mean; parts that are summed unweighted
    weights           part -> [group, coefficient, the same again]
        send              False if the sum was opened before: the client works and sends nothing
    chain             whether models went from client to client; the server half adds it to the word of every mechanism
        session           shares, present, head of the masked session; only with ``send``

A client checks them before it works. It compares their values with its line of the head (`head`), and both with the experiment. A sum
with other weights would reveal what one client sent (`weighed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedatlas.errors import ProtocolError
from fedatlas.privacy.ask_protocol import CHAIN, SEND, SESSION
from fedatlas.privacy.protocol import Weighed
from fedatlas.privacy.secagg.head import head_of
from fedatlas.privacy.secagg.keys import SPARSE_MOST

ROWS, ALL, TOLD = "rows", "all", "told"  # weights n_k over those who answered; n_k over all rows; told beforehand
NONE = "what a client is to seal its update by is not of this protocol: a field is missing, unknown or of another type."


def check_fields(word: Mapping[str, Any], *, masked: bool = True) -> None:
    """Raise ProtocolError unless a word has exactly its fields, with their types; no session unless ``masked``."""
    names = {"clients", "mean", "sums", "weights", SEND, *([SESSION] if masked and word.get(SEND) is True else [])}
    if not (word.keys() - {CHAIN} == names and _typed(word)):
        raise ProtocolError(NONE)


def _typed(word: Mapping[str, Any]) -> bool:
    clients, sums, weights = word["clients"], word["sums"], word["weights"]
    good = type(clients) is int and 0 < clients <= SPARSE_MOST
    good = good and all(type(x) is bool for x in (word["mean"], word[SEND], word.get(CHAIN, False)))
    good = good and isinstance(sums, list) and all(isinstance(x, str) for x in sums)
    good = good and isinstance(word.get(SESSION, {}), Mapping)
    return good and isinstance(weights, Mapping) and bool(weights) and all(map(_weight, weights.values()))


def _weight(way: Any) -> bool:
    if not (isinstance(way, list) and len(way) == 3 and isinstance(way[0], str)):
        return False
    return way[0] in {ROWS, ALL, TOLD} and all(type(x) is float and math.isfinite(x) for x in way[1:])


def weighed(word: Mapping[str, Any], due: Weighed) -> bool:
    """Whether a word, and the head of what all others are told, weigh a sum as ``due``. ProtocolError if one cannot be read."""
    check_fields(word)
    if not _as_due(word, due):
        return False
    if not word[SEND]:
        return True
    head = head_of(word[SESSION].get("head"), word["clients"])
    return (head.mean, head.sums) == (due.mean, due.sums) and _all_due(head.weights, due)


def weighed_unmasked(word: Mapping[str, Any], due: Weighed) -> bool:
    """Whether a word without a session weighs a sum as ``due``. ProtocolError if it cannot be read."""
    check_fields(word, masked=False)
    return _as_due(word, due)


def _as_due(word: Mapping[str, Any], due: Weighed) -> bool:
    told = {part: (group, (x, again)) for part, (group, x, again) in word["weights"].items()}
    return (word["mean"], tuple(word["sums"])) == (due.mean, due.sums) and _all_due(told, due)


def _all_due(table: Mapping[str, tuple[str, tuple[float, ...]]], due: Weighed) -> bool:
    return all(_due(part, group, column, due) for part, (group, column) in table.items())


def _due(part: str, group: str, column: tuple[float, ...], due: Weighed) -> bool:
    """Whether the weights of a part are the required ones: told weights alike and at most 1, as in any mean."""
    if not due.mean or part in due.sums:
        return group == TOLD and {*column} == {1.0}
    way = due.way(part)
    if way == "rows":
        return group in {ROWS, ALL} and {*column} == {1.0}
    return not way or (group == TOLD and len({*column}) == 1 and 0 < column[0] <= 1)
