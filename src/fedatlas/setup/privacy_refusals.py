"""What an experiment under ``[[privacy]]`` cannot ask for beside it: a ConfigError with one sentence for each.

`check_protection` needs the configuration alone, the others the data, the clients or the network. They come before anything is
settled from rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import nn

from fedatlas.algorithm import Algorithm, Transform
from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Dataset, Partition
from fedatlas.data.holes import schema_of
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.models import has_batch_norm
from fedatlas.privacy.mechanisms import CentralDP, Mechanism, NbAFL, Paillier, SecAgg
from fedatlas.privacy.paillier import encrypted_sum
from fedatlas.privacy.protection import by_rows
from fedatlas.privacy.secagg import fixed
from fedatlas.privacy.secagg.keys import FEWEST, MOST
from fedatlas.setup.mechanism_choice import MASKS, NOISE, check_algorithm
from fedatlas.setup.networks import reads_units

SETTLED = 'write data.constants = "FILE.json", a file of the form of a run\'s preprocess.json made without these rows, which settles it'


def check_protection(
    config: ExperimentConfig, algorithm: Algorithm, transform: Transform | None, mechanisms: Sequence[Mechanism]
) -> None:
    """ConfigError for the first thing that the configuration alone forbids beside its mechanisms."""
    for one in mechanisms:
        check_algorithm(config, algorithm, one)
        check_transform(transform, one)
        check_looking(config, one)
        if one.name in NOISE:
            check_settled(config, one)
            check_stop(config, one)
            check_norm(config, one)
        elif config.data.missing == "median" and config.data.constants is None:
            raise ConfigError(
                f"data.missing = 'median': not under '{one.name}', since medians come of counts that the server would read "
                "client by client; take 'drop', or give the medians in data.constants."
            )
        check_widths(config, one, algorithm)
    if algorithm.groups is None:  # whose number is that of groups, known after the set-up
        check_cohort_size(config, mechanisms, config.partition.clients)


def check_transform(transform: Transform | None, mechanism: Mechanism) -> None:
    """ConfigError where what ``[compression]`` makes of an update cannot be protected."""
    if transform is None:
        return
    if mechanism.name in MASKS and transform.decode is not None:
        raise ConfigError(
            f"compression.name = '{transform.name}': not under '{mechanism.name}': its codes cannot be added up; remove the table."
        )
    if isinstance(mechanism, NbAFL):
        raise ConfigError(
            "[compression]: not under 'nbafl', which noises whole models, where a transform acts on changes; remove the table."
        )


def check_widths(config: ExperimentConfig, mechanism: Mechanism, algorithm: Algorithm) -> None:
    """ConfigError where a sum of the usual cohort would not fit into a word, or a plaintext's slot."""
    clients = max(math.floor(usual_size(config, config.partition.clients)), 1)
    try:
        if isinstance(mechanism, SecAgg):
            fixed.fixed(clients, mechanism.bits, mechanism.range, mechanism.n_cap if by_rows(algorithm) else 0)
        if isinstance(mechanism, Paillier):
            encrypted_sum.values_layout(mechanism, clients if mechanism.weights_by == "client" else 1 << mechanism.bits)
    except PrivacyError as error:
        raise ConfigError(f"privacy.{mechanism.name}.bits = {getattr(mechanism, 'bits', 0)}: {error}") from None


def usual_size(config: ExperimentConfig, clients: int) -> float:
    """Clients in a cohort; of Poisson's the mean."""
    cohort = config.cohort
    if cohort.sampling == "uniform":
        return min(cohort.size or max(1, math.floor(cohort.fraction * clients + 1e-9)), clients)
    return cohort.fraction * clients


def check_looking(config: ExperimentConfig, mechanism: Mechanism) -> None:
    """ConfigError for figures of single clients that nobody could have."""
    if config.evaluation.drift:
        raise ConfigError(
            f"evaluation.drift = true: not under '{mechanism.name}': it looks at each client's model; remove the key."
        )


def check_settled(config: ExperimentConfig, mechanism: Mechanism) -> None:
    """ConfigError where the file asks for constants from rows."""
    data = config.data
    if data.constants is not None:
        return
    for key, value, plain in (("scale", data.scale, ("auto", "none")), ("missing", data.missing, ("error", "drop"))):
        if value not in plain:
            raise ConfigError(
                f"data.{key} = '{value}': under '{mechanism.name}' nothing is settled from rows without noise; {SETTLED}."
            )


def check_stop(config: ExperimentConfig, mechanism: Mechanism) -> None:
    """ConfigError where clients' own rows say when a run ends."""
    if config.stop is not None and config.evaluation.on == "validation":
        raise ConfigError(
            f"[stop]: under '{mechanism.name}' clients' validation rows cannot say when to stop, since they say it without noise; "
            "use evaluation.on = 'test', or remove the table."
        )


def check_norm(config: ExperimentConfig, mechanism: Mechanism) -> None:
    """ConfigError for batch norm, as far as the file asks for it."""
    tables = config.models or (config.model,)
    if any(one.norm == "batch" for one in tables):
        raise ConfigError(f"model.norm = 'batch': {no_batch_norm(mechanism)}")
    if config.model.bn != "average":
        raise ConfigError(f"model.bn = '{config.model.bn}': {no_batch_norm(mechanism)}")


def no_batch_norm(mechanism: Mechanism) -> str:
    """What is said of batch norm under noise."""
    return (
        f"not under '{mechanism.name}': statistics of batch norm leave a client without noise; take norm = 'group' or 'none', "
        "and bn = 'average'."
    )


