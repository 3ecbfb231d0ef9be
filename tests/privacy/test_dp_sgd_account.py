"""DP-SGD in whole runs: its epsilon against Opacus' PRV accountant, its ledger, masks, resume, and what a run shows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedatlas import Experiment
from fedatlas.api import dry_run, resume, run
from fedatlas.errors import ConfigError
from fedatlas.federation.secrets import LEDGER
from fedatlas.federation.server import Guard, ServerHalf
from fedatlas.privacy import accountant, ledger
from fedatlas.privacy.gaussian import epsilon_of
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanisms import made
from reports import Page, rows, summary

TABLES: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "digits", "limit": 400},
    "partition": {"name": "iid", "clients": 4},
    "model": {"hidden": [8]},
    "local": {"lr": 0.1, "batch_size": 10},
    "engine": {"name": "loop"},
}
UNEQUAL = {"name": "quantity_skew", "clients": 4}
DP = {"name": "dp_sgd", "clip": 1.0, "noise_multiplier": 1.1, "noise": "seed"}


def experiment(*privacy: dict[str, Any], **tables: Any) -> Experiment:
    return Experiment.of(**{**TABLES, "privacy": list(privacy), **tables})


def event(rate: float, multiplier: float, times: int, delta: float = 1e-5, round: int = 1, client: int = 0) -> Event:
    """A line of the ledger."""
    kind = ("gaussian", multiplier, 1.0, "record", "zero out", delta, rate)
    return Event("dp_sgd", round, *kind, clients=(client,), times=times)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the account

OPACUS = [
    # rate, noise multiplier, steps, delta, epsilon: opacus 1.6.0, PRVAccountant.get_epsilon(delta, eps_error=0.001)
    (0.01, 1.0, 1000, 1e-5, 1.8293687315675644),
    (0.004, 0.8, 2500, 1e-5, 1.8259061785789745),
    (0.02, 1.5, 500, 1e-6, 1.577874996192615),
    (0.1, 2.0, 300, 1e-5, 4.184544539926284),
    (0.25, 1.2, 40, 1e-4, 7.168692038587304),
    (0.2857142857142857, 1.0, 12, 0.00036, 5.340618991621489),
    (0.001, 0.6, 5000, 1e-7, 3.4386152177282923),
    (0.05, 4.0, 1500, 1e-5, 1.9801143785578692),
]


@pytest.mark.parametrize(("rate", "multiplier", "steps", "delta", "theirs"), OPACUS)
def test_epsilon_is_that_of_opacus(rate: float, multiplier: float, steps: int, delta: float, theirs: float) -> None:
    """Within 1% or 0.01, whichever is more; in one line of the ledger, and in lines of a visit each."""
    found = accountant.spent([event(rate, multiplier, steps)], delta).epsilon
    assert abs(found - theirs) <= max(0.01 * theirs, 0.01)
    visits = [event(rate, multiplier, steps // 4, round=t) for t in range(1, 5)]
    assert accountant.spent(visits, delta).epsilon == pytest.approx(found, rel=1e-9)


def test_whole_batches_are_plain_gaussian_releases() -> None:
    found = accountant.spent([event(1.0, 3.0, 9)], 1e-5)
    assert found.epsilon == pytest.approx(epsilon_of(math.sqrt(9) / 3.0, 1e-5))


def test_the_federation_pays_what_its_dearest_client_pays() -> None:
    """A record lies with one client: costs of different clients are not added up."""
    lines = [event(0.1, 1.5, 40), event(0.3, 1.5, 20, client=1), event(0.05, 1.5, 80, client=2)]
    each = [accountant.spent([line], 1e-5).epsilon for line in lines]
    assert accountant.spent(lines, 1e-5).epsilon == pytest.approx(max(each))
    assert len({round(x, 6) for x in each}) == 3


def of_sizes(sizes: range, rounds: int = 3) -> list[Event]:
    """Lines of clients with these numbers of rows, in batches of 32."""
    found = []
    for t in range(1, rounds + 1):
        found += [event(min(32 / n, 1.0), 1.2, -(-n // 32), round=t, client=k) for k, n in enumerate(sizes)]
    return found


def test_the_dearest_of_many_clients_is_found_without_pricing_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest of all prices, by a fraction of them; each client's own by groups is never less, and little more."""
    lines, priced = of_sizes(range(60, 460, 4)), []
    accountant._priced.cache_clear()
    plain = accountant._composed
    monkeypatch.setattr(accountant, "_composed", lambda *given: priced.append(1) or plain(*given))
    found = accountant.spent(lines, 1e-5).epsilon
    assert len(priced) <= 25
    each = [accountant.spent([e for e in lines if e.clients == (k,)], 1e-5).epsilon for k in range(100)]
    assert found == max(each)
    grouped = accountant.of_clients(lines, 1e-5, most=20)
    assert [*grouped] == [*range(100)]
    assert all(1 <= grouped[k] / each[k] < 1.3 for k in range(100))
    assert accountant.of_clients(lines[:4], 1e-5).keys() == {0, 1, 2, 3}


