"""What the mathematics says of an algorithm, as checks of a builder: test_reductions.py asks them of the registry's builders,
test_mutations.py asks them of faulty ones, for which they must fail.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedatlas
from configured import set_up
from fedatlas import config
from fedatlas.algorithm import Algorithm, Batch, Budget, Facts, Message, Network, State, plain_loss
from fedatlas.algorithms import ALGORITHMS
from fedatlas.data.batches import Rows
from fedatlas.federation.asks import by_client
from fedatlas.models import Dropout, draw_masks, dropout_shapes
from fedatlas.rng import numpy_stream
from fedatlas.setup.cohort import draw_round
from fedatlas.tree import Tree
from federation import SIZES, Federation, Normed, cohorts, everyone, federation, gap, play, rows

Build = Callable[..., Algorithm]


def server_control_is_the_mean_of_the_clients(build: Build, weights: str = "uniform", option: str = "II") -> None:
    """SCAFFOLD: c = (1/K) sum c_k, or sum (n_k/n) c_k, after every round under any participation; c_k = 0 before the first."""
    fed = federation(build(weights=weights, option=option))
    server, host = fed.begin(), fed.host()
    for number, cohort in enumerate(cohorts(6), start=1):
        server, _ = play(fed, [cohort], server=server, host=host, first=number)
        mean = Tree({name: torch.zeros_like(x) for name, x in fed.params.items()})
        for k, n_k in enumerate(SIZES):
            state = host.states.get(k)
            if state is not None:
                mean = mean + (n_k / sum(SIZES) if weights == "samples" else 1 / len(SIZES)) * state["c_k"]
        assert gap(server["c"], mean) < 1e-14


def controls_learn(build: Build) -> None:
    """SCAFFOLD: from the second round on it is not FedAvg: the controls of those who took part are not zero."""
    plan = everyone(federation(build()), 2)
    a, _ = play(federation(ALGORITHMS["fedavg"](weights="uniform")), plan)
    b, host = play(federation(build()), plan)
    assert gap(a["model"], b["model"]) > 1e-4
    assert all(Tree(host.states.get(k)["c_k"]).norm() > 1e-4 for k in range(len(SIZES)))  # type: ignore[index]


def weights_are_shares_of_the_examples(build: Build) -> None:
    """C3: p_k = n_k / sum of n_j over those who returned."""
    _, host = play(federation(build()), [(0, 2, 3)])
    total = SIZES[0] + SIZES[2] + SIZES[3]
    assert [host.cost.weights[k] for k in (0, 2, 3)] == pytest.approx([SIZES[k] / total for k in (0, 2, 3)], abs=1e-15)


def buffers_are_the_mean_of_the_clients(build: Build) -> None:
    """C9: running statistics are averaged with the weights of the models, counters take the maximum."""
    local = {"make": Normed, "batch_size": 0, "budget": Budget(epochs=2)}
    cohort = (0, 1, 3)
    fed = federation(build(), **local)
    p = by_client(fed.bench.algorithm.weigh(fed.round(1, cohort)), cohort)
    share = {k: by["model"] if isinstance(by, Mapping) else by for k, by in p.items()}
    together, _ = play(fed, [cohort])
    alone = {k: play(federation(build(), **local), [(k,)])[0]["buffers"] for k in cohort}
    for name in ("norm.running_mean", "norm.running_var"):
        mean = sum(share[k] * alone[k][name] for k in cohort)
        assert float((together["buffers"][name] - mean).abs().max()) < 1e-14, name
    assert int(together["buffers"]["norm.num_batches_tracked"]) == 2


def drawn(seed: int) -> object:
    """Everything that is drawn before and between rounds: who holds what, who is selected, fails, works less."""
    given = ["cohort.fraction=0.5", "failures.dropout=0.2", "failures.stragglers=0.5", "local.epochs=3"]
    setup = set_up(config.read(None, given), seed)
    who = [draw_round(setup.config, setup.sizes, seed, number) for number in range(1, 11)]
    weights = {name: x.tolist() for name, x in setup.first.params.items()}
    return [rows.tolist() for rows in setup.partition.clients], who, weights


def one_seed_one_run(build: Build) -> None:
    """C16: all of a run's draws come from its seed, whichever library makes them."""
    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def first_round_is_fedavg(build: Build) -> None:
    """SCAFFOLD: all controls are zero in the first round (H11)."""
    a, _ = play(federation(ALGORITHMS["fedavg"](weights="uniform")), cohorts(1))
    b, _ = play(federation(build()), cohorts(1))
    assert gap(a["model"], b["model"]) < 1e-15


