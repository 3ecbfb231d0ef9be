"""DP-FTRL (B16): which noises a running sum holds, what one client moves, what that costs, and what a resume repeats."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedatlas import Algorithm, Experiment, secret
from fedatlas.algorithms import ALGORITHMS
from fedatlas.api import dry_run, resume, run
from fedatlas.config import CohortConfig, parse
from fedatlas.deployment.refusals import refuse
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.federation.link import Observer, Request
from fedatlas.federation.secrets import LEDGER
from fedatlas.federation.server import ServerHalf
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.ask_protocol import MEMORY
from fedatlas.privacy.dp_ftrl.mechanism import DPFTRL, most_paid
from fedatlas.privacy.dp_ftrl.tree_noise import Node, entered, grown, last, nodes, start, visits
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.privacy.mechanism import Noise, Protection
from fedatlas.privacy.mechanisms import dp_ftrl
from fedatlas.privacy.noise import gaussian
from fedatlas.setup.cohort import select
from fedatlas.setup.resolution import resolve
from fedatlas.wire import codec
from federation import gap, play
from protected import protected, without_noise

pytestmark = pytest.mark.timing

SEED = Noise("seed", 7)
UNIFORM = {"name": "fedavg", "weights": "uniform"}
FTRL = {"name": "dp_ftrl", "clip": 0.5, "noise_multiplier": 0.5}
TABLES: dict[str, Any] = {
    "rounds": 6,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "iid", "clients": 8},
    "model": {"hidden": [8]},
    "engine": {"name": "loop"},
    "evaluation": {"every": 6},
    "algorithm": UNIFORM,
    "cohort": {"sampling": "passes", "size": 2},
}


def experiment(**tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": [FTRL], **tables})


# ---------------------------------------------------------------------- the tree


@pytest.mark.parametrize("t", range(1, 200))
def test_a_running_sum_is_made_of_as_many_nodes_as_its_number_has_ones(t: int) -> None:
    found = nodes(t)
    assert len(found) == t.bit_count()
    assert [k for node in found for k in range(node.after, node.end)] == [*range(t)]  # each release once, in order
    for after, end in found:
        assert (end - after).bit_count() == 1
        assert after % (end - after) == 0
    assert found[-1] == last(t)


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 100, 255])
def test_a_release_lies_in_few_nodes(T: int) -> None:
    """Counted one by one; the bound floor(log2 T) + 1 is met by the first release. S sqrt(7) for T = 100, as in the spec."""
    used = {node for t in range(1, T + 1) for node in nodes(t)}
    assert used == {last(t) for t in range(1, T + 1)}
    held = [sum(node.after < t <= node.end for node in used) for t in range(1, T + 1)]
    assert max(held) == held[0] == math.floor(math.log2(T)) + 1
    assert T != 100 or max(held) == 7


def grow(rounds: int, n: int, noise: Noise) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    """The noises of so many releases, and the memories after each."""
    memory, found, kept = start(), [], []
    for _ in range(rounds):
        memory, one = grown(entered(memory, 1, (0,)), n, 1.0, noise)
        found.append(one)
        kept.append(memory)
    return found, kept


@pytest.mark.parametrize("noise", [Noise(), SEED], ids=["os", "seed"])
def test_the_noise_of_a_running_sum_has_the_variance_of_its_nodes(noise: Noise) -> None:
    """popcount(t), at most log2 T + 1, where independent noise in each round would have t; two sums share what their nodes share."""
    n, T = 40_000, 13
    sums = torch.stack(grow(T, n, noise)[0]).cumsum(0)
    for t in range(1, T + 1):
        expected = t.bit_count()
        assert float(sums[t - 1].var()) == pytest.approx(expected, rel=6 * math.sqrt(2 / n))
        for s in range(1, t):
            shared = len({*nodes(s)} & {*nodes(t)})
            found = float((sums[s - 1] * sums[t - 1]).mean())
            assert found == pytest.approx(shared, abs=6 * math.sqrt((expected * s.bit_count() + shared**2) / n))


def of_node(memory: dict[str, Any], at: int, n: int) -> torch.Tensor:
    """The noise of a node in use, by its place, from its key."""
    own, node = Noise(secret=bytes(memory["keys"][at].tolist())), nodes(len(memory["asked"]))[at]
    return gaussian(n, 1.0, own, "dp_ftrl", memory["began"], node.after, node.end)


def test_a_node_keeps_its_noise_until_it_is_dropped() -> None:
    """The sums at 8 and 12 of a tree share the noise of (0, 8]; nothing of the nodes inside is left."""
    noises, memories = grow(12, 50, Noise())
    sums = torch.stack(noises).cumsum(0)
    eight, twelve = memories[7], memories[11]
    assert (len(eight["keys"]), len(twelve["keys"])) == (1, 2)
    assert torch.equal(eight["keys"][0], twelve["keys"][0])
    whole, rest = of_node(twelve, 0, 50), of_node(twelve, 1, 50)
    assert float((sums[7] - whole).abs().max()) < 1e-12
    assert float((sums[11] - whole - rest).abs().max()) < 1e-12


def test_a_memory_crosses_the_disk_bit_by_bit() -> None:
    """Release 6 takes the noise of (4, 5] off again, from the key as a checkpoint holds it."""
    memory = codec.decode(codec.encode(grow(5, 50, Noise())[1][-1]))
    after, noise = grown(entered(memory, 1, (0,)), 50, 1.0, Noise())
    dropped, new = of_node(memory, 1, 50), of_node(after, 1, 50)
    assert torch.equal(noise, new - dropped)
    assert torch.equal(after["keys"][0], memory["keys"][0])


def test_a_new_tree_begins_without_the_old_nodes() -> None:
    memory = grow(5, 10, Noise())[1][-1]
    fresh = entered(memory, 6, (3, 1))
    assert (fresh["began"], fresh["asked"], len(fresh["keys"])) == (6, [[1, 3]], 0)
    assert visits(entered(fresh, 6, (3,)), Node(0, 2)) == {1: 1, 3: 2}


# ---------------------------------------------------------------------- sensitivity, and its price


def how(K: int, fraction: float, rounds: int, **keys: Any) -> tuple[Protection, DPFTRL]:
    mechanism = dp_ftrl(**{"delta": 1e-5, **keys})
    return Protection((mechanism,), K, rounds, fraction, 0), DPFTRL(**mechanism.keys)


def lines(cohorts: Sequence[Sequence[int]], who: Protection, own: DPFTRL) -> list[ledger.Event]:
    """The ledger of rounds with these cohorts."""
    memory: Any = start()
    found: list[ledger.Event] = []
    for number, asked in enumerate(cohorts, 1):
        place: Any = SimpleNamespace(round=number)
        memory, more = own.enter(memory, who, place, asked)
        found += more
    return found


def passes(K: int, m: int, rounds: int) -> list[tuple[int, ...]]:
    return [select(CohortConfig(size=m, sampling="passes"), [*range(K)], 3, t) for t in range(1, rounds + 1)]


@pytest.mark.parametrize(("K", "m", "restart", "count"), [(12, 3, 1, 8), (10, 3, 2, 13), (5, 5, 4, 9), (7, 1, 1, 14)])
def test_the_ledger_names_what_each_client_moves(K: int, m: int, restart: int, count: int) -> None:
    """Brute force: each client's change is the unit vector of its own; it moves a node by as much as its line says, or nothing."""
    who, own = how(K, m / K, count, clip=1.0, restart=restart)
    cohorts, R = passes(K, m, count), restart * math.ceil(K / m)
    moved = [dict[int, float]() for _ in range(count)]
    for t in range(1, count + 1):
        began, at = divmod(t - 1, R)
        node = last(at + 1)
        for asked in cohorts[began * R + node.after : began * R + node.end]:
            for k in asked:
                moved[t - 1][k] = moved[t - 1].get(k, 0.0) + 1.0
    found = [dict[int, float]() for _ in range(count)]
    for event in lines(cohorts, who, own):
        assert event.multiplier * event.sensitivity == pytest.approx(1.0)  # the noise is z S, whoever moves it
        found[event.round - 1] |= dict.fromkeys(event.clients, event.sensitivity)
    assert found == moved


