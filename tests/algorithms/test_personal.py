"""Ditto, FedBN and the meanings of ``model.bn``: models that are a client's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sealing
from configured import run_one, set_up
from fedatlas import config
from fedatlas.algorithm import Algorithm, Batch, Budget, Replies, State
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import local_norms, recalibrated
from fedatlas.algorithms.gradients import mean_gradient
from fedatlas.api import Experiment, run
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.errors import ConfigError
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.start import RoundStart
from fedatlas.setup.resolution import with_batch_norm
from fedatlas.tree import Tree
from federation import SIZES, Federation, Normed, everyone, federation, gap, module, play, rows, same

NORMS = {"norm.weight", "norm.bias"}
STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
WHOLE: dict[str, Any] = {"batch_size": 0, "budget": Budget(epochs=2)}  # of any size: batch norm wants two rows


class Convolved(nn.Module):
    """Rows of 4 as sequences: a convolution, batch norm over rows and places, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.norm(self.conv(x[:, None]))).flatten(1))


def state(host: InProcess, client: int) -> State:
    held = host.states.get(client)
    assert held is not None
    return held


def personal(fed: Federation, server: State, host: InProcess, client: int) -> Tree:
    """What a client would use."""
    made = fed.bench.algorithm
    buffers = {"buffers": server["buffers"]} if server.get("buffers") else {}
    message = {**buffers, **made.broadcast(server, client)}
    held = host.state_of(client, message, host.facts(client, 0, 0.0))
    return made.personal(message, held)  # type: ignore[misc]


# ---------------------------------------------------------------------- Ditto


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_the_global_path_of_ditto_is_fedavg_bit_for_bit(weights: str) -> None:
    """And it costs no more bytes: the message serves both kinds of work, and nothing of the own model leaves."""
    one, host = play(federation(ALGORITHMS["ditto"](lam=0.5, weights=weights)), 5)
    other, plain = play(federation(ALGORITHMS["fedavg"](weights=weights)), 5)
    assert same(one, other)
    assert host.cost.bytes_down == plain.cost.bytes_down
    assert host.cost.bytes_up - plain.cost.bytes_up == 3 * 64, "three empty messages"
    assert host.cost.bytes_peer == 0
    assert {k: w.loss for k, w in host.view.work.items()} == {k: w.loss for k, w in plain.view.work.items()}
    assert host.view.passes == 2 * plain.view.passes


def test_ditto_without_a_pull_is_local_training() -> None:
    fed, alone = federation(ALGORITHMS["ditto"](lam=0.0)), federation(ALGORITHMS["local_only"]())
    _, host = play(fed, everyone(fed, 4))
    _, other = play(alone, everyone(alone, 4))
    for k in range(len(SIZES)):
        assert same(state(host, k)["v"], state(other, k)["model"])


def test_the_stronger_the_pull_the_nearer_the_global_model() -> None:
    """lam -> infinity gives w_t: at eta lam = 1 a step ends eta g away from it."""
    away = []
    for lam in (0.0, 1.0, 10.0, 1000.0):
        fed = federation(ALGORITHMS["ditto"](lam=lam, personal_epochs=10), WIDE)
        before, host = play(fed, everyone(fed, 3), lr=0.001)
        play(fed, everyone(fed, 1), server=before, host=host, first=4, lr=0.001)
        away.append(max((state(host, k)["v"] - before["model"]).norm() for k in range(len(SIZES))))
    assert away == sorted(away, reverse=True)
    assert away[-1] < 0.06 * away[0]


WIDE = rows()


def test_own_epochs_are_counted_apart() -> None:
    """``personal_epochs`` changes the own models and their cost, not the global one."""
    short, long = (federation(ALGORITHMS["ditto"](personal_epochs=e)) for e in (1, 3))
    a, host_a = play(short, 2)
    b, host_b = play(long, 2)
    assert same(a, b)
    assert gap(state(host_a, 0), state(host_b, 0)) > 1e-4
    assert host_a.view.passes / host_b.view.passes == pytest.approx((2 + 1) / (2 + 3))


