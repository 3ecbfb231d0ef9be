"""FedMA (H13): what matching finds, what happens to the function of a network, and runs whose model grows."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import fedatlas
from configured import set_up
from fedatlas import config
from fedatlas.algorithm import Replies
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.matching import Prior, assigned, gain_of_new, gain_of_old, matched, new_atoms
from fedatlas.api import Experiment, resume, run
from fedatlas.engine import fast
from fedatlas.engine.fast import FastRunner
from fedatlas.engine.loop import SerialExecutor
from fedatlas.engine.stacked_executor import StackedExecutor
from fedatlas.errors import ConfigError
from fedatlas.federation.start import RoundStart
from fedatlas.setup.assembly import first_server, state_notices
from fedatlas.tree import Tree
from federation import federation, gap, play, same, sgd
from layerwise import CLASSES, NETWORKS, copies_are_recovered, holdings, layerwise, outputs, shuffled
from layerwise import matched as merged

BUILD = ALGORITHMS["fedma"]


def prior(features: int, gamma: float = 1.0, sigma2: float = 1.0, sigma0_2: float = 1.0, mu0: float = 0.0) -> Prior:
    return Prior(sigma2, sigma0_2, gamma, np.full(features, mu0))


def stream(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


# ------------------------------------------------------------------------------------------------ matching


def test_gains_by_hand() -> None:
    """One feature, J = 3, an atom with the members 1 and 2 (Sigma = 3), sigma = sigma0 = 1, gamma = 2, mu0 = 0; v = 1.

    Into the atom: (3 + 1)^2 / (1 + 3) - 3^2 / (1 + 2) + 2 log(2 / 1) = 1 + 2 log 2.  Alone: 1^2 / 2 + 2 log(2/3).
    """
    V = np.array([[1.0]])
    old = gain_of_old(V, np.array([[3.0]]), np.array([2]), 3, prior(1, 2.0))
    assert old.item() == pytest.approx(1 + 2 * math.log(2), abs=1e-12)
    assert gain_of_new(V, 3, prior(1, 2.0)).item() == pytest.approx(0.5 + 2 * math.log(2 / 3), abs=1e-12)
    # sigma2 = 1/2, sigma0_2 = 2, mu0 = 1: (1/2 + 6 + 2)^2 / (1/2 + 6) - (1/2 + 6)^2 / (1/2 + 4); alone 2.5^2 / 2.5 - 1/2
    other = prior(1, 3.0, 0.5, 2.0, 1.0)
    expected = 8.5**2 / 6.5 - 6.5**2 / 4.5 + 2 * math.log(2)
    assert gain_of_old(V, np.array([[3.0]]), np.array([2]), 3, other).item() == pytest.approx(expected, abs=1e-12)
    assert gain_of_new(V, 3, other).item() == pytest.approx(2.5 - 0.5, abs=1e-12)


@pytest.mark.parametrize(("square", "atoms"), [(7.4, 2), (7.6, 1)])
def test_where_two_equal_units_become_one(square: float, atoms: int) -> None:
    """sigma = sigma0 = 1, gamma = 7, J = 2: |v|^2 / 3 > 2 log 3.5, that is |v|^2 > 7.516 (H13)."""
    v = np.sqrt(np.array([[square / 2, square / 2]]))
    found = matched([v, v], prior(2, 7.0), 5, stream(1))
    assert len(set(np.concatenate(found).tolist())) == atoms


def copies(J: int, units: int, features: int, scale: float, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Units of one layer, and in which order each client holds them (the first: as they are)."""
    draw = stream(seed)
    return scale * draw.normal(size=(units, features)), [
        np.arange(units),
        *(draw.permutation(units) for _ in range(J - 1)),
    ]


@pytest.mark.parametrize("keys", [{"gamma": 1e-3}, {"gamma": 7.0, "scale": 5.0}])
def test_permutations_are_found(keys: dict[str, float]) -> None:
    """H13's conditions: rows scaled to |v|^2 >= 20, or gamma = 1e-3."""
    units, orders = copies(4, 12, 6, keys.get("scale", 0.1), 3)
    found = matched([units[order] for order in orders], prior(6, keys["gamma"]), 5, stream(1))
    assert all(np.array_equal(names, order) for names, order in zip(found, orders, strict=True))


def test_one_client_is_matched_to_itself() -> None:
    units, _ = copies(1, 9, 4, 1.0, 5)
    assert matched([units], prior(4, 7.0), 5, stream(1))[0].tolist() == list(range(9))


