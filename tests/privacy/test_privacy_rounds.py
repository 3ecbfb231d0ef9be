"""Rounds under secure aggregation and Paillier: what is opened is the plain mean of the same replies, up to the stated bound.

The updates are seen on the clients' side, before anything protects them; the mean is formed again here, in float64, with the weights
that the algorithm states for those who are in the sum. m clients of weights p_k, summing to one; step = range 2^(1 - bits):

    secagg     m half steps (each client rounds once; one that was lost afterwards makes the sum larger by 1 / the others' weight)
    paillier   half a step and m 2^-bits max |x| for whole-number weights (P11), m half steps where clients weigh; bfv alike
    ckks       seven deviations of the noise of the party that opens, half a step of its grid and the bound of CKKS's own error

and beside either one rounding of a change to the run's precision. What is summed as whole numbers is equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from fedatlas.aggregation.reducers import part_of
from fedatlas.algorithm import SERVER, Ask, Replies, Task
from fedatlas.engine import job
from fedatlas.federation.asks import Mend, coefficients_of
from fedatlas.privacy.ask_protocol import WORK
from fedatlas.privacy.ckks.mechanism import SET_UP
from fedatlas.privacy.ckks.parameters import Parameters
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import bfv, ckks, every, secagg, two_server
from fedatlas.privacy.secagg import secure_sum
from fedatlas.transforms.change import bases, change
from federation import Federation, Normed, play
from protected import ADMITTED, MASKS, Host, admitted, protected, rekeyed, silent, toy_paillier, toy_threshold

EVERY = [*ADMITTED, "chains"]
FOUR = [(0, 1, 3, 4)]  # of five who were asked, one of whom leaves
SIXTEEN = 16  # algorithms whose server takes sums


class Seen:
    """What clients had before it was protected, and what the server was told; asserts the bound on each part of each ask."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fed: Federation, host: Host) -> None:
        self.fed, self.host, self.opened = fed, host, 0
        self.updates: dict[int, tuple[Any, Any]] = {}
        self.share = 0.0  # the largest part of its bound that an error was
        protect, guarded = job.protect, host.server._guarded

        def noted(how: Any, transform: Any, task: Any, message: Any, update: Any, *rest: Any) -> Any:
            client = rest[-1].client
            base = bases(task, message, update, chain=bool(rest[2].get("chain")))
            if update:
                self.updates[client] = update, change(update, base)
            return protect(how, transform, task, message, update, *rest)

        def compared(ask: Ask) -> Replies:
            self.updates.clear()
            leaving = tuple(host.server.now.leaving)
            replies = guarded(ask)
            if SERVER not in ask.to and ask.reduce in {"mean", "sum"} and replies.value:
                self.compare(ask, tuple(sorted({*ask.to, *leaving})), replies)
            return replies

        monkeypatch.setattr(job, "protect", noted)
        monkeypatch.setattr(host.server, "_guarded", compared)

    def compare(self, ask: Ask, asked: tuple[int, ...], replies: Replies) -> None:
        task = self.fed.bench.algorithm.tasks[ask.what]
        sums = task.sums if isinstance(task, Task) else ()
        assert set(replies.clients) <= set(self.updates)
        coefficients = coefficients_of(ask, replies.clients, sums)
        mend = Mend(ask, asked, replies.clients, sums)
        for part, value in replies.value.items():
            whole = ask.reduce == "sum" or part in sums
            rows = [(float(part_of(coefficients[k], part)), *self.updates[k]) for k in replies.clients]
            self.leaf(value, [(p, x[part], c[part]) for p, x, c in rows], 1.0 if whole else mend(part), whole)
        self.opened += 1

    def leaf(self, value: Any, rows: list[tuple[float, Any, Any]], factor: float, whole: bool) -> None:
        if isinstance(value, Mapping):
            for name, x in value.items():
                held = [(p, update[name], change.get(name)) for p, update, change in rows if name in update]
                if any(change is None for _, _, change in held):
                    continue  # a counter
                self.leaf(x, held, factor, whole)
            return
        value = tensor(value)
        plain = sum((p * tensor(x).double() for p, x, _ in rows), torch.zeros(()).double())
        largest = max(size(c) for *_, c in rows)
        error = size(value.double() - plain)
        update = tensor(rows[0][1])
        if not update.is_floating_point():
            assert error == 0 or not whole  # in a mean it is a counter of batch norm, which has no sum
            return
        values = not whole and isinstance(rows[0][1], torch.Tensor)
        bound = self.bound([p for p, *_ in rows], largest, factor, update.dtype) if values else exact(rows)
        assert error <= bound, (error, bound)
        self.share = max(self.share, error / bound) if values and bound else self.share

    def bound(self, weights: list[float], largest: float, factor: float, kind: torch.dtype) -> float:
        how = self.fed.bench.protection.mechanisms[-1].keys
        if "bits" not in how:
            form = Parameters(len(self.fed.held), how["range"], SET_UP)
            return form.error * factor + torch.finfo(kind).eps * largest * max(1.0, sum(weights))
        m, half = len(weights), how["range"] * 2.0 ** -how["bits"]
        if how.get("weights_by", "client") == "client":
            quantised = m * half * factor
        else:
            quantised = (
                half * max(1.0, sum(weights)) * (1 + m * 2.0 ** -how["bits"])
                + m * 2.0 ** -how["bits"] * largest * factor
            )
        return quantised + torch.finfo(kind).eps * largest * max(1.0, sum(weights)) + 1e-15