def one_client_is_sgd(build: Build) -> None:
    """SCAFFOLD, K = 1, option II: c = c_k always, so the correction is zero (H11)."""
    a, _ = play(federation(ALGORITHMS["fedavg"](), rows((23,))), [(0,)] * 4)
    b, _ = play(federation(build(), rows((23,))), [(0,)] * 4)
    assert gap(a["model"], b["model"]) < 1e-13


def write_rows(path: Path, spoilt: list[int] | None = None) -> None:
    """60 training and 30 test rows of four measures and three classes; ``spoilt`` training rows have other measures and classes."""
    stream = numpy_stream(0, "test", 60)
    x, y = stream.normal(size=(90, 4)).astype(np.float32), stream.integers(3, size=90)
    y[:3] = range(3)  # every class is there, whatever is spoilt
    train = x[:60], y[:60]
    if spoilt is not None:
        train = np.array(train[0]), np.array(train[1])
        train[0][spoilt], train[1][spoilt] = stream.normal(size=(len(spoilt), 4)) * 5, (train[1][spoilt] + 1) % 3
    np.savez(path, x_train=train[0], y_train=train[1], x_test=x[60:], y_test=y[60:])


def ran(folder: Path, **tables: Any) -> Path:
    """The folder of a run on ``rows.npz`` of ``folder``: one linear layer, three clients of twenty rows, everything in float64."""
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.sin(torch.arange(1.0, p.numel() + 1)).reshape(p.shape))
    table = {
        "data": {"name": "file", "path": str(folder / "rows.npz")},
        "partition": {"name": "iid", "clients": 3},
        "engine": {"name": "loop", "precision": "float64"},
    }
    experiment = fedatlas.Experiment.of(layer, **{**table, **tables})
    return fedatlas.run(experiment, out=Path(tempfile.mkdtemp(dir=folder)), baselines=False).path


def rows_held_out_train_nobody(build: Build, key: str) -> None:
    """Whatever the rows say that clients hold out (``validation``, ``held_out`` for their own figures), the model is the same to the bit.

    So it is for all rows together. Figures that these rows give are others: they are looked at.
    """
    judged = {"on": "validation", "validation": 0.2, "clients": 0.2}
    for name in ("fedavg", "centralised"):
        tables = {"rounds": 2, "evaluation": judged, "algorithm": {"name": name}, "local": {"batch_size": 4}}
        with tempfile.TemporaryDirectory() as at:
            write_rows(Path(at) / "rows.npz")
            whole = ran(Path(at), **tables)
            found = json.loads((whole / "partition.json").read_text())
            own = [row for each in found["held_out"].values() for row in each]
            assert len(own) == len(found["validation"]) == 12
            write_rows(Path(at) / "rows.npz", own if key == "held_out" else found["validation"])
            spoilt = ran(Path(at), **tables)
            models = [load_file(path / "model.safetensors") for path in (whole, spoilt)]
            assert gap(*models) == 0, name
            said = [json.loads((path / "summary.json").read_text()) for path in (whole, spoilt)]
            figure = "per_client" if key == "held_out" else "final"
            assert said[0][figure] != said[1][figure]


