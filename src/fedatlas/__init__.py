"""fedatlas: federated learning you can trust, from one experiment file to the evidence."""

from importlib.metadata import version

from fedatlas.algorithm import Algorithm, Ask, Local, Replies, Round, Task
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    DiskError,
    DivergedError,
    FedatlasError,
    PrivacyError,
    ProtocolError,
    TransportError,
)
from fedatlas.experiment.api import Experiment, dry_run, load, partition, predict, report, resume, run
from fedatlas.tree import Tree

__version__ = version("fedatlas")

__all__ = [
    "Algorithm",
    "Ask",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Dataset",
    "DiskError",
    "DivergedError",
    "Experiment",
    "FedatlasError",
    "Local",
    "Partition",
    "PrivacyError",
    "ProtocolError",
    "Replies",
    "Round",
    "Task",
    "TransportError",
    "Tree",
    "dry_run",
    "load",
    "partition",
    "predict",
    "report",
    "resume",
    "run",
]
