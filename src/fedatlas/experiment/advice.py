"""What a configuration is refused for, or noticed of, once the algorithm, the data and the network are known."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.fedbn import has_own_norms
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.loaded import strange_classes
from fedatlas.engine.model import NO_FEATURES, Network
from fedatlas.errors import ConfigError
from fedatlas.experiment.config import ExperimentConfig, LocalConfig, Table
from fedatlas.models import has_batch_norm
from fedatlas.registry import defaults, find, shown


def check_rate(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError where the explicit local step cannot converge whatever the data: lr times a penalty's weight is too large."""
    local, limit = config.local, stable_below(algorithm.lr_below, config.local)
    if local.optimizer == "sgd" and not algorithm.lr_by_size and local.lr >= limit:
        momentum = f" and local.momentum = {local.momentum:g}" if local.momentum else ""
        nesterov = " (Nesterov's)" if local.nesterov else ""
        raise ConfigError(
            f"local.lr = {local.lr:g}: '{algorithm.name}' diverges from {limit:g} on with its parameters{momentum}{nesterov}; "
            "lower local.lr or the penalty's weight."
        )


def check_smallest(config: ExperimentConfig, algorithm: Algorithm, sizes: Sequence[int]) -> None:
    """As `check_rate`, of the client with the fewest rows (but some), where a penalty weighs the more the fewer there are."""
    held = {k: n for k, n in enumerate(sizes) if n}
    if config.local.optimizer != "sgd" or not algorithm.lr_by_size or not held:
        return
    k, mean = min(held, key=held.__getitem__), sum(sizes) / len(sizes)
    limit = stable_below(algorithm.lr_below, config.local) * held[k] / mean
    if config.local.lr >= limit:
        raise ConfigError(
            f"local.lr = {config.local.lr:g}: client {k}, with {held[k]} rows where the mean is {mean:.4g}, diverges from {limit:.4g} on "
            f"under '{algorithm.name}'; lower local.lr or the penalty's weight, or raise partition.min_size."
        )


def stable_below(lr_below: float, local: LocalConfig) -> float:
    """From which rate on a penalty (c/2) |w - w_t|^2 diverges under SGD, where it is ``lr_below`` = 2/c without momentum.

    With momentum b the step on the penalty alone is a linear map of (w, u); both its eigenvalues are inside the unit circle as long
    as lr c < 2 (1 + b), in Nesterov's form as long as lr c < 2 (1 + b) / (1 + 2b). The data's convexity only adds to c.
    """
    b = local.momentum
    return lr_below * (1 + b) / (1 + 2 * b if local.nesterov else 1)


def profile_notices(config: ExperimentConfig, algorithm: Algorithm) -> list[str]:
    """What the profile warns of; it never changes a value."""
    out = []
    if config.profile == "device" and (algorithm.client_init is not None or algorithm.needs == "neighbours"):
        out.append(
            f"profile 'device': '{algorithm.name}' keeps state on its clients, but devices rarely come back; take a stateless method."
        )
    if config.profile == "device" and config.cohort.size is None and config.cohort.fraction > 0.1:
        out.append(
            f"profile 'device': cohort.fraction = {config.cohort.fraction} is above 0.1, the usual limit for devices."
        )
    if config.profile == "silo" and config.partition.clients > 100:
        out.append(f"profile 'silo': {config.partition.clients} clients are more than the usual 2 to 100.")
    return out


def unused_notices(config: ExperimentConfig, algorithm: Algorithm) -> list[str]:
    """What is written in the file and does nothing, or leaves nothing to do."""
    out = []
    if config.public is not None and algorithm.public is None:
        out.append(f"[public]: '{algorithm.name}' uses no public rows; they are only taken out of the others.")
    if (config.data.model_extra or {}).get("client") and config.partition.name != "natural":
        out.append(
            f"data.client is not used: partition.name = '{config.partition.name}' says who holds what; 'natural' takes the column's owners."
        )
    if config.local.optimizer == "sgd":
        out += [f"local.{key} is not used: it is Adam's." for key in ("betas", "eps") if altered(config.local, key)]
    if config.evaluation.on == "test" and altered(config.evaluation, "validation"):
        out.append("evaluation.validation is not used: evaluation.on = 'test' sets no training rows aside.")
    if config.failures.stragglers and config.local.epochs == 1 and config.failures.straggler_policy == "keep":
        out.append("failures.stragglers is not used: a straggler runs 1 to local.epochs epochs, and that is 1 here.")
    if not config.failures.stragglers and altered(config.failures, "straggler_policy"):
        out.append("failures.straggler_policy is not used: failures.stragglers = 0.")
    if config.cohort.fraction == 0 and config.cohort.size is None:
        out.append("cohort.fraction = 0 is one client a round (McMahan's C = 0).")
    if config.failures.dropout == 1:
        out.append("failures.dropout = 1: nobody ever returns, and the model stays as it is.")
    usual = defaults(find("algorithms", ALGORITHMS, config.algorithm.name))
    for key, why in algorithm.unused.items():
        table, _, field = key.partition(".")
        given = config.algorithm.parameters() if table == "algorithm" else dict(getattr(config, table))
        default = usual[field] if table == "algorithm" else type(getattr(config, table)).model_fields[field].default
        if given.get(field, default) not in (default, None):
            out.append(f"{key} = {shown(given[field])} is not used: {why}.")
    return out


