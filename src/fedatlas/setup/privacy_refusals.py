"""Refusals of an experiment under ``[[privacy]]``, each a ConfigError with one sentence.

`check_protection` needs only the configuration. The others also need the data, the clients or the network. They are
raised before anything is computed from rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from torch import nn

from fedatlas.algorithm import Algorithm, Transform
from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.holes import schema_of
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.models import has_batch_norm
from fedatlas.privacy.mechanism import Asked, Mechanism
from fedatlas.privacy.protocol import Protocol
from fedatlas.privacy.reasons import NEARLY, by_rows, share_of
from fedatlas.setup.cohort import usual_size
from fedatlas.setup.mechanism_choice import check_algorithm, sized
from fedatlas.setup.networks import reads_units

SETTLED = 'set data.constants = "FILE.json", a file like a run\'s preprocess.json that was made without these rows'


def check_protection(
    config: ExperimentConfig, algorithm: Algorithm, transform: Transform | None, mechanisms: Sequence[Mechanism]
) -> None:
    """Raise ConfigError for the first setting in the configuration that its mechanisms do not allow."""
    for one in mechanisms:
        check_algorithm(config, algorithm, one)
        for why in refused(config, transform, one):
            raise ConfigError(why)
        check_widths(config, one, algorithm)
        check_everybody(config, one)
        sized(one, max(config.partition.clients, 1), config, algorithm)
        check_asked(config, one, config.partition.clients, transform)
    if algorithm.groups is None:  # the number of groups is only known after the set-up
        check_cohort_size(config, mechanisms, config.partition.clients)


def refused(config: ExperimentConfig, transform: Transform | None, mechanism: Mechanism) -> Iterator[str]:
    """Yield a sentence for each table or key that cannot be used under a mechanism of this kind."""
    data, name = config.data, f"'{mechanism.name}'"
    if mechanism.acts_on == "rows":  # a round is as without it
        if mechanism.entered is not None:
            yield from no_stop(config, name)
        if mechanism.blind:
            yield from no_rows_at_the_server(config, name)
        return
    if transform is not None and mechanism.sums_only and transform.decode is not None:
        yield f"compression.name = '{transform.name}': not under {name}, as its codes cannot be added up; remove the table."
    if transform is not None and mechanism.whole:
        yield f"[compression]: not under {name}, which adds noise to whole models, while a transform acts on changes; remove the table."
    if mechanism.closed:
        yield from no_model_at_the_server(config, mechanism)
    if config.evaluation.drift:
        yield f"evaluation.drift = true: not under {name}, as it looks at each client's model; remove the key."
    if mechanism.noise is None:
        if mechanism.sums_only and data.missing == "median" and data.constants is None:
            yield (
                f"data.missing = 'median': not under {name}, since medians are computed from counts that the server would see "
                "client by client; use 'drop', or give the medians in data.constants."
            )
        return
    for key, value, plain in (("scale", data.scale, ("auto", "none")), ("missing", data.missing, ("error", "drop"))):
        if value not in plain and data.constants is None:
            yield f"data.{key} = '{value}': under {name} nothing may be computed from rows without noise; {SETTLED}."
    yield from no_stop(config, name)
    if any(one.norm == "batch" for one in config.models or (config.model,)):
        yield f"model.norm = 'batch': {no_batch_norm(mechanism)}"
    if config.model.bn != "average":
        yield f"model.bn = '{config.model.bn}': {no_batch_norm(mechanism)}"


def no_rows_at_the_server(config: ExperimentConfig, name: str) -> Iterator[str]:
    """Yield why the server's test rows and public rows cannot be used if only clients know how rows were changed."""
    if config.evaluation.on == "test":
        yield (
            f"evaluation.on = 'test': under {name} the server cannot judge by rows of its own, as only the clients know how theirs were "
            "changed; write evaluation.on = 'validation', so that rows of the clients judge."
        )
    if config.public is not None:
        yield f"[public]: not under {name}, as the server does not know how the clients' rows were changed; remove the table."


