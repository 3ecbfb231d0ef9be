"""The faults that other implementations are known to have, kept: each is made here on purpose and must be found.

A module of this folder has ``MUTATIONS``, a list of `Mutation`. Each names the algorithm it spoils, says what is wrong, builds the
faulty record, and names the checks that find it: functions of a builder that raise AssertionError. test_mutations.py asks every check
of the right builder, where it must pass, and of the faulty one, where it must fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from comparison import disagreement
from fedatlas.algorithm import Algorithm, Task

Build = Callable[..., Algorithm]
Check = Callable[[Build], None]


class Mutation(NamedTuple):
    """One fault."""

    algorithm: str  # the registry's name of what is spoilt
    fault: str  # what is wrong, in a few words
    build: Build  # the faulty builder, with the parameters of the right one
    checks: tuple[Check, ...]  # each must find it
    patch: Callable[[pytest.MonkeyPatch], None] | None = None  # where the fault lies outside the record


def mutations() -> list[Mutation]:
    """All of them, in the order of the files."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))
    return [m for name in names for m in import_module(f"mutations.{name}").MUTATIONS]


def oracle(name: str, **case: Any) -> Check:
    """The comparison with the oracle, with these parameters of the algorithm; five rounds are enough to see a fault."""

    def agrees_with_its_oracle(build: Build) -> None:
        assert disagreement(name, {**case, "problem": {"rounds": 5, **case.get("problem", {})}}, build) < 1e-10

    agrees_with_its_oracle.__name__ = "oracle" + "".join(f", {key}={value}" for key, value in case.items())
    return agrees_with_its_oracle


def patched(module: Any, name: str, other: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """The fault of a module whose ``name`` is something else."""
    return lambda monkeypatch: monkeypatch.setattr(module, name, other)


def with_task(builder: Build, **changed: Any) -> Build:
    """The builder with fields of its task ``train`` replaced."""

    def build(**parameters: Any) -> Algorithm:
        made = builder(**parameters)
        tasks: Mapping[str, Task] = {**made.tasks, "train": made.tasks["train"]._replace(**changed)}
        return made._replace(tasks=tasks)

    return build


def with_fields(builder: Build, **changed: Any) -> Build:
    """The builder with fields of its record replaced."""
    return lambda **parameters: builder(**parameters)._replace(**changed)
