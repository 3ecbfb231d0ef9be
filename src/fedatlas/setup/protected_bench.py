"""From the mechanisms of ``[[privacy]]`` to the protection that the jobs of a bench apply."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.config import ExperimentConfig
from fedatlas.engine.model import Network
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.privacy.mechanisms import Mechanism, Paillier
from fedatlas.privacy.protection import Protection


def protection_of(
    config: ExperimentConfig, mechanisms: Sequence[Mechanism], sizes: Sequence[int], network: Network
) -> Protection | None:
    """The mechanisms of ``[[privacy]]`` in a federation of clients with so many rows; None without any."""
    held = [n for n in sizes if n]
    if not mechanisms or not held:
        return None
    fraction = config.cohort.fraction if config.cohort.sampling == "poisson" else 1.0
    ours = tuple(chosen(one, network) if isinstance(one, Paillier) else one for one in mechanisms)
    return Protection(ours, len(held), config.rounds, fraction, config.seed, min(held))


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
