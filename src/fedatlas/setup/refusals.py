"""Refuse experiments that cannot run, before anything is trained: each a ConfigError with one sentence.

`checked` resolves an experiment and makes every check that needs only its text, before data are read. The other
functions need the data, the clients or the network. Two kinds of refusal come earlier: those that need no algorithm,
when the file is read (`config/experiment.py`); unknown names and keys, and keys that the algorithm dictates, when the
configuration is resolved (`resolution.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from torch import nn

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.median_by_sums import NEAR
from fedatlas.config import ExperimentConfig
from fedatlas.config.experiment import LocalConfig
from fedatlas.config.tracking import check_tracking
from fedatlas.data.batches import cut
from fedatlas.data.config import PublicConfig
from fedatlas.data.constants import read_constants
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.partition.build import check_split
from fedatlas.engine.compiler import find_compiler
from fedatlas.engine.device import find_device
from fedatlas.engine.model import NO_FEATURES
from fedatlas.errors import ConfigError
from fedatlas.metrics.metric import fitting, positive_class
from fedatlas.models import has_batch_norm
from fedatlas.models.config import dealt
from fedatlas.models.initial import by_digest, read_initial
from fedatlas.models.losses import check_form
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.setup.attackers import check_fake
from fedatlas.setup.checked import Checked
from fedatlas.setup.drifting_rows import check_drift
from fedatlas.setup.guard import check_guard
from fedatlas.setup.privacy_refusals import check_norms, check_protection
from fedatlas.setup.resolution import resolve, with_batch_norm
from fedatlas.setup.views import check_declared_attacks, check_observed, check_observed_clients


def checked(config: ExperimentConfig, module: nn.Module | None = None) -> Checked:
    """Resolve and check an experiment. ``module``: a network in place of ``[model]``.

    ConfigError for the first reason not to run it that can be found without data.
    """
    whole = resolve(config, module)
    check(whole)
    return whole


def check(whole: Checked) -> None:
    """Make every check of a resolved experiment that needs no data. ConfigError for the first that fails.

    If parties hold columns, all checks were made when the file was read and its scheme resolved.
    """
    check_tracking(whole.config.tracking)
    if whole.columns:
        return
    config, algorithm, module = whole.config, whole.algorithm, whole.module
    check_engine(config)
    check_cluster(config, module, whole.mechanisms)
    check_model(config, algorithm, module)
    if module is not None:
        check_network(module, algorithm, whole.mechanisms)
    check_keys(config, algorithm)
    check_form(config.model.loss)
    check_fake(config, algorithm)
    check_builder(config, module)
    check_guard(config, with_batch_norm(algorithm, config.model.bn, bool(config.models)), whole.mechanisms)
    check_drift(config, whole.mechanisms)
    check_augment(config)
    check_batches(config, module)
    check_split(config.partition.name, config.partition.parameters(), config.partition.clients)
    check_cohort(config)
    if config.data.constants is not None:
        read_constants(config.data.constants)
    check_protection(config, algorithm, whole.transform, whole.mechanisms)
    check_observed(config, algorithm)
    if config.models and config.partition.clients:
        dealt([each.share for each in config.models], config.partition.clients, config.seed)


def check_builder(config: ExperimentConfig, module: nn.Module | None) -> None:
    """Raise ConfigError for a key that the model's builder does not take, or an initial model that does not exist."""
    if module is not None or config.models:
        return
    config.model.builder_arguments()
    if config.model.init and not by_digest(config.model.init):  # else it comes later, and its digest is checked then
        read_initial(config.model.init)


def check_cohort(config: ExperimentConfig) -> None:
    """Raise ConfigError if a round asks for more clients than there are; `check_asked` counts those with rows."""
    size, clients = config.cohort.size, config.partition.clients
    if size is not None and 0 < clients < size:
        raise ConfigError(f"cohort.size = {size}: there are {clients} clients; ask for at most {clients}.")


def check_engine(config: ExperimentConfig) -> None:
    """Raise ConfigError if this machine does not support the settings of ``[engine]``."""
    find_device("cpu" if config.engine.device == "auto" else config.engine.device)
    if config.engine.plan == "native" and find_compiler() is None:
        raise ConfigError("engine.plan = 'native': no C compiler was found; install gcc or clang, or use 'auto'.")


