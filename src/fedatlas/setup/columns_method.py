"""What parties that hold columns train: ``[algorithm]`` and ``[[privacy]]`` of their experiment, checked and written out."""

from __future__ import annotations

from fedatlas.config import AlgorithmConfig, ExperimentConfig
from fedatlas.config.parties import TREES
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import MECHANISMS
from fedatlas.registry import arguments, keywords, unknown_key
from fedatlas.vertical.boosting import SecureBoost, secureboost


def method_of(config: ExperimentConfig) -> tuple[ExperimentConfig, SecureBoost]:
    """(the configuration with every key of the algorithm written out, the method). ConfigError for a key or a value that it refuses."""
    given = config.algorithm.parameters()
    for key in given:
        if key not in keywords(secureboost):
            raise unknown_key("algorithm", key, keywords(secureboost))
    found = arguments("algorithm", secureboost, given)
    if "rounds" in config.model_fields_set and TREES not in given:
        found[TREES] = config.rounds
    elif "rounds" in config.model_fields_set and config.rounds != found[TREES]:
        raise ConfigError(
            f"rounds = {config.rounds}, but algorithm.trees = {found[TREES]}: a round is a tree here; leave one of them out."
        )
    how = secureboost(**found)
    for one in config.privacy:
        given = arguments(f"privacy.{one.name}", MECHANISMS[one.name], one.parameters())
        lock = MECHANISMS[one.name](**given)
        how = how._replace(**{key: lock.keys[key] for key in lock.limits.columns})
    if found[TREES] < 1:
        raise ConfigError("algorithm.trees = 0: grow one tree or more.")
    algorithm = AlgorithmConfig(name=config.algorithm.name, **found)
    whole = config.model_copy(update={"algorithm": algorithm, "rounds": found[TREES]})
    return whole, how
