"""What no honest party sends: a clear sentence each, and the round goes on without the sender where the protocol allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import ProtocolError
from fedatlas.federation.link import Request
from fedatlas.federation.secrets import Keyring
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER, CLEAR
from fedatlas.privacy.mechanism import Mechanism, Protection
from fedatlas.privacy.mechanisms import bfv, ckks, secagg
from fedatlas.privacy.paillier.filling import OPEN
from fedatlas.privacy.secagg.keys import place_of
from fedatlas.privacy.secagg.messages import flags, told
from fedatlas.privacy.secagg.secure_sum import AGREE, KEYS, QUESTIONS, SHARES, UNMASK, check_task
from fedatlas.wire import codec
from federation import federation, gap, play, same, states
from protected import ALL, MASKS, protected, toy_paillier, without_noise

pytestmark = pytest.mark.timing


def changed(what: str, client: int, change: Callable[[Any], Any]) -> Callable[[Request, Any], Any]:
    """Alters what one client sends in answer to such asks."""
    return lambda r, update: change(update) if (r.what, r.client) == (what, client) else update


def crate(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Alters a field of every batch of ciphertexts of an update."""
    return lambda update: {**update, CIPHER: {g: {**b, name: change(b[name])} for g, b in update[CIPHER].items()}}


BROKEN: Mapping[str, Callable[[Any], Any]] = {
    "out of range": crate("ciphertexts", lambda x: torch.full_like(x, 255)),
    "zero": crate("ciphertexts", torch.zeros_like),
    "another key's": crate("key", lambda key: "0" * len(key)),
    "too few": crate("ciphertexts", lambda x: x[:-1]),
    "cut short": crate("ciphertexts", lambda x: x[:, 1:]),
    "less than nothing": crate("count", lambda count: -1),
    "fewer values": crate("count", lambda count: count - 1),
    "values without end": crate("count", lambda count: float("inf")),
    "no ciphertexts": lambda update: {**update, CIPHER: 7},
    "nothing": lambda update: {},
}


ENCRYPTIONS = {kind: MASKS[kind] for kind in ("paillier", "bfv", "ckks")}
OTHERS: Mapping[str, Callable[[], Mechanism]] = {
    "paillier": lambda: toy_paillier(weights_by="client"),
    "bfv": lambda: bfv(weights_by="server"),
    "ckks": lambda: ckks(range=16.0),
}
"""The same encryptions with other parameters."""


@pytest.mark.parametrize("kind", ENCRYPTIONS)
@pytest.mark.parametrize("how", BROKEN)
def test_ciphertexts_that_are_none_leave_their_client_out(how: str, kind: str) -> None:
    """The mean is that of the others, with their weights, and the client's state goes back."""
    fed, host = protected("scaffold", ENCRYPTIONS[kind]())
    host.alter = changed("train", 2, BROKEN[how])
    server, _ = play(fed, [ALL], host=host)
    plain, _ = play(federation(ALGORITHMS["scaffold"]()), [(0, 1, 3, 4)])
    assert gap(server["model"], plain["model"]) < 1e-5
    assert host.server.counted == {0, 1, 3, 4}
    assert "2" not in states(host)


@pytest.mark.parametrize("kind", ENCRYPTIONS)
def test_ciphertexts_of_another_federation_are_left_out(kind: str) -> None:
    """Client 2 sends what it encrypted under the key, or the parameters, of another run."""
    for other in (ENCRYPTIONS[kind](), OTHERS[kind]()):
        theirs, guest = protected("fedavg", other)
        sent: list[Any] = []
        guest.alter = changed("train", 2, lambda update, sent=sent: sent.append(update) or update)
        play(theirs, [ALL], host=guest)
        fed, host = protected("fedavg", ENCRYPTIONS[kind]())
        host.alter = changed("train", 2, lambda _, sent=sent: sent[0])
        server, _ = play(fed, [ALL], host=host)
        plain, _ = play(federation(ALGORITHMS["fedavg"]()), [(0, 1, 3, 4)])
        assert gap(server["model"], plain["model"]) < 2e-5
        assert host.server.counted == {0, 1, 3, 4}


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_a_sum_of_one_client_is_not_opened(kind: str) -> None:
    """A server that has one client's ciphertexts opened, and says so, hears no number from anybody."""
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())

    def alone(r: Request) -> Request:
        if r.what != f"{kind} open":
            return r
        sums = {g: {**one, "batch": {**one["batch"], "of": 1}} for g, one in r.message["sums"].items()}
        return r._replace(message={**r.message, "sums": sums})

    host.tell, host.refusals = alone, []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert len(host.refusals) == len(ALL)
    assert all("is its update, and is not opened" in str(error) for _, error in host.refusals)