@pytest.mark.parametrize("T", [1, 3, 4, 10, 16])
def test_a_tree_costs_the_closed_form(T: int) -> None:
    """A Gaussian release of multiplier z / sqrt(floor(log2 T) + 1); two trees in which a client is first cost it twice."""
    who, own = how(T, 1 / T, T, noise_multiplier=2.0)
    cohorts = [(t,) for t in range(T)]
    depth = math.floor(math.log2(T)) + 1
    events = lines(cohorts, who, own)
    assert accountant.spent(events, 1e-5).epsilon == pytest.approx(epsilon_of(math.sqrt(depth) / 2.0, 1e-5), rel=1e-9)
    twice = lines([*cohorts, *cohorts], who, own)
    assert accountant.spent(twice, 1e-5).epsilon == pytest.approx(epsilon_of(math.sqrt(2 * depth) / 2, 1e-5), rel=1e-9)
    assert most_paid(T, T) == {1: depth}
    planned = accountant.spent(who.planned(2 * T), 1e-5).epsilon
    assert planned == pytest.approx(accountant.spent(twice, 1e-5).epsilon, rel=1e-9)


@pytest.mark.parametrize(("K", "m", "restart", "count"), [(12, 3, 1, 11), (10, 3, 2, 13), (6, 6, 3, 8), (9, 2, 3, 40)])
def test_a_run_never_costs_more_than_planned(K: int, m: int, restart: int, count: int) -> None:
    who, own = how(K, m / K, count, restart=restart)
    spent = accountant.spent(lines(passes(K, m, count), who, own), 1e-5).epsilon
    assert 0 < spent <= accountant.spent(who.planned(count), 1e-5).epsilon * (1 + 1e-12)


