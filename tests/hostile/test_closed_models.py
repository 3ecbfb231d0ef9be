"""A model that only clients open, against a server that sends something else in its place, and what such a server can find out.

With a key that all clients hold, a client opens what it is sent under it. It refuses what no sum of this run can be, and returns nothing of
what it opened but its next change, encrypted. So a server that lies learns who refuses, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithm import State
from fedatlas.federation.closed_models import PLAIN
from fedatlas.federation.link import Request
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER, CLEAR, FORM
from fedatlas.privacy.paillier import cryptosystem as paillier
from fedatlas.privacy.paillier.filling import OPEN
from fedatlas.privacy.protocol import CLOSED
from fedatlas.tree import Tree
from federation import brief, federation, gap, play, same
from protected import ALL, Host, protected, toy_paillier

UNIT = 2**24
WEIGHT = "a closed model has more or less weight than the rounds before it can have given: refused."
PLACES = "a closed model has other places for its numbers than a run of 16 sums"
CONTENT = "a party is sent tensors that are not of its network's form."

Lie = Callable[[dict[str, Any]], Any]


def told(lie: Lie, round: int = 2) -> Callable[[Request], Request]:
    """In this round the server sends something else as the model."""
    return lambda r: r._replace(message={"model": lie(dict(r.message["model"]))}) if r.round == round else r


def numbers(change: Callable[[torch.Tensor], Any]) -> Lie:
    return lambda model: {**model, CLOSED: {**model[CLOSED], "ciphertexts": change(model[CLOSED]["ciphertexts"])}}


LIES: Mapping[str, tuple[Lie, str]] = {
    "a model in the clear": (lambda model: Tree({"hidden.weight": torch.ones(6, 4).double()}), CONTENT),
    "no ciphertexts": (lambda model: {**model, CLOSED: 7}, "a message holds no batch of ciphertexts where one was due"),
    "one fewer": (numbers(lambda x: x[:-1]), " were due: it is cut short or padded."),
    "one more": (numbers(lambda x: torch.cat([x, x[:1]])), " were due: it is cut short or padded."),
    "out of range": (numbers(lambda x: torch.full_like(x, 255)), "is not between 0 and n^2: it is broken or forged."),
    "zeros": (numbers(torch.zeros_like), "is not between 0 and n^2: it is broken or forged."),
    "of another key": (
        lambda model: {**model, CLOSED: {**model[CLOSED], "key": "0" * 16}},
        "ciphertexts of key '0000000000000000' arrived where key",
    ),
    "no weight": (lambda model: {**model, "weight": 0}, WEIGHT),
    "no whole weight": (lambda model: {**model, "weight": float(UNIT)}, WEIGHT),
    "a round more": (lambda model: {**model, "weight": UNIT + 1}, WEIGHT),
    "less weight than there is": (
        lambda model: {**model, "weight": 1},
        "an opened sum is larger than its summands can be",
    ),
    "another layout": (lambda model: {**model, "layout": [24, UNIT, 48, 5]}, PLACES),
    "no layout": (lambda model: {name: x for name, x in model.items() if name != "layout"}, PLACES),
}


@pytest.mark.parametrize("lie", LIES)
def test_nobody_works_on_what_is_no_sum_of_the_run(lie: str) -> None:
    change, said = LIES[lie]
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    before, _ = play(fed, [ALL], host=host)
    host.tell, host.refusals = told(change), []
    after, _ = play(fed, [ALL], server=before, host=host, first=2)
    assert same(after, before)
    assert [request.client for request, _ in host.refusals] == [*ALL]
    assert all(said in str(error) for _, error in host.refusals), str(host.refusals[0][1])


def test_a_plain_model_of_the_servers_choice_is_refused() -> None:
    """Of the right form, and not the first one: then the server would know what was trained on."""
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    before, _ = play(fed, [ALL], host=host)
    host.tell, host.refusals = told(lambda model: Tree(fed.params) * 1.1), []
    after, _ = play(fed, [ALL], server=before, host=host, first=2)
    assert same(after, before)
    assert {str(error) for _, error in host.refusals} == {PLAIN}


def test_a_ciphertext_before_anything_was_summed_is_refused() -> None:
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    closed, _ = play(fed, [ALL], host=host)
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    host.tell, host.refusals, begun = told(lambda model: closed["model"], 1), [], fed.begin(host)
    assert same(play(fed, [ALL], server=begun, host=host)[0], begun)
    assert {str(error) for _, error in host.refusals} == {WEIGHT}


def test_nobody_opens_a_sum_for_the_server() -> None:
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    before, _ = play(fed, [ALL], host=host)
    host.tell = lambda r: r._replace(
        what=OPEN, message={"run": r.run, "round": r.round, "ask": "train", "sums": {}}, word=None
    )
    host.refusals = []
    assert same(play(fed, [ALL], server=before, host=host, first=2)[0], before)
    assert {str(error) for _, error in host.refusals} == {
        f"client {k} is asked for '{OPEN}', which 'fedavg' does not know." for k in ALL
    }


def test_nobody_encrypts_at_a_place_of_its_own() -> None:
    def wider(r: Request) -> Request:
        layouts = {**r.word["layouts"], "": [24, UNIT, 48, 5]}
        return r._replace(word={**r.word, "layouts": layouts}) if r.client == 2 else r

    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    host.tell, host.refusals = wider, []
    play(fed, [ALL], host=host)
    [(request, error)] = host.refusals
    assert request.client == 2
    assert str(error) == "a client is told to encrypt in another form than its experiment's: refused."


# ---------------------------------------------------------------------- what is not refused


def one_update(host: Host, sent: Mapping[int, Any], layout: list[int]) -> State:
    """Client 1's ciphertexts with the weight of a whole round: a sum like any other to who opens it."""
    public = host.server.guard.public
    alone = paillier.times(public, paillier.Batch(public.name, sent[1][CIPHER][""]["ciphertexts"]), UNIT)
    return {CLOSED: alone.plain(), "layout": layout, "weight": UNIT}