def tensor(x: Any) -> torch.Tensor:
    return (
        x
        if isinstance(x, torch.Tensor)
        else torch.tensor(x, dtype=torch.int64 if isinstance(x, int) else torch.float64)
    )


def size(x: Any) -> float:
    """The largest size of a number."""
    return max(tensor(x).double().abs().flatten().tolist(), default=0.0)


def exact(rows: list[tuple[float, Any, Any]]) -> float:
    """What float64 rounds in a sum of reals, whose steps of 2^-104 are far below."""
    return sum(abs(p) * size(x) for p, x, _ in rows) * 1e-15 + 2.0**-90


MASKED: Mapping[str, Mechanism] = {
    "secagg": secagg(),
    "coarse": secagg(bits=12, range=2.0),
    "server": toy_paillier(),
    "client": toy_paillier(weights_by="client", short_exponent=512),
    "shares": toy_threshold(),
    "shares, weighed when opened": toy_threshold(weights_by="server", short_exponent=512),
    "two servers": two_server(),
    "bfv, server": bfv(weights_by="server"),
    "bfv, client": bfv(),
    "ckks": ckks(range=16.0),
}


def test_every_algorithm_whose_server_takes_sums_is_here() -> None:
    assert len(ADMITTED) == SIXTEEN
    assert {name for name, one in every().items() if one.sums_only and one.noise is None} == {*MASKS}


QUICK = ("fedavg", "scaffold", "hwfedavg", "fedmd", "chains")
"""Of the algorithms, all of which have secure aggregation: a mean, states, sums before round 1, answers, and what a chain adds up."""


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if kind == "secagg" or name in QUICK else pytest.mark.slow)
        for kind in MASKS
        for name in EVERY
    ],
)
def test_what_is_opened_is_the_mean_of_the_same_replies(monkeypatch: pytest.MonkeyPatch, name: str, kind: str) -> None:
    """In float32, as runs are; every ask of three rounds, those of a set-up included."""
    made, needs, plan = admitted(name, torch.float32)
    mechanism = MASKS[kind]()
    fed, host = protected(made, mechanism, dtype=torch.float32, **needs)
    seen = Seen(monkeypatch, fed, host)
    play(fed, plan, host=host)
    assert seen.opened >= len(plan)
    assert seen.share > 1e-3  # a bound that nothing comes near would hold whatever was opened


