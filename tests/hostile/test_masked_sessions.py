"""Secure aggregation among parties that break its rules: what a client refuses, and how the server goes on without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedatlas.errors import PrivacyError, ProtocolError
from fedatlas.privacy.secagg import client, keys, messages, once, server
from fedatlas.wire import codec
from secagg_sessions import RUN, crossed, drawn, hold, parties, plain

pytestmark = pytest.mark.timing


def _set(name: str, row: int, other: int) -> Any:
    def told(phase: str, who: int, message: Any) -> Any:
        if name not in message or name == "masked":
            return message
        changed = message[name].clone()
        changed[row] = message[name][other]
        return {**message, name: changed}

    return told


def only(phase: str, who: int, change: Any) -> Any:
    """A ``meddle`` or ``told`` that changes one client's message of one phase."""
    return lambda p, w, message: change(message) if (p, w) == (phase, who) else message


def test_keys_that_are_not_signed_by_their_client_are_refused() -> None:
    words = drawn(5, 5, 2)
    with pytest.raises(ProtocolError, match="keys of client 7 are not signed by its identity"):
        hold(words, told=only("shares", 1, lambda x: _set("signatures", 2, 3)("shares", 1, x)))
    swapped = only("shares", 1, lambda x: _set("signatures", 2, 3)("", 1, _set("keys", 2, 3)("", 1, x)))
    with pytest.raises(ProtocolError, match="a key came twice"):
        hold(words, told=swapped)
    with pytest.raises(ProtocolError, match="those of client 1 are not its own"):
        hold(words, told=only("shares", 1, lambda x: _set("keys", 0, 3)("", 1, x)))


def test_a_signature_holds_at_one_place_only() -> None:
    cohort = (0, 1, 2)
    party = parties(cohort)
    place = keys.place_of(*RUN, cohort)
    both = bytes(range(64))
    signature = keys.signed(party[1], keys.tag_of(place), both)
    keys.verify(party[0].public, keys.tag_of(place), 1, both, signature)
    other = {"federation": "f", "run": "r", "round": 4, "attempt": 1, "ask": 1, "cohort": (0, 1, 2, 3), "threshold": 2}
    other |= {"neighbours": 2, "graph": "ab"}
    places = [place._replace(**{name: value}) for name, value in other.items()] + [place._replace(ask="0")]
    assert set(other) == set(place._fields)
    for elsewhere in places:
        with pytest.raises(ProtocolError, match="not signed by its identity for this round"):
            keys.verify(party[0].public, keys.tag_of(elsewhere), 1, both, signature)
    for client_, keys_ in [(2, both), (1, both[::-1])]:
        with pytest.raises(ProtocolError, match="not signed"):
            keys.verify(party[0].public, keys.tag_of(place), client_, keys_, signature)
    with pytest.raises(ProtocolError, match="client 7 is not on the list"):
        keys.verify(party[0].public, keys.tag_of(place), 7, both, signature)


def test_the_server_goes_on_without_a_client_whose_reply_is_of_no_use() -> None:
    words = drawn(6, 6, 4)  # t = 5
    old = hold(words, place=(*RUN[:3], 1, 0)).up
    cases: list[tuple[str, Any, str]] = [
        ("keys", lambda x: {**x, "signature": x["signature"].flip(0)}, "not signed"),
        ("keys", lambda x: old["keys"][4], "not signed"),  # another attempt's
        ("keys", lambda x: {"keys": x["keys"][:63], "signature": x["signature"]}, "'keys' .* client 4 .* cut short"),
        ("keys", lambda x: None, "'keys' in the message of client 4"),
        ("shares", lambda x: {**x, "shares": x["shares"][:, :93]}, "'shares' .* client 4"),
        ("masked", lambda x: {"masked": {"x": x["masked"]["x"][:3]}}, "client 4 has another layout"),
        ("masked", lambda x: {"masked": {"x": x["masked"]["x"].double() * float("nan")}}, "client 4 is no set"),
        ("masked", lambda x: {}, "client 4 is no set of words"),
        ("agree", lambda x: {"signature": x["signature"].flip(0)}, "client 4 did not sign who is in the sum"),
        ("agree", lambda x: old["agree"][4], "client 4 did not sign"),
        ("agree", lambda x: {}, "'signature' .* client 4"),
        ("unmask", lambda x: {"shares": x["shares"][:, :32]}, "'shares' .* client 4"),
        (
            "unmask",
            lambda x: {"shares": x["shares"] ^ 1},
            "share of client .* secret that client 4 gave is not the one",
        ),
        ("unmask", lambda x: old["unmask"][4], "that client 4 gave is not the one"),
    ]
    for phase, change, sentence in cases:
        seen = hold(words, meddle=only(phase, 4, change))
        assert list(seen.refused[phase]) == [4], (phase, sentence)
        with pytest.raises(ProtocolError, match=sentence):
            raise ProtocolError(seen.refused[phase][4])
        assert seen.survivors == [k for k in words if k != 4 or phase in {"agree", "unmask"}]
        assert np.array_equal(seen.sums["x"], plain(words, seen.survivors))


