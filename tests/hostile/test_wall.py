"""The server's wall: bytes that would take its memory, streams and connections that would lock others out, a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agreements import Agreements
from fedatlas.deployment import server_run
from fedatlas.deployment.operator_client import fetch, watch
from fedatlas.deployment.server import Server
from fedatlas.deployment.server_run import EVENT_LINES, SubmittedRun
from fedatlas.errors import ConfigError, FedatlasError, ProtocolError
from fedatlas.federation.secrets import append
from fedatlas.files import write_bytes
from fedatlas.wire import bundle as bundles
from fedatlas.wire import listener, messages
from fedatlas.wire.bundle import FILE, Bundle
from fedatlas.wire.certificates import CERT, Caller, caller_of
from fedatlas.wire.channel import RefusedByServer, call, channel
from fedatlas.wire.frames import BEGIN, RawMessage, frames
from fedatlas.wire.listener import OPERATE, ORDINARY, SERVICE, STREAM, ListenerDied, StreamEnded
from fedatlas.wire.messages import (
    FetchRun,
    ModelStored,
    NodeEvent,
    NodeHello,
    NoticeEvent,
    RoundEvent,
    RunEvent,
    StartEvent,
    StatusEvent,
    StatusQuestion,
    StopRun,
    Submission,
    WatchRun,
    written,
)
from fedatlas.wire.slots import FILES, most_connections
from test_deploy_admission import Site, Talk

pytestmark = pytest.mark.timing

PATIENCE = 30.0
MOST = 60.0  # seconds in which a node enters on a busy machine; those in its way stay for 270


# ------------------------------------------------------------------------------------------------- streams, connections


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.listener.stop()


@contextlib.contextmanager
def saying_nothing(site: Site, path: Path, role: str, method: str, count: int) -> Iterator[None]:
    """So many streams of one certificate on which nobody says anything."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(PATIENCE)
        yield from ()

    with channel(Bundle.open(path, role)) as way:
        held = [way.stream_stream(f"/{SERVICE}/{method}")(nothing()) for _ in range(count)]
        yield
        over.set()
        for one in held:
            one.cancel()


def enters(site: Site, name: str = "north") -> float:
    """Seconds after which a node is in."""
    began = time.monotonic()
    talk = Talk(site.node(name))
    while True:
        who, said = site.listener.next(MOST)
        if who == name and isinstance(said, NodeHello):
            break
    took = time.monotonic() - began
    talk.close()
    return took


