"""What becomes of a round whose protocol fails, is repeated, or is fed with what no honest party sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedatlas.algorithm import Algorithm, Round
from fedatlas.algorithms import ALGORITHMS
from fedatlas.errors import DivergedError, PrivacyError
from fedatlas.federation.secrets import JOURNAL, OPENED, append, whole_lines
from fedatlas.privacy.ask_protocol import WORK
from fedatlas.privacy.mechanisms import secagg
from fedatlas.privacy.paillier.filling import OPEN
from fedatlas.privacy.secagg.secure_sum import AGREE, KEYS, SHARES, UNMASK
from fedatlas.weighting import by_samples, uniform
from fedatlas.wire import codec
from federation import federation, gap, play, rows, same, states
from protected import ALL, MASKS, protected, rekeyed, silent, toy_paillier

pytestmark = pytest.mark.timing

# ---------------------------------------------------------------------- rounds that fail


@pytest.mark.parametrize("phase", [KEYS, SHARES, WORK])
def test_too_few_before_a_share_was_given_begin_the_round_anew(phase: str) -> None:
    """Two of five leave where four are needed: the three that are left do the round, from their states before it."""
    fed, host = protected("scaffold", secagg())
    server, _ = play(fed, [ALL], host=host)
    other, other_host = protected("scaffold", secagg())
    same_server, _ = play(other, [ALL], host=other_host)
    assert same(server, same_server)
    host.leavers = {2: {1: phase, 4: phase}}
    server, _ = play(fed, [(0, 2, 3)], server=server, host=host, first=2)
    expected, _ = play(other, [(0, 2, 3)], server=same_server, host=other_host, first=2)
    assert same(server, expected)
    assert same(states(host), states(other_host))
    assert {attempt for number, attempt, _ in host.asked(UNMASK) if number == 2} == {1}
    assert host.server.counted == {0, 2, 3}


@pytest.mark.parametrize("what", [KEYS, SHARES, "train", AGREE, UNMASK])
def test_a_round_that_cannot_be_opened_changes_nothing(what: str) -> None:
    """Before the shares it is tried three times; afterwards it is closed at once. Everybody goes back, SCAFFOLD's controls, too."""
    fed, host = protected("scaffold", secagg())
    server, _ = play(fed, [ALL], host=host)
    before = codec.encode(states(host))
    host.lose = silent(what, {0, 1, 2}, {2})
    after, _ = play(fed, [ALL], server=server, host=host, first=2)
    assert same(server, after)
    assert codec.encode(states(host)) == before
    tried = {attempt for number, attempt, _ in host.asked(KEYS) if number == 2}
    assert tried == ({0} if what == UNMASK else {0, 1, 2})
    host.lose = lambda request: False
    moved, _ = play(fed, [ALL], server=after, host=host, first=3)
    assert not same(moved, after)


def test_a_ciphertext_that_nobody_opens_changes_nothing() -> None:
    fed, host = protected("scaffold", toy_paillier())
    server, _ = play(fed, [ALL], host=host)
    before = codec.encode(states(host))
    host.lose = silent(OPEN, ALL)
    after, _ = play(fed, [ALL], server=server, host=host, first=2)
    assert same(server, after)
    assert codec.encode(states(host)) == before
    assert [k for number, _, k in host.asked(OPEN) if number == 2] == [2, 3, 4, 0, 1]  # each was asked


@pytest.mark.parametrize("cohort", [(), (3,), (1, 3)])
def test_fewer_than_three_are_no_sum(cohort: tuple[int, ...]) -> None:
    fed, host = protected("fedavg", secagg())
    server = fed.begin(host)
    after, _ = play(fed, [cohort], server=server, host=host)
    assert same(server, after)
    assert not host.requests


def test_one_client_alone_is_never_decrypted() -> None:
    fed, host = protected("fedavg", toy_paillier())
    server = fed.begin(host)
    after, _ = play(fed, [(3,)], server=server, host=host)
    assert same(server, after)
    assert not host.asked(OPEN)