def test_a_doubled_key_a_doubled_answer_and_a_stranger_are_refused_by_the_server() -> None:
    cohort = (0, 1, 2, 3)
    party = parties(cohort)
    place = keys.place_of(*RUN, cohort)
    replies = [(k, client.advertise(crossed(messages.told(place)), party[k])[0]) for k in cohort]
    both = messages.raw(replies[0][1]["keys"])
    copied = {
        "keys": replies[0][1]["keys"],
        "signature": messages.table([keys.signed(party[1], keys.tag_of(place), both)], 64),
    }
    _, transcript, refused = server.keys_heard(place, [*replies[:1], (1, copied), *replies[2:]], party[0].public)
    assert transcript.members == (0, 2, 3)
    assert "a key that came before" in refused[1]
    _, transcript, refused = server.keys_heard(place, [*replies, replies[3], (9, replies[0][1])], party[0].public)
    assert transcript.members == cohort
    assert "answered twice" in refused[3]
    assert "without being asked" in refused[9]


def test_a_cohort_with_a_stranger_or_without_the_client_is_refused() -> None:
    party = parties((0, 1, 2, 3))
    for cohort, sentence in [((0, 1, 2, 8), "not on the list of identities: 8"), ((0, 1, 2), "does not stand in")]:
        message = messages.told(keys.place_of(*RUN, cohort))
        with pytest.raises(ProtocolError, match=sentence):
            client.advertise(message, party[3])
    for message in (
        None,
        {},
        {**messages.told(keys.place_of(*RUN, (0, 1, 3))), "run": 3},
        {**messages.told(keys.place_of(*RUN, (0, 1, 3))), "more": 1},
    ):
        with pytest.raises(ProtocolError, match="does not say run"):
            client.advertise(message, party[3])


@pytest.mark.parametrize("phase", ["shares", "masked", "agree", "unmask"])
def test_a_message_with_an_unknown_entry_is_refused(phase: str) -> None:
    with pytest.raises(ProtocolError, match="holds something else than"):
        hold(drawn(5, 5, 2), told=only(phase, 1, lambda message: {**message, "more": 1}))


def test_another_threshold_is_another_place() -> None:
    """A server cannot talk one client into a lower threshold: the others' signatures do not hold under it."""
    words = drawn(7, 5, 2)
    cohort = tuple(words)
    party = parties(cohort)
    low = keys.place_of(*RUN, cohort, 0.6)
    replies = [(k, client.advertise(messages.told(low), party[k], 0.8)[0]) for k in cohort]
    with pytest.raises(PrivacyError, match="only 0 of the 5"):
        server.keys_heard(low, replies, party[1].public)


