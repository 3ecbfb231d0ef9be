"""fedatlas: federated learning you can trust, from one experiment file to the evidence.

Public names are imported when they are first used: torch takes seconds to import, and ``--help`` does not need it.
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
    from fedatlas.anonymisation.calls import anonymise
    from fedatlas.api import (
        Experiment,
        attack,
        audit,
        dry_run,
        load,
        partition,
        predict,
        report,
        resume,
        rollback,
        run,
        versions,
    )
    from fedatlas.comparison.calls import compare, tune
    from fedatlas.data.dataset import Dataset, Partition
    from fedatlas.estimators import FederatedClassifier, FederatedRegressor
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
    "FederatedClassifier",
    "FederatedRegressor",
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
    "anonymise",
    "attack",
    "audit",
    "compare",
    "dry_run",
    "load",
    "partition",
    "predict",
    "recommend",
    "report",
    "resume",
    "rollback",
    "run",
    "tune",
    "versions",
]

_LATER = {
    "fedatlas.algorithm": ("Algorithm", "Ask", "Local", "Replies", "Round", "Task"),
    "fedatlas.anonymisation.calls": ("anonymise",),
    "fedatlas.comparison.calls": ("compare", "tune"),
    "fedatlas.data.dataset": ("Dataset", "Partition"),
    "fedatlas.estimators": ("FederatedClassifier", "FederatedRegressor"),
    "fedatlas.api": (
        *("Experiment", "attack", "audit", "dry_run", "load", "partition", "predict", "report", "resume", "rollback"),
        *("run", "versions"),
    ),
    "fedatlas.recommender.command": ("recommend",),
    "fedatlas.record.fields": ("RoundRow", "RunSummary"),
    "fedatlas.study.study": ("Study",),
    "fedatlas.study.table": ("Table",),
    "fedatlas.tree": ("Tree",),
}
"""Module -> the public names that are imported from it on first use."""

if not TYPE_CHECKING:  # a type checker reads the imports above, and refuses unknown names

    def __getattr__(name: str) -> Any:
        """Import a public name on first use. AttributeError for any other name."""
        for module, names in _LATER.items():
            if name in names:
                found = globals()[name] = getattr(import_module(module), name)
                return found
        raise AttributeError(f"module 'fedatlas' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Return all names, whether or not they have been imported."""
    return sorted({*globals(), *__all__})
