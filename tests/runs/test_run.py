"""A run from its file to its folder: the contract of docs/experiment.md, and one sentence for every wrong input."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedatlas
from configured import set_up
from fedatlas import Experiment, config
from fedatlas.algorithm import Work
from fedatlas.api import resume, run
from fedatlas.config import CohortConfig, ScheduleConfig
from fedatlas.course.plan import chunk_for
from fedatlas.errors import ConfigError, DataError, DivergedError, FedatlasError
from fedatlas.federation.host import joined
from fedatlas.federation.in_process import InProcess
from fedatlas.privacy.noise import Noise
from fedatlas.record.run_folder import RunFolder
from fedatlas.setup.cohort import draw_round, learning_rate, select
from fedatlas.wire import codec

ROW = {
    "round", "accuracy", "macro_f1", "weighted_f1", "per_class_f1", "loss", "client_accuracy", "train_loss", "clients", "selected",
    "weights", "steps", "lr", "seconds", "seconds_by_phase", "bytes_up", "bytes_down", "bytes_peer", "flops", "peak_memory_bytes",
}  # fmt: skip
FILES = {
    "config.toml", "metrics.jsonl", "summary.json", "initial.safetensors", "model.safetensors", "partition.json", "preprocess.json",
    "checkpoint",
}  # fmt: skip


def small(**tables: Any) -> Experiment:
    """The default experiment, two rounds long."""
    return Experiment.of(**{"rounds": 2, **tables})


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def timeless(path: Path) -> list[dict[str, Any]]:
    """Rows without what a clock or the machine decides."""
    skip = {"seconds", "seconds_by_phase", "peak_memory_bytes"}
    return [{key: value for key, value in row.items() if key not in skip} for row in rows(path)]


def refusal(*overrides: str) -> str:
    """The sentence with which a configuration is refused."""
    with pytest.raises(FedatlasError) as error:
        set_up(config.read(None, overrides), 1)
    return str(error.value)


def test_the_default_experiment_learns(tmp_path: Path) -> None:
    """Twelve clients, twenty rounds, accuracy above 0.9, with the table of what each party gains."""
    done = run(out=tmp_path / "run")
    assert done.summary["final"]["accuracy"] > 0.9
    assert done.summary["clients"] == 12
    gained = done.summary["gain"]["summary"]
    assert gained["local_only"]["mean"] < gained["federated"]["mean"] <= gained["centralised"]["mean"] + 0.05
    parties = done.summary["gain"]["clients"]
    assert len(parties) == 12
    assert len({party["local_only"]["value"] for party in parties}) > 6  # each alone has a model of its own
    alone = json.loads((done.path / "baselines" / "local_only" / "summary.json").read_text())
    mean = np.mean([party["local_only"]["value"] for party in parties])
    assert mean == pytest.approx(alone["final"]["accuracy"])  # judged on the same rows in two ways


def test_the_run_directory_is_the_contract(tmp_path: Path) -> None:
    path = run(small(), out=tmp_path / "run", baselines=False).path
    assert {p.name for p in path.iterdir()} >= FILES
    found = rows(path)
    assert [row["round"] for row in found] == [0, 1, 2]
    assert all(set(row) == ROW for row in found)
    last = found[-1]
    assert last["clients"] == last["selected"] == list(range(12))
    assert len(last["weights"]) == len(last["steps"]) == 12
    assert sum(last["weights"]) == pytest.approx(1)
    partition = json.loads((path / "partition.json").read_text())
    held = [row for rows_ in partition["clients"].values() for row in rows_]
    assert len(held) == len(set(held))
    assert config.read(path / "config.toml").hash() == json.loads((path / "summary.json").read_text())["config_hash"]


def test_anyone_can_replay_a_run_from_its_files(tmp_path: Path) -> None:
    """Full batches: w <- mean of w - lr grad F_k(w), with plain torch from initial.safetensors and partition.json."""
    table = {"local": {"batch_size": 0, "lr": 0.01}, "engine": {"precision": "float64"}}
    path = run(small(**table), out=tmp_path / "run", baselines=False).path
    setup = set_up(config.read(path / "config.toml"), 1)
    module, data = setup.first.network.module, setup.dataset
    held = json.loads((path / "partition.json").read_text())["clients"]
    w = load_file(path / "initial.safetensors")
    for _ in range(2):
        local = []
        for index in held.values():
            module.load_state_dict(w)
            module.zero_grad()
            loss = nn.functional.cross_entropy(module(data.train.x[index].double()), data.train.y[index])
            loss.backward()
            local.append({name: p.detach() - 0.01 * p.grad for name, p in module.named_parameters()})  # type: ignore[operator]
        w = {name: torch.stack([one[name] for one in local]).mean(0) for name in w}
    end = load_file(path / "model.safetensors")
    assert max(float((end[name] - w[name]).abs().max()) for name in w) < 1e-12


def test_resumed_runs_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """Two rounds, then two more, for a stateful method under drop-outs: as if never stopped."""
    table = {
        "algorithm": {"name": "scaffold"},
        "failures": {"dropout": 0.3},
        "cohort": {"fraction": 0.5},
        "local": {"lr": 0.01},
    }
    whole = run(small(rounds=4, **table), out=tmp_path / "whole", baselines=False).path
    half = run(small(rounds=2, **table), out=tmp_path / "half", baselines=False).path
    resume(half, ["rounds=4"], baselines=False)
    assert timeless(whole) == timeless(half)
    assert (whole / "model.safetensors").read_bytes() == (half / "model.safetensors").read_bytes()


def test_damaged_checkpoints_are_refused_and_the_last_good_one_used(tmp_path: Path) -> None:
    path = run(small(rounds=3), out=tmp_path / "run", baselines=False).path
    whole = (path / "model.safetensors").read_bytes()
    said: list[str] = []

    class Listener(fedatlas.course.progress.Silent):
        def said(self, notice: str) -> None:
            said.append(notice)

    file = path / "checkpoint" / "server-000003.bin"
    file.write_bytes(file.read_bytes()[:-100])
    resume(path, baselines=False, progress=Listener())
    assert any("server-000003.bin" in notice and "cut short or altered" in notice for notice in said)
    assert (path / "model.safetensors").read_bytes() == whole
    for manifest in (path / "checkpoint").glob("manifest-*"):
        manifest.write_text(manifest.read_text().replace('"round": ', '"round": 1'))
    with pytest.raises(FedatlasError, match="altered"):
        resume(path, baselines=False)


def test_only_changed_client_states_are_written(tmp_path: Path) -> None:
    """Ten of a hundred clients take part: ten state files a round."""
    table = {"algorithm": {"name": "scaffold"}, "partition": {"name": "iid", "clients": 100}, "cohort": {"size": 10}}
    path = run(small(rounds=1, **table), out=tmp_path / "run", baselines=False).path
    assert len(list((path / "checkpoint").glob("client-*.bin"))) == 10


def test_several_seeds(tmp_path: Path) -> None:
    done = run(small(seeds=[1, 2, 3]), out=tmp_path / "run", baselines=False)
    each = [json.loads((done.path / f"seed-{s}" / "summary.json").read_text())["final"]["accuracy"] for s in (1, 2, 3)]
    spread = done.summary["over_seeds"]["final"]["accuracy"]
    assert spread["mean"] == pytest.approx(np.mean(each))
    assert spread["sd"] == pytest.approx(np.std(each, ddof=1))
    assert spread["n"] == 3


def test_load_and_predict(tmp_path: Path) -> None:
    done = run(small(rounds=20), out=tmp_path / "run", baselines=False)
    loaded = fedatlas.load(done.path)
    assert list(loaded.rows["round"]) == list(range(21))
    setup = set_up(loaded.config, 1)
    np.savez(tmp_path / "new.npz", x=setup.dataset.test.x.numpy())
    table = fedatlas.predict(done.path, tmp_path / "new.npz")
    right = (table["prediction"].astype(int).to_numpy() == setup.dataset.test.y.numpy()).mean()
    assert right == pytest.approx(done.summary["final"]["accuracy"])
    assert table.filter(like="p_").sum(axis=1).to_numpy() == pytest.approx(1)
    rows = setup.dataset.test.x.float().numpy()
    rows[2] = np.inf
    with pytest.raises(DataError, match=r"^row 2 \(from 0\) holds an infinite or missing number"):
        fedatlas.predict(done.path, rows)
    with pytest.warns(UserWarning, match="^1 of "):
        assert fedatlas.predict(done.path, rows, holes="empty").drop(index=2).equals(table.drop(index=2))


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    """An nn.Module through the API, with dropout and a name the registry has never heard of."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    done = run(small(rounds=10)._replace(module=module), out=tmp_path / "run", baselines=False)
    again = run(
        small(rounds=10, engine={"name": "loop"})._replace(module=module), out=tmp_path / "loop", baselines=False
    )
    assert done.summary["final"]["accuracy"] > 0.5
    assert done.summary["final"]["accuracy"] == pytest.approx(again.summary["final"]["accuracy"], abs=0.02)


