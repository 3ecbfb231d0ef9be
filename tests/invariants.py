"""What the mathematics says of an algorithm, as checks of a builder: test_reductions.py asks them of the registry's builders,
test_mutations.py asks them of faulty ones, for which they must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from fedatlas.algorithm import Algorithm, Budget
from fedatlas.algorithms import ALGORITHMS
from fedatlas.engine.host import by_client
from fedatlas.experiment import config
from fedatlas.experiment.cohort import draw_round
from fedatlas.experiment.setup import set_up
from fedatlas.tree import Tree
from federation import SIZES, Normed, cohorts, everyone, federation, gap, play, rows

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
