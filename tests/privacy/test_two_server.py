"""Two servers: what is opened, whose shares count, and what either server's recorded view shows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fedatlas import Experiment
from fedatlas.api import dry_run, run
from fedatlas.attacks.roles import ViewRole
from fedatlas.deployment.refusals import deployable
from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import OPENED
from fedatlas.leakage.view_gradients import read_gradients
from fedatlas.privacy.ask_protocol import WORK
from fedatlas.privacy.mechanisms import secagg, two_server
from fedatlas.privacy.secagg.hidden_weights import Rounding, words_of
from fedatlas.privacy.sharing.additive import joined
from fedatlas.privacy.two_server.shared_sum import SECOND, SHARE
from fedatlas.record.observed import RoleView, ViewFrame
from fedatlas.record.run_folder import RunFolder
from federation import play, same, states
from protected import ADMITTED, ALL, admitted, protected, silent
from test_privacy_rounds import FOUR, Seen

pytestmark = pytest.mark.timing

TABLES: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "digits", "limit": 300},
    "partition": {"name": "iid", "clients": 4},
    "engine": {"name": "loop"},
    "privacy": [{"name": "two_server"}],
    "observe": {"roles": ["server", "second_server"]},
}


def experiment(**tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, **tables})


# ---------------------------------------------------------------------- what is opened


@pytest.mark.parametrize("name", ADMITTED)
def test_the_sum_is_that_of_the_masks_to_the_bit(name: str) -> None:
    """The words are the same, and so are their sums: models and clients' states."""
    made, needs, plan = admitted(name)
    ends = []
    for mechanism in (secagg(), two_server()):
        fed, host = protected(made, mechanism, **needs)
        server, _ = play(fed, plan, host=host)
        ends.append((server, states(host)))
    assert same(ends[0][0], ends[1][0])
    assert same(ends[0][1], ends[1][1])


@pytest.mark.parametrize("phase", [WORK, SECOND])
@pytest.mark.parametrize("name", ADMITTED)
def test_a_client_that_leaves_before_either_share(monkeypatch: pytest.MonkeyPatch, name: str, phase: str) -> None:
    """Its shares count only if both arrived: the sum is that of the others, with their weights."""
    made, needs, _ = admitted(name)
    fed, host = protected(made, two_server(), **needs)
    seen = Seen(monkeypatch, fed, host)
    host.leavers = {1: {2: phase}}
    play(fed, FOUR, host=host)
    assert seen.opened
    assert host.server.counted == {0, 1, 3, 4}
    assert (2 in {k for *_, k in host.asked(SECOND)}) is (phase == SECOND)