def check_cluster(config: ExperimentConfig, module: nn.Module | None, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError for a run whose work would need more on the nodes of a cluster than its configuration says."""
    if config.engine.cluster is None:
        return
    name = f"engine.cluster = {config.engine.cluster!r}"
    if module is not None:
        raise ConfigError(
            f"{name}: nodes build the network from the configuration, and this one was handed over in Python; "
            "name it in [model] (a plug-in may define it), or remove the key."
        )
    if secret := [one.name for one in mechanisms if one.sums_only or one.acts_on == "rows"]:
        raise ConfigError(
            f"{name}: the keys of '{secret[0]}' stay in one process; remove the key (in a study on a cluster, each such run "
            "is whole on one node)."
        )
    if find_spec("ray") is None:
        raise ConfigError(f'{name} needs Ray, which is not installed: pip install "fedatlas[cluster]".')


def check_augment(config: ExperimentConfig) -> None:
    """Raise ConfigError if each client would pad cropped pictures with a different colour."""
    if config.data.augment == "crop_flip" and config.data.scale == "client":
        raise ConfigError(
            "data.augment = 'crop_flip' pads with black, which data.scale = 'client' turns into a different number for each client: "
            "use data.scale = 'federated' or 'auto'."
        )


def check_classes(algorithm: Algorithm, dataset: Dataset) -> None:
    """Raise ConfigError if an algorithm needs class labels and the data have none."""
    if algorithm.demands.classes and dataset.task != "classes":
        raise ConfigError(f"algorithm '{algorithm.name}' needs classes, but '{dataset.name}' has none.")


def check_public(algorithm: Algorithm, public: PublicConfig, dataset: Dataset) -> None:
    """Raise ConfigError if an algorithm needs labelled public rows and a class has none, or a label is not a class."""
    if algorithm.demands.public is None or not algorithm.demands.public_labels or dataset.task != "classes":
        return
    y = dataset.splits["public"].y
    if int(y.max()) >= dataset.classes:
        raise ConfigError(
            f"public.from = '{public.source}' has classes that '{dataset.name}' does not have: use other rows."
        )
    missing = sorted(set(range(dataset.classes)) - set(y.tolist()))
    if missing and not public.fewer:
        name = dataset.class_names[missing[0]]
        raise ConfigError(
            f"[public]: no row of class '{name}', but '{algorithm.name}' needs rows of every class: use per_class."
        )


def check_model(config: ExperimentConfig, algorithm: Algorithm, module: nn.Module | None) -> None:
    """Raise ConfigError if the algorithm cannot work with several models, or with a given one."""
    if config.models and not algorithm.demands.mixed:
        able = ", ".join(f"'{name}'" for name, each in ALGORITHMS.items() if each().demands.mixed)
        raise ConfigError(
            f"[[models]]: '{algorithm.name}' works with one architecture for all clients; use one of {able}, or [model]."
        )
    if config.models and module is not None:
        raise ConfigError("[[models]] names the networks: remove the argument module.")
    if algorithm.demands.inits > 1 and (config.model.init or module is not None):
        raise ConfigError(
            f"algorithm '{algorithm.name}' begins with {algorithm.demands.inits} different models, so it cannot use one initial model "
            "from model.init or a custom network; name a model in [model]."
        )


def check_network(module: nn.Module, algorithm: Algorithm, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError if the algorithm or a mechanism cannot work with a network.

    A custom network is checked before data are read, others once they are built.
    """
    if NEAR in algorithm.tasks and any(True for _ in module.buffers()):
        raise ConfigError(
            "aggregation.name = 'geometric_median' by secure sums: not with batch norm, whose statistics it does not cover; "
            "use a model without."
        )
    if algorithm.demands.features and not (hasattr(module, "features") and hasattr(module, "head")):
        name = type(module).__name__
        raise ConfigError(f"algorithm '{algorithm.name}' works on features, but the model {name} {NO_FEATURES}")
    check_norms(module, mechanisms)


def check_batches(config: ExperimentConfig, module: nn.Module | None) -> None:
    """Raise ConfigError for batches of one row if the network is known to have batch norm before it is built."""
    if has_batch_norm(module) if module is not None else config.model.norm == "batch" and not config.models:
        check_single_rows(config.local.batch_size)


def check_single_rows(batch_size: int) -> None:
    """Raise ConfigError for batches of one row under batch norm."""
    if batch_size == 1:
        raise ConfigError(
            "local.batch_size = 1: batch norm cannot compute a variance of one row; use batches of two rows or more."
        )


def check_batch_norm(module: nn.Module, partition: Partition, local: LocalConfig) -> None:
    """Raise ConfigError if a client's last batch has a single row, of which batch norm cannot compute a variance.

    If such a batch results from rows that are chosen later (a straggler's budget, balanced rows), `batches` leaves it
    out.
    """
    if not has_batch_norm(module):
        return
    batch_size, merge = local.batch_size, local.merges
    check_single_rows(batch_size)
    sizes, names = partition.sizes, partition.info.get("names", ())
    alone = [k for k, n in enumerate(sizes) if n == 1] or [
        k for k, n in enumerate(sizes) if cut(n, batch_size, merge)[1] == 1
    ]
    if not alone:
        return
    k = alone[0]
    who = f"client {k}" + (f" ('{names[k]}')" if names else "") + (f" and {len(alone) - 1} more" if alone[1:] else "")
    other = "use a network without batch norm, such as norm = 'group'"
    if sizes[k] == 1:
        raise ConfigError(
            f"batch norm cannot compute a variance of one row, and {who} cannot make a batch of more: "
            f"leave out clients with a single training row, or {other}."
        )
    sized = [size for size in range(2, 2 * batch_size) if not any(cut(n, size)[1] == 1 for n in sizes)]
    way = (
        f"local.batch_size = {min(sized, key=lambda size: abs(size - batch_size))} leaves no row alone"
        if sized
        else other
    )
    raise ConfigError(
        f"a last batch of one row, at {who}, has no variance for batch norm: {way}, and local.last_batch = 'merge' "
        "adds it to the batch before it."
    )


def check_keys(config: ExperimentConfig, algorithm: Algorithm, sizes: Sequence[int] | None = None) -> None:
    """Raise ConfigError if the algorithm itself refuses the experiment's keys or the clients' sizes."""
    if algorithm.check is not None and (said := algorithm.check(flat(config), sizes)):
        raise ConfigError(said)


def flat(config: ExperimentConfig) -> dict[str, Any]:
    """Map the experiment's keys, written with their tables as in ``local.lr``, to their values."""
    tables = config.model_dump().items()
    return {
        name: value
        for table, given in tables
        for name, value in (
            ((f"{table}.{key}", x) for key, x in given.items()) if isinstance(given, dict) else ((table, given),)
        )
    }


def check_nodes(algorithm: Algorithm, partition: Partition) -> None:
    """Raise ConfigError if a node of a graph has no rows.

    It would never take part and could cut the graph, which counts as connected.
    """
    empty = [k for k, n in enumerate(partition.sizes) if not n]
    if algorithm.serverless and empty:
        who = f"client {empty[0]} has" if len(empty) == 1 else f"{len(empty)} clients have"
        raise ConfigError(
            f"{who} no rows, but every node of '{algorithm.name}' must train and pass models on: use fewer clients or a milder split."
        )


def check_asked(config: ExperimentConfig, algorithm: Algorithm, dataset: Dataset, partition: Partition) -> None:
    """Raise ConfigError if the experiment does not fit these data and these clients."""
    check_nodes(algorithm, partition)
    check_keys(config, algorithm, partition.sizes)
    check_observed_clients(config, len(partition.clients))
    check_declared_attacks(config, [n for n in partition.sizes if n])
    have = sum(n > 0 for n in partition.sizes)
    if config.cohort.size is not None and config.cohort.size > have:
        raise ConfigError(
            f"cohort.size = {config.cohort.size}: there are {have} clients with rows; ask for at most {have}."
        )
    if config.stop is not None and config.stop.accuracy is not None and dataset.task == "numbers":
        raise ConfigError(
            f"stop.accuracy = {config.stop.accuracy:g}: the target of '{dataset.name}' is a number, which has no accuracy; "
            "use stop.patience."
        )
    if config.evaluation.metric is not None:
        fitting(config.evaluation.metric, dataset.task, dataset.name)
    names = dataset.class_names if dataset.task == "classes" else ()
    positive_class(config.evaluation.positive, names, None, dataset.name)
    if config.evaluation.drift and dataset.task != "classes":
        raise ConfigError(
            f"evaluation.drift = true compares shares of classes, and '{dataset.name}' has no classes: remove the key."
        )