@pytest.mark.parametrize(("K", "m", "restart", "count"), [(12, 3, 1, 11), (10, 3, 2, 13), (6, 6, 3, 8), (9, 2, 3, 40)])
@pytest.mark.parametrize("held", [0, 1, 3])
def test_rejected_rounds_never_cost_more_than_planned(K: int, m: int, restart: int, count: int, held: int) -> None:
    """Of each tree the first rounds are committed and all others rejected: each ends a node over those."""
    who, own = how(K, m / K, count, restart=restart)
    memory, kept, found, R = start(), 0, list[ledger.Event](), own.rounds(who)
    for number, asked in enumerate(passes(K, m, count), 1):
        place: Any = SimpleNamespace(round=number)
        after, more = own.enter(memory, who, place, asked)
        found += more
        kept = 0 if number % R == 1 % R else kept
        memory, kept = (after, kept + 1) if kept < held else (memory, kept)
    spent = accountant.spent(found, 1e-5).epsilon
    assert spent <= accountant.spent(who._replace(guarded=True).planned(count), 1e-5).epsilon * (1 + 1e-12)


def test_a_guarded_run_is_told_at_least_what_it_costs(tmp_path: Path) -> None:
    """With tol = 0 nearly all rounds of a tree of eight are rejected after the first that got through."""
    given = {**experiment(algorithm={"name": "fedavg", "weights": "uniform"}).config.plain(), "rounds": 8}
    what = Experiment.of(
        **{**given, "cohort": {"sampling": "passes", "fraction": 0.125}, "guard": {"rows": 50, "tol": 0.0}}
    )
    looked = dry_run(what, baselines=False)["privacy"]["epsilon"]
    done = run(what, out=tmp_path / "run", baselines=False).summary
    assert len(done["guard"]["rejected_rounds"]) > 3
    assert done["privacy"]["epsilon"] <= looked


def test_a_plan_is_exact_where_all_take_part_in_each_round() -> None:
    """Counted by hand for 5 rounds: 1, 3, 5 are nodes of one visit, (0, 2] of two, (0, 4] of four."""
    assert most_paid(5, 1) == {1: 3, 2: 1, 4: 1}
    who, own = how(3, 1.0, 5, restart=5)
    events = lines([(0, 1, 2)] * 5, who, own)
    assert accountant.spent(events, 1e-5).epsilon == pytest.approx(epsilon_of(math.sqrt(3 + 4 + 16), 1e-5), rel=1e-9)
    assert accountant.spent(who.planned(5), 1e-5).epsilon == accountant.spent(events, 1e-5).epsilon


def test_a_client_that_comes_too_often_is_refused_before_anything_is_released() -> None:
    who, own = how(4, 0.25, 4)
    with pytest.raises(PrivacyError, match=r"client 2 is asked 2 times in a tree of 'dp_ftrl' that allows 1"):
        lines([(2,), (1,), (2,)], who, own)
    fed, host = protected(ALGORITHMS["fedavg"](weights="uniform"), dp_ftrl(noise="seed"), fraction=0.2)
    written: list[ledger.Event] = []
    host.server.guard = host.server.guard._replace(note=written.extend)
    with pytest.raises(PrivacyError, match="client 3 is asked 2 times"):
        play(fed, [(3,), (3,)], host=host)
    assert [event.clients for event in written] == [(3,)]


@pytest.mark.parametrize(("K", "m"), [(12, 3), (10, 4), (5, 5), (7, 1)])
def test_a_pass_asks_each_client_once(K: int, m: int) -> None:
    per = math.ceil(K / m)
    found = passes(K, m, 3 * per)
    for at in range(0, 3 * per, per):
        assert sorted(k for asked in found[at : at + per] for k in asked) == [*range(K)]
        assert all(len(asked) == m for asked in found[at : at + per - 1])
    assert m == K or found[:per] != found[per : 2 * per]  # another order
    assert found == passes(K, m, 3 * per)