@pytest.mark.parametrize("mechanism", MASKED.values(), ids=[*MASKED])
@pytest.mark.parametrize("name", ["fedavg", "fednova", "chains"])
def test_statistics_of_batch_norm_and_other_steps(
    monkeypatch: pytest.MonkeyPatch, name: str, mechanism: Mechanism
) -> None:
    """Buffers are summed as changes, in a chain as they are; coarse steps and weights multiplied in by clients keep their bounds."""
    made, needs, plan = admitted(name)
    if mechanism.name in {"secagg", "two_server"} and name == "chains":
        mechanism = rekeyed(mechanism, range=64.0)
    fed, host = protected(made, mechanism, make=Normed, **needs)
    seen = Seen(monkeypatch, fed, host)
    server, _ = play(fed, plan, host=host)
    assert seen.share > 1e-3
    assert server["buffers"].keys() == fed.buffers.keys()


@pytest.mark.parametrize("phase", [secure_sum.KEYS, secure_sum.SHARES, WORK])
@pytest.mark.parametrize("name", ADMITTED)
def test_a_client_that_leaves_in_a_phase(monkeypatch: pytest.MonkeyPatch, name: str, phase: str) -> None:
    """Four of five are left, which is the threshold: the sum is theirs, with their weights."""
    made, needs, _ = admitted(name)
    fed, host = protected(made, secagg(), **needs)
    seen = Seen(monkeypatch, fed, host)
    host.leavers = {1: {2: phase}}
    play(fed, FOUR, host=host)
    assert seen.opened
    assert {attempt for *_, attempt, _ in host.asked(secure_sum.UNMASK)} == {0}  # no second session was needed
    assert 2 in {client for *_, client in host.asked(secure_sum.KEYS)}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "hwfedavg", "fedmd"])
@pytest.mark.parametrize("what", ["keys", "shares", "work", "agree", "unmask"])
def test_a_client_that_falls_silent(monkeypatch: pytest.MonkeyPatch, name: str, what: str) -> None:
    """Lost without notice in a phase of the second round: before its input came it is not in the sum, while unmasking it is."""
    made, needs, _ = admitted(name)
    fed, host = protected(made, secagg(), **needs)
    work = "score" if name == "fedmd" else "train"
    questions = {"agree": secure_sum.AGREE, "unmask": secure_sum.UNMASK}
    phase = {"keys": secure_sum.KEYS, "shares": secure_sum.SHARES, "work": work, **questions}[what]
    seen = Seen(monkeypatch, fed, host)
    host.lose = silent(phase, {3}, {2})
    play(fed, [tuple(range(5))] * 2, host=host)
    assert seen.opened >= 2
    assert host.server.now.start.attempt == 0
    assert (3 in host.server.counted) is (what in questions)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "hwfedavg", "fedmd"])
def test_a_ciphertext_that_never_comes(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The others' sum is opened with their weights; so it is where the one whose turn it is does not open it."""
    made, needs, _ = admitted(name)
    fed, host = protected(made, toy_paillier(), **needs)
    seen = Seen(monkeypatch, fed, host)
    host.lose = lambda request: request.client == 3 and (request.round == 2 or request.what == "paillier open")
    play(fed, [tuple(range(5))] * 3, host=host)
    assert seen.opened >= 3
    assert 3 in host.server.counted  # of round 3, in whose sum it is
    openers = [client for number, _, client in host.asked("paillier open") if number == 1]
    assert set(openers) - {3}


def test_each_client_opens_in_turn() -> None:
    made, needs, _ = admitted("fedavg")
    fed, host = protected(made, toy_paillier(), **needs)
    play(fed, [tuple(range(5))] * 5, host=host)
    assert sorted(client for *_, client in host.asked("paillier open")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("build", [toy_paillier, bfv, ckks])
def test_only_some_layers_are_encrypted(monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    """The last layer as ciphertexts, the others in the clear: the mean is the same."""
    made, needs, plan = admitted("fedavg")
    chosen = build(encrypt=("head.weight", "head.bias"))
    fed, host = protected(made, chosen, **needs)
    seen = Seen(monkeypatch, fed, host)
    play(fed, plan, host=host)
    assert seen.opened == len(plan)
    assert chosen.sums_only == "partly"
