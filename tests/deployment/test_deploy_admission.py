"""Who gets in, over the wire: certificates of every wrong kind, names taken twice, lists that were altered. No torch."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedatlas.cli_deploy import app
from fedatlas.deployment.trial import free_port
from fedatlas.errors import ConfigError, TransportError
from fedatlas.wire import bundle as bundles
from fedatlas.wire.bundle import Bundle
from fedatlas.wire.certificates import CERT, KEY, MEMBERS, REVOKED, Authority, Caller
from fedatlas.wire.channel import RefusedByServer, call, channel
from fedatlas.wire.frames import BEAT, BEGIN, MORE, Assembler, RawMessage, frames
from fedatlas.wire.hosts import EXCEPT, PROXIES, check_host, proxy_of
from fedatlas.wire.listener import SERVICE, STREAM, Listener, StreamEnded
from fedatlas.wire.messages import PROTOCOL, NodeHello, ServerStatus, StatusQuestion, written

pytestmark = pytest.mark.timing

PATIENCE = 60.0  # seconds after which a test gives up


class Site:
    """A listening server of a federation with two nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "federation"
        self.paths = bundles.init(self.folder, ["north", "south"], "localhost", free_port())
        self.logged: list[str] = []
        self.listener = Listener(Bundle.open(self.paths["server"], "server"), self.operate, self.logged.append)
        self.listener.start()

    def operate(self, caller: Caller, asked: Any) -> Iterator[Any]:  # noqa: ARG002
        yield ServerStatus(caller.name, (), ())

    def node(self, name: str = "north") -> Bundle:
        return Bundle.open(self.paths[name], "node")

    def operator(self) -> Bundle:
        return Bundle.open(self.paths["operator"], "operator")

    def issue(self, name: str, role: str, days: float = 30) -> None:
        """Another certificate of the federation's own authority into a bundle."""
        authority = Authority(self.folder / bundles.AUTHORITY)
        authority.issue(self.paths[name], self.listener.bundle.federation, role, name, days=days)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.listener.stop()


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("https://fed.example.org/x", "give the name alone, as in --host fed\\.example\\.org"),
        ("x:8443", "give the port by itself, as in --host x --port 8443"),
        ("", "--host '' is no name or address"),
        ("two words", "is no name or address"),
        ("münchen.example.org", "as --host xn--mnchen-3ya\\.example\\.org"),
    ],
)
def test_a_host_that_is_none_is_refused_before_anything_is_written(tmp_path: Path, host: str, said: str):
    with pytest.raises(ConfigError, match=said):
        bundles.init(tmp_path / "federation", ["north"], host)
    assert not (tmp_path / "federation").exists()


@pytest.mark.parametrize("host", ["localhost", "fed.example.org", "192.0.2.7", "2001:db8::7", "a_b", "x"])
def test_a_host_that_is_one_is_taken(host: str):
    check_host(host)


@pytest.mark.parametrize("nodes", [",b", "a,,b", "a,", ","])
def test_a_name_that_is_missing_beside_a_comma_is_refused(tmp_path: Path, nodes: str):
    words = ["init", str(tmp_path / "federation"), "--host", "localhost", "--nodes", nodes]
    with pytest.raises(ConfigError, match=f"--nodes {nodes}: a name is missing beside a comma"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "federation").exists()


def test_this_machine_is_reached_past_a_proxy_and_others_are_told_of_it(site: Site, monkeypatch: pytest.MonkeyPatch):
    for name in (*PROXIES, *EXCEPT):
        monkeypatch.delenv(name, raising=False)
    dead = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("http_proxy", dead)
    (said,) = call(site.operator(), StatusQuestion())
    assert said.federation == "operator"
    far = site.operator()._replace(host="fed.example.org")
    told = rf"fed\.example\.org:\d+ cannot be reached through the proxy of the variable http_proxy \({dead}\); 'export no_proxy"
    with pytest.raises(TransportError, match=told):
        list(call(far, StatusQuestion()))
    assert [proxy_of(host) for host in ("localhost", "127.0.0.1", "::1")] == [""] * 3
    monkeypatch.setenv("no_proxy", "other.org, example.org")
    assert proxy_of("fed.example.org") == ""