def test_an_own_model_has_own_statistics() -> None:
    fed = federation(ALGORITHMS["ditto"](), make=Normed, **WHOLE)
    server, host = play(fed, everyone(fed, 2))
    kept = state(host, 1)["buffers"]
    assert kept.keys() == STATISTICS
    assert int(kept["norm.num_batches_tracked"]) == 4
    assert gap(kept["norm.running_mean"], server["buffers"]["norm.running_mean"]) > 1e-6
    assert personal(fed, server, host, 1).keys() == fed.params.keys() | STATISTICS


# ---------------------------------------------------------------------- FedBN


def test_without_batch_norm_fedbn_is_fedavg_bit_for_bit() -> None:
    one, _ = play(federation(ALGORITHMS["fedbn"]()), 5)
    other, _ = play(federation(ALGORITHMS["fedavg"]()), 5)
    assert same(one, other)


def batch_norm_stays(build: Callable[..., Algorithm]) -> None:
    """Each client goes on from its own layers; by hand for two rounds."""
    fed = federation(build(), make=Normed, **WHOLE)
    plan = [(0, 1, 3), (1, 3, 4)]
    server, host = play(fed, plan)
    reference = federation(ALGORITHMS["fedavg"](), make=Normed, **WHOLE)
    w, own = dict(reference.params), {k: {} for k in range(5)}  # type: ignore[var-annotated]
    buffers = dict(reference.buffers)
    for number, cohort in enumerate(plan, start=1):
        done = {}
        for k in cohort:
            begin = {
                "model": Tree({n: own[k].get(n, x) for n, x in w.items()}),
                "buffers": Tree({n: own[k].get(n, x) for n, x in buffers.items()}),
            }
            trained, _ = play(reference, [(k,)], server=begin, first=number)
            done[k] = {**trained["model"], **trained["buffers"]}
            own[k] = {n: done[k][n] for n in NORMS | STATISTICS}
        total = sum(SIZES[k] for k in cohort)
        mean = {n: sum(SIZES[k] / total * done[k][n] for k in cohort) for n in (*w, *buffers)}
        w, buffers = (
            {n: mean[n] for n in w},
            {n: mean[n] if "num" not in n else max(done[k][n] for k in cohort) for n in buffers},
        )
    assert gap(dict(server["model"]), w) < 1e-14
    assert gap(dict(server["buffers"]), buffers) < 1e-14
    for k in (0, 1, 3, 4):
        assert gap(dict(state(host, k)["own"]), own[k]) < 1e-14
    assert gap(dict(personal(fed, server, host, 0)), {**w, **own[0]}) < 1e-14


def test_batch_norm_stays_and_the_rest_is_averaged() -> None:
    batch_norm_stays(ALGORITHMS["fedbn"])


def test_a_new_client_begins_with_the_average_of_the_others_batch_norm() -> None:
    fed = federation(ALGORITHMS["fedbn"](), make=Normed, **WHOLE)
    server, host = play(fed, [(0, 1, 3)])
    new = {**server["buffers"], **personal(fed, server, host, 2)}
    n = SIZES[0] + SIZES[1] + SIZES[3]
    for name in ("norm.weight", "norm.running_mean"):
        mean = sum(SIZES[k] / n * state(host, k)["own"][name] for k in (0, 1, 3))
        assert float((new[name] - mean).abs().max()) < 1e-14


def test_engines_agree_on_batch_norm_that_stays() -> None:
    """The step derived in the first round, when nobody has layers of its own yet, serves the later ones."""
    for made in (
        ALGORITHMS["fedbn"](),
        local_norms(ALGORITHMS["fedprox"](mu=0.5)),
        local_norms(ALGORITHMS["scaffold"]()),
    ):
        fed = federation(made, make=Normed, **WHOLE)
        oracle, host = play(fed, 4)
        quick, quick_host = play(
            fed, 4, make=lambda bench: SerialExecutor(bench, FastRunner(bench, SIZES, "program", "float64"))
        )
        assert gap(oracle, quick) < 1e-11
        assert max(gap(state(host, k), state(quick_host, k)) for k in host.states.after.clients()) < 1e-10