@pytest.mark.parametrize("what", ["train", SECOND])
def test_a_client_that_falls_silent(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    fed, host = protected("scaffold", two_server())
    seen = Seen(monkeypatch, fed, host)
    host.lose = silent(what, {3}, {2})
    play(fed, [ALL] * 2, host=host)
    assert seen.opened >= 2
    assert host.server.counted == {0, 1, 2, 4}


@pytest.mark.parametrize("what", ["train", SECOND])
def test_fewer_than_three_that_both_servers_heard_are_no_sum(what: str) -> None:
    fed, host = protected("scaffold", two_server())
    server, _ = play(fed, [ALL], host=host)
    before = states(host)
    host.lose = silent(what, {0, 1, 2}, {2})
    after, _ = play(fed, [ALL], server=server, host=host, first=2)
    assert same(server, after)
    assert same(states(host), before)
    assert "only 2 clients gave a share to both servers" in host.given_up
    assert len(host.asked(SECOND)) == (5 if what == "train" else 10)  # of two firsts no second is asked for


def test_both_shares_are_given_once(tmp_path: Path) -> None:
    """A server without a journal asks for round 1 again: every client says no, also after it was started anew."""
    fed, host = protected("fedavg", two_server(), folder=tmp_path)
    server = fed.begin(host)
    play(fed, [ALL], server=server, host=host)
    lines = [json.loads(line) for line in (tmp_path / OPENED).read_text().splitlines()]
    assert sorted(lines) == [[k, "run", [1, "train"]] for k in ALL]
    _, second = protected("fedavg", two_server(), folder=tmp_path)
    for each in (host, second):
        each.server.guard = each.server.guard._replace(journal=None)
        each.states.landed = None
        each.refusals = []
        after, _ = play(fed, [ALL], server=server, host=each)
        assert same(server, after)
        assert [request.what for request, _ in each.refusals] == [SECOND] * 5
        assert all("was opened once and is not opened again" in str(error) for _, error in each.refusals)


# ---------------------------------------------------------------------- what either server sees


def frames(path: Path, role: str, rounds: tuple[int, ...] = (1, 2)) -> Iterator[ViewFrame]:
    view = RoleView(path, ViewRole(role))
    for number in rounds:
        yield from view.frames(number)


def shares(path: Path, role: str) -> dict[Any, Any]:
    """(round, client) -> the words that this server was sent, both groups of them in a row."""
    found = {}
    for frame in frames(path, role):
        if frame.direction == "up":
            words = [x.numpy().astype("<i8").ravel() for x in frame.body[SHARE].values()]
            found[frame.ask[1], frame.client] = np.concatenate(words)
    return found


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same run twice: the same updates, other shares."""
    folder = tmp_path_factory.mktemp("two")
    return [run(experiment(), out=folder / name, baselines=False).path for name in ("one", "other")]


def test_the_views_are_apart(twice: list[Path]) -> None:
    """The server's holds no share of the other; the second server is sent shares and told which ask they are of."""
    assert {frame.what for frame in frames(twice[0], "server")} == {"train"}
    assert {frame.what for frame in frames(twice[0], "second_server")} == {SECOND}
    for frame in frames(twice[0], "second_server"):
        told = frame.body["message"].keys() if frame.direction == "down" else frame.body.keys()
        assert {*told} == ({"run", "round", "ask"} if frame.direction == "down" else {SHARE})
    assert (
        shares(twice[0], "server").keys()
        == shares(twice[0], "second_server").keys()
        == {*itertools.product((1, 2), range(4))}
    )


@pytest.mark.parametrize("role", ["server", "second_server"])
def test_either_server_sees_uniform_words(twice: list[Path], role: str) -> None:
    """Bytes of every recorded message by a chi-square test; no two messages, also of the same update, share a word or are related."""
    found = [words for path in twice for words in shares(path, role).values()]
    assert len(found) == 16
    for words in found:
        counts = np.bincount(words.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    for one, other in itertools.combinations(found, 2):
        assert not (one == other).any()
        assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.1


def test_neither_view_determines_an_update_and_both_do(twice: list[Path]) -> None:
    """The same updates behind different views of each server; put together both runs' shares are the same small numbers."""
    updates = []
    for path in twice:
        first, second = shares(path, "server"), shares(path, "second_server")
        updates.append({key: joined(first[key], second[key]) for key in first})
    assert all(np.array_equal(updates[0][key], updates[1][key]) for key in updates[0])
    for words in updates[0].values():
        assert int(np.abs(words).max()) < 2**44  # n q: rows times steps, far from the ends of the ring
        assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue < 1e-6  # the test can fail
    models = [(path / "model.safetensors").read_bytes() for path in twice]
    assert models[0] == models[1]


def test_an_attack_on_a_servers_view_reads_noise(twice: list[Path]) -> None:
    """What an attack takes for gradients is uniform in [-1, 1); the second server's view holds no model to attack."""
    whole = RunFolder(twice[0]).config()
    found = read_gradients(RoleView(twice[0], ViewRole("server")), whole, 0)
    read = torch.cat([x.flatten() for x in found[1].values()])
    assert stats.kstest(read.double().numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-6
    with pytest.raises(ConfigError, match="'second_server' holds no model of round 1"):
        read_gradients(RoleView(twice[0], ViewRole("second_server")), whole, 0)


def test_any_update_explains_a_servers_view() -> None:
    """For a recorded share there is, for each update, exactly one share of the other server: none is more likely."""
    steps, word = Rounding(12, 4.0, 100), {"clients": 3, "mean": False, "sums": [], "weights": {"": ["told", 1.0, 1.0]}}
    view = np.arange(7, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for seed in range(5):
        update = {"model": torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)}
        groups, _, _ = words_of(steps, update, 9, word, 0)
        [words] = groups.values()
        other = words.astype(np.uint64)[:7] - view
        assert np.array_equal(joined(view, other), words.astype(np.uint64)[:7])


def test_a_second_server_is_observed_only_where_there_is_one() -> None:
    with pytest.raises(ConfigError, match=r"observe.roles = 'second_server': only one server takes part"):
        dry_run(experiment(privacy=[{"name": "secagg"}]))


# ---------------------------------------------------------------------- cost, words, deployment


def test_bytes_of_both_shares_are_counted(twice: list[Path], tmp_path: Path) -> None:
    """In the rows and in the dry run: twice the words of the masks, and no keys."""
    sent = [
        frame.bytes
        for role in ("server", "second_server")
        for frame in frames(twice[0], role, (2,))
        if frame.direction == "up"
    ]
    row = json.loads((twice[0] / "metrics.jsonl").read_text().splitlines()[2])
    assert row["bytes_up"] == sum(sent)
    plan = dry_run(experiment(), baselines=False)["privacy"]
    masks = dry_run(experiment(privacy=[{"name": "secagg"}], observe=None), baselines=False)["privacy"]
    assert plan["bytes_per_round"] == row["bytes_up"] + row["bytes_down"]
    assert masks["bytes_per_round"] < plan["bytes_per_round"]
    assert plan["seconds_by_phase"]["share"] > 0
    assert plan["n_cap"]["saves_per_round"] > 1.8 * masks["n_cap"]["saves_per_round"]


def test_a_deployed_run_refuses_it() -> None:
    tables = {name: x for name, x in TABLES.items() if name in {"rounds", "partition", "privacy"}}
    with pytest.raises(ConfigError, match=r"'two_server': not in this version of deployment; of the mechanisms it has"):
        deployable(Experiment.of(**tables).config, ["a", "b", "c", "d"])
