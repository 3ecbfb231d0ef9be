"""Clients under a key in shares (P17): those that help the server, give false shares or fall silent, and what all but one can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import knowledge, threshold
from fedatlas.privacy.secagg.messages import raw
from fedatlas.privacy.threshold_paillier.opening import SHARE
from fedatlas.privacy.threshold_paillier.statement import WITNESS, base_in, due_in
from fedatlas.privacy.threshold_paillier.threshold_sum import signed
from federation import federation, gap, play, same
from protected import ALL, Host, protected, toy_threshold
from shared_key import answered, closed, known, made_up

# ---------------------------------------------------------------------- clients that lie


def squared(update: Any) -> Any:
    """A share of twice the sum: a valid number, and false."""
    return {"shares": {name: made_up(own) for name, own in update["shares"].items()}}


FALSE: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "a false share": (squared, threshold.WRONG),
    "no share": (lambda update: {"shares": {}}, "what client 2 gave is no share of the sum"),
    "none": (lambda update: {"shares": 7}, "what client 2 gave is no share of the sum"),
    "cut short": (
        lambda u: {"shares": {g: {**b, "ciphertexts": b["ciphertexts"][:-1]} for g, b in u["shares"].items()}},
        "what client 2 gave is no share of the sum: a batch of ",
    ),
}


@pytest.mark.parametrize("how", FALSE)
def test_a_false_share_leaves_the_sum_closed(how: str) -> None:
    """Nothing proves a share honest, so nobody is blamed for a false one; who sends no share at all is named."""
    change, said = FALSE[how]
    fed, host = protected("fedavg", toy_threshold())
    known(host)
    host.alter = answered(2, change)
    server = fed.begin(host)
    why = closed(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert said in why[0]
    assert ("client" in why[0]) == ("client 2" in said)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (SHARE, "client 3 gave no share of the sum of round 1, and all are needed"),
        ("train", "client 3 sent no ciphertexts that can be read, and all are needed"),
    ],
)
def test_a_client_that_falls_silent_leaves_the_round_closed(what: str, said: str) -> None:
    fed, host = protected("scaffold", toy_threshold())
    host.lose = lambda r: (r.what, r.client) == (what, 3)
    server = fed.begin(host)
    why = closed(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert why == [said]


@pytest.mark.parametrize("broken", ["ciphertexts", "signature"])
def test_ciphertexts_that_are_none_leave_the_round_closed(broken: str) -> None:
    spoilt = lambda u: {**u, CIPHER: {g: {**b, broken: torch.zeros_like(b[broken])} for g, b in u[CIPHER].items()}}  # noqa: E731
    fed, host = protected("fedavg", toy_threshold())
    host.alter, host.refusals = answered(2, spoilt, "train"), []
    server = fed.begin(host)
    why = closed(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    if broken == "ciphertexts":
        assert why == ["client 2 sent no ciphertexts that can be read, and all are needed"]
        assert not host.asked(SHARE)
    else:  # the others see that client 2 did not sign
        assert len(host.refusals) == len(ALL)


# ---------------------------------------------------------------------- a client that helps the server


def helper(host: Host, forged: Callable[[Mapping[int, Any], Any], Any]) -> None:
    """Client 4 is told all other ciphertexts before it sends its own, signs what the server wants, and has to prove it somehow."""
    sent: dict[int, Any] = {}

    def alter(r: Request, update: Any) -> Any:
        if r.what != "train":
            return update
        sent[r.client] = {**update[CIPHER][""]}
        if r.client != 4:
            return update
        made = {**update[CIPHER][""], "ciphertexts": forged(sent, host.server.guard.public.key)}
        due, session = due_in(r.word["session"]), host.party.secrets.session(4)
        whole, session = signed(due, {**update, CIPHER: {"": {**made, WITNESS: guess(made, session)}}}, session)
        host.party.sessions[4] = session
        return whole

    host.alter = alter


def guess(made: Any, session: Any) -> Any:
    return knowledge.witness([0] * len(made["ciphertexts"]), base_in(session))


def all_but_client_2(sent: Mapping[int, Any], public: Any) -> torch.Tensor:
    """The inverse of the others' ciphertexts: the sum is then that of client 2 and nothing else."""
    others = [paillier.Batch(public.name, sent[k]["ciphertexts"]) for k in (0, 1, 3)]
    fresh = paillier.encrypt(public, [0] * len(others[0]))
    return paillier.weighted_sum(public, [*others, fresh], [-1, -1, -1, 1]).ciphertexts


def those_of_client_2(sent: Mapping[int, Any], public: Any) -> torch.Tensor:
    return sent[2]["ciphertexts"].clone()


