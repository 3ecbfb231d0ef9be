"""Views of a run: each role sees its own bytes and no others, all links add up to what the rows count, and recording changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment, run
from fedatlas.attacks.roles import ViewRole
from fedatlas.errors import ConfigError
from fedatlas.record.observed import DIRECTIONS, FOLDER, RoleView, found_index
from fedatlas.record.run_folder import METRICS
from fedatlas.wire import codec

CLIENTS = 4
SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 160},
    "partition": {"name": "iid", "clients": CLIENTS},
    "model": {"name": "logistic"},
    "local": {"steps": 1, "batch_size": 16},
}
EVERYBODY = ["server", *(f"client:{k}" for k in range(CLIENTS))]


def observed(path: Path, roles: list[str], keys: dict[str, Any] | None = None, **tables: Any) -> Path:
    """A small run whose roles are watched."""
    given = {**SMALL, **tables, "observe": {"roles": roles, **(keys or {})}}
    run(Experiment.of(**given), out=path, baselines=False)
    return path


def crossed(run: Path) -> dict[int, dict[str, int]]:
    """Round -> direction -> bytes of all recorded links, each crossing once though both its ends recorded it."""
    out: dict[int, dict[str, int]] = {}
    seen: set[Any] = set()
    index = found_index(run / FOLDER)
    for text in index["roles"]:
        view = RoleView(run, ViewRole.parse(text, "role"))
        for number in view.rounds:
            sums = out.setdefault(number, dict.fromkeys(DIRECTIONS, 0))
            held: dict[Any, int] = {}
            for frame in view.frames(number):
                if frame.direction not in sums:
                    continue
                key = (frame.ask, frame.what, frame.direction, frame.client, frame.sender)
                held[key] = held.get(key, 0) + 1  # a client asked twice in an ask is two crossings
                if (*key, held[key]) not in seen:
                    seen.add((*key, held[key]))
                    sums[frame.direction] += frame.bytes
    return out


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / METRICS).read_text().splitlines()]


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"algorithm": {"name": "fedseq"}},
        {"algorithm": {"name": "fedseq"}, "compression": {"name": "topk", "share": 0.1}},
        {"algorithm": {"name": "gossip"}},
        {"algorithm": {"name": "gossip", "order": "combine_first"}},
        {"algorithm": {"name": "hwfedavg"}},
        {"algorithm": {"name": "scaffold"}, "failures": {"dropout": 0.3}},
        {"data": {"name": "digits", "limit": 160, "scale": "federated"}, "privacy": [{"name": "secagg"}]},
        {"data": {"name": "digits", "limit": 160, "scale": "federated"}, "privacy": [{"name": "two_server"}]},
    ],
    ids=[
        "fedavg",
        "fedseq",
        "fedseq topk",
        "gossip",
        "gossip mixes first",
        "hwfedavg",
        "scaffold",
        "secagg, scaled",
        "two_server, scaled",
    ],
)
def test_all_links_add_up_to_the_bytes_of_the_row(tmp_path: Path, tables: dict[str, Any]):
    serverless = tables.get("algorithm", {}).get("name") == "gossip"
    path = observed(tmp_path / "run", EVERYBODY[1:] if serverless else EVERYBODY, **tables)
    sums = crossed(path)
    for row in rows(path):
        assert sums[row["round"]] == {way: row[f"bytes_{way}"] for way in ("up", "down", "peer")}, row["round"]
    assert any(sum(found.values()) for found in sums.values())


def test_a_frame_holds_the_bytes_that_it_counts(tmp_path: Path):
    path = observed(tmp_path / "run", ["server"])
    for frame in RoleView(path, ViewRole("server")).frames(1):
        body = frame.body["message"] if frame.direction == "down" else frame.body
        assert codec.size(dict(body)) == frame.bytes


def test_a_role_sees_its_own_links_only(tmp_path: Path):
    roles = ["server", "client:1", "successor:1", "predecessor:1", "outsider"]
    path = observed(tmp_path / "run", roles, algorithm={"name": "fedseq"})
    server, client = (list(RoleView(path, role).frames(1)) for role in (ViewRole("server"), ViewRole("client", 1)))
    assert {frame.direction for frame in server} == {"up", "down"}
    assert client
    assert all(1 in (frame.client, frame.sender) for frame in client)
    handed = [frame for number in (1, 2) for frame in RoleView(path, ViewRole("successor", 1)).frames(number)]
    after = {frame.client for frame in handed if frame.sender == 1}
    assert all(frame.client in after and frame.direction in {"down", "peer"} for frame in handed)
    begun = [frame for number in (0, 1, 2) for frame in RoleView(path, ViewRole("predecessor", 1)).frames(number)]
    assert begun
    assert all(frame.client == 1 and frame.direction in {"down", "peer"} for frame in begun)
    (published,) = RoleView(path, ViewRole("outsider")).frames(2)
    assert set(published.body) == {"model"}


def test_recording_changes_no_figure(tmp_path: Path):
    plain, watched = tmp_path / "plain", observed(tmp_path / "watched", EVERYBODY)
    run(Experiment.of(**SMALL), out=plain, baselines=False)
    kept = ("accuracy", "loss", "bytes_up", "bytes_down", "train_loss")
    assert [{k: row[k] for k in kept} for row in rows(plain)] == [{k: row[k] for k in kept} for row in rows(watched)]
    assert (plain / "model.safetensors").read_bytes() == (watched / "model.safetensors").read_bytes()


def test_rounds_and_every_choose_what_is_kept(tmp_path: Path):
    path = observed(tmp_path / "run", ["server"], {"rounds": [1, 3], "every": 2}, rounds=4)
    assert RoleView(path, ViewRole("server")).rounds == [1, 3]


def test_a_run_that_is_continued_records_the_same(tmp_path: Path):
    from fedatlas import resume

    whole = observed(tmp_path / "whole", ["server", "outsider"], rounds=3)
    path = observed(tmp_path / "parts", ["server", "outsider"], rounds=2)
    stale = path / "observed" / "server" / "round-000003.frames"
    stale.write_bytes(b"of a round that was stopped")
    resume(path, ["rounds=3"])
    for role in (ViewRole("server"), ViewRole("outsider")):
        one, other = RoleView(whole, role), RoleView(path, role)
        assert one.rounds == other.rounds == [0, 1, 2, 3]
        for number in one.rounds:  # the name of the run stands in each request
            pairs = zip(one.frames(number), other.frames(number), strict=True)
            assert all(codec.encode(a.plain()["body"]) == codec.encode(b.plain()["body"]) for a, b in pairs)
            assert one.files[f"round-{number:06d}.frames"]["up"] == other.files[f"round-{number:06d}.frames"]["up"]


def test_past_the_limit_recording_stops_and_the_run_goes_on(tmp_path: Path):
    from fedatlas.course.progress import Silent

    heard: list[str] = []

    class Listening(Silent):
        def said(self, notice: str) -> None:
            heard.append(notice)

    given = {**SMALL, "rounds": 3, "observe": {"roles": ["server"], "limit": "40KiB"}}
    done = run(Experiment.of(**given), out=tmp_path / "run", baselines=False, progress=Listening())
    assert done.summary["rounds"] == 3
    assert [text for text in heard if "[observe] stopped in round" in text and "observe.limit" in text]
    view = RoleView(tmp_path / "run", ViewRole("server"))
    assert view.rounds == [0, 1]
    assert sum(one["size"] for one in view.files.values()) <= 40 << 10
    assert not list((tmp_path / "run" / "observed").rglob("*.part"))


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"observe": {"roles": ["serve"]}}, "did you mean 'server'"),
        ({"observe": {"roles": ["client"]}}, "'client:3' for client 3"),
        ({"observe": {"roles": ["client:4"]}}, "the clients are 0 to 3"),
        ({"observe": {"roles": ["successor:1"]}}, "passes no model from client to client"),
        ({"observe": {"roles": ["server", "server"]}}, "twice"),
        ({"observe": {"roles": ["server"]}, "algorithm": {"name": "gossip"}}, "no server takes part"),
        ({"observe": {"roles": ["server"]}, "algorithm": {"name": "local_only"}}, "baseline"),
        ({"observe": {"roles": ["server"], "rounds": [3, 0]}}, "the run ends with round 2"),
        ({"observe": {"roles": ["server"], "rounds": [2, 1]}}, "the first must not be after the last"),
        ({"observe": {"roles": ["server"], "limit": "much"}}, "is not a size"),
        ({"observe": {"role": ["server"]}}, "observe.role"),
    ],
)
def test_what_cannot_be_observed_is_refused(tmp_path: Path, tables: dict[str, Any], words: str):
    with pytest.raises(ConfigError, match=words):
        run(Experiment.of(**{**SMALL, **tables}), out=tmp_path / "run", baselines=False)


def test_a_view_that_is_not_there_whole_is_refused(tmp_path: Path):
    path = observed(tmp_path / "run", ["server"], {"rounds": [1, 1]})
    with pytest.raises(ConfigError, match=r'Add roles = \["client:0"\] under \[observe\]'):
        RoleView(path, ViewRole("client", 0))
    with pytest.raises(ConfigError, match=r"holds rounds 1 to 1, not round 2. Write rounds = \[2, 2\]"):
        list(RoleView(path, ViewRole("server")).frames(2))
    file = path / "observed" / "server" / "round-000001.frames"
    whole = bytearray(file.read_bytes())
    for data in (whole[:-7], whole[:200] + b"x" + whole[201:]):
        file.write_bytes(data)
        with pytest.raises(ConfigError, match="cut short or altered"):
            list(RoleView(path, ViewRole("server")).frames(1))
    file.unlink()
    with pytest.raises(ConfigError, match="missing"):
        list(RoleView(path, ViewRole("server")).frames(1))


def test_the_hash_of_a_run_does_not_say_whether_it_was_watched():
    watched = Experiment.of(**SMALL, observe={"roles": ["server"]})
    assert watched.config.hash() == Experiment.of(**SMALL).config.hash()
    assert "observe" not in Experiment.of(**SMALL).config.plain()
