"""Notices about the algorithm, the data and the network of an experiment; refusals are in `refusals.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import Tensor, nn

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.algorithms.batch_norm import has_own_norms
from fedatlas.config import ConfigTable, ExperimentConfig
from fedatlas.data.dataset import Column, Dataset
from fedatlas.data.loaded import strange_classes
from fedatlas.data.reading import listed
from fedatlas.engine.model import Network
from fedatlas.models import has_batch_norm
from fedatlas.models.registry import OWN
from fedatlas.registry import defaults, find, shown
from fedatlas.setup.guard import guards

LIKE_OWNERS = frozenset(
    "bank branch center centre client clinic company device hospital institution office owner party region school site station".split()
)
"""Words in column names that suggest the holder of a row."""
OWNERS = "Owners", "have no training row and are not clients"
BY_CLIENT = (
    "The test rows, which no client owns, are scaled by the mean of the clients' constants (data.scale = 'client'); "
    "evaluation.clients judges each client on rows scaled by its own constants."
)
GIVEN = "The network is {}, given in Python: it begins with the weights that it was given, whatever the seed."


def profile_notices(config: ExperimentConfig, algorithm: Algorithm) -> list[str]:
    """Return the warnings of the profile; it never changes a value."""
    out = []
    if config.profile == "device" and (algorithm.client_init is not None or algorithm.serverless):
        out.append(
            f"profile 'device': '{algorithm.name}' keeps state on its clients, but devices rarely come back; use a stateless method."
        )
    if config.profile == "device" and config.cohort.size is None and config.cohort.fraction > 0.1:
        out.append(
            f"profile 'device': cohort.fraction = {config.cohort.fraction} is above 0.1, the usual limit for devices."
        )
    if config.profile == "silo" and config.partition.clients > 100:
        out.append(f"profile 'silo': {config.partition.clients} clients are more than the usual 2 to 100.")
    return out


def unused_notices(config: ExperimentConfig, algorithm: Algorithm) -> list[str]:
    """Return notices about keys that have no effect, or that leave nothing to do."""
    out = []
    if config.public is not None and algorithm.demands.public is None:
        out.append(f"[public]: '{algorithm.name}' uses no public rows; they are only removed from the others.")
    if config.guard is not None and not guards(config, algorithm):
        out.append(f"[guard]: '{algorithm.name}' sends no updates to judge; its rows are only removed from the others.")
    if (config.data.model_extra or {}).get("client") and config.partition.name != "natural":
        out.append(
            f"data.client is not used: partition.name = '{config.partition.name}' decides who holds what; 'natural' uses that column."
        )
    if config.local.optimizer == "sgd":
        out += [f"local.{key} is not used: only Adam has it." for key in ("betas", "eps") if altered(config.local, key)]
    if config.evaluation.on == "test" and altered(config.evaluation, "validation"):
        out.append("evaluation.validation is not used: evaluation.on = 'test' sets no training rows aside.")
    if config.failures.stragglers and config.local.epochs == 1 and config.failures.straggler_policy == "keep":
        out.append("failures.stragglers is not used: a straggler runs 1 to local.epochs epochs, and that is 1 here.")
    if not config.failures.stragglers and altered(config.failures, "straggler_policy"):
        out.append("failures.straggler_policy is not used: failures.stragglers = 0.")
    if config.cohort.fraction == 0 and config.cohort.size is None:
        out.append("cohort.fraction = 0 means one client per round (McMahan's C = 0).")
    if config.failures.dropout == 1:
        out.append("failures.dropout = 1: no client ever returns, and the model stays as it is.")
    usual = defaults(find("algorithms", ALGORITHMS, config.algorithm.name))
    for key, why in algorithm.card.unused.items():
        table, _, field = key.partition(".")
        given = config.algorithm.parameters() if table == "algorithm" else dict(getattr(config, table))
        default = usual[field] if table == "algorithm" else type(getattr(config, table)).model_fields[field].default
        if given.get(field, default) not in (default, None):
            out.append(f"{key} = {shown(given[field])} is not used: {why}.")
    return out


def altered(table: ConfigTable, key: str) -> bool:
    """Return whether a key differs from its default. config.toml names all keys, so only the value counts."""
    return bool(getattr(table, key) != type(table).model_fields[key].default)


def network_notices(config: ExperimentConfig, algorithm: Algorithm, network: Network) -> list[str]:
    """Return notices about a network."""
    given = [GIVEN.format(config.model.name)] if config.model.name.startswith(OWN) else []
    return [*given, *norm_notices(config, algorithm, network.module), *precision_notices(config, network.module)]


def norm_notices(config: ExperimentConfig, algorithm: Algorithm, module: nn.Module) -> list[str]:
    """Return a notice if there is a policy for batch norm but the model has no batch norm."""
    policy = f"'{algorithm.name}'" if has_own_norms(algorithm) else f"model.bn = '{config.model.bn}'"
    if has_batch_norm(module) or policy == "model.bn = 'average'":
        return []
    return [f"{policy} changes nothing: the model has no batch norm (model.norm = 'batch' gives it some)."]


def data_notices(
    config: ExperimentConfig, algorithm: Algorithm, dataset: Dataset, class_counts: Tensor | None
) -> list[str]:
    """Return notices about the evaluation rows, rows left out, and test classes that no client trains on.

    ``class_counts``: training rows of each class; None if they are not known.
    """
    judged = "evaluation.on = 'validation': figures are on the clients' validation rows; the test rows are used once, at the end."
    said = [judged] if config.evaluation.on == "validation" else []
    said += [*left_out(dataset), *dataset.facts.get("doubts", ())]
    said += guard_notices(config, dataset) if guards(config, algorithm) else []
    if config.data.scale == "client":
        said.append(BY_CLIENT)
    if config.partition.name == "natural" and (absent := dataset.facts.get("owners_absent")):
        who, what = ("Owner", "has no training row and is not a client") if len(absent) == 1 else OWNERS
        said.append(f"{who} {listed(absent)} {what}: all rows there are test rows, or left out.")
    if class_counts is None:
        return said
    strange, n = strange_classes(dataset.class_names, class_counts.nonzero()[:, 0], dataset.test.y)
    rows = f"{n} test rows have" if n > 1 else "One test row has"
    return [*said, f"{rows} a class that no training row has ('{strange}'): no model can learn it."] if n else said


def guard_notices(config: ExperimentConfig, dataset: Dataset) -> list[str]:
    """Return notices if the guard's rows lack a class, or are so few that one of them may decide."""
    held, guard, out = dataset.splits.get("guard"), config.guard, list[str]()
    if held is None or guard is None or dataset.task != "classes":
        return out
    there = {*held.y.tolist()}
    if missing := [f"'{name}'" for k, name in enumerate(dataset.class_names) if k not in there]:
        out.append(
            f"[guard]: none of its rows is of class {listed(missing)}, so harm to that is not seen: take more rows."
        )
    if guard.metric != "log_loss" and guard.tol < 1 / len(held.y):
        out.append(
            f"[guard]: a single row of its {len(held.y)} is {1 / len(held.y):.2g} of an accuracy, more than tol = {guard.tol:g}, "
            "so chance decides: take more rows, or a larger tol."
        )
    return out


def forgotten_owners(config: ExperimentConfig, schema: Sequence[Column]) -> list[str]:
    """Return a notice for each text column of the user's file that has a name like an owner, if no owner is named."""
    if config.data.name != "file" or (config.data.model_extra or {}).get("client"):
        return []
    named = [one.name for one in schema if one.categories and LIKE_OWNERS & {*re.split(r"[\W_]+", one.name.lower())}]
    return [
        f"Column '{name}' is an input, and {config.partition.clients} clients get the rows by partition.name = '{config.partition.name}'. "
        f"If '{name}' says who holds a row, name it: data.client = '{name}', in Python client='{name}'."
        for name in named
    ]


def left_out(dataset: Dataset) -> list[str]:
    """Return notices about rows that could not be used."""
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
    """Return a notice about the effect of bfloat16 on this model."""
    if config.engine.precision != "bfloat16":
        return []
    if any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in module.modules()):
        return [
            "engine.precision = 'bfloat16': only the convolutions are computed in it; weights and all else are float32."
        ]
    return ["engine.precision = 'bfloat16' acts on convolutions only, and this model has none: all is float32."]