class Talk:
    """A node's stream that says hello and listens."""

    def __init__(self, bundle: Bundle, instance: str = "1", first: RawMessage | None = None) -> None:
        self.way = channel(bundle)
        self.more: list[bytes] = []
        self.over = threading.Event()
        hello = first or written(NodeHello(PROTOCOL, instance, VERSION, ready=True))
        self.call = self.way.stream_stream(f"/{SERVICE}/{STREAM}")(self._say(hello))

    def _say(self, hello: RawMessage) -> Iterator[bytes]:
        yield from frames(hello)
        while not self.over.wait(0.5):
            yield from self.more or [BEAT]
            self.more = []

    def ended(self) -> str:
        """Why the server ends it."""
        import grpc

        try:
            for _ in self.call:
                pass
        except grpc.RpcError as error:
            return str(error.details())
        finally:
            self.close()
        return ""

    def close(self) -> None:
        self.over.set()
        self.call.cancel()
        self.way.close()


def let_in(site: Site, name: str = "north", instance: str = "1") -> tuple[Talk, Any]:
    """Return a stream that the server let in, and the event of it. One that breaks before is opened again, as a node does."""
    for _ in range(int(PATIENCE)):
        talk = Talk(site.node(name), instance)
        for _ in range(int(PATIENCE)):
            with contextlib.suppress(queue.Empty):
                return talk, site.listener.events.get(timeout=1.0)
            if talk.call.done():
                break
        talk.close()
    raise AssertionError("the server lets nobody in")


VERSION = version("fedatlas")


def test_who_is_registered_gets_in(site: Site):
    talk, (name, hello) = let_in(site)
    assert (name, hello.instance) == ("north", "1")
    (said,) = call(site.operator(), StatusQuestion())
    assert said.federation == "operator"
    talk.close()


def strange(site: Site) -> None:
    site.issue("north", "node")


def expired(site: Site) -> None:
    site.issue("north", "node", days=-0.001)


def revoked(site: Site) -> None:
    bundles.revoke(site.folder, "north")


def another(site: Site) -> None:
    site.issue("north", "operator")


def renamed(site: Site) -> None:
    path = site.folder / bundles.AUTHORITY
    Authority(path).issue(site.paths["north"], "another-federation", "node", "north")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (strange, "its certificate is not registered"),
        (revoked, "its certificate is revoked"),
        (another, "its certificate is that of an operator, not of a node"),
        (renamed, "its certificate is of another federation"),
    ],
)
def test_who_is_not_is_refused_with_the_reason_and_logged(site: Site, make: Callable[[Site], None], why: str):
    make(site)
    assert Talk(site.node()).ended() == f"refused: {why}"
    assert why in site.logged[-1]
    assert "refused 'north'" in site.logged[-1]


def test_an_expired_certificate_does_not_pass_the_handshake(site: Site):
    expired(site)
    assert "refused" not in Talk(site.node()).ended()
    assert site.listener.events.empty()


def test_an_authority_of_somebody_else_does_not_either(site: Site, tmp_path: Path):
    foreign = bundles.init(tmp_path / "foreign", ["north"], "localhost", site.node().port)
    for name in (KEY, CERT):
        shutil.copy(foreign["north"] / name, site.paths["north"] / name)
    Talk(site.node()).ended()
    assert site.listener.events.empty()


def test_plain_text_gets_no_answer(site: Site):
    with socket.create_connection(("127.0.0.1", site.node().port), PATIENCE) as way:
        way.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        way.settimeout(PATIENCE)
        try:
            said = way.recv(100)
        except ConnectionResetError:
            said = b""
    assert b"HTTP" not in said
    assert site.listener.events.empty()


def test_a_node_is_no_operator(site: Site):
    with pytest.raises(RefusedByServer, match="its certificate is that of a node, not of an operator"):
        list(call(site.node(), StatusQuestion()))


def test_a_certificate_that_is_revoked_cuts_its_stream(site: Site):
    talk, _ = let_in(site)
    bundles.revoke(site.folder, "north")
    assert talk.ended() == "refused: its certificate is revoked"
    assert site.listener.events.get(timeout=PATIENCE)[1].why == "its certificate is revoked"


def test_lists_are_found_where_the_bundles_were_handed_over(tmp_path: Path):
    """The words of the commands name files that are there."""
    folder = tmp_path / "federation"
    bundles.init(folder, ["north"], "localhost")
    for path in folder.iterdir():
        if path.name != bundles.AUTHORITY:
            shutil.rmtree(path)
    for command, name in (["revoke", "north"], REVOKED), (["add", "east"], MEMBERS):
        said = CliRunner().invoke(app, [command[0], str(folder), command[1]], catch_exceptions=False).stdout
        named = [Path(line.split("  ")[0]) for line in said.splitlines() if name in line]
        assert [path.is_file() for path in named] == [True], said


