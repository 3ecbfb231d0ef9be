"""``[algorithm]`` and ``[[privacy]]`` of an experiment whose parties hold columns, resolved and checked."""

from __future__ import annotations

from fedatlas.algorithm import Algorithm
from fedatlas.config import AlgorithmConfig, ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import MECHANISMS
from fedatlas.registry import arguments
from fedatlas.setup.checked import Checked
from fedatlas.vertical import SCHEMES
from fedatlas.vertical.scheme import questions


def of_columns(config: ExperimentConfig) -> bool:
    """Return whether parties hold columns of the same rows, not rows of the same columns."""
    return config.columns


def rounds_key(config: ExperimentConfig) -> str:
    """Return the key that sets how many rounds an experiment has."""
    key = SCHEMES[config.algorithm.name].rounds if config.columns else ""
    return f"algorithm.{key}" if key else "rounds"


def rounds_of(config: ExperimentConfig) -> int:
    """Return how many rounds an experiment has."""
    return method_of(config).config.rounds if config.columns else config.rounds


def method_of(config: ExperimentConfig) -> Checked:
    """Write out every key of an experiment's scheme. ConfigError for a key or a value that the scheme refuses."""
    scheme, given = SCHEMES[config.algorithm.name], config.algorithm.parameters()
    found = arguments("algorithm", scheme.build, given)
    if "rounds" in config.model_fields_set and scheme.rounds and scheme.rounds not in given:
        found[scheme.rounds] = config.rounds
    rounds, one = found[scheme.rounds] if scheme.rounds else scheme.fixed, scheme.words.round
    if not scheme.rounds and "rounds" in config.model_fields_set and config.rounds != rounds:
        raise ConfigError(f"rounds = {config.rounds}: '{scheme.name}' always has {rounds} {one}s; remove the key.")
    if "rounds" in config.model_fields_set and config.rounds != rounds:
        raise ConfigError(
            f"rounds = {config.rounds}, but algorithm.{scheme.rounds} = {rounds}: here a round is a {one}; remove one of the two."
        )
    how, mechanisms = scheme.build(**found), []
    for table in config.privacy:
        builder = MECHANISMS[table.name]
        mechanisms.append(builder(**arguments(f"privacy.{table.name}", builder, table.parameters())))
        if table.name in scheme.mechanisms:  # noise of labels changes no setting
            how = scheme.under(how, mechanisms[-1])
    if rounds < 1:
        raise ConfigError(f"algorithm.{scheme.rounds} = 0: ask for at least one {one}.")
    algorithm = AlgorithmConfig(name=scheme.name, **found)
    whole = config.model_copy(update={"algorithm": algorithm, "rounds": rounds})
    asked = Algorithm(scheme.name, tasks=questions(scheme, how))
    return Checked(whole, asked, mechanisms=tuple(mechanisms), scheme=scheme, how=how)