def one_alone(round: Round) -> dict[int, float]:
    """All weight to one client, as scores that leave others out may have it."""
    return {k: float(k == round.cohort[1]) for k in round.cohort}


@pytest.mark.parametrize("kind", MASKS)
def test_a_sum_in_which_one_client_has_all_the_weight_is_never_opened(kind: str) -> None:
    """It would be that client's update."""
    fed, host = protected(Algorithm(weigh=one_alone), MASKS[kind]())
    begun = fed.begin(host)
    server, _ = play(fed, [(0, 1, 2, 3)], server=begun, host=host)
    assert same(server, begun)
    assert "only 1 of the 4 clients" in host.given_up
    assert host.server.counted == frozenset()
    assert not host.asked(UNMASK) + host.asked(OPEN)


@pytest.mark.parametrize(("weigh", "ring"), [(uniform, torch.int32), (by_samples, torch.int64)])
def test_equal_weights_are_told_though_they_are_those_of_equal_shares(weigh: Any, ring: torch.dtype) -> None:
    """They are no secret, and words of 32 bits hold them; weights by rows stay hidden where all happen to have as many."""
    fed, host = protected(Algorithm(weigh=weigh), secagg(), held=rows((7, 7, 7, 7, 7)))
    found = set()
    host.alter = lambda request, update: found.update(x.dtype for x in update.get("masked", {}).values()) or update
    play(fed, [ALL], host=host)
    assert found == {ring}


# ---------------------------------------------------------------------- rounds that are repeated


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=() if kind == "secagg" or name == "scaffold" else pytest.mark.slow)
        for kind in MASKS
        for name in ("scaffold", "hwfedavg", "fedmd")
    ],
)
def test_a_repeated_round_reads_its_sums_from_the_journal(tmp_path: Path, kind: str, name: str) -> None:
    """After a crash between the opening and the checkpoint: the same value, the same states, nothing sent, nothing opened again."""
    fed, host = protected(name, MASKS[kind](), folder=tmp_path)
    server, _ = play(fed, [ALL], host=host)
    begun, held = codec.encode(dict(server)), codec.encode(states(host))
    host.leavers = {2: {1: WORK}}
    once, _ = play(fed, [(0, 2, 3, 4)], server=server, host=host, first=2)
    opened = (tmp_path / OPENED).read_bytes()
    _, second = protected(name, MASKS[kind](), folder=tmp_path)  # other keys, as after a crash
    for k, state in codec.decode(held).items():
        second.states.after.restore(int(k), state)
    second.leavers = {2: {1: WORK}}
    again, _ = play(fed, [(0, 2, 3, 4)], server=codec.decode(begun), host=second, first=2)
    assert same(once, again)
    assert same(states(host), states(second))
    assert (tmp_path / OPENED).read_bytes() == opened
    assert not {request.what for request in second.requests} & {KEYS, SHARES, AGREE, UNMASK, OPEN}
    third, _ = play(fed, [ALL], server=again, host=second, first=3)
    expected, _ = play(fed, [ALL], server=once, host=host, first=3)
    assert same(third, expected)


@pytest.mark.parametrize("kind", MASKS)
def test_a_sum_that_was_opened_and_lost_stays_closed(tmp_path: Path, kind: str) -> None:
    """The journal is gone, the parties' record is not: no second opening, and the run goes on with the next round."""
    fed, host = protected("scaffold", MASKS[kind](), folder=tmp_path)
    server = fed.begin(host)
    play(fed, [ALL], server=server, host=host)
    for file in (tmp_path / JOURNAL).iterdir():
        file.unlink()
    _, second = protected("scaffold", MASKS[kind](), folder=tmp_path)
    after, _ = play(fed, [ALL], server=server, host=second)
    assert same(server, after)
    assert not second.requests
    moved, _ = play(fed, [ALL], server=after, host=second, first=2)
    assert not same(moved, after)