def waited(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    pause = threading.Event()
    return any(true() or pause.wait(0.05) for _ in range(int(20 * seconds)))


def test_silent_streams_of_one_certificate_lock_nobody_out(site: Site):
    south, operator = site.paths["south"], site.paths["operator"]
    with saying_nothing(site, south, "node", STREAM, 270), saying_nothing(site, south, "node", OPERATE, 270):
        with saying_nothing(site, operator, "operator", OPERATE, 270):
            assert enters(site) < MOST
            assert waited(lambda: site.listener.slots.held["operator"] == 0), "their calls are not ended"
            assert len(list(call(site.operator(), StatusQuestion()))) == 1
        assert waited(lambda: site.listener.slots.held["node"] == 0), "their streams are not ended"
        assert enters(site, "south") < MOST, "also the node whose certificate it was"
    assert any("it has 2 open already" in line for line in site.logged)
    assert any("it said no hello within 5 s" in line for line in site.logged)
    assert len(site.logged) < 20, "each refusal is logged once a minute"


def test_operators_and_nodes_have_slots_of_their_own(site: Site, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(listener.SLOTS, "operator", 2)
    with saying_nothing(site, site.paths["operator"], "operator", OPERATE, 4):
        assert waited(lambda: site.listener.slots.held["operator"] == 2)
        with pytest.raises(RefusedByServer, match="no slot left for its role"):
            list(call(site.operator(), StatusQuestion()))
        assert enters(site) < MOST


@pytest.mark.slow
def test_a_node_enters_while_1200_connections_stay_half_open(site: Site):
    """They are opened again as soon as the server has closed them."""
    port, over = site.node().port, threading.Event()
    held = [socket.create_connection(("127.0.0.1", port), PATIENCE) for _ in range(1200)]

    def again() -> None:
        while not over.wait(0.2):
            for i, one in enumerate(held):
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    with contextlib.suppress(ConnectionError):
                        one.recv(1)
                    one.close()
                    held[i] = socket.create_connection(("127.0.0.1", port), PATIENCE)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        for _ in range(4):  # longer than the server waits for a handshake
            assert enters(site) < MOST
            time.sleep(2)
    finally:
        over.set()
        thread.join()
        for one in held:
            one.close()


def test_a_connection_that_says_nothing_is_closed(site: Site):
    with socket.create_connection(("127.0.0.1", site.node().port), PATIENCE) as way:
        way.settimeout(MOST)
        assert way.recv(1) == b""


def test_connections_leave_room_for_open_files():
    assert 16 <= most_connections() < FILES


def test_a_message_before_the_hello_is_small(site: Site):
    first = RawMessage({"kind": "hello", "instance": "x" * (2 << 20)})
    assert "2097" in Talk(site.node(), first=first).ended()


def test_a_node_sends_no_more_than_it_was_asked_for(site: Site):
    talk = Talk(site.node())
    site.listener.next(PATIENCE)
    assert site.listener.streams["north"].assembler.limit == ORDINARY
    site.listener.send("north", messages.RunStart("r", messages.Signed("", "", ""), -1, b""), 2 * ORDINARY)
    assert site.listener.streams["north"].assembler.limit == 2 * ORDINARY
    talk.more = [BEGIN + (3 * ORDINARY).to_bytes(8, "little") + b"1234"]
    assert f"{2 * ORDINARY} are the most" in talk.ended()
    name, said = site.listener.next(PATIENCE)
    assert (name, type(said), said.broken) == ("north", StreamEnded, True)


def test_a_node_that_sends_on_and_on_is_cut(site: Site):
    talk = Talk(site.node())
    assert isinstance(site.listener.next(PATIENCE)[1], NodeHello)
    talk.more = [*frames(written(ModelStored("r", "x" * 9000)))] * 200
    assert "more than it was asked for" in talk.ended()
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(site.listener.next(1.0))
    assert len(found) <= listener.WAITING + 1


# --------------------------------------------------------------------------------------------------------- the program


class House:
    """The server's program in this process, with two operators; what a run does is a function of the test."""

    def __init__(self, folder: Path, **server: Any) -> None:
        self.made = Agreements(folder)
        bundles.add(folder / "federation", "other", "operator")
        path = self.made.paths["server"]
        path.joinpath(FILE).write_text(
            path.joinpath(FILE).read_text() + "".join(f"{key} = {value!r}\n" for key, value in server.items())
        )
        self.server = Server(Bundle.open(path, "server"))
        self.paths = {**self.made.paths, "other": folder / "federation" / "other"}

    def caller(self, name: str) -> Caller:
        found = caller_of((self.paths[name] / CERT).read_bytes())
        assert found is not None
        return found

    def ask(self, name: str, asked: Any) -> list[Any]:
        return list(self.server.operate(self.caller(name), asked))

    def submission(self, name: str, run: str) -> Submission:
        made = object.__new__(type(self.made))
        made.__dict__.update(self.made.__dict__)
        made.paths = {**self.made.paths, "operator": self.paths[name]}
        return Submission(made.signed(run))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def serving(server: Server) -> None:
    with contextlib.suppress(ListenerDied):
        server.serve()


def full(path: Any, *args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("raised", ["in a file", "in a line"])
def test_a_full_disk_pauses_the_run_and_it_goes_on(house: House, monkeypatch: pytest.MonkeyPatch, raised: str):
    """The third write finds no room; when there is room, the run is taken up as after a restart."""
    house.ask("operator", house.submission("operator", "one"))
    began: list[int] = []

    def run(job: SubmittedRun, context: Any) -> None:
        began.append(1)
        if len(began) == 1:
            monkeypatch.setattr(os, "fsync", full)
        if raised == "in a file":
            write_bytes(job.folder / "kept", b"x")
        else:
            job.event(NoticeEvent("x"))

    monkeypatch.setattr(server_run, "_run", run)
    monkeypatch.setattr("fedatlas.deployment.server.AGAIN", 0.1)
    thread = threading.Thread(target=serving, args=(house.server,), daemon=True)
    thread.start()
    assert waited(lambda: bool(house.server.paused))
    (status,) = house.ask("operator", StatusQuestion())
    assert "the server's disk is full" in status.runs[0].why
    assert status.runs[0].status == "running"
    told = (
        said for said in house.server.operate(house.caller("operator"), WatchRun("one")) if isinstance(said, RunEvent)
    )
    assert any("disk is full" in said.text for said in told if isinstance(said, NoticeEvent))
    monkeypatch.undo()
    monkeypatch.setattr(server_run, "_run", run)
    events = [said for said in house.ask("operator", WatchRun("one")) if isinstance(said, RunEvent)]
    assert events[-1].status == "finished"
    assert any("disk was full for" in said.text for said in events if isinstance(said, NoticeEvent))
    assert len(began) == 2
    assert (house.server.bundle.path / "room").exists() is False
    house.server.listener.serving.append(threading.Thread())
    thread.join(PATIENCE)


def test_what_happens_in_a_run_is_told_as_records_and_lines_that_are_none_are_passed_over(
    house: House, monkeypatch: pytest.MonkeyPatch
):
    house.ask("operator", house.submission("operator", "one"))
    job = SubmittedRun(house.server.runs / "one")
    told: list[RunEvent] = [
        StartEvent(3, 0),
        RoundEvent(1, 0.5, {"north": 0.25}, 0.75, loss=math.nan),
        NodeEvent(2, "north", "lost: no reply"),
        NoticeEvent("The model stays."),
        StatusEvent("finished", ""),
    ]
    for torn in ('{"kind": "said", "te', '{"kind": "learn"}', "[]", '{"kind": "said", "text": 1}'):
        append(job.folder / EVENT_LINES, torn)
    for one in told:
        job.event(one)
    found = house.ask("operator", WatchRun("one"))
    assert str([one._replace(time=0.0, number=0) for one in found]) == str(told)
    assert [one.number for one in found] == [5, 6, 7, 8, 9]
    assert str(house.ask("operator", WatchRun("one", 8))) == str(found[-1:])

    def answers(bundle: Bundle, asked: Any) -> Iterator[Any]:
        yield from (messages.answer(asked, written(one)) for one in found)

    monkeypatch.setattr("fedatlas.deployment.operator_client.call", answers)
    said: list[str] = []
    assert watch(house.made.operator, "one", said.append) == found[-1]
    assert said == [
        "round 1/3  accuracy 0.7500  loss nan  0.50 s  (north 0.25 s)",
        "  round 2: north lost: no reply",
        "The model stays.",
        "Run one: finished.",
    ]


def test_a_submission_on_a_full_disk_can_be_made_again(house: House, monkeypatch: pytest.MonkeyPatch):
    made = house.submission("operator", "one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FedatlasError, match="the disk is full"):
            house.ask("operator", made)
    assert house.ask("operator", made)[0].run == "one"


def test_the_program_ends_where_the_port_is_served_no_more(house: House, monkeypatch: pytest.MonkeyPatch):
    start = house.server.listener.start

    def start_and_die() -> None:
        start()
        house.server.listener.serving.append(threading.Thread())  # one that does not run

    monkeypatch.setattr(house.server.listener, "start", start_and_die)
    with pytest.raises(ListenerDied, match="a thread that serves the port has ended"):
        house.server.serve()


ENDS = """
import sys, threading
from pathlib import Path
from fedatlas.deployment import server
def broken(self):
    if self.listener.streams: raise RuntimeError("some fault")
    return None
server.Server._next_run = broken
sys.argv = ["fedatlas", "deploy", "server", sys.argv[1]]
from fedatlas.cli import main
main()
"""


def test_an_unexpected_error_ends_the_process_though_streams_are_open(tmp_path: Path):
    """systemd starts again what has ended; a process whose threads live on would look well."""
    made = Site(tmp_path)  # for its bundles
    made.listener.stop()
    command = [sys.executable, "-c", ENDS, str(made.paths["server"])]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert waited(lambda: "listens" in log_of(made)), "it does not begin"
            while process.poll() is None:  # a stream that broke is opened again, as a node does
                talk = Talk(made.node())
                assert waited(lambda talk=talk: process.poll() is not None or talk.call.done()), "it does not end"
                talk.close()
        finally:
            process.kill()
    assert process.returncode not in {0, -signal.SIGKILL}
    assert "the server ends" in log_of(made)


def log_of(site: Site) -> str:
    path = site.paths["server"] / "server.log"
    return path.read_text() if path.exists() else ""


def test_what_others_say_forges_no_line_of_the_log(house: House):
    house.server.log("a node said: x\n2026-01-01 00:00:00 'north' is connected\x1b[2J")
    lines = (house.server.bundle.path / "server.log").read_text().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("    2026")
    assert "\x1b" not in lines[1]


def test_a_folder_of_a_run_that_cannot_be_read_stops_nobody(house: House):
    odd = house.server.runs / "a-damaged-run"
    odd.mkdir(parents=True)
    (odd / "job.json").write_text('{"agreement": 5}')
    house.ask("operator", house.submission("operator", "one"))
    (status,) = house.ask("operator", StatusQuestion())
    assert [one.run for one in status.runs] == ["one"]


# ----------------------------------------------------------------------------------------------------------- operators


def test_operators_see_their_own_runs(house: House):
    house.ask("operator", house.submission("operator", "one"))
    house.ask("other", house.submission("other", "two"))
    for name, own, others in ("operator", "one", "two"), ("other", "two", "one"):
        assert [run.run for run in house.ask(name, StatusQuestion())[0].runs] == [own]
        for asked in (WatchRun(others), FetchRun(others), StopRun(others)):
            with pytest.raises(ConfigError, match=f"there is no run '{others}'"):
                house.ask(name, asked)
        assert house.ask(name, StopRun(own))[0].run == own


def test_the_servers_bundle_may_show_all_runs(tmp_path: Path):
    house = House(tmp_path, operators_see="all")
    house.ask("operator", house.submission("operator", "one"))
    assert [run.run for run in house.ask("other", StatusQuestion())[0].runs] == ["one"]
    with pytest.raises(ConfigError, match="operators_see is 'own' or 'all', not 'some'"):
        House(tmp_path / "again", operators_see="some")


def test_an_operator_takes_no_run_of_another(house: House):
    house.ask("operator", house.submission("operator", "one"))
    with pytest.raises(ConfigError, match="there is a run 'one' already"):
        house.ask("other", house.submission("other", "one"))
    with pytest.raises(ConfigError, match="is signed by 'operator', and 'other' submits it"):
        house.ask("other", house.submission("operator", "three"))


def test_of_sixteen_submissions_at_once_each_is_its_operators_own(house: House):
    made = [("operator" if i % 2 else "other", f"run-{i}") for i in range(16)]
    asked = [(name, house.submission(name, run)) for name, run in made]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda one: house.ask(*one), asked))
    kept = {run.name: run.agreement.operator for run in house.server._submitted()}
    assert kept == {run: name for name, run in made}


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a//b", "a/./b", "..", "", "a\\b", "c:x", "a\0b"])
def test_a_name_of_a_file_that_leaves_the_folder_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, house: House
):
    def answers(bundle: Bundle, asked: Any) -> Iterator[Any]:
        yield messages.answer(asked, RawMessage({"kind": "file", "name": name}, b"x"))

    monkeypatch.setattr("fedatlas.deployment.operator_client.call", answers)
    with pytest.raises(ProtocolError, match="is not the name of a file in a folder"):
        fetch(house.made.operator, "one", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for head in ({"kind": "home", "run": name}, {"kind": "commit", "run": name, "verdicts": []}):
        with pytest.raises(ProtocolError, match="is not the name of a run"):
            messages.read(RawMessage(head), messages.TO_NODE)
