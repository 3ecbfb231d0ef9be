"""Turn the mechanisms of ``[[privacy]]`` into the protection that the jobs of a bench apply."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.config import ExperimentConfig
from fedatlas.engine.model import Network
from fedatlas.privacy.mechanism import Mechanism, Protection


def protection_of(
    config: ExperimentConfig, mechanisms: Sequence[Mechanism], sizes: Sequence[int], network: Network
) -> Protection | None:
    """Return the protection for a federation of clients with so many rows; None without mechanisms or rows."""
    held = [n for n in sizes if n]
    if not mechanisms or not held:
        return None
    fraction = config.cohort.fraction if config.cohort.sampling == "poisson" else 1.0
    names = [*network.initial()[0]]
    ours = tuple(one if one.named is None else one.named(names) for one in mechanisms)
    return Protection(ours, len(held), config.rounds, fraction, config.seed, min(held))
