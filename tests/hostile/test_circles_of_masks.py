"""The sparse graph of masks against a server that tells another circle, and clients that send too little."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedatlas.errors import ProtocolError
from fedatlas.privacy.secagg import client, keys, messages
from secagg_sessions import RUN, drawn, hold, parties, plain

pytestmark = pytest.mark.timing


def test_a_party_and_the_server_agree_on_the_graph() -> None:
    """A party whose settings name no neighbours, as every deployed node's, refuses a graph; so does one that waits for it."""
    cohort = tuple(range(12))
    party = parties(cohort)
    sparse = messages.told(keys.place_of(*RUN, cohort, neighbours=6, seed="ab" * 32))
    full = messages.told(keys.place_of(*RUN, cohort))
    assert sparse.keys() - full.keys() == {"graph"}
    for message, neighbours in [(sparse, None), (full, 6), (sparse, 12)]:
        with pytest.raises(ProtocolError, match="do not agree on which clients share masks"):
            client.advertise(message, party[3], neighbours=neighbours)
    for seed in ("", "ab", "AB" * 32, 7, "ab" * 33):
        with pytest.raises(ProtocolError, match="does not say run"):
            client.advertise({**full, "graph": seed}, party[3], neighbours=6)


def test_another_circle_is_another_place() -> None:
    """A client that was told another circle has signed for another place: no signature of its holds, and it accepts none."""
    words = drawn(7, 12, 2)

    def other(phase: str, who: int, message: Any) -> Any:
        return {**message, "graph": "cd" * 32} if (phase, who) == ("keys", 1) else message

    seen = hold(words, told=other, neighbours=6)
    assert 1 not in seen.survivors
    assert "not signed by its identity" in seen.refused["keys"][1]
    assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))


@pytest.mark.parametrize("phase", ["shares", "unmask"])
def test_tables_cut_short_leave_their_client_out(phase: str) -> None:
    words = drawn(8, 12, 2)
    name = "shares"
    seen = hold(
        words,
        meddle=lambda p, w, reply: {**reply, name: reply[name][:-1]} if (p, w) == (phase, 4) else reply,
        neighbours=8,
    )
    assert "cut short" in seen.refused[phase][4]
    assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))