def no_model_at_the_server(config: ExperimentConfig, mechanism: Mechanism) -> Iterator[str]:
    """Yield a sentence for each setting by which a server would need the model that it keeps as a ciphertext."""
    name, failures = f"'{mechanism.name}' with reveal = 'clients'", config.failures
    if config.evaluation.on == "test":
        yield (
            f"evaluation.on = 'test': under {name} the server has no model that it could judge by rows of its own; write "
            "evaluation.on = 'validation', so that rows of the clients judge."
        )
    if config.stop is not None:
        yield f"[stop]: not under {name}, as the server sees no figure of a model by which it could stop; remove the table."
    if any(one.norm == "batch" for one in config.models or (config.model,)):
        yield f"model.norm = 'batch': {no_statistics(mechanism)}"
    leaves = failures.dropout or (failures.stragglers and failures.straggler_policy == "drop")
    if mechanism.keys["weights_by"] == "client" and leaves:
        yield (
            f"[failures]: under {name} and weights_by = 'client' nobody can make up for the weight of a client that leaves; write "
            "weights_by = 'server'."
        )


def no_statistics(mechanism: Mechanism) -> str:
    """Return why batch norm cannot be used if the server keeps the model as a ciphertext."""
    return (
        f"not under '{mechanism.name}' with reveal = 'clients', whose ciphertext holds what is trained and no statistics of batch norm; "
        "use norm = 'group' or 'none'."
    )


def no_stop(config: ExperimentConfig, name: str) -> Iterator[str]:
    """Yield why clients' figures cannot stop a run whose releases are counted, if they would."""
    if config.stop is not None and config.evaluation.on == "validation":
        yield (
            f"[stop]: under {name} clients' validation rows cannot decide when to stop, since their figures have no noise; "
            "use evaluation.on = 'test', or remove the table."
        )


def check_asked(
    config: ExperimentConfig, mechanism: Mechanism, clients: int, transform: Transform | None, largest: int = 0
) -> None:
    """Raise ConfigError for settings that the mechanism itself refuses.

    ``clients``: their total, 0 if not known yet. ``largest``: rows of the largest, if clients weigh by their rows.
    """
    cohort, code = config.cohort, "" if transform is None else transform.name
    if why := mechanism.limits.refuses(Asked(clients, cohort.sampling, cohort.fraction, cohort.size, code, largest)):
        raise ConfigError(why)


def check_widths(config: ExperimentConfig, mechanism: Mechanism, algorithm: Algorithm) -> None:
    """Raise ConfigError if the sum over a usual cohort would not fit into a word, or into a slot of a plaintext."""
    clients = max(math.floor(usual_size(config, config.partition.clients)), 1)
    try:
        if (protocol := mechanism.work().protocol) is not None:
            protocol.fits(clients, by_rows(algorithm))
    except PrivacyError as error:
        raise ConfigError(f"privacy.{mechanism.name}.bits = {mechanism.keys.get('bits')}: {error}") from None


def check_everybody(config: ExperimentConfig, mechanism: Mechanism) -> None:
    """Raise ConfigError for settings by which a client could miss a round, if the mechanism's protocol needs all clients in each."""
    protocol, cohort, failures = mechanism.work().protocol, config.cohort, config.failures
    if protocol is None or not protocol.everybody:
        return
    name = f"'{mechanism.name}' opens no sum without all clients"
    if cohort.sampling == "poisson" or cohort.fraction < 1 or cohort.size not in {None, config.partition.clients}:
        raise ConfigError(f"[cohort]: {name}, so all of them take part in every round; remove the table.")
    if failures.dropout or (failures.stragglers and failures.straggler_policy == "drop"):
        key = "dropout" if failures.dropout else 'straggler_policy = "drop"'
        raise ConfigError(f"[failures] {key}: {name}, and each of them would be missing at times; remove the table.")


def no_batch_norm(mechanism: Mechanism) -> str:
    """Return why batch norm cannot be used under noise."""
    return (
        f"not under '{mechanism.name}', as statistics of batch norm leave a client without noise; use norm = 'group' or 'none', "
        "and bn = 'average'."
    )