def test_the_order_of_the_clients_changes_no_group() -> None:
    """Well-separated units, noise, and units that only one client has: who is the same unit as whom does not depend on the order."""
    units, orders = copies(3, 6, 5, 8.0, 7)
    clients = [units[order] + 0.01 * stream(k).normal(size=units.shape) for k, order in enumerate(orders)]
    clients[1][4] = 40.0  # nobody else's
    groups = []
    for arranged in itertools.permutations(range(3)):
        found = matched([clients[k] for k in arranged], prior(5), 5, stream(2))
        members: dict[int, set[tuple[int, int]]] = {}
        for k, names in zip(arranged, found, strict=True):
            for unit, name in enumerate(names):
                members.setdefault(int(name), set()).add((k, unit))
        groups.append({frozenset(group) for group in members.values()})
    assert all(group == groups[0] for group in groups)
    assert len(groups[0]) == 7


def test_sweeps_mend_what_the_first_pass_got_wrong() -> None:
    """Later clients show that the first were paired badly; taken out once more, they move."""
    clients = [stream(3, k).normal(size=(8, 3)) * 2 for k in range(5)]

    def gain(found: list[np.ndarray]) -> float:
        """Of the assignment as a whole: - sum over atoms of the least squares, the odds left out."""
        total = 0.0
        for name in set(np.concatenate(found).tolist()):
            held = np.stack([V[names == name][0] for V, names in zip(clients, found, strict=True) if name in names])
            total += (held.sum(0) ** 2).sum() / (1 + len(held))
        return total

    never, once, often = (gain(matched(clients, prior(3, 1e-9), sweeps, stream(4))) for sweeps in (0, 1, 5))
    assert never + 5 < once < often - 5


@given(st.integers(0, 10_000), st.floats(0.01, 3.0), st.sampled_from([0.1, 1.0, 7.0]))
def test_no_more_new_atoms_are_of_use(seed: int, scale: float, gamma: float) -> None:
    """The bound on new atoms costs no gain: as many as units are tried beside it."""
    draw = stream(seed)
    V, total, n = draw.normal(size=(6, 3)) * scale, draw.normal(size=(7, 3)) * scale, draw.integers(1, 4, size=7)
    how = prior(3, gamma)
    old, new = gain_of_old(V, total, n, 4, how), gain_of_new(V, 4, how)

    def value(chosen: np.ndarray) -> float:
        made = chosen >= 7
        return float(old[~made, chosen[~made]].sum() + (new[made] - 2 * np.log(np.arange(1, made.sum() + 1))).sum())

    from scipy.optimize import linear_sum_assignment

    everything = np.hstack([old, new[:, None] - 2 * np.log(np.arange(1, 7))])
    rows, columns = linear_sum_assignment(everything, maximize=True)
    assert value(assigned(V, total, n, 4, how)) == pytest.approx(everything[rows, columns].sum(), abs=1e-9)
    assert 1 <= new_atoms(old, new) <= 6


# ------------------------------------------------------------------------------------------------ the function


def test_permuted_copies_are_recovered() -> None:
    """Dense, convolutional, LSTM and embedding layers: the permutation, no growth, the function."""
    copies_are_recovered(BUILD)


@pytest.mark.parametrize("network", NETWORKS)
def test_growth_keeps_the_function(network: str) -> None:
    """gamma so large that units are added although they are copies: each is read in parts, which add up."""
    fed = layerwise(BUILD, network, gamma=50.0)
    server, _ = merged(fed, {0: fed.params, 1: shuffled(fed, 1)[0], 2: shuffled(fed, 2)[0]})
    assert server["model"].size() > fed.params.size()
    assert BUILD().card.figures(server)["growth"] == server["model"].size() / fed.params.size()  # type: ignore[misc]
    assert float((outputs(fed, server["model"]) - outputs(fed, fed.params)).abs().max()) < 1e-12


def test_map_averaging_shrinks() -> None:
    """sigma = sigma0, mu0 = 0: (sum over members) / (J + 1) in place of their mean: a factor J / (J + 1) in each matched layer."""
    fed = layerwise(BUILD, "dense", gamma=1e-3, averaging="map", mu0_bias=0.0)
    server, _ = merged(fed, dict.fromkeys(range(3), fed.params))
    for name, x in fed.params.items():
        factor = 1.0 if name.startswith("net.4") else 3 / 4
        assert float((server["model"][name] - factor * x).abs().max()) < 1e-14


@pytest.mark.parametrize("network", NETWORKS)
def test_one_client_keeps_its_model(network: str) -> None:
    """J = 1, whatever gamma: the identity."""
    fed = layerwise(BUILD, network, gamma=7.0)
    own, _ = shuffled(fed, 2)
    assert gap(merged(fed, {2: own})[0]["model"], own) < 1e-15


