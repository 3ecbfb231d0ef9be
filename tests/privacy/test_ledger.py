"""The ledger of releases: on the disk before its release is used, append-only, and what a killed process leaves of it."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import pytest

from fedatlas.errors import CheckpointError, DiskError, PrivacyError
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.ledger import Event


def event(number=1, **changes):
    return Event("central_dp", number, "gaussian", 1.5, 0.5, "client", "add or remove", 1e-5, rate=0.25)._replace(
        **changes
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def test_events_come_back_as_they_were_written(path):
    events = [
        event(1),
        event(2, noise="laplace", rate=1.0, clients=(3, 7)),
        event(3, source="seed", multiplier=0.1 + 0.2),
    ]
    assert ledger.read(path) == ledger.Ledger((), 0)
    ledger.append(path, events[:2])
    ledger.append(path, events[2:])
    assert ledger.read(path) == ledger.Ledger(tuple(events), 0)
    lines = path.read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def test_the_line_is_flushed_before_append_returns(path, monkeypatch):
    flushed = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(path.read_bytes()), real(handle)))
    ledger.append(path, [event(1)])
    assert len(flushed) == 2  # the file, and the folder that names it
    assert flushed[0] == path.read_bytes() != b""
    ledger.append(path, [event(2)])
    assert flushed[2] == path.read_bytes()


def test_a_line_torn_anywhere_is_counted_and_the_next_is_whole(path):
    ledger.append(path, [event(1)])
    first = path.read_bytes()
    ledger.append(path, [event(2)])
    whole = path.read_bytes()
    for cut in range(len(first) + 1, len(whole)):
        path.write_bytes(whole[:cut])
        done = cut == len(whole) - 1  # only the line feed is missing: the release may have been used
        assert ledger.read(path) == ledger.Ledger((event(1), event(2)) if done else (event(1),), 0 if done else 1), cut
        ledger.append(path, [event(3)])
        assert ledger.read(path).events[-1] == event(3)
        assert ledger.read(path).torn == (0 if done else 1)
        assert path.read_bytes().startswith(whole[:cut])  # append-only, torn lines too


def test_a_checkpoint_verifies_that_its_beginning_is_still_there(path):
    ledger.verify(path, ledger.mark(path))  # no ledger yet
    ledger.append(path, [event(1), event(2)])
    seen = ledger.mark(path)
    ledger.verify(path, seen)
    ledger.append(path, [event(3)])  # by a run that went on after the checkpoint and died
    ledger.verify(path, seen)
    assert len(ledger.read(path).events) == 3
    content = path.read_bytes()
    path.write_bytes(content[: seen.bytes - 1])
    with pytest.raises(CheckpointError, match="releases are missing"):
        ledger.verify(path, seen)
    path.write_bytes(content.replace(b"1.5", b"9.5", 1))
    with pytest.raises(CheckpointError, match="altered"):
        ledger.verify(path, seen)
    path.unlink()
    with pytest.raises(CheckpointError, match="releases are missing"):
        ledger.verify(path, seen)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"round": 1', b'"round": '),
        lambda line: line.replace(b'"multiplier": 1.5', b'"multiplier": -1'),
        lambda line: line.replace(b'"multiplier": 1.5', b'"multiplier": NaN'),
        lambda line: line.replace(b'"multiplier": 1.5', b'"multiplier": "much"'),
        lambda line: line.replace(b'"rate": 0.25', b'"rate": 0'),
        lambda line: line.replace(b'"gaussian"', b'"gauss"'),
        lambda line: line.replace(b'"clients": []', b'"clients": 3'),
        lambda line: line.replace(b'"clients": []', b'"customers": []'),
        lambda line: b"{}",
        lambda line: b"\xff}",
    ],
)
def test_a_damaged_line_is_said_in_one_sentence(path, damage):
    ledger.append(path, [event(1), event(2)])
    lines = path.read_bytes().split(b"\n")
    changed = damage(lines[0])
    assert changed != lines[0]
    path.write_bytes(b"\n".join([changed, *lines[1:]]))
    with pytest.raises(CheckpointError, match=r"line 1 of the ledger .* is damaged") as error:
        ledger.read(path)
    assert "\n" not in str(error.value)


def test_what_no_accountant_could_read_is_not_entered(path):
    for odd in (
        {"rate": 0.0},
        {"delta": 1.0},
        {"multiplier": float("nan")},
        {"sensitivity": float("inf")},
        {"unit": "row"},
    ):
        with pytest.raises(PrivacyError, match="cannot be entered in the ledger"):
            ledger.append(path, [event(1), event(2, **odd)])
    assert not path.exists()


def test_a_ledger_that_cannot_be_written_stops_the_release(tmp_path):
    with pytest.raises(DiskError, match="the run does not go on"):
        ledger.append(tmp_path / "missing" / "ledger.jsonl", [event(1)])


def test_a_full_disk_stops_the_release(path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    ledger.append(path, [event(1)])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        ledger.append(path, [event(2)])


def test_a_repeated_round_costs_again_unless_it_is_the_same_release():
    again = [event(1), event(2), event(2), event(3)]
    assert ledger.counted(again) == tuple(again)
    seeded = [each._replace(source="seed") for each in again]
    assert ledger.counted(seeded) == (seeded[0], seeded[1], seeded[3])
    other = [*seeded, seeded[1]._replace(clients=(5,))]  # another cohort: another release
    assert len(ledger.counted(other)) == 4
    price = accountant.spent(again, 1e-5).epsilon
    assert accountant.spent(seeded, 1e-5).epsilon == accountant.spent(again[1:], 1e-5).epsilon < price


def releases_until_killed(path, used):
    """Enters release after release, and tells of each only after its line lies on the disk."""
    number = 0
    while True:
        number += 1
        ledger.append(path, [event(number, clients=tuple(range(50)))])
        used.send_bytes(number.to_bytes(4, "little"))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_killed_process_never_reports_less_than_it_released(path):
    fork = multiprocessing.get_context("fork")
    total = 0
    for moment in range(20):
        there, here = fork.Pipe(duplex=False)
        process = fork.Process(target=releases_until_killed, args=(path, here))
        process.start()
        here.close()
        used = 0
        while used < 1 + moment % 7:
            used = int.from_bytes(there.recv_bytes(), "little")
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while there.poll():  # told of before the signal arrived
            try:
                used = int.from_bytes(there.recv_bytes(), "little")
            except EOFError:
                break
        there.close()
        total += used
        found = ledger.read(path)
        assert len(found.events) >= total
        total = len(found.events)  # lines whose release was not told of cost, too