@pytest.mark.parametrize("kind", ["topk", "clip"])
def test_transforms_spare_layers_that_stay(kind: str) -> None:
    """The average of these layers is the plain one, and what is remembered or cut short has nothing of them."""
    fed = sealing.using(ALGORITHMS["fedbn"](), sealing.made(kind), make=Normed, **WHOLE)
    free = federation(ALGORITHMS["fedbn"](), make=Normed, **WHOLE)
    begun, _ = play(free, [(0, 1, 3), (0, 1, 3)])
    server, host = play(fed, [(0, 1, 3)], server=begun, first=3)
    plain, _ = play(free, [(0, 1, 3)], server=begun, first=3)
    own = {k: state(host, k)["own"] for k in (0, 1, 3)}
    n = SIZES[0] + SIZES[1] + SIZES[3]
    for name in NORMS:
        assert float((server["model"][name] - sum(SIZES[k] / n * own[k][name] for k in own)).abs().max()) < 1e-14
    assert list(server["model"]) == list(plain["model"])
    others = sum(x.numel() for name, x in fed.params.items() if name not in NORMS)
    moved = Tree({name: server["model"][name] - begun["model"][name] for name in fed.params if name not in NORMS})
    if kind == "clip":
        assert (
            0
            < moved.norm()
            <= 0.02 + 1e-12
            < Tree({name: plain["model"][name] - begun["model"][name] for name in moved}).norm()
        )
    else:
        assert {len(host.states.get(k)["$memory"]["train"]["model"]) for k in own} == {others}  # type: ignore[index]


def test_added_terms_spare_layers_that_stay() -> None:
    """FedProx with a huge mu holds every layer but those of batch norm, which have nothing to agree on."""
    fed = federation(local_norms(ALGORITHMS["fedprox"](mu=9.0)), make=Normed, **WHOLE)
    free = federation(local_norms(ALGORITHMS["fedavg"]()), make=Normed, batch_size=0, budget=Budget(epochs=1))
    _, host = play(fed, [(3,)], lr=0.1)
    moved = {name: float((state(host, 3)["own"][name] - fed.params[name]).norm()) for name in NORMS}
    _, other = play(free, [(3,)], lr=0.1)
    one_step = {name: float((state(other, 3)["own"][name] - fed.params[name]).norm()) for name in NORMS}
    assert all(moved[name] > 1.5 * one_step[name] for name in NORMS)


# ---------------------------------------------------------------------- recalibrate


def test_statistics_taken_anew_are_those_of_all_the_cohort_s_rows() -> None:
    """Mean and variance of what enters the layer, over everybody's rows, under the new model."""
    fed = federation(recalibrated(ALGORITHMS["fedavg"]()), make=Normed, **WHOLE)
    server, host = play(fed, [(0, 1, 3)])
    x = torch.cat([fed.held[k].x for k in (0, 1, 3)])
    entering = x @ server["model"]["hidden.weight"].T + server["model"]["hidden.bias"]
    assert torch.allclose(server["buffers"]["norm.running_mean"], entering.mean(0), atol=1e-12)
    assert torch.allclose(server["buffers"]["norm.running_var"], entering.var(0), atol=1e-12)  # over rows - 1
    plain, _ = play(federation(ALGORITHMS["fedavg"](), make=Normed, **WHOLE), [(0, 1, 3)])
    assert same(server["model"], plain["model"])
    assert sum(host.cost.weights.values()) == pytest.approx(1)
    assert fed.bench.network.module.norm.momentum == 0.1


def test_statistics_of_a_convolution_are_over_its_positions_too() -> None:
    """What torch itself keeps of one pass over all rows at once, with momentum 1."""
    fed = federation(recalibrated(ALGORITHMS["fedavg"]()), make=Convolved, **WHOLE)
    server, _ = play(fed, [(0, 1, 3)])
    own = module(Convolved)
    own.load_state_dict({**own.state_dict(), **server["model"]})
    own.norm.momentum = 1.0
    own(torch.cat([fed.held[k].x for k in (0, 1, 3)]))
    for name in ("running_mean", "running_var"):
        assert torch.allclose(server["buffers"][f"norm.{name}"], getattr(own.norm, name), atol=1e-12)


