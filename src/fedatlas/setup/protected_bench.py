"""From the mechanisms of ``[[privacy]]`` to a bench whose jobs apply them."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.config import ExperimentConfig
from fedatlas.engine.job import Bench
from fedatlas.privacy.mechanism import Mechanism, Protection
from fedatlas.privacy.protection import under


def protected_bench(
    bench: Bench, config: ExperimentConfig, seed: int, mechanisms: Sequence[Mechanism], sizes: Sequence[int]
) -> Bench:
    """Return the bench with the mechanisms of ``[[privacy]]``, and the phases of their protocols among its tasks."""
    held = [n for n in sizes if n]
    if not mechanisms or not held:
        return bench
    fraction = config.cohort.fraction if config.cohort.sampling == "poisson" else 1.0
    ours = tuple(one if one.named is None else one.named([*bench.network.initial()[0]]) for one in mechanisms)
    how = Protection(ours, len(held), config.rounds, fraction, seed, min(held))
    return bench._replace(protection=how, algorithm=under(bench.algorithm, how))
