"""Clients whose models differ in architecture, and what FedMD and FedDF do with them (B8, B9)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedatlas
from configured import run_one, set_up
from fedatlas import config
from fedatlas.algorithm import SERVER, Algorithm, Ask, Batch, Budget, Replies
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.distillation import divergence
from fedatlas.api import Experiment, run
from fedatlas.data.config import PublicConfig
from fedatlas.data.dataset import Split
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.job import Bench, Executor
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.pool import PoolExecutor, can_fork
from fedatlas.errors import ConfigError, FedatlasError
from fedatlas.models.config import dealt
from fedatlas.setup.refusals import check_classes, check_public
from fedatlas.wire import codec
from federation import (
    SIZES,
    TWO,
    Federation,
    Smooth,
    Wider,
    cohorts,
    everyone,
    fast,
    federation,
    gap,
    play,
    rows,
    same,
    stacked,
    states,
)

MIXED = ("fedmd", "feddf", "local_only")
SHORT: Mapping[str, Mapping[str, Any]] = {
    "fedmd": {"start_epochs": 2, "private_epochs": 4},
    "feddf": {"steps": 12, "passes": 20},
    "local_only": {},
}


def mixed(name: str, **keys: Any) -> Federation:
    """Clients 0, 2, 4 have six hidden units, 1 and 3 have nine."""
    return federation(ALGORITHMS[name](**{**SHORT[name], **keys}), several=TWO)


# ---------------------------------------------------------------------- the engine


@pytest.mark.parametrize("make", [fast, stacked])
@pytest.mark.parametrize("name", MIXED)
def test_engines_agree_on_several_architectures(name: str, make: Callable[[Bench], Executor]) -> None:
    oracle, host = play(mixed(name))
    quick, quick_host = play(mixed(name), make=make)
    assert gap(oracle, quick) < 1e-11
    assert gap(states(host), states(quick_host)) < 1e-10
    assert host.view.passes_of.keys() == {"six", "nine"}
    assert host.view.passes_of == quick_host.view.passes_of


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork workers")
@pytest.mark.parametrize("name", MIXED)
def test_workers_and_resume_with_several_architectures(name: str) -> None:
    """Any number of workers gives the bits of one process; so does a run continued from its saved state."""
    runner = lambda bench: FastRunner(bench, SIZES, "program", "float64")  # noqa: E731
    plan = cohorts(4)
    alone, host = play(mixed(name), plan, make=lambda bench: SerialExecutor(bench, runner(bench)))
    pool = lambda bench: PoolExecutor(bench, runner(bench), workers=2, chunk=2)  # noqa: E731
    together, pool_host = play(mixed(name), plan, make=pool)
    pool_host.executor.close()
    assert same(alone, together)
    assert same(states(host), states(pool_host))
    fed = mixed(name)
    whole, _ = play(fed, plan)
    server, first = play(fed, plan[:2])
    second = fed.host()
    for k in first.states.after.clients():
        second.states.after.restore(k, codec.decode(codec.encode(dict(first.states.get(k) or {}))))
    resumed, _ = play(fed, plan[2:], server=codec.decode(codec.encode(dict(server))), host=second, first=3)
    assert same(whole, resumed)


def test_programs_are_made_for_each_architecture() -> None:
    runners: list[FastRunner] = []

    def make(bench: Bench) -> SerialExecutor:
        runners.append(FastRunner(bench, SIZES, "program", "float64"))
        return SerialExecutor(bench, runners[-1])

    play(mixed("local_only"), [(0, 1)], make=make)
    assert {("train six", 4), ("train nine", 4)} <= runners[-1].steps.keys()


# ---------------------------------------------------------------------- options of a task


# ---------------------------------------------------------------------- FedMD


def test_identical_models_agree_with_their_consensus() -> None:
    """The consensus is everybody's own scores, and there is nothing to digest."""
    fed = federation(ALGORITHMS["fedmd"](start_epochs=0, private_epochs=0))
    asks: list[Ask] = []
    host = fed.host()
    answer = host.server.answer

    def watched(ask: Ask) -> Replies:
        asks.append(ask)
        return answer(ask)

    host.server.answer = watched  # type: ignore[method-assign]
    server, _ = play(fed, [(0, 1, 3)], host=host)
    public = fed.bench.rows(SERVER)
    own = fed.bench.network.logits(fed.params, Batch(public.x, public.y)).detach()
    assert gap(server["consensus"], own) < 1e-15
    digest = fed.bench.algorithm.tasks["digest"]
    batch = Batch(public.x, asks[1].messages[0]["consensus"])
    facts = host.facts(0, 1, 0.1)
    assert float(digest.objective(fed.bench.network, fed.params, batch, {}, {}, facts).detach()) < 1e-15
    assert [ask.what for ask in asks] == ["score", "digest", "train"]