def test_a_replayed_share_is_refused() -> None:
    words = drawn(8, 5, 2)
    old = hold(words, place=(*RUN[:3], 1, 0)).up["shares"][4]["shares"]
    for other, sentence in [
        (old, "share that client 4 sent client"),  # of another attempt
        (old.flip(0), "share that client 4 sent client"),
    ]:
        with pytest.raises(ProtocolError, match=sentence):
            hold(words, meddle=only("shares", 4, lambda x, other=other: {**x, "shares": other}))
    with pytest.raises(ProtocolError, match="share that client 7 sent client 1 was not made for it"):
        hold(
            words, told=only("masked", 1, lambda x: _set("shares", 2, 3)("", 1, x))
        )  # another client's, in this session


@pytest.mark.parametrize(
    ("survivors", "sentence"),
    [
        ([1, 1, 1, 1, 0, 0], "4 clients sent their masked input; client 1 goes on with 5"),
        ([0, 1, 1, 1, 1, 1], "this client is not among the survivors"),
        ([1, 1, 1, 1, 1], "'survivors' in the message of the server"),
    ],
)
def test_lists_of_survivors_that_a_client_does_not_sign(survivors: list[int], sentence: str) -> None:
    lists = {"survivors": torch.tensor(survivors).bool()}
    with pytest.raises(ProtocolError, match=sentence):
        hold(drawn(10, 6, 2), told=only("agree", 1, lambda x: lists))


@pytest.mark.parametrize("phase", ["shares", "masked"])
def test_a_client_goes_on_with_nobody_below_the_threshold(phase: str) -> None:
    """Whatever the server says: it shares its secrets and masks among t others or not at all, and only with itself among them."""
    words = drawn(17, 6, 2)
    for present, sentence in [
        ([1, 1, 1, 1, 0, 0], "says that 4 clients .*; client 1 goes on with 5 or more"),
        ([0, 1, 1, 1, 1, 1], "not its own" if phase == "shares" else "lacks this client"),
    ]:
        flags = torch.tensor(present).bool()
        with pytest.raises(ProtocolError, match=sentence):
            hold(words, told=only(phase, 1, lambda x, flags=flags: {**x, "present": flags}))


def test_one_list_of_survivors_a_session_and_one_opening_an_ask() -> None:
    words = drawn(11, 4, 2)
    seen = hold(words)
    message = seen.down["unmask"][1]
    with pytest.raises(ProtocolError, match="a phase comes once, in order"):
        client.unmask(message, seen.sessions[1], parties(tuple(words))[1], {})
    with pytest.raises(ProtocolError, match="a phase comes once, in order"):
        client.agree(seen.down["agree"][1], seen.sessions[1], parties(tuple(words))[1])
    assert codec.decode(codec.encode(seen.records[1])) == {"run-1": [[3, 0]]}
    for attempt in (0, 1):
        with pytest.raises(ProtocolError, match="round 3, ask 0 was opened once"):
            hold(words, place=(*RUN[:3], attempt, 0), records=seen.records)
    later = hold(words, place=("federation", "run-1", 3, 0, 1), records=seen.records).records[1]
    assert later == {"run-1": [[3, 0], [3, 1]]}
    assert once.given(later, "run-1", 3, 1)
    assert not once.given(later, "run-2", 3, 1)


def test_phases_come_in_order() -> None:
    words = drawn(12, 4, 2)
    seen = hold(words)
    with pytest.raises(ProtocolError, match="asked for 'masked' after 'unmask'"):
        client.mask(words[1], seen.sessions[1])
    with pytest.raises(ProtocolError, match="asked for 'shares' after 'unmask'"):
        client.share(seen.down["shares"][1], seen.sessions[1], parties(tuple(words))[1])


def test_a_client_that_shares_something_else_than_its_secret_is_found_out() -> None:
    words = drawn(13, 5, 2)
    for phase, leave in [("commitment", {}), ("digests", {})]:
        with pytest.raises(PrivacyError, match="client 4"):
            hold(words, leave, meddle=only("shares", 4, lambda x, phase=phase: {**x, phase: x[phase] ^ 1}))


def test_a_key_of_small_order_is_refused() -> None:
    with pytest.raises(ProtocolError, match="client 3 advertised a key that agrees on nothing"):
        keys.agreed(keys.drawn(), {1: bytes(32)}, (0, 3, 5))