def test_statistics_stay_where_everybody_leaves_before_they_are_asked_for() -> None:
    made = recalibrated(ALGORITHMS["fedavg"]())
    fed = federation(made, make=Normed, **WHOLE)
    server, host = fed.begin(), fed.host()
    rounds = made.rounds(made, server, fed.round(1, (0, 1)))  # type: ignore[misc]
    host.server.begin(RoundStart(1, 0.1))
    ask = rounds.send(host.server.answer(next(rounds)))
    assert ask.what == "statistics"
    with pytest.raises(StopIteration) as end:
        rounds.send(Replies((), None, {}))
    assert same(end.value.value, play(federation(ALGORITHMS["fedavg"](), make=Normed, **WHOLE), [(0, 1)])[0])


def test_nobody_and_no_batch_norm_change_nothing() -> None:
    made = recalibrated(ALGORITHMS["fedavg"]())
    one, _ = play(federation(made), 3)
    other, _ = play(federation(ALGORITHMS["fedavg"]()), 3)
    assert same(one, other)
    fed = federation(made, make=Normed, **WHOLE)
    server, host = play(fed, 1)
    after, _ = play(fed, [()], server=server, host=host, first=2)
    assert same(server, after)


# ---------------------------------------------------------------------- whole runs


@pytest.mark.parametrize(
    ("name", "bn"),
    [("fedavg", "local"), ("fedavg", "recalibrate"), ("scaffold", "local"), ("fedbn", "average"), ("ditto", "average")],
)
def test_a_run_with_batch_norm(name: str, bn: str, tmp_path: Path) -> None:
    """It learns, and a run of personal models reports every client's."""
    given = [
        f"algorithm.name={name}",
        "model.norm=batch",
        f"model.bn={bn}",
        "rounds=3",
        "local.batch_size=20",
        "local.epochs=2",
    ]
    run = run_one(config.read(None, given), tmp_path / "run")
    assert run.summary["final"]["accuracy"] > 0.25
    spread = run.summary["final"]["client_accuracy"]
    assert (spread is not None) == ((name, bn) != ("fedavg", "recalibrate"))


