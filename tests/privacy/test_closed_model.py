"""``reveal = "clients"``: the server's model is a ciphertext, and what clients open is the plain mean in exact whole numbers.

Each round adds sum_k W_k a_k to the server's ciphertext: a_k are the whole numbers of client k's change, W_k whole weights of total 2^24
(1 if clients weigh). The model is the initial one plus step / 2^24 times that, rounded once, however many rounds there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedatlas.algorithm import Round, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.link import Request
from fedatlas.privacy.encrypted.encrypted_sum import CIPHER, CLEAR, FORM, whole_weights
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import MECHANISMS, every, paillier
from fedatlas.privacy.paillier import closed_model, cryptosystem
from fedatlas.privacy.paillier.filling import OPEN, ready
from fedatlas.privacy.protocol import CLOSED
from fedatlas.transforms.clip import clip
from fedatlas.tree import Tree
from federation import Federation, brief, federation, gap, play, same
from protected import ALL, DRAWN, Host, protected, toy_paillier
from shared_key import closed

ADMITTED = ["fedavg", "fedprox", "fedsgd", "moon"]
BITS, RANGE = 24, 16.0
STEP = 2 * RANGE / 2**BITS


def toy(**keys: Any) -> Mechanism:
    return toy_paillier(reveal="clients", **keys)


def opened(host: Host, server: State, number: int = 3) -> Tree:
    """The model as the clients know it."""
    found = host.opened(server, number)["model"]
    assert isinstance(found, Tree)
    return found


def codes_of(host: Host, sent: Mapping[str, Any], layout: list[int]) -> list[int]:
    """The whole numbers in one client's ciphertexts."""
    keys, form = ready(host.party.secrets.session(0)["key"]), cryptosystem.Layout(*layout)
    batch = cryptosystem.received(keys.public, sent)
    codes = cryptosystem.unpack(form, cryptosystem.decrypt(keys, batch), sent["count"], 1)
    return [int(x) for x in codes]


def bare(fed: Federation, keyring: Any = None) -> Host:
    """A host of the same parties, without mechanisms unless there is a keyring."""
    sizes = {k: rows.n for k, rows in fed.held.items()}
    return Host(fed.bench, SerialExecutor(fed.bench), PartyState(), sizes, 1, run="run", keyring=keyring)


# ---------------------------------------------------------------------- the law


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weights_by", ["server", "client"])
@pytest.mark.parametrize("name", ADMITTED)
def test_the_model_is_the_exact_sum_of_all_rounds(name: str, weights_by: str, dtype: torch.dtype) -> None:
    fed, host = protected(name, toy(weights_by=weights_by), dtype=dtype)
    unit = 2**BITS if weights_by == "server" else 1
    sizes, rounds = {k: rows.n for k, rows in fed.held.items()}, dict[int, dict[int, list[int]]]()

    def noted(request: Any, update: Any) -> Any:
        layout = request.word["layouts"][""]
        rounds.setdefault(request.round, {})[request.client] = codes_of(host, update[CIPHER][""], layout)
        return update

    host.alter = noted
    after, _ = play(fed, DRAWN, host=host)
    total = [0] * sum(x.numel() for x in fed.params.values())
    for codes in rounds.values():
        whole = sum(sizes[k] for k in codes)
        weights = (
            whole_weights(unit, {k: sizes[k] / whole for k in sorted(codes)}) if unit > 1 else dict.fromkeys(codes, 1)
        )
        assert sum(weights.values()) == (unit if unit > 1 else len(codes))
        total = [so_far + sum(weights[k] * own[i] for k, own in codes.items()) for i, so_far in enumerate(total)]
    changed = Tree(fed.params).to(torch.float64).unflatten(torch.tensor(total, dtype=torch.float64) * (STEP / unit))
    expected = Tree(fed.params).map(lambda x, c: (x.double() + c).to(dtype), changed)
    assert same(opened(host, after), expected)


@pytest.mark.parametrize("weights_by", ["server", "client"])
@pytest.mark.parametrize("name", ADMITTED)
def test_it_is_the_model_of_a_server_that_learns_it(name: str, weights_by: str) -> None:
    """Within what float64 rounds, since both add the same whole numbers; and within the fixed point's error of a run without."""
    fed, host = protected(name, toy(weights_by=weights_by))
    hidden = opened(host, play(fed, DRAWN, host=host)[0])
    known, other = protected(name, toy_paillier(weights_by=weights_by))
    assert gap(hidden, play(known, DRAWN, host=other)[0]["model"]) < 1e-13
    plain = federation(brief(name))
    assert 0 < gap(hidden, play(plain, DRAWN)[0]["model"]) < 20 * STEP


def test_it_is_the_same_in_another_engine() -> None:
    made = lambda bench: SerialExecutor(bench, FastRunner(bench, [5, 12, 9, 21, 7], "program", "float64"))  # noqa: E731
    fed, host = protected("fedavg", toy(), executor=made)
    fast = opened(host, play(fed, DRAWN, host=host)[0])
    fed, host = protected("fedavg", toy())
    assert gap(fast, opened(host, play(fed, DRAWN, host=host)[0])) <= 3 * STEP


def test_a_clipped_change_is_summed_so() -> None:
    def moved(mechanism: Mechanism) -> Tree:
        fed, host = protected("fedavg", mechanism)
        bench = fed.bench._replace(transform=clip(norm=0.01))
        host = bare(fed._replace(bench=bench), host.party.secrets)
        return Tree(host.opened(play(fed, DRAWN, host=host)[0], 3)["model"])

    assert gap(moved(toy()), moved(toy_paillier())) < 1e-13
    assert 0 < gap(moved(toy()), protected("fedavg", toy())[0].params) < 0.03