def test_what_crosses_does_not_know_the_models() -> None:
    """B8: |subset| N_c numbers each way, whatever the models' size."""

    def crossed(**kinds: Any) -> tuple[int, int]:
        made = ALGORITHMS["fedmd"](**SHORT["fedmd"], rows=8)
        _, host = play(federation(made, dtype=torch.float32, **kinds), [(0, 1, 2)])
        return host.cost.bytes_up, host.cost.bytes_down

    assert crossed() == crossed(make=Wider) == crossed(several=TWO)
    up, down = crossed()
    numbers = 3 * 8 * 3 * 4  # clients, rows, classes, bytes
    assert numbers < up < numbers + 3 * 400  # heads
    assert numbers < down < numbers + 3 * 400


def test_who_stays_away_learns_nothing() -> None:
    fed = mixed("fedmd")
    host = fed.host()
    server = fed.begin(host)
    before = codec.encode(dict(host.states.get(2) or {}))
    play(fed, [(0, 1, 3)], server=server, host=host)
    assert codec.encode(dict(host.states.get(2) or {})) == before


@pytest.mark.parametrize(("epochs", "steps"), [(1, 3), (5, 2 * 3)])
def test_a_straggler_revisits_with_its_own_epochs_and_never_with_more(epochs: int, steps: int) -> None:
    """A straggler's number is drawn from 1 to local.epochs, which may be above the revisit's two."""
    _, host = play(federation(ALGORITHMS["fedmd"](**SHORT["fedmd"])), [(0, 1)], budgets={1: Budget(epochs=epochs)})
    assert (host.view.work[0].steps, host.view.work[1].steps) == (12 + 2 * 2, 12 + steps)  # digest and revisit


def test_the_temperature_softens_both() -> None:
    """By hand: two classes, log-odds 2 against 0 at T = 2 are log-odds 1 against 0: KL = p log 2p + (1-p) log 2(1-p), p = 1/(1+e^-1)."""
    teacher, student = torch.tensor([[0.0, 2.0]]).double(), torch.zeros((1, 2)).double()
    p = 1 / (1 + math.exp(-1))
    by_hand = p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p))
    assert by_hand == pytest.approx(0.1109, abs=1e-4)
    assert float(divergence(student, teacher, 2.0)) == pytest.approx(by_hand, abs=1e-15)
    one = divergence(student[:, :1], teacher[:, 1:], 2.0)  # one output: the log-odds of the second class
    assert float(one) == pytest.approx(float(divergence(student, teacher, 2.0)), abs=1e-15)


# ---------------------------------------------------------------------- FedDF


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_without_steps_feddf_is_fedavg_bit_for_bit(weights: str) -> None:
    a, host = play(federation(ALGORITHMS["fedavg"](weights=weights)), 5)
    b, other = play(federation(ALGORITHMS["feddf"](steps=0, weights=weights)), 5)
    assert same(a["model"], b["model"])
    assert host.cost.bytes_up == other.cost.bytes_up
    assert host.cost.bytes_down == other.cost.bytes_down
    c, _ = play(federation(ALGORITHMS["feddf"](weights=weights)), 5)
    assert gap(a["model"], c["model"]) > 1e-3