# ---------------------------------------------------------------------- the mean


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedyogi"])
def test_without_noise_it_is_the_clipped_uniform_mean(name: str) -> None:
    """z = 0 and everybody: bit by bit what central_dp has without noise, with a bound that clips and with one that does not."""
    made = ALGORITHMS[name]() if name == "scaffold" else ALGORITHMS[name](weights="uniform")
    everybody = [tuple(range(5))] * 4
    for clip in (0.05, 1e6):
        fed, host = protected(made, dp_ftrl(clip=clip, noise_multiplier=0.0, restart=2))
        plain, other = protected(made, without_noise(clip=clip))
        found, expected = play(fed, everybody, host=host)[0], play(plain, everybody, host=other)[0]
        assert gap({k: x for k, x in found.items() if k != MEMORY}, expected) == 0


def test_the_denominator_is_the_cohort_of_the_file() -> None:
    """The last round of a pass has one client of two: its change is halved."""
    fed, host = protected(
        ALGORITHMS["fedavg"](weights="uniform"), dp_ftrl(clip=0.01, noise_multiplier=0.0), fraction=0.4
    )
    server = fed.begin(host)
    after, _ = play(fed, [(4,)], server=server, host=host)
    assert float((after["model"] - server["model"]).flatten().norm()) == pytest.approx(0.01 / 2, rel=1e-6)


def test_a_round_that_nobody_came_to_gets_its_noise() -> None:
    z, clip, fraction = 2.0, 0.5, 0.2
    fed, host = protected(
        ALGORITHMS["fedavg"](weights="uniform"), dp_ftrl(clip=clip, noise_multiplier=z), fraction=fraction
    )
    server = fed.begin(host)
    moved, began = [], server["model"]
    for number in range(1, 61):  # trees of five rounds
        server, _ = play(fed, [()], server=server, host=host, first=number)
        if number % 5 == 4:  # (0, 4] holds one noise
            moved.append((server["model"] - began).flatten())
        began = server["model"] if number % 5 == 0 else began
    assert not host.requests
    assert float(torch.stack(moved).std()) == pytest.approx(z * clip / (fraction * 5), rel=0.12)  # 612 draws: 3 %


# ---------------------------------------------------------------------- runs


@pytest.mark.parametrize("name", ["fedavg", "fedyogi", "fedprox", "scaffold", "moon"])
def test_a_run_is_told_and_costs_what_the_dry_run_says(name: str, tmp_path: Path) -> None:
    """From the file to the report; 8 clients, 2 per round: trees of 4 rounds, and the second one is cut short."""
    algorithm = {"name": name} if name == "scaffold" else {"name": name, "weights": "uniform"}
    what = experiment(algorithm=algorithm)
    looked = dry_run(what, baselines=False)["privacy"]
    done = run(what, out=tmp_path / "run", baselines=False)
    found = done.summary["privacy"]
    assert 0 < found["epsilon"] <= looked["epsilon"]
    assert looked["upper_bound"]
    assert found["unit"] == "client"
    assert found["releases"] == 6
    page = (done.path / "report.html").read_text()
    assert "added to running sums over the rounds" in page
    rows = [json.loads(line) for line in (done.path / "metrics.jsonl").read_text().splitlines()]
    assert all(len(row["clients"]) == 2 and row["train_loss"] is None and row["weights"] is None for row in rows[1:])


class Killed(BaseException):
    """Takes the place of a kill where nothing has to be flushed."""


def killed_in(monkeypatch: pytest.MonkeyPatch, number: int, what: Experiment, folder: Path) -> None:
    """A run that dies when the sum of this round has been released and is about to be used."""
    guarded = ServerHalf._guarded

    def deadly(self: ServerHalf, ask: Any) -> Any:
        found = guarded(self, ask)
        if self.now.start.round == number:
            raise Killed
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ServerHalf, "_guarded", deadly)
        with pytest.raises(Killed):
            run(what, out=folder, baselines=False)