def altered(table: Table, key: str) -> bool:
    """Whether a key has another value than its default; config.toml names all keys, so that naming one says nothing."""
    return bool(getattr(table, key) != type(table).model_fields[key].default)


def check_nodes(algorithm: Algorithm, partition: Partition) -> None:
    """ConfigError where a node of a graph has no rows: it never takes part, and would cut the graph while it counts as connected."""
    empty = [k for k, n in enumerate(partition.sizes) if not n]
    if algorithm.needs == "neighbours" and empty:
        who = f"client {empty[0]} has" if len(empty) == 1 else f"{len(empty)} clients have"
        raise ConfigError(
            f"{who} no rows, but every node of '{algorithm.name}' works and hands on: take fewer clients or a milder split."
        )


def check_asked(config: ExperimentConfig, algorithm: Algorithm, dataset: Dataset, partition: Partition) -> None:
    """ConfigError for what these data and these clients cannot give."""
    check_nodes(algorithm, partition)
    check_smallest(config, algorithm, partition.sizes)
    have = sum(n > 0 for n in partition.sizes)
    if config.cohort.size is not None and config.cohort.size > have:
        raise ConfigError(
            f"cohort.size = {config.cohort.size}: there are {have} clients with rows; ask for {have} at most."
        )
    if config.stop is not None and config.stop.accuracy is not None and dataset.task == "numbers":
        raise ConfigError(
            f"stop.accuracy = {config.stop.accuracy:g}: the target of '{dataset.name}' is a number, which has no accuracy; "
            "use stop.patience."
        )
    if config.evaluation.drift and dataset.task != "classes":
        raise ConfigError(
            f"evaluation.drift = true compares mixes of classes, and '{dataset.name}' has none: leave it out."
        )


def network_notices(config: ExperimentConfig, algorithm: Algorithm, network: Network) -> list[str]:
    """What is to be said of this network; ConfigError where the algorithm cannot work with it."""
    if algorithm.needs_features and not network.has_features:
        raise ConfigError(f"algorithm '{algorithm.name}' works on features, but the model {network.name} {NO_FEATURES}")
    return [*norm_notices(config, algorithm, network.module), *precision_notices(config, network.module)]


def norm_notices(config: ExperimentConfig, algorithm: Algorithm, module: nn.Module) -> list[str]:
    """A policy for batch norm without any."""
    policy = f"'{algorithm.name}'" if has_own_norms(algorithm) else f"model.bn = '{config.model.bn}'"
    if has_batch_norm(module) or policy == "model.bn = 'average'":
        return []
    return [f"{policy} changes nothing: the model has no batch norm (model.norm = 'batch' gives it some)."]


def data_notices(config: ExperimentConfig, dataset: Dataset) -> list[str]:
    """On which rows figures are taken, and classes that only the test rows have."""
    judged = "evaluation.on = 'validation': figures are those of clients' validation rows; the test rows are used once, at the end."
    said = [judged] if config.evaluation.on == "validation" else []
    said += [*left_out(dataset), *dataset.facts.get("doubts", ())]
    if dataset.task != "classes":
        return said
    strange, n = strange_classes(dataset.class_names, dataset.y_train, dataset.y_test)
    rows = f"{n} test rows have" if n > 1 else "One test row has"
    return [*said, f"{rows} a class that no training row has ('{strange}'): no model can learn it."] if n else said


def left_out(dataset: Dataset) -> list[str]:
    """Rows that could not be used: figures hold for the others only."""
    facts = dataset.facts
    lost = facts.get("rows_dropped", {})
    sides = " and ".join(
        f"{lost[side]:,} {word}" for side, word in (("train", "training"), ("test", "test")) if lost.get(side)
    )
    said = []
    if n := facts.get("rows_unusable"):
        said.append(f"{n:,} rows without a target, an owner or a weight were left out.")
    if sides:
        said.append(
            f"{sides} rows with missing values were left out (data.missing = 'drop'): figures hold for complete rows only."
        )
    return said


def precision_notices(config: ExperimentConfig, module: nn.Module) -> list[str]:
    """What bfloat16 means for this model."""
    if config.engine.precision != "bfloat16":
        return []
    if any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in module.modules()):
        return [
            "engine.precision = 'bfloat16': only the convolutions are computed in it; weights and all else are float32."
        ]
    return ["engine.precision = 'bfloat16' acts on convolutions only, and this model has none: all is float32."]