def test_without_steps_every_architecture_is_fedavg_among_its_clients() -> None:
    held = rows()
    plan = cohorts(4)
    found, _ = play(mixed("feddf", steps=0), plan)
    for name, make in TWO.items():
        mine = tuple(k for k in held if (k % 2 == 0) == (name == "six"))
        among = [tuple(k for k in cohort if k in mine) for cohort in plan]
        alone, _ = play(federation(ALGORITHMS["fedavg"](), make=make), among)
        assert same(found["states"][name]["model"], alone["model"]), name


def distillation_never_harms(build: Callable[..., Algorithm]) -> None:
    """What is kept is at least as good as the mean on the rows that judge: none of a rate far too large is."""
    made = build(steps=50)
    options = made.tasks["distil"].options
    wild = options._replace(solver=options.solver._replace(lr=500.0))
    tasks = {**made.tasks, "distil": made.tasks["distil"]._replace(options=wild)}
    a, _ = play(federation(made._replace(tasks=tasks)), 2)
    b, _ = play(federation(ALGORITHMS["feddf"](steps=0)), 2)
    assert same(a["model"], b["model"])


def test_distillation_never_harms() -> None:
    distillation_never_harms(ALGORITHMS["feddf"])


def test_an_architecture_without_clients_learns_from_the_others() -> None:
    fed = mixed("feddf")
    server, host = play(fed, [(1, 3)])  # nobody with six units
    start = fed.bench.networks["six"].network.initial()[0]
    assert gap(server["states"]["six"]["model"], start) > 1e-3
    assert host.view.passes_of["six"] > 0


def test_the_server_works_without_sending() -> None:
    """Distillation costs forward and backward passes, and no bytes."""
    plan = [(0, 1, 3)]
    _, with_steps = play(federation(ALGORITHMS["feddf"]()), plan)
    _, without = play(federation(ALGORITHMS["feddf"](steps=0)), plan)
    assert (with_steps.cost.bytes_up, with_steps.cost.bytes_down) == (without.cost.bytes_up, without.cost.bytes_down)
    scored = 3 * 12
    distilled = with_steps.view.work[SERVER].examples
    assert with_steps.view.passes == without.view.passes + scored + 3 * distilled
    assert {"score", "distil"} <= with_steps.cost.seconds.keys()


# ---------------------------------------------------------------------- [[models]]


@pytest.mark.parametrize(
    ("shares", "clients", "counts"),
    [((0.5, 0.5), 5, [3, 2]), ((0.5, 0.3, 0.2), 12, [6, 4, 2]), ((1 / 3, 1 / 3, 1 / 3), 3, [1, 1, 1])],
)
def test_models_are_dealt_by_shares(shares: tuple[float, ...], clients: int, counts: list[int]) -> None:
    places = dealt(shares, clients, 1)
    assert [places.count(i) for i in range(len(shares))] == counts
    assert places == dealt(shares, clients, 1)
    assert any(places != dealt(shares, clients, seed) for seed in range(2, 12)) or clients == len(shares)


