"""The record of a cryptosystem: its part in a sum of encrypted updates.

The protocol in `encrypted_sum` is the same for all. It handles groups of numbers: values, in the cryptosystem's own codes, and words of
reals, whole numbers of 48 bits that have to be summed exactly. Layouts and ciphertexts are plain values of messages. Only the
cryptosystem reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from fedatlas.algorithm import Ask, Question, Replies
from fedatlas.errors import PrivacyError
from fedatlas.privacy.ask_protocol import Place
from fedatlas.privacy.numbers import Leaf
from fedatlas.privacy.protocol import Keys

FEWEST = 2  # clients of a sum: the sum of one is its update. Of two, the opener learns the other's, but it holds the key anyway
MOST_TOTAL = 1 << 48  # no sum of weights in steps is as large
Numbers = NDArray[Any]  # int64 for words of reals; codes of values as the cryptosystem takes them
Layout = Sequence[Any]  # as messages hold it
Opened = Mapping[str, Tensor]  # group -> the opened sum


class Group(NamedTuple):
    """The ciphertexts of one group of numbers, of all clients in the sum."""

    layout: Layout
    length: int  # how many numbers
    batches: Mapping[int, Any]  # by client, as `Cryptosystem.received` returned them
    weights: Mapping[int, int]  # by client; 1 unless the server weighs


class Sum(NamedTuple):
    """A sum of ciphertexts that is to be opened."""

    clients: tuple[int, ...]  # whose updates are in it
    groups: Mapping[str, Group]
    ask: Ask
    place: Place


Opening = Generator[Ask, Replies, Opened | None]
"""Asks holders of the key to open the groups of a sum. Returns the sums, or None if nobody opened them."""


class Cryptosystem(NamedTuple):
    """A cryptosystem with the keys of its table."""

    unit: (
        int  # the whole number that stands for a weight of 1 if the server weighs; 1: clients weigh before they encrypt
    )
    encrypt: str | tuple[str, ...]  # "all", or the names of the encrypted tensors
    questions: Mapping[str, Question]  # those of its opening; all count as "decrypt"
    # (clients, federation, short keys for tests) -> the sessions of all parties (`session`) and the server's public part.
    keys: Callable[[int, str, bool], Keys]
    # (reals instead of values, sum of all weights) -> the layout. PrivacyError if such a sum would overflow.
    layout: Callable[[bool, int], Layout]
    codes: Callable[
        [Leaf, str], tuple[Numbers, Tensor]
    ]  # (values, their owner) -> (codes, the values that they encode)
    encrypted: Callable[
        [Any, Layout, Numbers], Mapping[str, Any]
    ]  # (session, ..) -> ciphertexts, as messages hold them
    received: Callable[
        [Any, Any, Layout, int], Any
    ]  # (public, sent, .., count) -> ciphertexts. ProtocolError if broken
    opening: Callable[[Any, Sum, int], Opening]  # (public, .., processes)
    values: Callable[[Tensor, int], Tensor]  # (an opened sum of codes, the unit of its weights) -> the values


def chosen(make: Callable[[bool, int], Layout], real: bool, layout: Any) -> bool:
    """Whether a layout from elsewhere is the one that a cryptosystem makes for some total, which is the second of its fields."""
    if not (isinstance(layout, list) and len(layout) > 1 and type(layout[1]) is int and 0 < layout[1] < MOST_TOTAL):
        return False
    try:
        due = [*make(real, layout[1])]
    except PrivacyError:
        return False
    return layout == due and [*map(type, layout)] == [*map(type, due)]


def session(client: int, key: Any, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the start of a party's sessions: the federation's key and the sums that it opened. It stays in memory."""
    return {"client": client, "key": key, "record": {run: [list(one) for one in asks] for run, asks in record.items()}}