def check_norms(module: nn.Module, mechanisms: Sequence[Mechanism]) -> None:
    """ConfigError for a network that has batch norm of itself."""
    for one in mechanisms:
        if one.name in NOISE and has_batch_norm(module):
            raise ConfigError(f"the model has batch norm: {no_batch_norm(one)}")


# ---------------------------------------------------------------------- who takes part


def check_cohort_size(config: ExperimentConfig, mechanisms: Sequence[Mechanism], clients: int) -> None:
    """ConfigError for cohorts that a mechanism cannot protect; ``clients``: in all, 0 where that is not known yet."""
    for one in mechanisms:
        if isinstance(one, SecAgg | Paillier) and clients:
            check_summed(config, one, clients)
        if isinstance(one, CentralDP):
            check_sampled(config, clients)


def check_summed(config: ExperimentConfig, mechanism: Mechanism, clients: int) -> None:
    """Of too few a sum tells too much; of Poisson's cohorts only the usual size is known, and small ones are given up."""
    cohort, usual = config.cohort, usual_size(config, clients)
    fewest = clients if cohort.sampling == "poisson" else usual
    key = "cohort.size" if cohort.size is not None else "cohort.fraction"
    least = fewest_of(mechanism)
    if fewest < least:
        raise ConfigError(
            f"[[privacy]] '{mechanism.name}': {fewest:g} of {clients} clients take part in a round, and a sum of fewer than {least} is no "
            f"secret; raise {key} or partition.clients."
        )
    if isinstance(mechanism, SecAgg) and usual > MOST:
        raise ConfigError(
            f"[[privacy]] 'secagg': {usual:g} clients take part in a round, and this version masks up to {MOST} together; lower {key}."
        )


def fewest_of(mechanism: Mechanism) -> int:
    """Clients that a sum of a round needs."""
    return FEWEST if isinstance(mechanism, SecAgg) else encrypted_sum.FEWEST if isinstance(mechanism, Paillier) else 1


def check_sampled(config: ExperimentConfig, clients: int) -> None:
    """The account is that of everybody, or of clients drawn one by one."""
    cohort = config.cohort
    if cohort.sampling == "poisson":
        if not cohort.fraction:
            raise ConfigError("cohort.fraction = 0: under 'central_dp' nobody would ever take part; raise it.")
        return
    all_take_part = cohort.fraction == 1 if cohort.size is None else not clients or cohort.size >= clients
    if not all_take_part:
        raise ConfigError(
            "[[privacy]] 'central_dp': a cohort of a set size has no sound account here; write cohort.sampling = \"poisson\" with "
            "cohort.fraction, or cohort.fraction = 1."
        )


# ---------------------------------------------------------------------- the data


def check_protected_rows(
    config: ExperimentConfig, mechanisms: Sequence[Mechanism], dataset: Dataset, partition: Partition, groups: bool
) -> None:
    """ConfigError for what these rows, as they were loaded, and these clients cannot give under the mechanisms."""
    if not groups:
        check_cohort_size(config, mechanisms, sum(n > 0 for n in partition.sizes))
    for one in mechanisms:
        found = from_rows(config, dataset) if one.name in NOISE and config.data.constants is None else ""
        if found:
            raise ConfigError(
                f"[[privacy]] '{one.name}': {found} of '{dataset.name}' would be settled from clients' rows without noise; {SETTLED}."
            )


def from_rows(config: ExperimentConfig, dataset: Dataset) -> str:
    """What `preprocess` would settle from clients' rows, in words; "" where that is nothing."""
    if dataset.train.x.dtype.is_floating_point and dataset.train.x.dim() == 2:
        schema = schema_of(dataset)
        if any(column.categories for column in schema):
            return "the categories"
        if schema and dataset.schema and config.data.scale == "auto":
            return "the scaling"
    numbers = dataset.task == "numbers" and config.data.scale != "none"
    return "mean and deviation of the target" if numbers and not reads_units(config, dataset) else ""


# ---------------------------------------------------------------------- what is said


def protection_notices(config: ExperimentConfig, mechanisms: Sequence[Mechanism]) -> list[str]:
    """What is worth a notice about the mechanisms of an experiment."""
    return [said for one in mechanisms for tell in NOTICES.get(one.name, ()) if (said := tell(config, one))]


def few_may_come(config: ExperimentConfig, mechanism: Mechanism) -> str:
    """Cohorts of Poisson's under masks."""
    if config.cohort.sampling != "poisson":
        return ""
    least = fewest_of(mechanism)
    return f"'{mechanism.name}': a Poisson cohort may have fewer than {least} clients; such a round is given up and changes nothing."


def not_secret(config: ExperimentConfig, mechanism: Mechanism) -> str:
    """Noise that can be repeated, or none."""
    if getattr(mechanism, "noise", "os") == "seed":
        return f"'{mechanism.name}': noise = 'seed' can be repeated by whoever knows the seed: it protects nobody."
    if isinstance(mechanism, CentralDP) and not mechanism.noise_multiplier:
        return "'central_dp': noise_multiplier = 0 adds no noise, and no privacy."
    return ""


def in_the_clear(config: ExperimentConfig, mechanism: Mechanism) -> str:
    """Layers that are not encrypted."""
    if not isinstance(mechanism, Paillier) or mechanism.encrypt == "all":
        return ""
    return "'paillier': what privacy.paillier.encrypt does not name is sent in the clear, and the server reads it."


NOTICES: Mapping[str, tuple[Callable[[ExperimentConfig, Mechanism], str], ...]] = {
    "secagg": (few_may_come,),
    "paillier": (few_may_come, in_the_clear),
    "central_dp": (not_secret,),
    "local_dp": (not_secret,),
    "nbafl": (not_secret,),
}