def test_an_error_is_told_over_the_clients_too(tmp_path: Path) -> None:
    """C14 for a target that is a number: each client's own rows, the mean by their number, the large end as the bad one."""
    lines = ["a,b,y", *(f"{i % 7},{i % 5},{(i % 7) * 2.5 - (i % 5) + (i % 3) / 4}" for i in range(240))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    given = [
        f"data.path={tmp_path / 't.csv'}",
        "data.name=file",
        "data.label=y",
        "partition.name=quantity_skew",
        "partition.clients=4",
    ]
    given += [
        "algorithm.name=ditto",
        "model.name=logistic",
        "rounds=2",
        "evaluation.clients=0.3",
        "partition.min_size=9",
    ]
    done = run_one(config.read(None, given), tmp_path / "run").summary
    found, each = done["final"]["client_rmse"], done["per_client"]
    n = [row["test_rows"] for row in each]
    assert len(set(n)) > 1
    assert found["mean"] == pytest.approx(
        sum(m * row["value"] for m, row in zip(n, each, strict=True)) / sum(n), rel=1e-4
    )
    assert found["min"] == pytest.approx(max(row["value"] for row in each), rel=1e-4)
    assert found["mean"] < found["p10"] <= found["min"]
    assert done["final"]["client_accuracy"] is None


@pytest.mark.parametrize(
    ("name", "bn", "why"),
    [
        ("fesem", "local", "works with one global model"),
        ("ifca", "recalibrate", "works with one global model"),
        ("ditto", "recalibrate", "the clients of 'ditto' use personal models"),
        ("fedbn", "recalibrate", "the clients of 'fedbn' use personal models"),
    ],
)
def test_one_model_is_needed(name: str, bn: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        set_up(config.read(None, [f"algorithm.name={name}", "model.norm=batch", f"model.bn={bn}"]), 1)


@pytest.mark.parametrize("name", ["hwfedavg", "nwfedavg", "scaffold", "feddyn"])
def test_layers_that_stay_go_with_any_global_method(name: str) -> None:
    """Also with those that ask something before they train, or keep a state of their own."""
    made = local_norms(ALGORITHMS[name]())
    fed = federation(made, make=Normed, **WHOLE)
    server, _ = play(fed, 2)
    assert all(bool(torch.isfinite(x).all()) for x in server["model"].values())


def test_a_method_that_looks_at_the_model_it_was_sent_is_refused() -> None:
    """MOON's features of the average's layers with one client's statistics would be nobody's; also inside a chain."""
    for made in (ALGORITHMS["moon"](), ALGORITHMS["fedseq"](rule={"name": "moon"})):
        with pytest.raises(ConfigError, match="use 'average' or 'recalibrate'"):
            local_norms(made)
    assert local_norms(ALGORITHMS["moon"](mu=0.0)).name == "moon"  # no term, nothing to look at


@pytest.mark.parametrize("rule", [{"option": "I"}, {"variant": "fedseq_code"}])
def test_a_survey_sees_the_layers_that_stay_with_their_own_statistics(rule: dict[str, Any]) -> None:
    """SCAFFOLD's gradient at w_t: of the model that local work begins with, layers and running statistics the client's own."""
    fed = federation(local_norms(ALGORITHMS["scaffold"](**rule)), make=Normed, **{**WHOLE, "budget": Budget(epochs=1)})
    server, host = play(fed, everyone(fed, 1))
    own = dict(state(host, 2)["own"])
    begun = {name: own.get(name, x) for name, x in server["model"].items()}
    held = fed.held[2]
    statistics = {name: own[name] for name in STATISTICS}
    assert gap(statistics, {name: server["buffers"][name] for name in STATISTICS}) > 1e-3
    fed.bench.network.module.eval()
    expected = mean_gradient(fed.bench.network, [Batch(held.x, held.y, None, statistics)], begun)
    play(fed, [tuple(sorted(fed.held))], server=server, host=host, first=2)
    assert gap(state(host, 2)["c_k"], expected) < 1e-14


def test_staying_alone_keeps_ones_own_statistics() -> None:
    """Local-only is what `model.bn = "local"` would make of it: its running statistics go on from round to round."""
    fed = federation(ALGORITHMS["local_only"](), make=Normed, **WHOLE)
    server, host = play(fed, everyone(fed, 3))
    held = personal(fed, server, host, 1)
    assert held["norm.running_mean"].abs().max() > 0
    assert held["norm.num_batches_tracked"] == 3 * 2


@pytest.mark.parametrize("name", ["fednova", "ditto"])
def test_layers_that_stay_make_no_sense_for_some(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"model.bn = 'local': not with '{name}'"):
        with_batch_norm(ALGORITHMS[name](), "local")


@pytest.mark.parametrize("bn", ["local", "recalibrate"])
def test_baselines_train_beside_any_policy(bn: str, tmp_path: Path) -> None:
    tables = {"rounds": 1, "partition": {"name": "iid", "clients": 4}, "model": {"norm": "batch", "bn": bn}}
    done = run(Experiment(config.parse(tables)), out=tmp_path / "run", baselines=True)
    assert set(done.summary["gain"]["summary"]) == {"federated", "local_only", "centralised"}


@pytest.mark.parametrize("sizes", [(1, 12, 9), (12, 1, 9)])
def test_a_client_too_small_for_batch_norm_counts_with_the_statistics_it_was_sent(sizes: tuple[int, ...]) -> None:
    """One row makes no step: the model comes back as it was, and so do its statistics, in any order of clients."""
    fed = federation(ALGORITHMS["fedavg"](), rows(sizes), make=Normed, **WHOLE)
    small = sizes.index(1)
    others = tuple(k for k in range(3) if k != small)
    server, _ = play(fed, [(0, 1, 2)])
    without, _ = play(fed, [others])
    for name in ("norm.running_mean", "norm.running_var"):
        expected = (21 * without["buffers"][name] + fed.buffers[name]) / 22
        assert gap(server["buffers"][name], expected) < 1e-14