# ---------------------------------------------------------------------- runs


def test_a_run_states_what_its_steps_cost(tmp_path: Path) -> None:
    """One line for each client and visit, with the steps really taken; epsilon from them, for each client, and for the run."""
    asked = experiment(DP, partition=UNEQUAL)
    done = run(asked, out=tmp_path / "run").path
    events = ledger.read(done / LEDGER).events
    own = [json.loads(line) for line in (done / "own-view.jsonl").read_text().splitlines()]
    assert {(e.round, e.clients) for e in events} == {(t, (k,)) for t in (1, 2, 3) for k in range(4)}
    assert [e.unit for e in events] == ["record"] * 12
    assert all(e.neighbours == "zero out" and e.multiplier == 1.1 and e.sensitivity == 1.0 for e in events)
    steps = {(row["round"], k): n for row in own if row["round"] for k, n in enumerate(row["steps"])}
    assert steps == {(e.round, e.clients[0]): e.times for e in events}
    found = summary(done)["privacy"]
    n = found["rows"]
    assert n == sum(round(10 / e.rate) for e in events if e.round == 1)
    assert found["delta"] == pytest.approx(n**-1.1)
    assert found["delta"] < 1 / n
    assert (found["unit"], found["neighbours"]) == ("record", "zero out")
    assert found["releases"] == sum(e.times for e in events)
    assert found["how"].endswith(" Poisson batches.")
    each = found["epsilon_of_clients"]
    assert [*each] == ["0", "1", "2", "3"]
    for k in range(4):
        mine = [e for e in events if e.clients == (k,)]
        assert each[str(k)] == pytest.approx(accountant.spent(mine, found["delta"]).epsilon)
    assert found["epsilon"] == pytest.approx(max(each.values()))
    assert all(row["train_loss"] is None and row["steps"] is None for row in rows(done)[1:])
    assert len({e.rate for e in events}) == 4
    text = Page(done / "report.html").text()
    assert "Differential privacy of single records." in text
    assert "shift the odds that a given row was used by" in text
    planned = dry_run(asked)["privacy"]
    assert planned["epsilon"] == pytest.approx(found["epsilon"])


