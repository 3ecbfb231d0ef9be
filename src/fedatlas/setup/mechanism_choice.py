"""``[[privacy]]``: the mechanisms that an experiment asks for, in the order applied, and the algorithms they can protect.

`mechanisms_of` needs only the tables, `protection_of` also the federation. The other functions compare a mechanism with
an algorithm (`Limits.why_not`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import ExperimentConfig
from fedatlas.engine.model import Network
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.privacy.mechanism import Mechanism, Protection, PublicWork, on_updates
from fedatlas.privacy.mechanisms import MASKS, MECHANISMS, beside
from fedatlas.registry import arguments, find, keywords
from fedatlas.setup.cohort import local_budget, usual_size
from fedatlas.setup.folds import course_seed

REMEDIES: tuple[Mapping[str, Any], ...] = ({"weights": "uniform"}, {"phi": "random"})
"""Parameters with which an algorithm may be protected that cannot be with its defaults."""


def mechanisms_of(config: ExperimentConfig) -> tuple[Mechanism, ...]:
    """Return the mechanisms of ``[[privacy]]`` in the order in which they are applied.

    ConfigError for an unknown name or key, mechanisms that exclude each other, and an extra that is not installed.
    """
    made: dict[str, Mechanism] = {}
    for table in config.privacy:
        name = table.name
        if name not in MECHANISMS:
            raise unknown_name("mechanism", name, MECHANISMS)
        if name in made:
            raise ConfigError(f"[[privacy]]: '{name}' is declared twice; remove one of its tables.")
        made[name] = MECHANISMS[name](**arguments(f"privacy.{name}", MECHANISMS[name], table.parameters()))
    ordered = beside(made.values())
    check_pairs(sorted(ordered, key=lambda one: [*MECHANISMS].index(one.name)))
    for one in ordered:
        check_extras(one, config)
    return ordered


def protection_of(
    config: ExperimentConfig,
    mechanisms: Sequence[Mechanism],
    sizes: Sequence[int],
    network: Network,
    algorithm: Algorithm,
) -> Protection | None:
    """Return the mechanisms that act in rounds, in a federation of clients with these numbers of rows; None without any."""
    held, acting = [n for n in sizes if n], on_updates(mechanisms)
    training = PublicWork(dict(enumerate(sizes)), config.local.batch_size, local_budget(config))
    if not acting or not held:
        return None
    fraction = {"poisson": config.cohort.fraction, "passes": usual_size(config, len(held)) / len(held)}.get(
        config.cohort.sampling, 1.0
    )
    names = [*network.initial()[0]]
    ours = tuple(one if one.named is None else one.named(names) for one in acting)
    ours = tuple(sized(one, len(held), config, algorithm) for one in ours)
    how = Protection(ours, len(held), config.rounds, fraction, course_seed(config), min(held))
    return how._replace(training=training, guarded=config.guard is not None)


def sized(mechanism: Mechanism, clients: int, config: ExperimentConfig, algorithm: Algorithm) -> Mechanism:
    """Return the mechanism for this number of clients and of rounds. In each round, and before the first, a task is asked once."""
    openings = (config.rounds + 1) * len(algorithm.tasks)
    return mechanism if mechanism.sized is None else mechanism.sized(clients, openings)


def check_pairs(mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError for mechanisms that cannot be combined."""
    hiding = [one.name for one in mechanisms if one.sums_only]
    if len(hiding) > 1:
        names = " and ".join(f"'{name}'" for name in hiding)
        raise ConfigError(f"[[privacy]]: {names} both hide updates from the server; remove one of them.")
    noisy = [one.name for one in mechanisms if one.noise is not None and not one.limits.alone]
    if len(noisy) > 1:
        names = " and ".join(f"'{name}'" for name in noisy)
        raise ConfigError(f"[[privacy]]: {names} both add noise, and have no account in common; remove one of them.")
    check_joined(mechanisms)
    for one in mechanisms:
        if one.limits.masks and not any(other.sums_only == "wholly" for other in mechanisms):
            raise ConfigError(
                f"[[privacy]]: '{one.name}' needs a mechanism that hides what single clients send, such as '{MASKS}': {one.limits.masks}."
            )
        others = [other.name for other in mechanisms if other is not one and other.acts_on == one.acts_on]
        if one.limits.alone and others:
            other = others[0]
            raise ConfigError(
                f"[[privacy]]: '{one.name}' cannot be combined: {one.limits.alone}; remove '{other}' or '{one.name}'."
            )


def check_joined(mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError for rows changed by way of other rows, under noise whose epsilon does not cover what one unit then moves."""
    for one in mechanisms:
        for noisy in (other for other in mechanisms if one.joins and other.noise is not None):
            if one.joins == "all":
                raise ConfigError(
                    f"[[privacy]]: '{one.name}' computes from all clients' rows how to change them, and the noise of '{noisy.name}' does "
                    f"not cover that; remove one of them, or let each client change its own (privacy.{one.name}.boundaries = 'local')."
                )
            if noisy.noise is not None and noisy.noise.of_rows:
                raise ConfigError(
                    f"[[privacy]]: under '{one.name}' one row changes what others of its client become, while the epsilon of "
                    f"'{noisy.name}' is that of a single row; remove one of them."
                )


def check_extras(mechanism: Mechanism, config: ExperimentConfig) -> None:
    """Raise ConfigError if the mechanism needs a package in this experiment that is not installed."""
    for extra in mechanism.limits.extras:
        if extra.sampled and config.cohort.sampling != "poisson":
            continue  # without sampling there is a closed form, which needs no package
        if find_spec(extra.module) is None:
            package = extra.package or extra.module.replace("_", "-")
            raise ConfigError(
                f"privacy.name = '{mechanism.name}' needs {package}, which is not installed: pip install \"fedatlas[{extra.name}]\"."
            )


def remedy(mechanism: Mechanism, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return parameters to add to those given so that the mechanism can protect the algorithm; {} if there are none."""
    builder = find("algorithms", ALGORITHMS, name)
    for changed in REMEDIES:
        if changed.keys() <= keywords(builder).keys():
            made = builder(**arguments("algorithm", builder, {**given, **changed}))
            if not mechanism.limits.why_not(made):
                return changed
    return {}


def check_algorithm(config: ExperimentConfig, algorithm: Algorithm, mechanism: Mechanism) -> None:
    """Raise ConfigError for a mechanism that cannot protect the algorithm's rounds. The error suggests a remedy."""
    if not (why := mechanism.limits.why_not(algorithm)):
        return
    found = remedy(mechanism, config.algorithm.name, config.algorithm.parameters())
    advice = " and ".join(f'algorithm.{key} = "{value}"' for key, value in found.items())
    raise ConfigError(
        f"[[privacy]] '{mechanism.name}': not with '{algorithm.name}': {why}; "
        + (f"write {advice}." if advice else f"use another algorithm ('fedatlas show {mechanism.name}' lists them).")
    )


def goes_with(mechanism: Mechanism) -> dict[str, str]:
    """Map each built-in algorithm that a mechanism can protect to the parameters it needs; "" for its defaults."""
    found: dict[str, str] = {}
    for name, build in ALGORITHMS.items():
        if not mechanism.limits.why_not(build()):
            found[name] = ""
        elif changed := remedy(mechanism, name, {}):
            found[name] = ", ".join(f'{key} = "{value}"' for key, value in changed.items())
    return found
