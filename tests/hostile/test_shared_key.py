"""A key in shares (P17) against a server that lies about ciphertexts, tables and rounds, and against clients that give false shares.

A party gives a share only of a sum that it formed itself from ciphertexts that all clients signed for this round. So nobody answers a lie,
the sum stays closed, and the round changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.privacy.mechanisms import threshold_paillier
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import threshold
from fedatlas.privacy.threshold_paillier import cryptosystem, threshold_sum
from fedatlas.privacy.threshold_paillier.opening import SHARE
from federation import play, same
from protected import ALL, protected, toy_threshold
from shared_key import Message, asked, headed, known, made_up, shown

NOT_OURS = "is asked for its share of a sum without its own ciphertexts, or with others in their place: refused."
OTHERS = "a share is asked of the ciphertexts of other clients than the sum has: refused."


LIES: Mapping[str, tuple[Callable[[Message], Message], str]] = {
    "one's ciphertexts under another's name": (
        shown(lambda g: {**g, "1": g["2"]}),
        "the ciphertexts shown as those of client 1 are not signed by it for this sum: refused.",
    ),
    "one replaced": (
        shown(lambda g: {**g, "2": made_up(g["2"])}),
        "the ciphertexts shown as those of client 2 are not signed by it for this sum: refused.",
    ),
    "one left out": (shown(lambda g: {k: x for k, x in g.items() if k != "3"}), OTHERS),
    "a single one": (shown(lambda g: {"2": g["2"]}), OTHERS),
    "a single one among made up ones": (
        shown(lambda g: {k: x if k == "2" else made_up(x) for k, x in g.items()}),
        "the ciphertexts shown as those of client ",
    ),
    "one more": (shown(lambda g: {**g, "7": g["2"]}), OTHERS),
    "a shorter list of clients": (
        lambda m: {**m, "clients": torch.tensor([0, 1, 2, 4])},
        "the server's table of what each client is told is cut short, or not of this protocol.",
    ),
    "three clients": (
        lambda m: {**headed(m, weights={"": ("told", (0.2,))}), "clients": torch.tensor([0, 1, 2])},
        "the ciphertexts shown as those of client 0 are not signed by it for this sum: refused.",
    ),
    "a list of one": (
        lambda m: {**headed(m, weights={"": ("told", (1.0,))}), "clients": torch.tensor([2])},
        "fewer than 3 clients have a weight in a sum, which would reveal what one of them sent: refused.",
    ),
    "other weights": (
        lambda m: headed(m, weights={"": ("told", (1e-9, 1.0, 1.0, 1.0, 1.0))}),
        "not signed by it for this sum",
    ),
    "no weights but one's": (
        lambda m: headed(m, weights={"": ("told", (0.0, 0.0, 1.0, 0.0, 0.0))}),
        "fewer than 3 clients have a weight in a sum, which would reveal what one of them sent: refused.",
    ),
    "another round": (lambda m: {**m, "round": 9}, "the sum of round 9 of 'run' is asked for in round 1 of 'run': refused."),
    "another run": (lambda m: {**m, "run": "other"}, "the sum of round 1 of 'other' is asked for in round 1 of 'run'"),
    "another attempt": (lambda m: {**m, "attempt": 1}, "the sum of round 1 of 'run' is asked for in round 1 of 'run'"),
    "another task": (lambda m: {**m, "ask": "again"}, "a party is asked by a protocol"),
    "no ciphertexts": (lambda m: {**m, "groups": {}}, NOT_OURS),
    "no mapping": (lambda m: {**m, "groups": 7}, OTHERS),
    "a group more": (lambda m: {**m, "groups": {**m["groups"], "more": next(iter(m["groups"].values()))}}, NOT_OURS),
    "a group under another name": (lambda m: {**m, "groups": {"reals": next(iter(m["groups"].values()))}}, NOT_OURS),
    "out of range": (
        shown(lambda g: {**g, "2": {**g["2"], "ciphertexts": torch.full_like(g["2"]["ciphertexts"], 255)}}),
        "is not between 0 and n^2: it is broken or forged.",
    ),
    "no signature": (shown(lambda g: {**g, "2": {k: x for k, x in g["2"].items() if k != "signature"}}), "'signature' in"),
    "a field more": (lambda m: {**m, "hint": 1}, "holds something else than"),
    "no clients": (lambda m: {k: x for k, x in m.items() if k != "clients"}, "a sum to open does not say its run"),
}  # fmt: skip


@pytest.mark.parametrize("weights_by", ["client", "server"])
@pytest.mark.parametrize("lie", LIES)
def test_nobody_gives_a_share_of_another_sum(lie: str, weights_by: str) -> None:
    change, said = LIES[lie]
    fed, host = protected("fedavg", toy_threshold(weights_by=weights_by))
    known(host)
    host.tell, host.refusals = asked(change), []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert [request.client for request, _ in host.refusals] == [*ALL]
    assert {request.what for request, _ in host.refusals} == {SHARE}
    found = [str(error) for _, error in host.refusals]  # who finds its own ciphertexts altered says that first
    assert all(said in one or NOT_OURS in one for one in found), found
    assert any(said in one for one in found)
    assert host.server.counted == set()


@pytest.mark.parametrize("other", ["1", None])
def test_a_proof_that_is_anothers_or_none_opens_nothing(other: str | None) -> None:
    def lie(g: dict[str, Any]) -> dict[str, Any]:
        return {**g, "2": {**g["2"], "proof": g[other]["proof"] if other else None}}

    fed, host = protected("fedavg", toy_threshold())
    host.tell, host.refusals = asked(shown(lie)), []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    said = {request.client: str(error) for request, error in host.refusals}
    assert said.keys() == {0, 1, 3, 4}  # client 2 knows what it sent
    assert {*said.values()} == {
        "the ciphertexts shown as those of client 2 lack a proof that it knows what it encrypted: refused."
    }


def test_a_sum_of_the_round_before_is_not_opened_again() -> None:
    fed, host = protected("fedavg", toy_threshold())
    kept: list[Message] = []

    def replayed(r: Request) -> Request:
        if r.what != SHARE:
            return r
        kept.append(dict(r.message))
        return r._replace(message=kept[0] if r.round == 2 else r.message)

    host.tell, host.refusals = replayed, []
    first, _ = play(fed, [ALL], host=host)
    after, _ = play(fed, [ALL, ALL], server=first, host=host)  # rounds 1 and 2 again: the first was opened
    said = {str(error) for _, error in host.refusals}
    assert any("the sum of round 1 of 'run' is asked for in round 2 of 'run': refused." in one for one in said)
    assert same(first, after)


def test_a_sum_is_opened_once() -> None:
    """Neither in the same session nor in a later one that knows the party's record."""
    fed, host = protected("fedavg", toy_threshold())
    question, told = fed.bench.algorithm.tasks[SHARE], {}
    host.tell = lambda r: told.setdefault((r.what, r.client), r) and r
    keep = host.party.secrets.keep
    sessions: dict[int, Any] = {}
    host.party.secrets.keep = lambda k, session: (sessions.update({k: session}), keep(k, session))
    play(fed, [ALL], host=host)
    message = told[SHARE, 2].message
    again = host.party.secrets.session(2)
    for session in (sessions[2], {**again, "sealed": sessions[2]["sealed"]}):
        with pytest.raises(ProtocolError, match="was opened once and is not opened again"):
            question.answer(None, None, message, {}, session)
    fresh = {**again, "sealed": sessions[2]["sealed"], "record": {}}
    assert question.answer(None, None, message, {}, fresh)[0]["shares"]  # nothing else refuses it