def test_last_layer_by_class_shares() -> None:
    """Row c is the mean by n_kc / sum_j n_jc; nobody holds class 2, so there all weigh the same."""
    fed = layerwise(BUILD, "dense", gamma=1e-3)
    head = {name: x for name, x in fed.params.items() if name.startswith("net.4")}
    heads = {
        k: Tree({**fed.params, **{name: x.new_full(x.shape, k + 1.0) for name, x in head.items()}}) for k in CLASSES
    }
    model = merged(fed, heads)[0]["model"]
    held = np.stack([np.bincount(y, minlength=3) for y in CLASSES.values()])
    share = held / np.maximum(held.sum(0), 1)
    share[:, 2] = 1 / 3
    assert share.sum(0) == pytest.approx(1)
    expected = share.T @ np.array([1.0, 2.0, 3.0])
    assert model["net.4.bias"].numpy() == pytest.approx(expected, abs=1e-12)
    assert model["net.4.weight"].numpy() == pytest.approx(np.repeat(expected[:, None], 7, 1), abs=1e-12)


def test_numbers_are_averaged_by_rows() -> None:
    """One output has no classes to count: n_k / sum_j n_j."""

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(x)))

    def squares(outputs: torch.Tensor, y: torch.Tensor, weight: Any = None) -> torch.Tensor:
        return ((outputs[:, 0] - y) ** 2).mean()

    fed = federation(BUILD(gamma=1e-3), holdings("dense"), One, squares)
    heads = {k: Tree({**fed.params, "b.bias": torch.full((1,), k + 1.0, dtype=torch.float64)}) for k in CLASSES}
    assert merged(fed, heads)[0]["model"]["b.bias"].item() == pytest.approx((4 * 1 + 3 * 2 + 5 * 3) / 12, abs=1e-12)


# ------------------------------------------------------------------------------------------------ rounds


@pytest.mark.parametrize("network", ["dense", "texts"])
def test_matched_layers_stay_frozen(network: str) -> None:
    """With momentum and weight decay a client ends the round with the server's hidden layers, bit for bit."""
    fed = layerwise(BUILD, network, gamma=20.0)
    fed = federation(fed.bench.algorithm, holdings(network), NETWORKS[network], optimizer=sgd(momentum=0.9), weight_decay=0.1)  # fmt: skip
    server, host = play(fed, [(0, 1, 2)])
    last = {part.name for part in fed.bench.chain[-1].parts}
    for k in range(3):
        held = host.states.get(k)
        assert held is not None
        assert all(torch.equal(held["model"][name], x) for name, x in server["model"].items() if name not in last)
        assert all(not torch.equal(held["model"][name], server["model"][name]) for name in last)
        assert all(len(set(units.tolist())) == len(units) for units in held["pi"].values())
    assert server["there"] == [0, 1, 2]


def test_who_is_sent_what() -> None:
    """The last layer for a client of the last round; for any other the units with most members, in the first width."""
    fed = layerwise(BUILD, "dense", gamma=20.0)
    server, _ = play(fed, [(0, 1)])
    tell = fed.bench.algorithm.broadcast
    assert set(tell(server, 1)) == {"last"}
    assert {name: x.shape for name, x in tell(server, 2)["model"].items()} == {n: x.shape for n, x in fed.params.items()}  # fmt: skip
    members = server["members"]["net.0"]
    assert len(members) > 9
    assert int(members.sum()) == 2 * 9
    first = members.tolist()
    most = sorted(sorted(range(len(first)), key=lambda i: -first[i])[:9])
    assert torch.equal(tell(server, 2)["model"]["net.0.bias"], server["model"]["net.0.bias"][most])


@pytest.mark.parametrize("answering", [0, 1, 2, 3])
def test_a_round_that_breaks_off(answering: int) -> None:
    """If nobody answers from some exchange on the model stays, and whoever had begun is sent all of it next time."""
    fed = layerwise(BUILD, "dense")
    server, host = play(fed, [(0, 1, 2)])
    rounds, answer, nobody, asks = (
        fed.bench.algorithm.rounds,
        host.server.answer,
        Replies((), None, {}),
        itertools.count(),
    )
    assert rounds is not None
    host.server.answer = lambda *ask: answer(*ask) if next(asks) < answering else nobody  # type: ignore[method-assign]
    after = host.drive(rounds(fed.bench.algorithm, server, fed.round(2, (0, 1))), RoundStart(2, 0.1))
    assert same(after["model"], server["model"])
    assert after["there"] == [2]
    assert "model" in fed.bench.algorithm.broadcast(after, 0)