def test_a_line_is_on_the_disk_before_the_update_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies when the line is written has used nothing; one that dies behind it has the line."""

    class Died(BaseException):
        pass

    noted: list[int] = []
    plain = Guard.around

    def dying(self: Guard, *given: Any) -> Any:
        def note(events: Any) -> None:
            self.note(events)
            noted.append(len(events))
            if len(noted) == 2:
                raise Died

        return plain(self._replace(note=note), *given)

    monkeypatch.setattr(Guard, "around", dying)
    with pytest.raises(Died):
        run(experiment(DP), out=tmp_path / "run", baselines=False)
    assert noted == [4, 4]
    assert {e.round for e in ledger.read(tmp_path / "run" / LEDGER).events} == {1, 2}
    assert [row["round"] for row in rows(tmp_path / "run")] == [0, 1]


@pytest.mark.parametrize("source", ["os", "seed"])
def test_a_resumed_run_counts_repeated_rounds(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the operating system's noise a repeated round costs again; under the seed it is the same release, and the bits are."""
    asked = experiment({**DP, "noise": source})
    whole = run(asked, out=tmp_path / "whole", baselines=False).path
    with monkeypatch.context() as patched:
        plain = Guard.around

        def dying(self: Guard, server: Any, ask: Any, place: Any) -> Any:
            def note(events: Any) -> None:
                self.note(events)
                if place.round == 3:
                    raise KeyboardInterrupt

            return plain(self._replace(note=note), server, ask, place)

        patched.setattr(Guard, "around", dying)
        with pytest.raises(KeyboardInterrupt):
            run(asked, out=tmp_path / "half", baselines=False)
    half = resume(tmp_path / "half", baselines=False).path
    events = ledger.read(half / LEDGER).events
    assert [e.round for e in events] == [1] * 4 + [2] * 4 + [3] * 8
    cost, once = (summary(path)["privacy"]["epsilon"] for path in (half, whole))
    if source == "os":
        assert cost > once
    else:
        assert cost == once
        assert (half / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["secagg", "paillier"])
def test_masks_or_encryption_beside_it_change_nothing_but_rounding(name: str, tmp_path: Path) -> None:
    short = {"rounds": 2, "model": {"name": "logistic"}}
    bare = run(experiment(DP, **short), out=tmp_path / "bare", baselines=False).path
    both = run(experiment(DP, {"name": name}, **short), out=tmp_path / "both", baselines=False).path
    assert [one["name"] for one in summary(both)["privacy"]["mechanisms"]] == ["dp_sgd", name]
    assert ledger.read(both / LEDGER).events == ledger.read(bare / LEDGER).events
    assert summary(both)["privacy"]["epsilon"] == summary(bare)["privacy"]["epsilon"]
    a, b = (summary(path)["final"]["loss"] for path in (bare, both))
    assert a == pytest.approx(b, abs=1e-3)


PLANS = [{"name": "loop"}, {"plan": "auto"}, {"plan": "tuned"}, {"plan": "program"}, {"plan": "stacked"}]


def test_all_plans_give_the_same_run(tmp_path: Path) -> None:
    """The loop, and every plan of the fast engine: the same batches, noise and steps; it says which step it takes."""
    losses = []
    for number, engine in enumerate([*PLANS, {"plan": "tuned", "workers": 2}]):
        done = run(experiment(DP, engine=engine), out=tmp_path / str(number), baselines=False).path
        losses.append(rows(done)[-1]["loss"])
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-5)
    assert losses[2] == losses[-1]


