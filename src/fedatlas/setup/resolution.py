"""From the configuration as it was written to the whole of it: the algorithm, what that dictates, every default. No data are read."""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from fedatlas.aggregation.rules import Rule
from fedatlas.algorithm import Algorithm, Transform
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import has_own_norms, local_norms, recalibrated
from fedatlas.attacks.poisoning import Poisoning
from fedatlas.config import ExperimentConfig
from fedatlas.data.config import PublicConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.registry import arguments, find, keywords, shown
from fedatlas.setup.aggregation_rule import rule_of
from fedatlas.setup.attackers import poisonings_of
from fedatlas.setup.defaults import completed
from fedatlas.setup.mechanism_choice import mechanisms_of
from fedatlas.setup.transform import make_transform, transform_notices


class Resolved(NamedTuple):
    """What an experiment means, before any data are read."""

    config: ExperimentConfig  # every key written out, as config.toml records it
    algorithm: Algorithm
    transform: Transform | None
    notices: tuple[str, ...]
    mechanisms: tuple[Mechanism, ...] = ()  # of ``[[privacy]]``, in the sound order
    poisonings: tuple[Poisoning, ...] = ()  # of ``[[attack]]``
    rule: Rule | None = None  # of ``[aggregation]``


def resolve(config: ExperimentConfig, module: nn.Module | None = None) -> Resolved:
    """The configuration made whole; ConfigError for an unknown name or key, and for a key that the algorithm dictates otherwise.

    What is written out resolves to itself. ``module``: the network of one's own in place of ``[model]``.
    """
    if config.columns:
        raise ConfigError(
            "parties hold columns here: 'fedatlas run' and 'fedatlas align' take this experiment; studies, baselines and plug-ins of "
            "clients that hold rows do not."
        )
    algorithm = make_algorithm(config)
    config, notices = apply_fixes(config, algorithm)
    transform = make_transform(config, algorithm)
    notices += transform_notices(config, transform)
    mechanisms = mechanisms_of(config)
    poisonings, rule = poisonings_of(config), rule_of(config)
    config, told = public_default(config, algorithm)
    whole = completed(config, module is not None)
    return Resolved(whole, algorithm, transform, (*notices, *told), mechanisms, poisonings, rule)


def make_algorithm(config: ExperimentConfig) -> Algorithm:
    """The algorithm named by ``[algorithm]``, its parameters checked against the builder's signature."""
    builder = find("algorithms", ALGORITHMS, config.algorithm.name)
    given = config.algorithm.parameters()
    if "weights" in given and "weights" not in arguments("algorithm", builder, {}):
        name = config.algorithm.name
        raise ConfigError(f"algorithm.weights: '{name}' sets its own weights; remove the key.")
    for key in [key for key in given if key not in keywords(builder)]:
        if able := [name for name, each in ALGORITHMS.items() if key in keywords(each)]:
            raise ConfigError(
                f"algorithm.{key}: '{config.algorithm.name}' has no such key; those that have: {', '.join(able)}."
            )
    made = builder(**arguments("algorithm", builder, given))
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"algorithm '{config.algorithm.name}': its builder returned {type(made).__name__}, not an Algorithm."
        )
    return made


def apply_fixes(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """Keys that the algorithm dictates: replaced over a default (with a notice), refused over what the user wrote."""
    notices = []
    for key, value in algorithm.fixes.items():
        table_name, _, field = key.partition(".")
        table = getattr(config, table_name)
        now = getattr(table, field)
        if now == value:
            continue
        if field == "epochs" and config.local.steps is not None:
            raise ConfigError(
                f"local.steps = {config.local.steps}: '{algorithm.name}' works with {value} epoch only; remove the key."
            )
        if field in table.model_fields_set:
            only = "without it" if value is None else f"with {shown(value)} only"
            raise ConfigError(f"{key} = {shown(now)}: '{algorithm.name}' works {only}; remove the key.")
        changed = table.model_copy(update={field: value})
        config = config.model_copy(update={table_name: changed})
        notices.append(f"'{algorithm.name}' sets {key} = {value!r} (the default is {now!r}).")
    return config, notices


def public_default(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """The ``[public]`` table an algorithm works with, where the experiment has none: with a notice."""
    if config.public is not None or algorithm.demands.public is None:
        return config, []
    public = PublicConfig.model_validate(dict(algorithm.demands.public))
    words = ", ".join(f"{key} = {value!r}" for key, value in algorithm.demands.public.items())
    return config.model_copy(update={"public": public}), [
        f"'{algorithm.name}' works with public rows: [public] {words}."
    ]


def with_batch_norm(algorithm: Algorithm, bn: str, mixed: bool = False) -> Algorithm:
    """The algorithm under ``model.bn``: running statistics averaged, kept by the clients, or taken anew after each round."""
    if bn == "average" or (bn == "local" and has_own_norms(algorithm)):
        return algorithm
    if why := algorithm.refuses.get(f"model.bn.{bn}"):
        raise ConfigError(f"model.bn = '{bn}': not with '{algorithm.name}': {why}; use 'average'.")
    several = algorithm.clusters is not None or algorithm.serverless or mixed
    if several:
        raise ConfigError(
            f"model.bn = '{bn}' works with one global model, '{algorithm.name}' has several; use 'average'."
        )
    if bn == "recalibrate" and algorithm.personal is not None:
        raise ConfigError(
            f"model.bn = '{bn}' renews the global model's statistics, but the clients of '{algorithm.name}' use models of their own; "
            "use 'average'."
        )
    return local_norms(algorithm) if bn == "local" else recalibrated(algorithm)