SCHEDULES: tuple[tuple[dict[str, Any], list[float]], ...] = (
    ({"name": "exponential", "gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
    ({"name": "step", "gamma": 0.1, "every": 2}, [1, 1, 0.1, 0.1]),
    ({"name": "cosine"}, [(1 + math.cos(math.pi * t / 4)) / 2 for t in range(4)]),
)


def rates_are_those_of_their_round(build: Build) -> None:
    """C6: clients of equal size on full batches are gradient descent on all rows, w <- w - eta_t grad F(w), with eta_1 = lr."""
    for schedule, shares in SCHEDULES:
        with tempfile.TemporaryDirectory() as at:
            write_rows(Path(at) / "rows.npz")
            path = ran(Path(at), rounds=4, local={"batch_size": 0, "lr": 0.5, "schedule": schedule})
            told = [json.loads(line)["lr"] for line in (path / "metrics.jsonl").read_text().splitlines()]
            assert told[1:] == pytest.approx([0.5 * share for share in shares])
            w = load_file(path / "initial.safetensors")
            with np.load(Path(at) / "rows.npz") as file:
                x, y = torch.from_numpy(file["x_train"]).double(), torch.from_numpy(file["y_train"])
            for share in shares:
                w = {name: p.requires_grad_() for name, p in w.items()}
                loss = nn.functional.cross_entropy(nn.functional.linear(x, w["weight"], w["bias"]), y)
                grads = torch.autograd.grad(loss, list(w.values()))
                w = {name: (p - 0.5 * share * g).detach() for (name, p), g in zip(w.items(), grads, strict=True)}
            assert gap(load_file(path / "model.safetensors"), w) < 1e-12, schedule


Place = tuple[int, int]  # number of the round, client
NUMBERED = 16  # rows of each client: four batches of four an epoch


class Dropped(nn.Module):
    """4 - 8 - 3 with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.head = nn.Linear(4, 8), Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.tanh(self.hidden(x))))


def batches_seen(build: Build, budget: Budget) -> dict[Place, list[Batch]]:
    """The batches that two clients' local steps see in two rounds; a row's first input is its number."""
    numbers = torch.arange(NUMBERED, dtype=torch.float64)
    held = {k: Rows(torch.stack([numbers] * 4, 1), torch.arange(NUMBERED) % 3) for k in range(2)}
    seen: list[Batch] = []

    def objective(
        net: Network, params: Tree, batch: Batch, message: Message, client: State, facts: Facts
    ) -> torch.Tensor:
        seen.append(batch)
        return plain_loss(net, params, batch, message, client, facts)

    made = build()
    tasks = {**made.tasks, "train": made.tasks["train"]._replace(objective=objective)}
    fed = with_dropout(federation(made._replace(tasks=tasks), held, Dropped, budget=budget))
    found: dict[Place, list[Batch]] = {}
    for number, client in ((1, 0), (1, 1), (2, 0), (2, 1)):
        seen.clear()
        play(fed, [(client,)], first=number, lr=1e-3)
        found[number, client] = list(seen)
    return found


def with_dropout(fed: Federation) -> Federation:
    """The federation with masks for its network's dropout layers."""
    network = fed.bench.network.module
    shapes = dropout_shapes(network, fed.held[0].x)
    masks = partial(draw_masks, network, shapes, dtype=torch.float64)
    networks = {name: built._replace(masks=masks) for name, built in fed.bench.networks.items()}
    return fed._replace(bench=fed.bench._replace(networks=networks))


def every_epoch_has_an_order_of_its_own(build: Build) -> None:
    """C7: each epoch of each client and round sees every row once, in an order that no other epoch has."""
    for budget in (Budget(epochs=3), Budget(steps=12)):
        orders = []
        for batches in batches_seen(build, budget).values():
            numbers = [int(row) for batch in batches for row in batch.x[:, 0]]
            orders += [tuple(numbers[at:][:NUMBERED]) for at in range(0, len(numbers), NUMBERED)]
        assert len(orders) == 3 * 2 * 2
        assert all(sorted(order) == list(range(NUMBERED)) for order in orders)
        assert len(set(orders)) == len(orders)


def every_batch_has_a_mask_of_its_own(build: Build) -> None:
    """C7: of 4 x 8 units that drop out with probability 1/2, no two batches of a run drop the same."""
    masks = [batch.extra["drop.mask"] for seen in batches_seen(build, Budget(epochs=3)).values() for batch in seen]
    assert len(masks) == 3 * 4 * 2 * 2
    assert len({tuple(mask.flatten().tolist()) for mask in masks}) == len(masks)
