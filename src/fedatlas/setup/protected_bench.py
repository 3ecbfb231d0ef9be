"""From the mechanisms of ``[[privacy]]`` to a bench whose jobs apply them."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.config import ExperimentConfig
from fedatlas.engine.job import Bench
from fedatlas.engine.model import Network
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.privacy.mechanisms import Mechanism, Paillier
from fedatlas.privacy.protection import Protection, under


def protected_bench(
    bench: Bench, config: ExperimentConfig, seed: int, mechanisms: Sequence[Mechanism], sizes: Sequence[int]
) -> Bench:
    """The bench with the mechanisms of ``[[privacy]]``, and the phases of their protocols among its tasks."""
    held = [n for n in sizes if n]
    if not mechanisms or not held:
        return bench
    fraction = config.cohort.fraction if config.cohort.sampling == "poisson" else 1.0
    ours = tuple(chosen(one, bench.network) if isinstance(one, Paillier) else one for one in mechanisms)
    how = Protection(ours, len(held), config.rounds, fraction, seed, min(held))
    return bench._replace(protection=how, algorithm=under(bench.algorithm, how))


def chosen(one: Paillier, network: Network) -> Paillier:
    """The mechanism with the names of the parameters that it encrypts: those of the layers nearest the output, or as given.

    ConfigError for a name that the network does not have.
    """
    if one.encrypt == "all":
        return one
    names = list(network.initial()[0])
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    if isinstance(one.encrypt, str):
        count = 1 if one.encrypt == "output" else int(one.encrypt.partition(":")[2])
        if count >= len(layers) > 1:
            raise ConfigError(
                f"privacy.paillier.encrypt = '{one.encrypt}': the network has {len(layers)} layers; write 'all' for the whole of it."
            )
        nearest = layers[-count:]
        return one._replace(encrypt=tuple(name for name in names if name.rpartition(".")[0] in nearest))
    for name in one.encrypt:
        if name not in names:
            raise unknown_name("parameter", name, names)
    return one
