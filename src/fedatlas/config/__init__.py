"""The experiment file: from TOML to frozen typed values, and a template to start from."""

from fedatlas.config.experiment import (
    AlgorithmConfig,
    CohortConfig,
    EngineConfig,
    EvaluationConfig,
    ExperimentConfig,
    LocalConfig,
    PartitionConfig,
    ScheduleConfig,
    Table,
    bytes_of,
    override,
    parse,
    read,
)

__all__ = [
    "AlgorithmConfig",
    "CohortConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "LocalConfig",
    "PartitionConfig",
    "ScheduleConfig",
    "Table",
    "bytes_of",
    "override",
    "parse",
    "read",
]