def check_norms(module: nn.Module, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError for a network with batch norm under a mechanism that adds noise, or whose server keeps the model closed."""
    for one in mechanisms:
        if one.noise is not None and has_batch_norm(module):
            raise ConfigError(f"batch norm in the model: {no_batch_norm(one)}")
        if one.closed and has_batch_norm(module):
            raise ConfigError(f"batch norm in the model: {no_statistics(one)}")


# ---------------------------------------------------------------------- who takes part


def check_cohort_size(config: ExperimentConfig, mechanisms: Sequence[Mechanism], clients: int) -> None:
    """Raise ConfigError for cohorts that a protocol cannot protect; ``clients``: their total, 0 if not known yet."""
    for one in mechanisms:
        if clients and (protocol := one.work().protocol) is not None:
            check_summed(config, one.name, protocol, clients)


def check_summed(config: ExperimentConfig, name: str, protocol: Protocol, clients: int) -> None:
    """Raise ConfigError if a round has too few clients for a sum to be secret, or more than a protocol can mask.

    With Poisson sampling only the usual size is known, so the total decides; smaller cohorts are given up later.
    """
    cohort, usual = config.cohort, usual_size(config, clients)
    fewest = clients if cohort.sampling == "poisson" else usual
    key = "cohort.size" if cohort.size is not None else "cohort.fraction"
    if fewest < protocol.fewest:
        raise ConfigError(
            f"[[privacy]] '{name}': {fewest:g} of {clients} clients take part in a round, but a sum of fewer than {protocol.fewest} "
            f"hides nothing; raise {key} or partition.clients."
        )
    if protocol.most is not None and usual > protocol.most:
        raise ConfigError(
            f"[[privacy]] '{name}': {usual:g} clients take part in a round, but this version masks at most {protocol.most}; "
            f"lower {key}{', ' if protocol.beyond else ''}{protocol.beyond}."
        )


def fewest_of(mechanism: Mechanism) -> int:
    """Return the smallest number of clients that a round's sum needs."""
    protocol = mechanism.work().protocol
    return 1 if protocol is None else protocol.fewest


# ---------------------------------------------------------------------- the data


def check_protected_rows(
    config: ExperimentConfig,
    mechanisms: Sequence[Mechanism],
    dataset: Dataset,
    partition: Partition,
    algorithm: Algorithm,
) -> None:
    """Raise ConfigError if the loaded rows and these clients do not fit the mechanisms."""
    clients, largest = sum(n > 0 for n in partition.sizes), 0
    if algorithm.groups is None:
        check_cohort_size(config, mechanisms, clients)
        largest = max(partition.sizes) if by_rows(algorithm) else 0
    for one in mechanisms:
        check_asked(config, one, clients, None, largest)
    check_unnoised(config, mechanisms, dataset)


def check_unnoised(config: ExperimentConfig, mechanisms: Sequence[Mechanism], dataset: Dataset) -> None:
    """Raise ConfigError if constants would be computed from clients' rows under a mechanism with noise."""
    for one in mechanisms:
        found = from_rows(config, dataset) if one.noise is not None and config.data.constants is None else ""
        if found:
            raise ConfigError(
                f"[[privacy]] '{one.name}': {found} of '{dataset.name}' would be computed from clients' rows without noise; {SETTLED}."
            )


def from_rows(config: ExperimentConfig, dataset: Dataset) -> str:
    """Return what `preprocess` would compute from clients' rows; "" if nothing."""
    if dataset.train.x.dtype.is_floating_point and dataset.train.x.dim() == 2:
        schema = schema_of(dataset)
        if any(column.categories for column in schema):
            return "the categories"
        if schema and dataset.schema and config.data.scale == "auto":
            return "the scaling"
    numbers = dataset.task == "numbers" and config.data.scale != "none"
    return "mean and deviation of the target" if numbers and not reads_units(config, dataset) else ""


# ---------------------------------------------------------------------- notices


LOPSIDED = (
    "One {} holds more than {:.0%} of the training rows, by which updates weigh: the mean of a sum is nearly its own update, masks or "
    'not (algorithm.weights = "uniform", where the algorithm has it, weighs all alike).'
)


def protection_notices(
    config: ExperimentConfig, mechanisms: Sequence[Mechanism], algorithm: Algorithm, sizes: Collection[int]
) -> list[str]:
    """Return notices about the mechanisms of an experiment. ``sizes``: each client's training rows."""
    said: list[str] = []
    masked = any(one.sums_only for one in mechanisms)
    if masked and len(sizes) > 1 and share_of(algorithm, max(sizes), sum(sizes)) > NEARLY:
        said.append(LOPSIDED.format(config.party, NEARLY))
    for one in mechanisms:
        if one.sums_only and config.cohort.sampling == "poisson":
            said.append(
                f"'{one.name}': a Poisson cohort may have fewer than {fewest_of(one)} clients; such a round is abandoned and "
                "changes nothing."
            )
        if one.keys.get("noise") == "seed":
            said.append(f"'{one.name}': noise = 'seed' protects nobody, since anyone who knows the seed can repeat it.")
        else:
            said += one.words.notices
    return said