REQUESTS: Mapping[str, Any] = {
    "no sums": lambda message: {**message, "sums": 7},
    "no run": lambda message: {name: x for name, x in message.items() if name != "run"},
    "no layout": lambda message: spoilt(message, layout=None),
    "another layout": lambda message: spoilt(message, layout=["a", "b", "c", "d"]),
    "a layout without slots": lambda message: spoilt(message, layout=[0, 0, 0, 0]),
    "a count below 0": lambda message: spoilt(message, count=-1),
    "more numbers": lambda message: spoilt(message, count=1 << 40),
    "numbers that are none": lambda message: spoilt(message, count="7"),
    "a weight that is none": lambda message: spoilt(message, weight="7"),
}
"""Requests to open a sum that no server sends."""


def spoilt(message: Any, **changes: Any) -> Any:
    return {**message, "sums": {group: {**one, **changes} for group, one in message["sums"].items()}}


@pytest.mark.parametrize("kind", ENCRYPTIONS)
@pytest.mark.parametrize("how", REQUESTS)
def test_a_broken_request_to_open_a_sum_is_refused_in_a_sentence(how: str, kind: str) -> None:
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())
    host.tell = lambda r: r._replace(message=REQUESTS[how](r.message)) if r.what == f"{kind} open" else r
    host.refusals = []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert len(host.refusals) == len(ALL)


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_noise_in_place_of_a_ciphertext_closes_the_round(kind: str) -> None:
    """Random residues cannot be told from a ciphertext. The client that opens the sum notices, and the model stays what it was."""
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())
    noise = lambda x: torch.randint(0, 128, x.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)  # noqa: E731
    host.alter, host.refusals = changed("train", 2, crate("ciphertexts", noise)), []
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)
    assert len(host.refusals) in {0, len(ALL)}  # residues above a prime leave only the client out
    if not host.refusals:
        assert host.server.counted == {0, 1, 3, 4}


@pytest.mark.parametrize("kind", ENCRYPTIONS)
def test_an_opened_ask_is_not_opened_again(kind: str) -> None:
    """A replay of the first round's sum, in the second round, is refused by the client that opened it."""
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())
    what, first = f"{kind} open", []

    def replayed(r: Request) -> Request:
        if r.what == what and r.round == 1:
            first.append(r)
        return r._replace(client=first[0].client, message=first[0].message) if r.what == what and r.round == 2 else r

    host.tell, host.refusals = replayed, []
    play(fed, [ALL, ALL], host=host)
    assert "was opened once and is not opened again" in str(host.refusals[0][1])
    assert len(host.refusals) == len(ALL)  # nor does anybody else answer for it


@pytest.mark.parametrize("kind", ["bfv", "ckks"])
def test_the_server_is_told_nothing_of_the_key(kind: str) -> None:
    """No stretch of the secret is in what the server knows, sends or receives, and equal updates look different."""
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())
    seen: list[bytes] = []
    host.alter = lambda r, update: seen.append(codec.encode(update)) or update
    host.tell = lambda r: seen.append(codec.encode([dict(r.message or {}), dict(r.word or {})])) or r
    play(fed, [ALL], host=host)
    secret = host.party.secrets.session(0)["key"]["secret"].numpy().tobytes()
    known = repr(host.server.guard.public).encode()
    for at in range(4096, len(secret) - 16, 4096):
        assert all(secret[at : at + 16] not in one for one in (known, *seen))
    assert sum(map(len, seen)) > 100_000


def masked_words(change: Callable[[torch.Tensor], Any]) -> Callable[[Any], Any]:
    return lambda update: {**update, "masked": {group: change(x) for group, x in update["masked"].items()}}