@pytest.mark.parametrize(
    ("network", "long"),
    [
        *((network, 0) for network in NETWORKS),
        *(
            pytest.param(network, fast.LONG, marks=() if network == "pictures" else pytest.mark.slow)
            for network in NETWORKS
        ),
    ],
)
def test_engines_agree_on_grown_networks(network: str, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of layer, grown: the oracle's loop, tuned steps, programs, stacks; ``long``: steps worth a new program."""
    monkeypatch.setattr(fast, "LONG", long)
    monkeypatch.setattr(fast, "SHAPES", 1)
    fed = layerwise(BUILD, network, gamma=20.0)
    sizes = [rows.n for rows in fed.held.values()]
    plain, _ = play(fed, [(0, 1), (0, 2), (0, 1, 2)])
    assert plain["model"].size() > fed.params.size()
    for step in ("tuned", "program", "stacked"):
        runner = FastRunner(fed.bench, sizes, step, "float64")
        stack, one = partial(StackedExecutor, run_job=runner, width=4), partial(SerialExecutor, run_job=runner)
        quick, _ = play(fed, [(0, 1), (0, 2), (0, 1, 2)], make=stack if step == "stacked" else one)
        assert gap(plain["model"], quick["model"]) < 1e-11
        notes = runner.notes()
        later = [note for note in notes if note.startswith(("retrain", "last"))]
        assert later
        if step != "tuned":
            derived = long == 0 and network != "texts"  # an LSTM, which is not traced
            assert any("operators" in note for note in later) == derived
            assert any("few steps with tensors of a new shape" in note for note in later) == (long > 0)


def asked(*overrides: str) -> Experiment:
    return Experiment(config.read(None, ["algorithm.name=fedma", "rounds=3", "engine.workers=1", *overrides]))


def test_a_run_whose_model_grows(tmp_path: Path) -> None:
    """Rows and summary say how much; the model is saved, read back, and predicts; a resumed run ends with the same bits."""
    grow = ("algorithm.gamma=30", "algorithm.mu0_bias=0", "cohort.fraction=0.5", "failures.dropout=0.2")
    whole = run(asked(*grow), out=tmp_path / "whole", baselines=False)
    state = load_file(whole.path / "model.safetensors")
    figures = whole.summary["figures"]
    assert figures["growth"] > 1.2
    assert figures["units of body.1"] == len(state["body.1.bias"]) > 64
    loaded = fedatlas.load(whole.path)
    assert loaded.rows["figures"][0]["growth"] == 1.0
    units = [figures["units of body.1"] for figures in loaded.rows["figures"]]
    assert all(  # a round's operations are those of the model that it began with: 64 inputs, 10 outputs
        spent > 0 and spent % (2 * (64 + 10) * began) == 0
        for spent, began in zip(loaded.rows["flops"][1:], units, strict=False)
    )
    assert loaded.model.get_submodule("head").in_features == figures["units of body.1"]
    setup = set_up(asked(*grow).config, 1)
    found = loaded.predict(setup.dataset.test.x)
    right = (found["prediction"].astype(int).to_numpy() == setup.dataset.test.y.numpy()).mean()
    assert right == pytest.approx(whole.summary["final"]["accuracy"], abs=1e-12)
    shorter = run(asked(*grow, "rounds=1"), out=tmp_path / "part", baselines=False)
    resume(shorter.path, ["rounds=3"], baselines=False)
    again = load_file(shorter.path / "model.safetensors")
    assert same(state, again)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.norm=batch",), "has the layer 'body.2' (BatchNorm1d)"),
        (("compression.name=topk",), "a layer is matched by its weights"),
        (("algorithm.sigma2=0",), "sigma2"),
    ],
)
def test_what_is_refused(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]+$") as error:
        set_up(asked(*overrides).config, 1)
    assert words in str(error.value)


@pytest.mark.parametrize(("hidden", "said"), [("[6]", True), ("[6, 5]", False)])
def test_a_rate_of_a_retraining_that_does_not_happen_is_said_to_be_unused(hidden: str, said: bool) -> None:
    chosen = ["algorithm={name='fedma', retrain_lr=0.5}", f"model={{name='mlp', hidden={hidden}}}"]
    setup = set_up(config.read(None, chosen), 1)
    notices = state_notices(setup, first_server(setup))
    assert ["algorithm.retrain_lr = 0.5 is not used" in notice for notice in notices] == [True] * said
