"""The experiment file: from TOML to frozen typed values, and a template to start from."""

from fedatlas.config.attacks import AggregationConfig, AttackConfig
from fedatlas.config.engine import EngineConfig
from fedatlas.config.experiment import (
    COMPONENTS,
    AlgorithmConfig,
    CohortConfig,
    EvaluationConfig,
    ExperimentConfig,
    LocalConfig,
    PartitionConfig,
    ScheduleConfig,
    parse,
    read,
    renamed,
)
from fedatlas.config.privacy import PrivacyConfig, bound_to_rounds
from fedatlas.overrides import ALTERNATIVES, override, put, value_of
from fedatlas.registry import ConfigTable, bytes_of

__all__ = [
    "ALTERNATIVES",
    "COMPONENTS",
    "AggregationConfig",
    "AlgorithmConfig",
    "AttackConfig",
    "CohortConfig",
    "ConfigTable",
    "EngineConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "LocalConfig",
    "PartitionConfig",
    "PrivacyConfig",
    "ScheduleConfig",
    "bound_to_rounds",
    "bytes_of",
    "override",
    "parse",
    "put",
    "read",
    "renamed",
    "value_of",
]
