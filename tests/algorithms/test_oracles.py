"""Every algorithm beside an independent second implementation (tests/support/oracles): in float64 on a small non-convex problem, 20 rounds
with three of five clients each unless a case says otherwise, unequal clients, ragged batches, weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from comparison import disagreement, oracles, problem_of, settings
from fedatlas.algorithm import Batch
from fedatlas.algorithms import ALGORITHMS
from federation import cohorts, federation, gap

ORACLES = oracles()
ABSENT: Mapping[str, str] = {}  # algorithm -> why it has no oracle
NO_STRAGGLERS = {"centralised", "fedsgd"}  # one party; one step
CASES = [(name, case) for name, module in ORACLES.items() for case in module.CASES]
FIRST = 6  # rounds after which the quick tests compare


def label(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(f"{k}={v}" for k, v in value.items()) or "defaults"


@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_agrees_with_its_oracle_in_the_first_rounds(name: str, case: Mapping[str, Any]) -> None:
    """Under every set of parameters; a fault shows within five rounds (tests/support/mutations)."""
    asked = {"rounds": FIRST, **case.get("problem", {})}
    assert disagreement(name, {**case, "problem": asked}) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_agrees_with_its_oracle(
    name: str, case: Mapping[str, Any], record_property: Callable[[str, object], None]
) -> None:
    """The two differ by rounding alone; the project's promise is 1e-5."""
    found = disagreement(name, case)
    record_property("difference", found)
    assert found < 1e-10


@pytest.mark.parametrize("name", sorted(ORACLES.keys() - NO_STRAGGLERS))
def test_agrees_with_its_oracle_under_stragglers_and_a_decaying_rate(name: str) -> None:
    """What comes before round 1 has the rate of round 1, and everybody's whole work."""
    assert disagreement(name, {"problem": {"epochs": 3, "stragglers": True, "decay": 0.9, "rounds": 6}}) < 1e-10


def test_every_algorithm_has_an_oracle() -> None:
    assert sorted(ORACLES) == sorted(set(ALGORITHMS) - set(ABSENT))
    assert all(case == {} for case in (module.CASES[0] for module in ORACLES.values())), "defaults come first"


def test_the_problem_of_the_oracles_is_the_networks() -> None:
    """Loss, features and gradient written for the oracles are those of the network that fedatlas trains."""
    fed = federation(ALGORITHMS["fedavg"]())
    problem = problem_of(fed, cohorts(1), settings(fed.bench.algorithm, {}))
    rows = fed.held[3]
    leaves = {name: x.detach().requires_grad_() for name, x in fed.params.items()}
    loss = fed.bench.network.loss(leaves, Batch(rows.x, rows.y))
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
    assert float(problem.loss(problem.w0, rows.x, rows.y)) == pytest.approx(float(loss.detach()), abs=1e-14)
    assert gap(problem.named(problem.gradient(problem.w0, rows.x, rows.y)), grads) < 1e-14
