"""fedatlas: federated learning you can trust, from one experiment file to the evidence.

The public names are found when they are first asked for: torch takes seconds to import, and ``--help`` needs none of it.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from fedatlas.algorithm import Algorithm, Ask, Local, Replies, Round, Task
    from fedatlas.api import Experiment, attack, dry_run, load, partition, predict, report, resume, run
    from fedatlas.data.dataset import Dataset, Partition
    from fedatlas.recommender.command import recommend
    from fedatlas.record.fields import RoundRow, RunSummary
    from fedatlas.study.study import Study
    from fedatlas.study.table import Table
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
    "RoundRow",
    "RunSummary",
    "Study",
    "Table",
    "Task",
    "TransportError",
    "Tree",
    "attack",
    "dry_run",
    "load",
    "partition",
    "predict",
    "recommend",
    "report",
    "resume",
    "run",
]

_LATER = {
    "fedatlas.algorithm": ("Algorithm", "Ask", "Local", "Replies", "Round", "Task"),
    "fedatlas.data.dataset": ("Dataset", "Partition"),
    "fedatlas.api": ("Experiment", "attack", "dry_run", "load", "partition", "predict", "report", "resume", "run"),
    "fedatlas.recommender.command": ("recommend",),
    "fedatlas.record.fields": ("RoundRow", "RunSummary"),
    "fedatlas.study.study": ("Study",),
    "fedatlas.study.table": ("Table",),
    "fedatlas.tree": ("Tree",),
}
"""Module -> the public names that are taken from it when they are asked for."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and refuses names that are none

    def __getattr__(name: str) -> Any:
        """A public name, from then on as if it had been imported; AttributeError for what is none."""
        for module, names in _LATER.items():
            if name in names:
                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module 'fedatlas' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The names there are, whether they were asked for or not."""
    return sorted({*globals(), *__all__})