SMALL = "models=[{name='mlp', hidden=[8], share=0.5}, {name='mlp', hidden=[16], norm='batch', share=0.5}]"
NORMED = SMALL.replace("hidden=[8]", "norm='batch'")
FEW = ("partition={name='iid', clients=4}", "rounds=2", "data.limit=200", "public={from='test', per_class=5}")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            [SMALL],
            "'fedavg' works with one architecture for all clients; use one of 'fedmd', 'feddf', 'centralised', 'local_only'",
        ),
        ([SMALL, "algorithm.name=scaffold"], "works with one architecture"),
        ([SMALL, "algorithm.name=feddf", "model.name=mlp"], "give .*models.* or model.name, not both"),
        ([SMALL, "algorithm.name=feddf", "model.hidden=[3]"], "give .*models.* or model.hidden, not both"),
        ([SMALL, "algorithm.name=feddf", "model.init=x.safetensors"], "give .*models.* or model.init, not both"),
        (
            [SMALL.replace("hidden=[8]", "norm='batch'"), "algorithm.name=feddf", "model.bn=local"],
            "not with 'feddf': whole models are distilled; use 'average'",
        ),
        (
            ["models=[{name='mlp', share=1.0}]", "algorithm.name=fedmd"],
            "give two or more, with shares that add up to 1",
        ),
        ([SMALL.replace("0.5}]", "0.4}]"), "algorithm.name=fedmd"], "shares that add up to 1, not 0.5, 0.4"),
        ([SMALL.replace("hidden=[8]", "hiden=[8]"), "algorithm.name=fedmd"], "did you mean 'model.hidden'"),
        ([SMALL.replace("hidden=[8]", "loss='mse'"), "algorithm.name=fedmd"], "models.loss: this key is the same"),
        ([SMALL.replace("'mlp', hidden=[8]", "'cnn9'"), "algorithm.name=fedmd"], "unknown model 'cnn9'"),
        (["models=[{name='mlp'}, {name='mlp', share=0.5}]"], "models.*share"),
        ([SMALL, "algorithm.name=fedmd", "partition={name='iid', clients=1}"], "a share of 0.5 of 1 client"),
        (["algorithm.name=fedmd", "compression={name='topk'}"], "class scores of public rows"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(overrides: list[str], expected: str) -> None:
    with pytest.raises(FedatlasError, match=expected) as error:
        set_up(config.read(None, overrides), 1)
    assert "\n" not in str(error.value)


def test_a_network_of_ones_own_is_one_architecture() -> None:
    with pytest.raises(ConfigError, match="remove the argument module"):
        set_up(config.read(None, [SMALL, "algorithm.name=fedmd"]), 1, Smooth())


def test_without_several_models_the_configuration_is_as_before() -> None:
    assert "models" not in config.parse({}).plain()


def test_labels_of_public_rows_matter_to_fedmd_alone() -> None:
    """FedDF takes rows of other classes, FedMD's start does not; both need classes to speak of."""
    dataset = set_up(config.read(None, []), 1).dataset
    dataset = dataset.with_splits(public=Split(dataset.test.x[:5], torch.full((5,), 40)))
    check_public(ALGORITHMS["feddf"](), PublicConfig.model_validate({"from": "digits"}), dataset)
    with pytest.raises(ConfigError, match="has classes that"):
        check_public(ALGORITHMS["fedmd"](), PublicConfig.model_validate({"from": "digits"}), dataset)
    for name in ("fedmd", "feddf"):
        with pytest.raises(ConfigError, match=f"'{name}' needs classes, but 'digits' has none"):
            check_classes(ALGORITHMS[name](), replace(dataset, task="numbers"))


@pytest.mark.parametrize("name", MIXED)
def test_a_mixed_run_and_what_is_left_of_it(name: str, tmp_path: Path) -> None:
    """Files by architecture, who has which, one row a round; every client's model can be had again without the data."""
    keys = "".join(f", {key}={value}" for key, value in SHORT[name].items())
    done = run_one(config.read(None, [f"algorithm={{name='{name}'{keys}}}", SMALL, *FEW]), tmp_path / "run")
    facts = done.summary["models"]
    assert {n: len(m["clients"]) for n, m in facts.items()} == {"mlp-1": 2, "mlp-2": 2}
    assert facts["mlp-1"]["parameters"] == 64 * 8 + 8 + 8 * 10 + 10
    owner = json.loads((done.path / "partition.json").read_text())["models"]
    assert {int(k): n for k, n in owner.items()} == {k: n for n, m in facts.items() for k in m["clients"]}
    files = sorted(path.name for path in done.path.glob("*.safetensors"))
    saved = [f"model-{n}.safetensors" for n in facts] if name == "feddf" else []
    assert files == [*(f"initial-{n}.safetensors" for n in facts), *saved]
    assert done.summary["model"] == "mlp-1, mlp-2"
    loaded = fedatlas.load(done.path)
    with pytest.raises(ConfigError, match=r"has no model of all clients \(model\.safetensors\): name .*a client"):
        loaded.predict(torch.zeros(1, 1, 8, 8))
    agrees_with_its_record(done.path)
    if name == "feddf":
        assert loaded.rows.iloc[-1]["models"].keys() == facts.keys()
        k = facts["mlp-2"]["clients"][0]
        x = torch.rand(5, 1, 8, 8)
        assert loaded.predict(x, model="mlp-2").equals(loaded.predict(x, client=k))
        with pytest.raises(ConfigError, match="has no model 'mlp'"):
            loaded.predict(x, model="mlp")


def agrees_with_its_record(path: Path) -> None:
    """The figures of `per_client` come out again with the models rebuilt from the checkpoint."""
    loaded = fedatlas.load(path)
    setup = set_up(loaded.config, loaded.config.seed)
    x = setup.dataset.inputs(setup.dataset.test.x, torch.float32)
    for row in loaded.summary["per_client"]:
        with torch.no_grad():
            right = loaded.client_model(row["client"])(x).argmax(1) == setup.dataset.test.y
        assert float(right.double().mean()) == pytest.approx(row["value"], abs=1e-12), row["client"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.name=fedavg"],
        ["algorithm.name=ditto"],
        ["algorithm.name=fedbn", "model.norm=batch"],
        ["algorithm.name=local_only", "model.norm=batch"],
        ["algorithm={name='fedmd', start_epochs=2, private_epochs=2}"],
        ["algorithm={name='ifca', clusters=2}"],
        ["algorithm.name=gossip"],
    ],
)
def test_personal_models_can_be_had_after_a_run(overrides: list[str], tmp_path: Path) -> None:
    few = ("partition={name='iid', clients=3}", "rounds=2", "data.limit=150", "cohort.size=2")
    done = run_one(config.read(None, [*overrides, *few]), tmp_path / "run")
    agrees_with_its_record(done.path)
    with pytest.raises(ConfigError, match="client 3: the run has the clients 0 to 2"):
        fedatlas.load(done.path).client_model(3)


