"""A key in shares (P17) against a server that lies about ciphertexts, tables and rounds, and against clients that give false shares.

A party gives a share only of a sum that it formed itself from ciphertexts that all clients signed for this round. So nobody answers a lie,
the sum stays closed, and the round changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.privacy.ask_protocol import RoundClosed
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier import knowledge, threshold
from fedatlas.privacy.secagg.head import Head, head_of
from fedatlas.privacy.secagg.messages import raw
from fedatlas.privacy.threshold_paillier.opening import SHARE
from fedatlas.privacy.threshold_paillier.statement import WITNESS, due_in
from fedatlas.privacy.threshold_paillier.threshold_sum import signed
from federation import federation, gap, play, same
from protected import ALL, Host, protected, toy_threshold

Message = dict[str, Any]
NOT_OURS = "is asked for its share of a sum without its own ciphertexts, or with others in their place: refused."
OTHERS = "a share is asked of the ciphertexts of other clients than the sum has: refused."


def asked(change: Callable[[Message], Message]) -> Callable[[Request], Request]:
    """Alters what the server asks a share of."""
    return lambda r: r._replace(message=change(dict(r.message))) if r.what == SHARE else r


def shown(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Message], Message]:
    """Alters the ciphertexts by client, in every group."""
    return lambda m: {**m, "groups": {name: change(dict(own)) for name, own in m["groups"].items()}}


def made_up(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Other ciphertexts under the same key, as anybody can make them: all squared."""
    key = paillier.Batch(own["key"], own["ciphertexts"])
    return {**own, "ciphertexts": paillier.times(PUBLIC[own["key"]], key, 2).ciphertexts}


PUBLIC: dict[str, paillier.PublicKey] = {}


def headed(m: Message, **changes: Any) -> Message:
    found: Head = head_of(m["head"], len(m["clients"]))
    return {**m, "head": found._replace(**changes).plain()}


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


def known(host: Host) -> None:
    public = host.server.guard.public.key
    PUBLIC[public.name] = public


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


# ---------------------------------------------------------------------- clients that lie


def answered(client: int, change: Callable[[Any], Any], what: str = SHARE) -> Callable[[Request, Any], Any]:
    return lambda r, update: change(update) if (r.what, r.client) == (what, client) else update


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


def closed(host: Host) -> list[str]:
    """Why rounds were given up, as they are."""
    why: list[str] = []
    guarded = host.server._guarded

    def noted(ask: Any) -> Any:
        try:
            return guarded(ask)
        except RoundClosed as error:
            why.append(str(error))
            raise

    host.server._guarded = noted  # type: ignore[method-assign]
    return why


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
    return knowledge.witness(threshold.key_share(session["key"]).public, [0] * len(made["ciphertexts"]), None)


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
        assert session["key"].keys() == {"n", "size", "negative", "h", "short"}
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