def test_a_certificate_that_expires_cuts_its_stream(site: Site, monkeypatch: pytest.MonkeyPatch):
    talk, _ = let_in(site)
    stream = site.listener.streams["north"]
    stream.caller = stream.caller._replace(until=stream.caller.until.replace(year=2020))
    assert talk.ended() == "refused: its certificate has expired"


def test_a_name_is_not_taken_twice_but_the_same_folder_takes_its_old_place(site: Site):
    first, _ = let_in(site)
    assert Talk(site.node(), "2").ended() == "refused: another one of this name is connected"
    assert "refused 'north': another one of this name is connected" in site.logged
    again, (_, hello) = let_in(site)
    assert isinstance(hello, NodeHello)
    assert first.ended() == "refused: the same node came again"
    again.close()


def test_another_version_is_refused_in_a_sentence(site: Site):
    hello = NodeHello(PROTOCOL, "1", "0.0.1", ready=True)
    assert Talk(site.node(), first=written(hello)).ended() == (
        f"refused: it runs fedatlas 0.0.1 and the server {VERSION}: install the same version"
    )


def test_a_bundle_is_its_owners_alone_and_holds_no_other_key(site: Site):
    for name, path in site.paths.items():
        assert (path / KEY).stat().st_mode & 0o777 == 0o600, name
        assert not (path / "authority").exists()
    keys = {(path / KEY).read_bytes() for path in site.paths.values()}
    assert len(keys) == len(site.paths)
    assert (site.paths["north"] / "identity.key").stat().st_mode & 0o777 == 0o600


def test_a_list_that_the_authority_did_not_sign_is_not_believed(site: Site):
    for name in (MEMBERS, REVOKED):
        path = site.paths["server"] / name
        whole = json.loads(path.read_text())
        path.write_text(json.dumps({**whole, "list": whole["list"].replace("north", "n0rth") + " "}))
    with pytest.raises(ConfigError, match="cannot be trusted"):
        site.listener.bundle.members()
    assert "cannot be trusted" in Talk(site.node()).ended()


def test_a_party_is_added_and_one_that_was_revoked_gets_new_keys(site: Site):
    with pytest.raises(ConfigError, match="'north' is registered already"):
        bundles.add(site.folder, "north")
    before = (site.paths["north"] / CERT).read_bytes()
    bundles.revoke(site.folder, "north")
    bundles.add(site.folder, "north")
    assert (site.paths["north"] / CERT).read_bytes() != before
    site.paths["east"] = bundles.add(site.folder, "east")
    for name in ("north", "east"):
        talk, (entered, _) = let_in(site, name)
        assert entered == name
        talk.close()
        assert isinstance(site.listener.events.get(timeout=PATIENCE)[1], StreamEnded)
    assert set(site.node("south").members()) == {"server", "north", "south", "operator", "east"}


BAD_FRAMES: dict[str, list[bytes]] = {
    "announces more than is allowed": [BEGIN + (1 << 62).to_bytes(8, "little") + b"x"],
    "goes on with nothing": [MORE + b"x"],
    "is longer than it says": [BEGIN + (4).to_bytes(8, "little") + b"12345678"],
    "has no head": [BEGIN + (4).to_bytes(8, "little") + b"\xff\xff\x00\x00"],
    "is of no kind": [b"\x09abc"],
    "is empty": [b""],
    "begins within another": [BEGIN + (9).to_bytes(8, "little") + b"1", BEGIN + (9).to_bytes(8, "little") + b"1"],
    "is no object": [BEGIN + (6).to_bytes(8, "little") + b"\x02\x00\x00\x00[]"],
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_a_frame_that_cannot_come_is_refused_before_memory_is_taken(case: str):
    assembler, (*before, last) = Assembler(), BAD_FRAMES[case]
    for frame in before:
        assembler.feed(frame)
    with pytest.raises(TransportError):
        assembler.feed(last)


def test_a_message_comes_out_as_it_went_in():
    for size in (0, 1, (4 << 20) - 60, 9 << 20):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        assembler, found = Assembler(), None
        pieces: list[Any] = list(frames(RawMessage({"kind": "some", "n": [1, None]}, body)))
        assert all(len(piece) <= 4 << 20 for piece in pieces)
        for piece in pieces:
            assert found is None
            found = assembler.feed(piece)
        assert found is not None
        assert (found.head, bytes(found.body)) == ({"kind": "some", "n": [1, None]}, body)