def test_a_party_is_set_beside_its_own_architecture_trained_on_all_rows(tmp_path: Path) -> None:
    settings = config.read(None, ["algorithm={name='feddf', steps=4}", SMALL, *FEW])
    done = run(Experiment(settings), out=tmp_path / "run", baselines=True)
    assert done.summary["gain"]["summary"].keys() == {"federated", "local_only", "centralised"}
    central = fedatlas.load(done.path / "baselines" / "centralised")
    assert central.summary["models"].keys() == {"mlp-1", "mlp-2"}
    numbers = [sum(w.numel() for w in central.client_model(k).parameters()) for k in range(4)]
    assert sorted(numbers) == [610, 610, 1242, 1242]
    federated = fedatlas.load(done.path)
    assert numbers == [sum(w.numel() for w in federated.client_model(k).parameters()) for k in range(4)]
    page = (done.path / "report.html").read_text()
    assert "mlp-1: 610 parameters, 2 clients" in page


def test_everyone_takes_part_in_the_start() -> None:
    """FedMD's set-up reaches all clients that hold rows, and costs no bytes to speak of."""
    fed = mixed("fedmd")
    host = fed.host()
    fed.begin(host)
    assert sorted(host.states.after.clients()) == list(range(5))
    assert host.cost.bytes_up + host.cost.bytes_down < 5 * 2 * 2 * 100
    server, _ = play(fed, everyone(fed, 1))
    assert server["consensus"].shape == (12, 3)


def test_a_dry_run_counts_every_architecture(tmp_path: Path) -> None:
    """A client of each is tried out; together they send what the run then sends."""
    given = config.read(None, ["algorithm={name='feddf', steps=5}", SMALL, *FEW])
    looked = fedatlas.dry_run(Experiment(given))
    spent = run_one(given, tmp_path / "run").summary["cost"]
    assert looked["bytes_total"] == pytest.approx(spent["bytes_up"] + spent["bytes_down"], rel=0.01)