def test_a_lying_server_has_another_ones_update_opened_and_hears_nothing_of_it() -> None:
    """What a key that all hold cannot prevent (docs/security.md): client 3 trains from client 1's model, and shows it to nobody."""
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    sent: dict[int, Any] = {}
    host.alter = lambda r, update: sent.update({r.client: update}) or update
    before, _ = play(fed, [ALL], host=host)
    lie, opened, seen = one_update(host, sent, before["model"]["layout"]), host.party.opener.opened, dict[int, Tree]()
    host.party.opener.opened = lambda told, n, s: seen.setdefault(id(told), opened(told, n, s))  # type: ignore[method-assign]
    host.tell, host.refusals = (lambda r: r._replace(message={"model": lie}) if r.client == 3 else r), []
    sent.clear()
    play(fed, [ALL], server=before, host=host, first=2)
    assert host.refusals == []
    alone, _ = play(federation(brief("fedavg")), [(1,)])
    assert gap(seen[id(lie)], alone["model"]) < 1e-5
    assert set(sent[3]) == {CIPHER, CLEAR, FORM}
    assert not sent[3][CLEAR]
    assert sent[3][CIPHER][""]["ciphertexts"].dtype == torch.uint8


def test_a_lying_server_learns_from_who_refuses() -> None:
    """A weight is too small only for large numbers: one bit about the largest of them, in every round in which somebody is asked."""
    fed, host = protected("fedavg", toy_paillier(reveal="clients"))
    before, _ = play(fed, [ALL], host=host)
    refused = {}
    for number, more in ((2, 0), (3, UNIT // 16)):  # refused by changes above 0, and above 2, of which there are none
        host.tell, host.refusals = told(lambda model, more=more: {**model, "weight": UNIT // 2 + more}, number), []
        play(fed, [ALL], server=before, host=host, first=number)
        refused[more] = len(host.refusals)
    assert refused == {0: len(ALL), UNIT // 16: 0}
