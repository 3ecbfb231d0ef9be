"""Resolve a configuration: the algorithm, the keys it dictates, and every default. No data are read."""

from __future__ import annotations

from torch import nn

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import has_own_norms, local_norms, recalibrated
from fedatlas.config import ExperimentConfig
from fedatlas.data.config import PublicConfig
from fedatlas.errors import ConfigError
from fedatlas.registry import arguments, find, keywords, shown
from fedatlas.setup.aggregation_rule import rule_of, under_rule
from fedatlas.setup.attackers import poisonings_of
from fedatlas.setup.checked import Checked
from fedatlas.setup.columns_method import method_of
from fedatlas.setup.defaults import completed
from fedatlas.setup.mechanism_choice import mechanisms_of
from fedatlas.setup.transform import make_transform, transform_notices
from fedatlas.spelling import key_of_others


def resolve(config: ExperimentConfig, module: nn.Module | None = None) -> Checked:
    """Write out every key of an experiment. ``module``: the user's network in place of ``[model]``.

    A configuration that is written out resolves to itself. ConfigError for an unknown name or key, and for a key that
    the algorithm sets to another value. Nothing else is checked yet; `refusals.checked` does both.
    """
    if config.columns:
        return method_of(config)
    algorithm = make_algorithm(config)
    config, notices = apply_fixes(config, algorithm)
    transform = make_transform(config, algorithm)
    notices += transform_notices(config, transform)
    mechanisms = mechanisms_of(config)
    poisonings, rule = poisonings_of(config), rule_of(config)
    if rule is not None:
        algorithm = under_rule(config, algorithm, rule, mechanisms)
    config, told = public_default(config, algorithm)
    whole = completed(config, module is not None)
    return Checked(whole, algorithm, (*notices, *told), transform, mechanisms, poisonings, rule, module)


def make_algorithm(config: ExperimentConfig) -> Algorithm:
    """Return the algorithm named by ``[algorithm]``; its parameters are checked against the builder's signature."""
    builder = find("algorithms", ALGORITHMS, config.algorithm.name)
    given = config.algorithm.parameters()
    if "weights" in given and "weights" not in arguments("algorithm", builder, {}):
        name = config.algorithm.name
        raise ConfigError(f"algorithm.weights: '{name}' sets its own weights; remove the key.")
    for key in [key for key in given if key not in keywords(builder)]:
        if able := [name for name, each in ALGORITHMS.items() if key in keywords(each)]:
            raise key_of_others(config.algorithm.name, key, able)
    made = builder(**arguments("algorithm", builder, given))
    if not isinstance(made, Algorithm):
        raise ConfigError(
            f"algorithm '{config.algorithm.name}': its builder returned {type(made).__name__}, not an Algorithm."
        )
    return made


def apply_fixes(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """Set the keys that the algorithm dictates: replace a default with a notice, refuse a value that the user wrote."""
    notices = []
    for key, value in algorithm.fixes.items():
        table_name, _, field = key.partition(".")
        table = getattr(config, table_name)
        now = getattr(table, field)
        if now == value:
            continue
        if field == "epochs" and config.local.steps is not None:
            raise ConfigError(
                f"local.steps = {config.local.steps}: '{algorithm.name}' works only with {value} epoch; remove the key."
            )
        if field in table.model_fields_set:
            only = "without it" if value is None else f"with {shown(value)}"
            raise ConfigError(f"{key} = {shown(now)}: '{algorithm.name}' works only {only}; remove the key.")
        changed = table.model_copy(update={field: value})
        config = config.model_copy(update={table_name: changed})
        notices.append(f"'{algorithm.name}' sets {key} = {value!r} (the default is {now!r}).")
    return config, notices


def public_default(config: ExperimentConfig, algorithm: Algorithm) -> tuple[ExperimentConfig, list[str]]:
    """Add the ``[public]`` table that an algorithm needs, with a notice, if the experiment has none."""
    if config.public is not None or algorithm.demands.public is None:
        return config, []
    public = PublicConfig.model_validate(dict(algorithm.demands.public))
    words = ", ".join(f"{key} = {value!r}" for key, value in algorithm.demands.public.items())
    return config.model_copy(update={"public": public}), [
        f"'{algorithm.name}' works with public rows: [public] {words}."
    ]


def with_batch_norm(algorithm: Algorithm, bn: str, mixed: bool = False) -> Algorithm:
    """Return the algorithm under ``model.bn``, which sets the treatment of running statistics of batch norm.

    They are averaged, kept by the clients, or recomputed after each round.
    """
    if bn == "average" or (bn == "local" and has_own_norms(algorithm)):
        return algorithm
    if why := algorithm.refuses.get(f"model.bn.{bn}"):
        raise ConfigError(f"model.bn = '{bn}': not with '{algorithm.name}': {why}; use 'average'.")
    several = algorithm.clusters is not None or algorithm.serverless or mixed
    if several:
        raise ConfigError(
            f"model.bn = '{bn}' works with one global model, but '{algorithm.name}' has several; use 'average'."
        )
    if bn == "recalibrate" and algorithm.personal is not None:
        raise ConfigError(
            f"model.bn = '{bn}' recomputes the global model's statistics, but the clients of '{algorithm.name}' use personal models; "
            "use 'average'."
        )
    return local_norms(algorithm) if bn == "local" else recalibrated(algorithm)