def test_a_torn_line_of_what_was_opened_spoils_no_other(tmp_path: Path) -> None:
    """A process died while it wrote one: what it would have said had not happened, and the next line is whole."""
    file = tmp_path / OPENED
    for torn in range(1, len(line := '[2, "run", [1, "train"]]')):
        file.write_text(line[:torn])
        append(file, '[3, "run", [2, "train"]]')
        assert [json.loads(one) for one in whole_lines(file)] == [[3, "run", [2, "train"]]]
        append(file, line)
        assert len(whole_lines(file)) == 2


@pytest.mark.parametrize(("kind", "what"), [("secagg", UNMASK), ("paillier", OPEN)])
def test_a_party_opens_once_whatever_the_server_says(tmp_path: Path, kind: str, what: str) -> None:
    """A server without a journal asks for round 1 again: each party says no, also after it was started anew."""
    fed, host = protected("fedavg", MASKS[kind](), folder=tmp_path)
    server = fed.begin(host)
    play(fed, [ALL], server=server, host=host)
    lines = [json.loads(line) for line in (tmp_path / OPENED).read_text().splitlines()]
    assert sorted(lines) == [[k, "run", [1, "train"]] for k in ((0, 1, 2, 3, 4) if kind == "secagg" else (1,))]
    _, second = protected("fedavg", MASKS[kind](), folder=tmp_path)
    for each in (host, second):
        each.server.guard = each.server.guard._replace(journal=None)
        each.states.landed = None  # a party that does not know it either: what it has opened is written down
        each.refusals, each.lose = (
            [],
            silent(OPEN, {0, 2, 3, 4}),
        )  # of a key holder's turn: its own record is what counts
        after, _ = play(fed, [ALL], server=server, host=each)
        assert same(server, after)
        assert {request.what for request, _ in each.refusals} == {what}
        assert {request.client for request, _ in each.refusals} == {line[0] for line in lines}
        assert all("was opened once and is not opened again" in str(error) for _, error in each.refusals)


# ---------------------------------------------------------------------- what honest clients run into


@pytest.mark.parametrize("kind", MASKS)
def test_training_that_diverged_is_said_to_have(kind: str) -> None:
    """As without a mechanism: the run ends with what it had, and the sentence names the client; noise covers it (test_noise.py)."""
    mechanism = MASKS[kind]()
    uniform = ALGORITHMS["fedavg"](weights="uniform")
    held = rows()
    held[3] = held[3]._replace(x=held[3].x * float("nan"))
    fed, host = protected(uniform, mechanism, held=held)
    with pytest.raises(DivergedError, match="client 3"):
        play(fed, [ALL], host=host)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedavg uniform"])
def test_a_value_outside_the_range_names_one_that_would_do(kind: str, name: str) -> None:
    """Never a silent clip: the sentence names client, part and range, and with that range the round goes."""
    made = ALGORITHMS[name.split(maxsplit=1)[0]](**({"weights": "uniform"} if "uniform" in name else {}))
    mechanism = rekeyed(MASKS[kind](), range=2.0**-6)
    for _ in range(12):
        fed, host = protected(made, mechanism)
        try:
            play(fed, [ALL], host=host)
            break
        except PrivacyError as error:
            said = str(error)
            assert "client " in said
            assert "'model." in said or "'c." in said
            wanted = float(said.split("range = ")[1].split(" ", maxsplit=1)[0])
            assert wanted > mechanism.keys["range"]
            mechanism = rekeyed(mechanism, range=wanted)
    else:
        pytest.fail("no range did")
    assert mechanism.keys["range"] > 2.0**-6
    plain, _ = play(federation(made), [ALL])
    server, _ = play(fed, [ALL], host=protected(made, mechanism)[1])
    assert gap(server["model"], plain["model"]) < 1e-5