def test_regression_is_measured_in_the_targets_own_unit(tmp_path: Path) -> None:
    """y = 1000 + 50 x: the error of a fitted line is far below 50, and R2 near 1."""
    stream = np.random.default_rng(0)
    x = stream.normal(size=400)
    lines = ["x,y", *(f"{a},{1000 + 50 * a}" for a in x)]
    (tmp_path / "line.csv").write_text("\n".join(lines))
    table = {
        "data": {"name": "file", "path": str(tmp_path / "line.csv"), "label": "y", "test": 0.25},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "logistic"},
    }
    done = run(small(rounds=10, **table), out=tmp_path / "run", baselines=False)
    assert done.summary["final"]["rmse"] < 5
    assert done.summary["final"]["r2"] > 0.98


def test_a_diverged_run_says_where_and_keeps_what_was_done(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"diverged in round \d+: the training loss of client \d+ is"):
        run(small(rounds=5, local={"lr": 1e30, "epochs": 5}), out=tmp_path / "run", baselines=False)
    assert rows(tmp_path / "run")[0]["round"] == 0


@pytest.mark.parametrize("every", [1, 2])
def test_after_a_divergence_clients_have_the_models_of_the_last_good_round(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parties go back to the state before the round that failed, whether it was written to a checkpoint or not."""
    table = {"algorithm": {"name": "ditto"}, "checkpoint": {"every": every}}
    good = run(small(rounds=1, **table), out=tmp_path / "good", baselines=False).summary
    drive = InProcess.drive
    changed = []

    def diverging(self: InProcess, generator: Any, start: Any, **how: Any) -> Any:
        before = self.states.get(0)
        server = drive(self, generator, start, **how)
        if start.round == 2:
            changed.append(codec.encode(before) != codec.encode(self.states.get(0)))
            raise DivergedError("the training loss of client 11 is nan")
        return server

    monkeypatch.setattr(InProcess, "drive", diverging)
    with pytest.raises(DivergedError, match="diverged in round 2"):
        run(small(rounds=3, **table), out=tmp_path / "run", baselines=False)
    assert changed == [True]  # there is something to go back from
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["per_client"] == good["per_client"]
    assert found["final"] == good["final"]


def test_a_row_tells_all_work_of_its_round(tmp_path: Path) -> None:
    """Two passes over a chain are twice the steps, and the loss is of both; Ditto trains two models, each with a loss of its own."""
    one = {"algorithm": {"name": "fedseq", "phi": "random"}}
    two = {"algorithm": {"name": "fedseq", "phi": "random", "passes": 2}}
    once, twice = (
        rows(run(small(rounds=1, **table), out=tmp_path / str(i), baselines=False).path)[-1]
        for i, table in enumerate((one, two))
    )
    assert twice["steps"] == [2 * steps for steps in once["steps"]]
    pieces = Work(10, 2, 10, 0.2, 1.0), Work(10, 3, 30, 0.3, 2.0)
    assert joined(*pieces, True) == Work(10, 5, 40, pytest.approx(0.5), 1.75)
    assert joined(*pieces, False) == Work(10, 5, 40, pytest.approx(0.5), 2.0)  # losses of two tasks have no common mean
    both = rows(run(small(rounds=1, algorithm={"name": "ditto"}), out=tmp_path / "d", baselines=False).path)[-1]
    plain = rows(run(small(rounds=1), out=tmp_path / "a", baselines=False).path)[-1]
    assert both["steps"] == [2 * steps for steps in plain["steps"]]


def test_fewer_clients_are_held_at_once_where_they_keep_a_state() -> None:
    """A chunk is what fits into half of engine.memory: message and answer, and what a client keeps, four times."""
    model = 4 * 4810  # of the default network
    table: dict[str, Any] = {"engine": {"memory": "1MiB"}}
    chunks = {}
    for name in ("fedavg", "feddyn", "scaffold"):
        setup = set_up(config.parse({**table, "algorithm": {"name": name}}), 1)
        assert sum(x.numel() for x in setup.first.params.values()) == 4810
        chunks[name] = chunk_for(setup)
    half = 2**19 // model
    assert chunks["fedavg"] == half // 2
    assert half // 5 - 1 <= chunks["feddyn"] <= half // 5  # a model, and four times its dual
    assert half // 6 - 1 <= chunks["scaffold"] <= half // 6  # model and control, and four times its own control
    thinned = {**table, "compression": {"name": "topk", "share": 0.1}}
    assert chunk_for(set_up(config.parse(thinned), 1)) <= half // 5  # the memory of what was left out


def test_a_server_step_that_diverges_is_caught_where_it_happens(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="server's model or its loss is not finite"):
        run(small(rounds=1, algorithm={"name": "fedavgm", "server_lr": 1e38}), out=tmp_path / "run", baselines=False)


def test_patience_counts_evaluated_rounds(tmp_path: Path) -> None:
    table = {"evaluation": {"every": 5}, "stop": {"patience": 3}, "rounds": 12}
    done = run(small(**table), out=tmp_path / "run", baselines=False)
    assert done.summary["rounds"] >= 5
    assert done.summary["final"]["round"] >= 5


def test_the_rounds_that_are_judged_can_be_named(tmp_path: Path) -> None:
    table = {"evaluation": {"rounds": [2, 3]}, "rounds": 5}
    done = run(small(**table), out=tmp_path / "run", baselines=True)
    rows = RunFolder.open(done.path).rows()
    assert [row["round"] for row in rows if row["accuracy"] is not None] == [0, 2, 3, 5]
    beside = RunFolder.open(done.path / "baselines" / "centralised").rows()
    assert [row["round"] for row in beside if row["accuracy"] is not None] == [0, 5]
    with pytest.raises(ConfigError, match="remove evaluation"):
        small(evaluation={"rounds": [2], "every": 2})


def test_a_longer_run_has_longer_baselines(tmp_path: Path) -> None:
    path = run(small(), out=tmp_path / "run", baselines=True).path
    resume(path, ["rounds=4"], baselines=True)
    for name in ("local_only", "centralised"):
        assert json.loads((path / "baselines" / name / "summary.json").read_text())["rounds"] == 4


def test_a_run_with_a_network_of_ones_own_says_so(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    path = run(small()._replace(module=module), out=tmp_path / "run", baselines=False).path
    with pytest.raises(ConfigError, match="a custom network"):
        fedatlas.load(path)
    assert len(fedatlas.load(path, module).rows) == 3
    again = run(Experiment.read(path / "config.toml", module=module), out=tmp_path / "again", baselines=False)
    assert again.summary["model"] == "own:Sequential"
    assert (again.path / "model.safetensors").read_bytes() == (path / "model.safetensors").read_bytes()
    assert "module=...) repeats it" in (path / "config.toml").read_text()
    assert "begins with the weights that it was given" in " ".join(again.summary["notices"])
    with pytest.raises(ConfigError, match=r"'own:Sequential': this network was given in Python"):
        run(Experiment.read(path / "config.toml"), out=tmp_path / "file")
    with pytest.raises(ConfigError, match=r"model.hidden has no effect on a network that is given"):
        Experiment.of(module=module, model={"hidden": [3]})
    with pytest.raises(ConfigError, match=r"give an instance, Flatten\(...\)"):
        run(Experiment.of(module=nn.Flatten))  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("algorithm.name=fedavgg", "did you mean 'fedavg'"),
        ("local.learning_rate=1", "unknown key 'local.learning_rate'"),
        ("lokal.lr=1", "did you mean 'local'"),
        ("local.lr=-1", "local.lr"),
        ("local.lr=fast", "local.lr"),
        ("cohort.fraction=1.5", "cohort.fraction"),
        ("model.name=mlq", "did you mean 'mlp'"),
        ("model.hiden=[3]", "hidden"),
        ("data.name=digit", "did you mean 'digits'"),
        ("partition.name=natural", "natural"),
        ("algorithm.mu=0.1", "algorithm.mu"),
        ("local.schedule.name=step", "gamma"),
        ("engine.memory=lots", "4GiB"),
        ("seeds=[1, 1]", "different"),
        ("algorithm.weights=size", "algorithm.weights"),
        ("algorithm={name='fedadam', beta1=1.0}", "algorithm.beta1"),
        ("algorithm={name='fedavgm', server_lr=-1.0}", "algorithm.server_lr"),
        ("algorithm={name='fedprox', mu=-1.0}", "algorithm.mu"),
        ("engine={device='cuda', workers=2}", "a GPU is used by one process"),
        ("engine={device='cuda', plan='native'}", "run only on CPUs"),
    ],
)
def test_one_sentence_for_a_wrong_value(override: str, expected: str) -> None:
    said = refusal(override)
    assert expected in said
    assert "\n" not in said


def test_one_sentence_for_what_cannot_be_together() -> None:
    assert "sets its own weights" in refusal("algorithm.name=hwfedavg", "algorithm.weights=uniform")
    assert "works only with 1" in refusal("algorithm.name=fedsgd", "local.epochs=3")
    assert "works only with 'sgd'" in refusal("algorithm.name=scaffold", "local.optimizer=adam")
    assert "client" in refusal("partition.name=dirichlet_class", "partition.clients=2000")
    assert "diverges" in refusal("algorithm={name='fedprox', mu=40.0}", "local.lr=0.05")
    assert set_up(config.read(None, ["algorithm={name='fedprox', mu=39.0}", "local.lr=0.05"]), 1).algorithm.name
    assert "not both" in refusal("local.epochs=1", "local.steps=3")
    assert "fewer epochs" in refusal("local.steps=3", "failures.stragglers=0.5")
    assert "one row" in refusal("model.norm=batch", "local.batch_size=111")


def test_labels_and_holes_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "holes.csv").write_text("a,b,y\n1,2,yes\n,3,no\n4,5,yes\n6,7,no\n8,9,yes\n10,11,no\n")
    given = (
        "data.name=file",
        f"data.path={tmp_path / 'holes.csv'}",
        "data.label=y",
        "partition.name=iid",
        "partition.clients=2",
    )
    assert "column 'a'" in refusal(*given)
    assert set_up(config.read(None, [*given, "data.missing=median"]), 1).dataset.classes == 2
    with pytest.raises(DataError, match="nowhere"):
        set_up(config.read(None, ["data.name=file", "data.path=nowhere.csv", "data.label=y"]), 1)


def test_fixed_keys_replace_defaults_with_a_notice() -> None:
    setup = set_up(config.read(None, ["algorithm.name=fedsgd"]), 1)
    assert setup.config.local.batch_size == 0
    assert any("local.batch_size" in notice for notice in setup.notices)
    device = set_up(config.read(None, ["algorithm.name=scaffold", "profile=device"]), 1)
    assert any("keeps state" in notice for notice in device.notices)


def test_the_documented_file_is_the_codes() -> None:
    """docs/experiment.md holds every key with its default."""
    text = (Path(__file__).parents[2] / "docs" / "experiment.md").read_text()
    documented = tomllib.loads(text.split("## All keys")[1].split("```toml")[1].split("```")[0])
    assert config.parse(documented).plain() == config.parse({}).plain()
    for name, table in config.parse({}).plain().items():
        if isinstance(table, dict):
            assert set(table) == set(documented[name]), name


def test_cohorts_depend_on_seed_and_round_alone() -> None:
    clients = list(range(90))
    assert len(select(CohortConfig(fraction=0.7), clients, 1, 1)) == 63  # binary 0.7 * 90 is below 63
    assert len(select(CohortConfig(fraction=0.0), clients, 1, 1)) == 1
    assert select(CohortConfig(size=5), clients, 1, 4) == select(CohortConfig(size=5), clients, 1, 4)
    assert select(CohortConfig(size=5), clients, 1, 4) != select(CohortConfig(size=5), clients, 1, 5)
    sizes = [len(select(CohortConfig(fraction=0.1, sampling="poisson"), clients, 1, t)) for t in range(400)]
    assert np.mean(sizes) == pytest.approx(9, abs=0.6)
    assert 0 in sizes or min(sizes) <= 3


def test_stragglers_draw_every_number_of_epochs() -> None:
    """A random number in 1..E, E included (H9)."""
    parsed = config.parse({"failures": {"stragglers": 0.9}, "local": {"epochs": 3}})
    seen = set()
    for number in range(1, 40):
        drawn = draw_round(parsed, dict.fromkeys(range(10), 5), 1, number)
        seen |= {budget.epochs for budget in drawn.round.budgets.values()}
        assert len(drawn.round.budgets) == 9
    assert seen == {1, 2, 3}
    dropped = config.parse({"failures": {"stragglers": 0.9, "straggler_policy": "drop"}, "local": {"epochs": 3}})
    assert draw_round(dropped, dict.fromkeys(range(10), 5), 1, 1).round.m < 10


@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_under_a_secret_cohort_failures_strike_client_by_client(policy: str) -> None:
    """Whether one client is there changes nobody else's work: noise on the level of clients covers one change, not several."""
    failures = {"dropout": 0.2, "stragglers": 0.5, "straggler_policy": policy}
    everybody = {"sampling": "poisson", "fraction": 1.0}
    parsed = config.parse({"failures": failures, "local": {"epochs": 4}, "cohort": everybody})
    sizes = dict.fromkeys(range(12), 5)

    def work(held: dict[int, int], number: int) -> dict[int, Any]:
        drawn = draw_round(parsed, held, 1, number, secret=Noise("seed", 1)).round
        return {k: drawn.budgets.get(k) for k in drawn.cohort}

    for number in range(1, 20):
        whole = work(sizes, number)
        for gone in sizes:
            without = {k: n for k, n in sizes.items() if k != gone}
            assert work(without, number) == {k: budget for k, budget in whole.items() if k != gone}


def test_schedules_are_functions_of_the_global_round() -> None:
    assert learning_rate(ScheduleConfig(name="exponential", gamma=0.5), 0.8, 3, 10) == pytest.approx(0.2)
    assert learning_rate(ScheduleConfig(name="step", gamma=0.1, every=2), 1.0, 4, 10) == pytest.approx(0.1)
    assert learning_rate(ScheduleConfig(name="cosine"), 1.0, 6, 10) == pytest.approx(0.5)
    assert learning_rate(ScheduleConfig(), 0.3, 9, 10) == 0.3
