"""What people see of a run under ``[[privacy]]``: its costs by phase, its rows and its report, the dry run, the section "Privacy"."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fedatlas.deploy import codec
from fedatlas.engine.loop import SerialExecutor
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.cost import parted
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.secrets import Keyring
from fedatlas.privacy import mechanisms
from fedatlas.privacy.mechanisms import Mechanism
from fedatlas.privacy.protection import Protection, under
from fedatlas.rounds import federated
from federation import Federation, brief, federation, play

COHORTS = [(0, 1, 2), (1, 2, 3, 4)]


def toy_paillier(**keys: Any) -> Mechanism:
    return mechanisms.paillier(**keys)._replace(key_bits=256)


def protected(
    *given: Mechanism, name: str = "fedavg", observers: tuple[Observer, ...] = ()
) -> tuple[Federation, InProcess]:
    """The small federation of the tests under mechanisms, and what plays it."""
    fed = federation(brief(name))
    how = Protection(given, len(fed.held), len(COHORTS), 0.6, 1, 5, True)
    bench = fed.bench._replace(algorithm=under(fed.bench.algorithm, how), protection=how)
    sizes = {k: rows.n for k, rows in fed.held.items()}
    keyring = Keyring(how, len(sizes), "fed")
    host = InProcess(
        bench, SerialExecutor(bench), PartyState(), sizes, 1, run="r", keyring=keyring, observers=observers
    )
    return fed._replace(bench=bench), host


LOCAL: dict[str, Any] = {"epsilon": 1e3, "clip": 1.0, "noise": "seed"}


@pytest.mark.parametrize(
    ("given", "phases"),
    [
        ((mechanisms.secagg(),), ["keys", "train", "mask", "aggregate", "unmask"]),
        ((toy_paillier(),), ["train", "encrypt", "aggregate", "decrypt"]),
        ((mechanisms.local_dp(**LOCAL),), ["train", "noise", "aggregate"]),
        ((mechanisms.local_dp(**LOCAL), mechanisms.secagg()), ["keys", "train", "mask", "aggregate", "unmask"]),
    ],
    ids=["secagg", "paillier", "local_dp", "both"],
)
def test_the_seconds_of_a_protected_round_stand_under_their_phases(
    given: tuple[Mechanism, ...], phases: list[str]
) -> None:
    fed, host = protected(*given)
    play(fed, COHORTS, host=host)
    assert list(host.cost.seconds) == phases
    assert all(seconds > 0 for seconds in host.cost.seconds.values())


def test_a_round_without_protection_has_its_tasks_alone() -> None:
    _, host = play(federation(brief("fedavg")), COHORTS)
    assert list(host.cost.seconds) == ["train"]


def test_the_time_of_an_ask_is_parted_as_the_clients_seconds_are() -> None:
    assert parted("train", "mask", 10.0, 8.0, 2.0) == {"train": 7.5, "mask": 2.5}
    assert parted("train", "mask", 10.0, 0.0, 0.0) == {"train": 10.0, "mask": 0.0}


class Sent(Observer):
    """Counts what is sent to clients beside messages."""

    def __init__(self) -> None:
        self.words = self.messages = 0

    def asked(self, request: Request) -> None:
        self.messages += codec.size(dict(request.message))
        self.words += codec.size(dict(request.word)) if request.word else 0


def test_the_protocol_s_word_to_each_client_is_among_the_bytes_down() -> None:
    seen = Sent()
    fed, host = protected(mechanisms.secagg(), observers=(seen,))
    play(fed, COHORTS[:1], host=host)
    assert seen.words > 3 * 94 * 3  # three envelopes to each of three clients
    assert host.cost.bytes_down == seen.messages + seen.words


@pytest.mark.parametrize("given", [mechanisms.secagg(), toy_paillier(), mechanisms.local_dp(**LOCAL)])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedbn"])
def test_what_protection_adds_to_the_bytes_is_what_a_run_without_it_lacks(given: Mechanism, name: str) -> None:
    fed, host = protected(given, name=name)
    play(fed, COHORTS, host=host)
    _, plain = play(federation(brief(name)), COHORTS)
    sent, without = (c.bytes_up + c.bytes_down + c.bytes_peer for c in (host.cost, plain.cost))
    assert sent - host.cost.bytes_privacy == without
    assert plain.cost.bytes_privacy == 0


def test_what_a_failed_attempt_cost_was_spent() -> None:
    costs = []
    for leaving in (
        {},
        {1: "secagg keys", 2: "secagg keys"},
    ):  # below the threshold: begun anew, and then nobody leaves
        fed, host = protected(mechanisms.secagg())
        server, drawn = fed.begin(host, 0.1), fed.round(1, COHORTS[1], {}, {})
        host.server.leaving = leaving
        host.drive(partial(federated, fed.bench.algorithm, server, drawn), 1, 0.1)
        costs.append((host.server.attempt, host.cost))
    (_, whole), (attempt, begun_anew) = costs
    assert attempt == 1
    assert begun_anew.bytes_up > whole.bytes_up
    assert begun_anew.weights == whole.weights