# ---------------------------------------------------------------------- while clients seal


def working(change: Callable[[Message], Message], client: int = 2) -> Callable[[Request], Request]:
    def lie(r: Request) -> Request:
        if r.what != "train" or r.client != client:
            return r
        return r._replace(word={**r.word, "session": change(dict(r.word["session"]))})

    return lie


TABLES: Mapping[str, tuple[Callable[[Message], Message], str]] = {
    "weights of its own": (
        lambda m: headed(m, weights={"": ("told", (0.1, 0.1, 0.9, 0.1, 0.1))}),
        "client 2 is told something else than the table that all get says of it: refused.",
    ),
    "the only weight": (lambda m: headed(m, weights={"": ("told", (0.0, 0.0, 1.0, 0.0, 0.0))}), "fewer than 3 clients"),
    "the only work": (
        lambda m: headed(m, budgets=((0, None, None, 0),) * 2 + (None,) + ((0, None, None, 0),) * 2),
        "fewer than 3 clients",
    ),
    "a model of its own": (lambda m: headed(m, told=(bytes(32),)), "client 2 is told something else than the table"),
    "a rate of its own": (lambda m: headed(m, lr=9.0), "client 2 is told something else than the table"),
    "a sum without it": (
        lambda m: {**m, "clients": torch.tensor([0, 1, 3, 4, 5])},
        "in a sum that it does not stand in",
    ),
    "another task": (lambda m: {**m, "ask": "more"}, "client 2 is told something else than the table"),
    "another round": (lambda m: {**m, "round": 4}, "the sum of round 4 of 'run' is asked for in round 1"),
}