@pytest.mark.parametrize("number", [3, 4, 6])
def test_a_killed_run_goes_on_in_its_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    """Under noise = "seed": the same model and epsilon as a run that was never stopped, and the repeated round costs once."""
    what = experiment(privacy=[{**FTRL, "noise": "seed"}], checkpoint={"every": 1})
    whole = run(what, out=tmp_path / "whole", baselines=False)
    killed_in(monkeypatch, number, what, tmp_path / "killed")
    done = resume(tmp_path / "killed", baselines=False)
    assert (done.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert len((done.path / LEDGER).read_text().splitlines()) == 7
    assert done.summary["privacy"] == whole.summary["privacy"]


def server_of(folder: Path) -> dict[str, Any]:
    """The server's state in the newest checkpoint."""
    newest = max((folder / "checkpoint").glob("server-*.bin"))
    state: dict[str, Any] = codec.decode(newest.read_bytes(), own=True)
    return state


def test_a_resume_keeps_the_noise_of_whole_nodes_and_pays_for_those_drawn_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under noise = "os", killed in round 3 of a tree of 4: (0, 2] is the same, (2, 3] is drawn and paid for a second time."""
    what = experiment(checkpoint={"every": 1}, rounds=3)
    killed_in(monkeypatch, 3, what, tmp_path / "run")
    before = server_of(tmp_path / "run")[MEMORY]["dp_ftrl"]
    assert [len(asked) for asked in before["asked"]] == [2, 2]
    done = resume(tmp_path / "run", baselines=False)
    after = server_of(tmp_path / "run")[MEMORY]["dp_ftrl"]
    assert torch.equal(after["keys"][0], before["keys"][0])
    assert len(after["keys"]) == 2
    paid = [(event.round, event.clients) for event in ledger.read(done.path / LEDGER).events]
    assert [at for at, _ in paid] == [1, 2, 3, 3]
    assert paid[2] == paid[3]  # those of round 3, and nobody else, pay again
    mu = (
        math.sqrt(2) / FTRL["noise_multiplier"]
    )  # the first two rounds' clients: (0, 1] and (0, 2]; the third's: twice (2, 3]
    assert done.summary["privacy"]["epsilon"] == pytest.approx(
        epsilon_of(mu, done.summary["privacy"]["delta"]), rel=1e-9
    )


def test_longer_runs_go_on_in_the_tree_for_nothing_more(tmp_path: Path) -> None:
    """Stopped after round 2 of a tree of 4 and given two more: one line per round, and what four rounds cost."""
    run(experiment(rounds=2), out=tmp_path / "run", baselines=False)
    done = resume(tmp_path / "run", ["rounds=4"], baselines=False)
    mu = math.sqrt(3) / FTRL["noise_multiplier"]
    assert done.summary["privacy"]["releases"] == 4
    assert done.summary["privacy"]["epsilon"] == pytest.approx(
        epsilon_of(mu, done.summary["privacy"]["delta"]), rel=1e-9
    )


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_keys_lie_in_the_servers_checkpoint_only_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    done = run(experiment(rounds=3, checkpoint={"every": 1}), out=tmp_path / "run", baselines=False)
    keys = [bytes(key.tolist()) for key in server_of(done.path)[MEMORY]["dp_ftrl"]["keys"]]
    assert len(keys) == 2
    for file in (path for path in done.path.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.name.startswith("server-"):
            assert file.stat().st_mode & 0o777 == 0o600
        else:
            assert not any(
                form in content for key in keys for form in (key, key.hex().encode(), str(list(key)).encode())
            )


class Heard(Observer):
    """Keeps what clients are told."""

    def __init__(self) -> None:
        self.told: list[bytes] = []

    def asked(self, request: Request) -> None:
        self.told.append(bytes(codec.encode({**request.message, "word": dict(request.word or {})})))


def test_an_algorithm_that_tells_clients_everything_tells_them_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keys: list[bytes] = []
    monkeypatch.setattr(secret, "key", lambda: keys.append(os.urandom(32)) or keys[-1])
    fedavg = ALGORITHMS["fedavg"]

    def talkative(**given: Any) -> Algorithm:
        return fedavg(**given)._replace(broadcast=lambda server, client: dict(server))

    monkeypatch.setitem(ALGORITHMS, "fedavg", functools.wraps(fedavg)(talkative))
    heard = Heard()
    run(experiment(rounds=4), out=tmp_path / "run", baselines=False, observers=[heard])
    assert len(heard.told) == 8
    assert len(keys) == 4
    assert not any(key in told or MEMORY.encode() in told for key in keys for told in heard.told)


@pytest.mark.parametrize("table", [FTRL, {"name": "central_dp", "clip": "adaptive"}], ids=lambda table: table["name"])
def test_real_parties_refuse_it_in_a_sentence(table: dict[str, Any]) -> None:
    asked = parse({"partition": {"name": "iid", "clients": 3}, "algorithm": UNIFORM, "privacy": [table]})
    with pytest.raises(ConfigError, match=rf"'{table['name']}'.*of the mechanisms it has 'secagg'") as said:
        refuse(resolve(asked), ("a", "b", "c"))
    assert "\n" not in str(said.value)
