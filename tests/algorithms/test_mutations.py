"""Every fault kept in tests/support/mutations is found by each check it names, and the right algorithm passes that check."""

from __future__ import annotations

from typing import Any

import pytest

from fedatlas.algorithms import ALGORITHMS
from mutations import Check, Mutation, mutations

FOUND = [(m, check) for m in mutations() for check in m.checks]
RIGHT = list({(m.algorithm, check.__name__): (m.algorithm, check) for m, check in FOUND}.values())


def label(value: object) -> str:
    if isinstance(value, Mutation):
        return f"{value.algorithm}: {value.fault}"
    return value if isinstance(value, str) else value.__name__  # type: ignore[attr-defined]


QUICK = {m.algorithm: (m, check) for m, check in reversed(FOUND)}.values()
"""The first fault of each algorithm."""


def sought(mutation: Mutation, check: Check) -> Any:
    return pytest.param(mutation, check, marks=() if (mutation, check) in QUICK else pytest.mark.slow)


@pytest.mark.parametrize(("mutation", "check"), [sought(*one) for one in FOUND], ids=label)
def test_the_fault_is_found(mutation: Mutation, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    if mutation.patch is not None:
        mutation.patch(monkeypatch)
    with pytest.raises(AssertionError):
        check(mutation.build)


HELD = ("oracle", "feddyn_two_quadratics", "fedprox_stops_where_it_must")
"""Checks that the right algorithm passes in test_oracles.py and test_vectors.py as well."""


def passed(name: str, check: Check) -> Any:
    return pytest.param(name, check, marks=pytest.mark.slow if check.__name__.startswith(HELD) else ())


@pytest.mark.parametrize(("name", "check"), [passed(*one) for one in RIGHT], ids=label)
def test_the_right_algorithm_passes(name: str, check: Check) -> None:
    check(ALGORITHMS[name])


def test_every_fault_has_a_check_and_a_name_of_its_own() -> None:
    said = [(m.algorithm, m.fault) for m in mutations()]
    assert len(set(said)) == len(said)
    assert all(m.checks and m.algorithm in ALGORITHMS for m in mutations())