def test_batches_that_follow_the_seed_protect_nobody(tmp_path: Path) -> None:
    done = run(experiment(DP), out=tmp_path / "run", baselines=False).path
    assert "'dp_sgd': noise = 'seed' protects nobody" in Page(done / "report.html").text() + json.dumps(summary(done))
    secret = run(experiment({**DP, "noise": "os"}), out=tmp_path / "os", baselines=False).path
    other = run(experiment({**DP, "noise": "os"}), out=tmp_path / "again", baselines=False).path
    assert rows(secret)[-1]["loss"] != rows(other)[-1]["loss"]


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"model": {"hidden": [8], "norm": "batch"}}, "statistics of batch norm leave a client without noise"),
        ({"evaluation": {"on": "validation"}, "stop": {}}, "clients' validation rows cannot decide when to stop"),
        ({"data": {"name": "digits", "scale": "federated"}}, "nothing may be computed from rows without noise"),
        ({"evaluation": {"drift": True}}, "it looks at each client's model"),
    ],
)
def test_what_would_leave_without_noise_is_refused(tables: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        run(experiment(DP, **tables), out=tmp_path / "run", baselines=False)


def test_without_noise_nothing_is_promised(tmp_path: Path) -> None:
    done = run(experiment({**DP, "noise_multiplier": 0.0}, rounds=1), out=tmp_path / "run", baselines=False).path
    assert summary(done)["privacy"]["epsilon"] == "infinite"
    assert made("dp_sgd", {"noise_multiplier": 0.0}).words.notices


KINDS: dict[str, dict[str, Any]] = {
    "fedadam": {"algorithm": {"name": "fedadam"}},
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.1}, "local": {"weight_decay": 0.01, "momentum": 0.5}},
    "scaffold": {"algorithm": {"name": "scaffold"}},
    "feddyn": {"algorithm": {"name": "feddyn"}},
    "fednova": {"algorithm": {"name": "fednova"}, "failures": {"stragglers": 0.5}, "local": {"epochs": 3}},
    "ditto": {"algorithm": {"name": "ditto"}},
    "moon": {"algorithm": {"name": "moon"}, "model": {"hidden": [8], "projection": 4}},
    "convolutions": {"model": {"name": "cnn1"}, "data": {"name": "digits", "limit": 120}},
    "group norm": {"model": {"hidden": [8], "norm": "group"}},
    "whole batches": {"model": {"name": "logistic"}, "local": {"steps": 3, "batch_size": 0}},
    "some clients": {"cohort": {"sampling": "poisson", "fraction": 0.5}, "rounds": 4},
    "compressed": {"compression": {"name": "topk", "share": 0.5}},
    "adam": {"local": {"optimizer": "adam", "clip": 0.5}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_runs_of_every_kind(kind: str, tmp_path: Path) -> None:
    """Both engines end alike, and the ledger counts each step that was taken, whoever came and however long they worked."""
    tables = {**KINDS[kind], "local": {**TABLES["local"], **KINDS[kind].get("local", {})}}
    losses = []
    for engine in ({"name": "loop"}, {"plan": "auto"}):
        done = run(
            experiment(DP, **{"rounds": 2, **tables, "engine": engine}),
            out=tmp_path / str(len(losses)),
            baselines=False,
        ).path
        losses.append(rows(done)[-1]["loss"])
        own = [json.loads(line) for line in (done / "own-view.jsonl").read_text().splitlines()]
        twice = 2 if kind == "ditto" else 1  # its personal models take as many steps, without noise, and stay
        taken = {row["round"]: sum(row["steps"]) / twice for row in own if row["round"]}
        events = ledger.read(done / LEDGER).events
        assert {t: sum(e.times for e in events if e.round == t) for t in taken} == taken
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("code", ["topk", "qsgd"])
def test_codes_of_updates_that_clients_noised_are_opened(code: str, tmp_path: Path) -> None:
    """Where no mechanism forms the sum, the server opens what clients compressed after their noise."""
    noised = {"name": "local_dp", "epsilon": 500.0, "clip": 1.0, "noise": "seed"}
    uniform = {"name": "fedavg", "weights": "uniform"}
    for number, private in enumerate([noised, DP]):
        asked = experiment(private, algorithm=uniform, compression={"name": code}, rounds=1)
        done = run(asked, out=tmp_path / str(number), baselines=False).path
        assert rows(done)[-1]["loss"] != rows(done)[0]["loss"]


@pytest.mark.parametrize("source", ["os", "seed"])
def test_work_that_is_repeated_under_masks_is_counted_again(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is read from the journal, but the clients' steps are taken again, and their controls are sent in a later round."""
    asked = experiment({**DP, "noise": source}, {"name": "secagg"}, algorithm={"name": "scaffold"})
    with monkeypatch.context() as patched:
        plain = ServerHalf._guarded

        def dying(self: ServerHalf, ask: Any) -> Any:
            found = plain(self, ask)
            if self.now.start.round == 2:
                raise KeyboardInterrupt
            return found

        patched.setattr(ServerHalf, "_guarded", dying)
        with pytest.raises(KeyboardInterrupt):
            run(asked, out=tmp_path / "run", baselines=False)
    done = resume(tmp_path / "run", baselines=False).path
    events = ledger.read(done / LEDGER).events
    assert [e.round for e in events] == [1] * 4 + [2] * 8 + [3] * 4
    assert summary(done)["privacy"]["releases"] == sum(e.times for e in ledger.counted(events))
    assert len(ledger.counted(events)) == (16 if source == "os" else 12)