@pytest.mark.parametrize("forged", [all_but_client_2, those_of_client_2])
def test_a_helper_turns_no_sum_into_the_update_of_one(forged: Any) -> None:
    """Anybody can multiply ciphertexts, but nobody can prove to know what is in those of others."""
    fed, host = protected("fedavg", toy_threshold())
    helper(host, forged)
    host.refusals = []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    said = {request.client: str(error) for request, error in host.refusals}
    assert said.keys() >= {0, 1, 2, 3}
    for k in range(4):
        assert (
            said[k]
            == "the ciphertexts shown as those of client 4 lack a proof that it knows what it encrypted: refused."
        )


def test_without_the_proof_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack is a real one: were proofs not checked, the opened sum would be client 2's update and nothing else."""
    monkeypatch.setattr(knowledge, "check", lambda *given: None)
    fed, host = protected(ALGORITHMS["fedavg"](weights="uniform"), toy_threshold())
    alone: dict[str, Any] = {}

    def forged(sent: Mapping[int, Any], public: Any) -> torch.Tensor:
        alone.update(sent[2])
        return all_but_client_2(sent, public)

    helper(host, forged)
    opened: list[Any] = []
    combined = threshold.combined
    monkeypatch.setattr(
        threshold, "combined", lambda public, shares: opened.append(combined(public, shares)) or opened[-1]
    )
    play(fed, [ALL], host=host)
    keys = {k: threshold.key_share(host.party.secrets.session(k)["key"]) for k in ALL}
    public = host.server.guard.public.key
    of_one = paillier.received(public, alone)
    assert opened[0] == combined(public, [threshold.partial_decryption(x, of_one) for x in keys.values()])


# ---------------------------------------------------------------------- who can read


def test_the_server_with_all_clients_but_one_reads_nothing() -> None:
    """All that they know: every ciphertext, four of five shares of the key, and all five shares of the opened sum."""
    fed, host = protected("fedavg", toy_threshold())
    public = host.server.guard.public.key
    sent: dict[int, Any] = {}
    shares: dict[int, Any] = {}

    def heard(r: Request, update: Any) -> Any:
        kept = sent if r.what == "train" else shares if r.what == SHARE else None
        if kept is not None:
            kept[r.client] = {name: dict(x) for name, x in update[CIPHER if kept is sent else "shares"].items()}
        return update

    host.alter = heard
    play(fed, [ALL], host=host)
    batches = {k: paillier.received(public, own[""]) for k, own in sent.items()}
    keys = {k: threshold.key_share(host.party.secrets.session(k)["key"]) for k in ALL}
    others = [threshold.partial_decryption(keys[k], batches[3]) for k in ALL if k != 3]
    of_sum = [paillier.received(public, own[""]) for own in shares.values()]
    for given in (others, [*others, of_sum[3]], [*others, batches[3]]):
        with pytest.raises(ProtocolError, match="do not open these ciphertexts"):
            threshold.combined(public, given)
    assert threshold.combined(public, [*others, threshold.partial_decryption(keys[3], batches[3])])
    assert threshold.combined(public, of_sum)


def test_no_party_holds_the_key_and_nothing_prints_a_share() -> None:
    fed, host = protected("fedavg", toy_threshold(short_exponent=512))
    for k in ALL:
        session = host.party.secrets.session(k)
        assert session["key"].keys() == {"n", "size", "negative", "h", "bits"}
        size = int.from_bytes(raw(session["key"]["size"]), "big")
        assert size.bit_length() > 2 * 256
        for text in (repr(host.server.guard), repr(host.party.secrets), repr(host.server.guard.public)):
            assert str(size) not in text
    play(fed, [ALL], host=host)


def test_an_honest_round_opens_the_mean() -> None:
    fed, host = protected("fedavg", toy_threshold())
    found, _ = play(fed, [ALL] * 2, host=host)
    wanted, _ = play(federation(ALGORITHMS["fedavg"]()), [ALL] * 2)
    assert gap(found["model"], wanted["model"]) < 1e-5
    assert {client for *_, client in host.asked(SHARE)} == {*ALL}


def test_who_does_not_work_is_asked_for_its_share_all_the_same() -> None:
    """A client in the middle of a chain has no ciphertexts in the sum, and no sum is opened without it."""
    fed, host = protected("fedavg", toy_threshold())
    found, _ = play(fed, [(0, 1, 3)], host=host)
    wanted, _ = play(federation(ALGORITHMS["fedavg"]()), [(0, 1, 3)])
    assert gap(found["model"], wanted["model"]) < 1e-5
    assert {client for *_, client in host.asked(SHARE)} == {*ALL}
