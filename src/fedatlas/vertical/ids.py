"""Ids as texts that can be compared, and what parties may reveal about them if they do not match.

An id is the file's text without blanks at its ends, or an integer in decimal, and else normalised only as the experiment
declares (`data.party_ids`): "007" and 7 are different ids. If the tables overlap little, a party reveals only a `Look` of its
ids. It holds their lengths, and the shares with leading zeros, only digits, letters, small or capital letters, or the
form in which spreadsheets round long numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedatlas.vertical.parties import Whole

ROUNDED = re.compile(r"\d([.,]\d+)?[eE]\+?\d+")
APART = "\x1f"  # before the lengths of the values that an id of several columns is joined of
LITTLE = 0.5  # share of the smallest party's ids below which parties reveal how their ids look


class Look(NamedTuple):
    """Figures about a party's ids, without any id."""

    ids: int
    digits: float  # share of those that hold only digits
    zeros: float  # share of those longer than a character that begin with a zero
    letters: float  # share of those that hold a letter
    shortest: int  # characters
    longest: int
    small: float = 0.0  # share of those with a small letter
    capital: float = 0.0  # share of those with a capital letter
    rounded: float = 0.0  # share of those like 9.0E+15


def look_of(ids: Sequence[str]) -> Look:
    """Return the figures of some ids, without the lengths in them; all are 0 without ids."""
    ids = [one.partition(APART)[0] for one in ids]
    n = max(len(ids), 1)
    lengths = [len(one) for one in ids] or [0]
    return Look(
        len(ids),
        sum(one.isdigit() for one in ids) / n,
        sum(len(one) > 1 and one[0] == "0" for one in ids) / n,
        sum(any(c.isalpha() for c in one) for one in ids) / n,
        min(lengths),
        max(lengths),
        sum(one != one.upper() for one in ids) / n,
        sum(one != one.lower() for one in ids) / n,
        sum(ROUNDED.fullmatch(one) is not None for one in ids) / n,
    )


def difference(looks: Mapping[str, Look]) -> str:
    """Return what differs most between the ids of several parties, or their lengths if nothing stands out."""
    if worst := [name for name, one in looks.items() if one.rounded >= 0.25]:
        share = looks[worst[0]].rounded
        return (
            f"{share:.0%} of the ids of '{worst[0]}' look like 9.0E+15, as spreadsheets round long numbers: write the column as text "
            "from its source"
        )
    letters = [one.letters for one in looks.values()]
    cases = [{name: getattr(one, case) for name, one in looks.items()} for case in ("small", "capital")]
    if max(letters) - min(letters) < 0.25 and any(max(one.values()) - min(one.values()) >= 0.25 for one in cases):
        said = ", ".join(f"'{name}' {one:.0%}" for name, one in cases[0].items())
        return f"they differ by upper and lower case (ids with small letters: {said}): write them in the same way"
    of = {
        "leading zeros": {name: one.zeros for name, one in looks.items()},
        "letters": {name: one.letters for name, one in looks.items()},
        "only digits": {name: one.digits for name, one in looks.items()},
    }
    what, shares = max(of.items(), key=lambda pair: max(pair[1].values()) - min(pair[1].values()))
    most, least = max(shares, key=lambda name: shares[name]), min(shares, key=lambda name: shares[name])
    if shares[most] - shares[least] >= 0.25:
        few = "none" if shares[least] == 0 else f"{shares[least]:.0%}"
        verb = "are" if what == "only digits" else "have"
        return (
            f"{shares[most]:.0%} of the ids of '{most}' {verb} {what}, of those of '{least}' {few}: "
            "ids are compared as the text in the file, so write both in the same way"
        )
    said = ", ".join(f"'{name}' {one.shortest} to {one.longest}" for name, one in looks.items())
    return f"their ids have these numbers of characters: {said}; see that they name the same things"


def seed_key(seed: int) -> bytes:
    """Return the key of the rows' order in a simulation. It follows from the experiment, so it is not secret."""
    return str(seed).encode()


def ordered(ids: Sequence[str], key: bytes, *later: Sequence[str]) -> Whole:
    """Return places (n,) that sort ids by HMAC-SHA256 under a key.

    All parties that have the key get the same order, independent of the order of their files (V2). ``later``: the ids of
    the rows that further keys of a linkage matched, which follow in n; each has a key that is derived from the first.
    """
    keys = [key, *(hmac.digest(key, b"key %d" % k, "sha256") for k in range(1, len(later) + 1))]
    each = zip(keys, (ids, *later), strict=True)
    tags = [hmac.digest(own, one.encode(), "sha256") for own, some in each for one in some]
    return np.array(sorted(range(len(tags)), key=tags.__getitem__), dtype=np.int64)


def digest_of_ids(ids: Sequence[str], key: bytes) -> str:
    """Return a digest of all ids in their order.

    It is equal for two parties that hold the same ids in the same order.
    """
    return hmac.digest(key, b"\x1f".join(hashlib.sha256(one.encode()).digest() for one in ids), "sha256").hex()
