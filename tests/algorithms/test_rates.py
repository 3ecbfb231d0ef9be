"""Learning rates at which a penalty alone throws local work off, refused before a run begins (algorithms/penalty.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from configured import set_up
from fedatlas import config
from fedatlas.algorithms.penalty import diverges_from, penalty_check
from fedatlas.config import LocalConfig
from fedatlas.engine import optim
from fedatlas.errors import ConfigError
from fedatlas.tree import Tree


def distance(lr: float, local: LocalConfig) -> float:
    """|w - w_t| after 3,000 steps on (1/2) (w - w_t)^2 from a distance of 1."""
    optimizer = optim.Optimizer("sgd", local.momentum, local.nesterov)
    w = Tree({"w": torch.ones(1, dtype=torch.float64)})
    memory = optim.start(optimizer, w)
    for _ in range(3000):
        w, memory = optim.step(optimizer, w, w, memory, lr)
    return w.norm()


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        set_up(config.read(None, overrides), 1)
    return str(error.value)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.1, 0.5, 0.9])
def test_the_limit_of_the_rate_is_that_of_the_optimiser(momentum: float, nesterov: bool) -> None:
    """A hundredth below it the penalty (c = 1) draws w to w_t, a hundredth above it throws it away."""
    local = LocalConfig(momentum=momentum, nesterov=nesterov)
    limit = diverges_from(1.0, momentum, nesterov)
    assert limit == pytest.approx(2 * (1 + momentum) / (1 + 2 * momentum * nesterov))
    assert distance(0.99 * limit, local) < 1e-6
    assert not distance(1.01 * limit, local) < 1e6  # inf - inf is not a number
    assert diverges_from(1.0) == 2.0
    assert penalty_check(0.0) is None


def test_a_rate_that_momentum_steadies_is_taken_and_one_that_it_does_not_is_refused() -> None:
    """mu = 40: plain SGD goes to 0.05, heavy ball with 0.9 to 0.095, Nesterov's form to 0.0339."""
    heavy, prox = "local.momentum=0.9", "algorithm={name='fedprox', mu=40.0}"
    assert "diverges from 0.05 on with its parameters; lower" in refusal(prox, "local.lr=0.05")
    assert set_up(config.read(None, [prox, heavy, "local.lr=0.09"]), 1).algorithm.name == "fedprox"
    assert "from 0.095 on with its parameters and local.momentum = 0.9; lower" in refusal(prox, heavy, "local.lr=0.095")
    said = refusal(prox, heavy, "local.nesterov=true", "local.lr=0.04")
    assert "from 0.0339286 on with its parameters and local.momentum = 0.9 (Nesterov's); lower" in said


@pytest.mark.parametrize("in_chains", [False, True])
def test_the_smallest_client_says_which_alpha_is_too_large(tmp_path: Path, in_chains: bool) -> None:
    """alpha_k = alpha (n/K) / n_k, three times alpha for client c: eta alpha_k < 2 is then the narrower limit."""
    owners = "a" * 20 + "b" * 15 + "c" * 5 + "d" * 20
    lines = [f"{i % 7},{i % 3},{i % 2},{owner}" for i, owner in enumerate(owners)]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,y,who", *lines]) + "\n")
    keys = f"data={{name='file', path='{tmp_path / 'rows.csv'}', label='y', client='who', test=0.2}}"

    def given(alpha: float, by_size: str) -> list[str]:
        rule = f"{{name='feddyn', alpha={alpha}, alpha_by_size={by_size}}}"
        algorithm = f"{{name='fedseq', phi='random', rule={rule}}}" if in_chains else rule
        return [keys, "partition={name='natural'}", "local.lr=0.5", f"algorithm={algorithm}"]

    n = set_up(config.read(None, given(0.1, "true")), 1).partition.sizes
    k, mean = n.index(min(n)), sum(n) / 4
    limit = 2 / 0.5 * min(n) / mean
    assert limit < 2
    said = f"client {k}, with {n[k]} rows where the mean is {mean:g}, diverges from"
    assert said in refusal(*given(1.01 * limit, "true"))
    for alpha, by_size in ((0.99 * limit, "true"), (1.01 * limit, "false")):
        set_up(config.read(None, given(alpha, by_size)), 1)