WRONG: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "another's signature": (KEYS, lambda update: {**update, "signature": torch.zeros_like(update["signature"])}),
    "no keys": (KEYS, lambda update: {}),
    "shares cut short": (SHARES, lambda update: {**update, "shares": update["shares"][:-1]}),
    "masked input cut short": ("train", masked_words(lambda x: x[:-1])),
    "masked input of another ring": ("train", masked_words(lambda x: x.double())),
    "no masked input": ("train", lambda update: {}),
    "another's signature of the sum": (AGREE, lambda update: {"signature": torch.zeros_like(update["signature"])}),
    "false shares at the end": (UNMASK, lambda update: {"shares": torch.ones_like(update["shares"])}),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_session_goes_on_without_a_client_that_breaks_its_rules(how: str) -> None:
    what, change = WRONG[how]
    fed, host = protected("scaffold", secagg())
    host.alter = changed(what, 2, change)
    server, _ = play(fed, [ALL], host=host)
    there = ALL if what in {AGREE, UNMASK} else (0, 1, 3, 4)
    plain, _ = play(federation(ALGORITHMS["scaffold"]()), [there])
    assert gap(server["model"], plain["model"]) < 1e-4
    assert host.server.counted == {*there}
    assert host.server.now.start.attempt == 0


def test_a_replayed_share_is_refused_by_whom_it_was_sent_to() -> None:
    """Client 2 sends client 0 the envelope that it had made for it in the round before: 0 cannot go on, the others can."""
    fed, host = protected("fedavg", secagg())
    kept: list[torch.Tensor] = []

    def replay(update: Any) -> Any:
        kept.append(update["shares"].clone())
        table = update["shares"].clone()
        table[0] = kept[0][0]
        return {**update, "shares": table}

    host.alter, host.refusals = changed(SHARES, 2, replay), []
    server, _ = play(fed, [ALL, ALL], host=host)
    [(request, error)] = host.refusals
    assert (request.client, request.round, request.what) == (0, 2, "train")
    assert "the share that client 2 sent client 0 was not made for it in this round" in str(error)
    assert host.server.counted == {1, 2, 3, 4}
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), [ALL, (1, 2, 3, 4)])
    assert gap(server["model"], plain["model"]) < 1e-4


def test_nobody_gives_shares_for_a_list_of_its_own() -> None:
    """A server that leaves client 3 out of the list that it tells client 0 is told no share by client 0, and opens no second sum."""
    fed, host = protected("fedavg", secagg())
    without = {"survivors": flags([0, 1, 2, 4], 5)}
    host.tell = lambda r: r._replace(message=without) if (r.what, r.client) == (AGREE, 0) else r
    host.refusals = []
    server, _ = play(fed, [ALL], host=host)
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), [ALL])
    assert gap(server["model"], plain["model"]) < 1e-4
    assert UNMASK not in {request.what for request in host.requests if request.client == 0}
    assert not host.refusals


def test_an_opened_sum_that_does_not_fit_closes_the_round() -> None:
    """Who opens a sum may answer with anything: what has another form changes nothing."""
    for answer in ({"opened": {}}, {"opened": {"": torch.zeros(3, dtype=torch.int64)}}, {"opened": 7}):
        fed, host = protected("fedavg", toy_paillier())
        host.alter = lambda r, update, answer=answer: answer if r.what == OPEN else update
        server = fed.begin(host)
        after, _ = play(fed, [ALL], server=server, host=host)
        assert same(server, after)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ENCRYPTIONS)
def test_an_opened_sum_that_is_not_finite_closes_the_round(kind: str, value: float) -> None:
    fed, host = protected("fedavg", ENCRYPTIONS[kind]())
    numbers = lambda x: torch.full_like(x, value, dtype=torch.float64)  # noqa: E731
    host.alter = lambda r, u: {"opened": {g: numbers(x) for g, x in u["opened"].items()}} if "opened" in u else u
    server = fed.begin(host)
    after, _ = play(fed, [ALL], server=server, host=host)
    assert same(server, after)


def test_an_update_that_is_not_finite_is_left_out_of_a_clipped_sum() -> None:
    """Denominator and weights are fixed: the others' changes count as before."""
    fed, host = protected(ALGORITHMS["fedavg"](weights="uniform"), without_noise())
    spoilt = lambda update: {**update, "model": update["model"].map(lambda x: x * float("nan"))}  # noqa: E731
    host.alter = changed("train", 2, spoilt)
    server, _ = play(fed, [ALL], host=host)
    base = dict(fed.params)
    plain, _ = play(federation(ALGORITHMS["fedavg"](weights="uniform")), [(0, 1, 3, 4)])
    expected = {name: base[name] + (x - base[name]) * 4 / 5 for name, x in plain["model"].items()}
    assert gap(dict(server["model"]), expected) < 1e-12