@pytest.mark.parametrize("lie", TABLES)
def test_a_client_encrypts_nothing_by_a_table_that_is_not_its_own(lie: str) -> None:
    """Its ciphertexts never leave, and without them nothing is opened."""
    change, said = TABLES[lie]
    fed, host = protected("fedavg", toy_threshold())
    host.tell, host.refusals = working(change), []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    [(request, error)] = host.refusals
    assert (request.client, request.what) == (2, "train")
    assert said in str(error)
    assert not host.asked(SHARE)


def test_a_table_that_one_client_alone_was_told_opens_nothing() -> None:
    """Another step size for all that are told so would pass its own line; the others signed another table, so nobody opens the sum."""
    fed, host = protected("fedavg", toy_threshold())
    host.tell, host.refusals = working(lambda m: headed(m, budgets=(None, None, None, None, (3, None, None, 0)))), []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    said = {request.client: str(error) for request, error in host.refusals}
    assert said.keys() == {*ALL}
    assert said[2].endswith("with others in their place: refused.")
    assert all("those of client 2 are not signed by it" in said[k] for k in ALL if k != 2)


def at_its_own_place(request: Request) -> Request:
    """Client 2 alone is told that its numbers stand further apart, so most of them would be the only ones at their place in the sum."""
    if request.what != "train" or request.client != 2:
        return request
    wider = {**request.word["layouts"], "": [*paillier.layout(1024, 8, 1 << 11)]}  # 19 bits a number in place of 11
    return request._replace(word={**request.word, "layouts": wider})


def test_a_client_encrypts_nothing_at_a_place_of_its_own() -> None:
    fed, host = protected("fedavg", threshold_paillier(key_bits=1024, bits=8))
    host.tell, host.refusals = at_its_own_place, []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    [(request, error)] = host.refusals
    assert (request.client, request.what) == (2, "train")
    assert "client 2 is told something else than the table" in str(error)
    assert not host.asked(SHARE)


def test_without_that_check_the_opened_sum_would_show_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threshold_sum, "digest_of", lambda value: b"")
    fed, host = protected("fedavg", threshold_paillier(key_bits=1024, bits=8))
    shares: dict[int, Any] = {}
    packed: list[Any] = []

    def kept(request: Request, update: Any) -> Any:
        if request.what == SHARE:
            shares[request.client] = update["shares"][""]
        return update

    def noted(form: paillier.Layout, codes: Any) -> Any:
        packed.extend(codes if form.slot == 19 else [])
        return paillier.pack(form, codes)

    monkeypatch.setattr(cryptosystem, "paillier", SimpleNamespace(**{**vars(paillier), "pack": noted}))
    host.tell, host.alter, host.refusals = at_its_own_place, kept, []
    play(fed, [ALL], host=host)
    public = host.server.guard.public.key
    [opened] = threshold.combined(public, [paillier.received(public, one) for one in shares.values()])
    alone = range(30, 51)  # those of client 2 above all places of the others: 51 numbers of 11 bits
    assert [(opened >> 19 * i & 0xFF) - 0x80 for i in alone] == packed[30:]