# ---------------------------------------------------------------------- who leaves


def lost(request: Request) -> bool:
    return (request.client, request.round) == (3, 2)


def test_the_others_take_over_the_weight_of_who_left() -> None:
    fed, host = protected("fedavg", toy())
    host.lose = lost
    after, _ = play(fed, [ALL] * 3, host=host)
    assert after["model"]["weight"] == 3 * 2**BITS  # in whole numbers, so the denominator stays
    plain = federation(brief("fedavg"))
    other = bare(plain)
    other.lose = lost
    assert gap(opened(host, after), play(plain, [ALL] * 3, host=other)[0]["model"]) < 20 * STEP


def test_where_clients_weigh_nobody_does_and_the_round_changes_nothing() -> None:
    fed, host = protected("fedavg", toy(weights_by="client"))
    before, _ = play(fed, [ALL], host=host)
    host.lose, why = lambda request: request.client == 3, closed(host)
    after, _ = play(fed, [ALL], server=before, host=host, first=2)
    assert after is before
    assert why == [closed_model.LEFT]


@pytest.mark.parametrize("staying", [(), (1,)])
def test_a_round_that_nobody_or_one_stays_in_changes_nothing(staying: tuple[int, ...]) -> None:
    fed, host = protected("fedavg", toy())
    before, _ = play(fed, [ALL], host=host)
    host.lose = lambda request: request.client not in staying
    after, _ = play(fed, [ALL], server=before, host=host, first=2)
    assert same(after, before)


def test_a_client_whose_ciphertexts_are_none_is_left_out() -> None:
    fed, host = protected("fedavg", toy())
    host.alter = lambda r, u: (
        {**u, CIPHER: {"": {**u[CIPHER][""], "ciphertexts": torch.zeros(9)}}} if r.client == 2 else u
    )
    after, _ = play(fed, [ALL], host=host)
    assert host.server.counted == {0, 1, 3, 4}
    assert after["model"]["weight"] == 2**BITS


def test_what_is_no_change_of_the_model_closes_the_round() -> None:
    def another(_: Any, update: Any) -> Any:
        return {**update, FORM: {"other": update[FORM]["model"]}}

    fed, host = protected("fedavg", toy())
    host.alter, why, begun = another, closed(host), fed.begin(host)
    assert play(fed, [ALL], server=begun, host=host)[0] is begun
    assert why == [closed_model.UNLIKE]


# ---------------------------------------------------------------------- what the server has


def test_the_server_has_no_model_and_no_sum() -> None:
    """Its state and all messages after round 1 hold whole numbers below n^2, and nothing else is said to it or by it."""
    fed, host = protected("fedavg", toy())
    sent: list[Any] = []
    host.alter = lambda _, update: sent.append(update) or update
    after, _ = play(fed, DRAWN, host=host)
    assert set(after["model"]) == {CLOSED, "layout", "weight"}
    assert after["model"][CLOSED]["ciphertexts"].dtype == torch.uint8
    later = [request.message for request in host.requests if request.round > 1]
    assert later
    assert all(set(message) == {"model"} and set(message["model"]) == set(after["model"]) for message in later)
    assert all(set(update) == {CIPHER, CLEAR, FORM} and not update[CLEAR] for update in sent)
    assert {request.what for request in host.requests} == {"train"}  # nobody is asked to open a sum
    assert OPEN not in fed.bench.algorithm.tasks


def test_ciphertexts_are_counted_on_both_ways() -> None:
    fed, host = protected("fedavg", paillier(key_bits=2048, reveal="clients"))
    first, _ = play(fed, [ALL], host=host)
    known = host.cost
    play(fed, [ALL], server=first, host=host, first=2)
    assert host.cost.bytes_up == known.bytes_up
    assert host.cost.bytes_down - known.bytes_down == host.cost.bytes_privacy - known.bytes_privacy > 0


def test_a_sum_before_round_1_is_opened_as_before() -> None:
    """Constants of columns are no model: they go through the protocol that opens sums, with keys of their own."""
    protocol = toy().work().protocol
    assert protocol.questions == {}
    assert list(protocol.before.questions) == [OPEN]


# ---------------------------------------------------------------------- which algorithms


def test_only_plain_means_are_admitted() -> None:
    why = {name: paillier(reveal="clients").limits.why_not(build()) for name, build in ALGORITHMS.items()}
    assert sorted(name for name, said in why.items() if not said) == ADMITTED
    assert "its server computes with the models" in why["fedavgm"]
    assert "need more than one plain mean" in why["hwfedavg"]
    assert paillier(reveal="clients").limits.why_not(ALGORITHMS["fedprox"](adaptive=True))


def by_a_fact(drawn: Round) -> dict[int, float]:
    return {k: drawn.facts[k]["quality"] for k in drawn.cohort}


def test_a_server_of_a_users_own_that_computes_with_the_model_is_not() -> None:
    plain = ALGORITHMS["fedavg"]()
    why_not = paillier(reveal="clients").limits.why_not
    assert not why_not(plain)
    assert "computes" in why_not(plain._replace(broadcast=lambda server, k: {"model": server["model"] * 2.0}))
    assert "computes" in why_not(plain._replace(card=plain.card._replace(figures=lambda server: {})))
    assert "plain mean" in why_not(plain._replace(personal=lambda message, state: message["model"]))
    assert "plain mean" in why_not(plain._replace(weigh=by_a_fact))


def test_by_default_nothing_changes() -> None:
    assert not every()["paillier"].closed
    assert paillier().keys["reveal"] is None
    assert MECHANISMS["paillier"](reveal="server").work().protocol.closed is None