def without_the_last(form: Any) -> Any:
    """A form whose last tensor has another name."""
    inner = dict(form["model"]["of"])
    name, x = inner.popitem()
    return {**form, "model": {**form["model"], "of": {**inner, f"{name}'": x}}}


def with_clear(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """Alters what is not encrypted."""
    return lambda update: {**update, CLEAR: {part: tree.map(change) for part, tree in update[CLEAR].items()}}


def a_part() -> Mechanism:
    """The last layer is encrypted, the others go in the clear."""
    return toy_paillier(encrypt=("head.weight", "head.bias"))


FIRST: Mapping[str, tuple[Callable[[], Mechanism], Callable[[Any], Any]]] = {
    "a shorter masked input": (secagg, masked_words(lambda x: x[:-1])),
    "a masked input of another form": (secagg, lambda u: {**u, "form": without_the_last(u["form"])}),
    "a masked input without a form": (secagg, lambda u: {"masked": u["masked"]}),
    "fewer ciphertexts": (
        toy_paillier,
        lambda u: {
            **u,
            CIPHER: {g: {**b, "ciphertexts": b["ciphertexts"][:1], "count": 1} for g, b in u[CIPHER].items()},
        },
    ),
    "ciphertexts of another form": (toy_paillier, lambda u: {**u, "form": without_the_last(u["form"])}),
    "other shapes in the clear": (a_part, with_clear(lambda x: x.reshape(-1)[:1])),
    "no numbers in the clear": (a_part, with_clear(lambda x: x * float("nan"))),
}


@pytest.mark.parametrize("how", FIRST)
def test_whoever_comes_first_with_another_form_locks_nobody_out(how: str) -> None:
    """Most clients say what an update looks like: the first is left out, and the mean is that of the others."""
    mechanism, change = FIRST[how]
    fed, host = protected("fedavg", mechanism())
    host.alter = changed("train", 0, change)
    server, _ = play(fed, [ALL], host=host)
    plain, _ = play(federation(ALGORITHMS["fedavg"]()), [(1, 2, 3, 4)])
    assert gap(server["model"], plain["model"]) < 1e-4
    assert host.server.counted == {1, 2, 3, 4}


def test_one_update_is_masked_under_one_name() -> None:
    """A server that begins a session for another round, run or task than it then asks for would have one update opened twice: refused."""

    def begun(**changes: Any) -> Callable[[Request], Request]:
        return lambda r: r._replace(message={**r.message, **changes}) if r.what == KEYS else r

    for changes, said in (
        ({"round": 7}, "at round 7 of 'run' was begun in round 1 of 'run'"),
        ({"run": "other"}, "at round 1 of 'other' was begun in round 1 of 'run'"),
        ({"attempt": 7}, "for attempt 7 at round 1 of 'run' was begun in round 1 of 'run'"),
    ):
        fed, host = protected("fedavg", secagg())
        host.tell, host.refusals = begun(**changes), []
        server = fed.begin(host)
        after, _ = play(fed, [ALL], server=server, host=host)
        assert same(server, after)
        assert {request.what for request, _ in host.refusals} == {KEYS}
        assert all(said in str(error) for _, error in host.refusals)
    with pytest.raises(ProtocolError, match="'train' is to be masked in a session that was begun for 'again'"):
        check_task("train", session_for("again"))
    with pytest.raises(ProtocolError, match="client 1 was asked to go on with a session that it never began"):
        check_task("train", {"client": 1})


def session_for(task: str) -> dict[str, Any]:
    """A client's session that was begun for a task."""
    ring = Keyring(Protection((secagg(),), 3, 3, 1.0, 5, 1), 3, "tests")
    message = told(place_of("tests", "run", 1, 0, task, (0, 1, 2)))
    session: dict[str, Any] = QUESTIONS[KEYS].answer(None, None, message, {}, ring.session(1))[2]  # type: ignore[arg-type]
    return session
