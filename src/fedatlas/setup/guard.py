"""``[guard]``: the runs whose server can judge a model before it becomes the model; refusals, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.algorithm import Algorithm
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism

METRIC = {"classes": "macro_f1", "numbers": "r2", "tokens": "accuracy"}
"""Kind of target -> the metric of a guard that names none."""


def guards(config: ExperimentConfig, algorithm: Algorithm) -> bool:
    """Return whether the models of a run are judged; a baseline sends no update that could be."""
    return config.guard is not None and algorithm.card.sends == "messages"


def check_guard(config: ExperimentConfig, algorithm: Algorithm, mechanisms: Sequence[Mechanism]) -> None:
    """Raise ConfigError if the server has no model, or no rows, by which it could decide. ``algorithm``: under ``model.bn``."""
    if not guards(config, algorithm):
        return
    if algorithm.serverless:
        raise ConfigError(f"[guard]: '{algorithm.name}' has no server that could judge a model; remove the table.")
    if algorithm.personal is not None or config.models:
        raise ConfigError(
            "[guard]: the clients use models of their own here, which the server does not have: take an algorithm with one model for "
            "all, or remove the table."
        )
    for one in mechanisms:
        if one.closed:
            raise ConfigError(
                f"[guard]: under '{one.name}' with reveal = 'clients' the server has no model that it could judge; remove the table."
            )
        if one.blind:
            raise ConfigError(
                f"[guard]: under '{one.name}' the server does not know how the clients' rows were changed, so that its own do not judge "
                "a model; remove the table."
            )
        memory = one.work().memory if one.acts_on == "updates" and one.repeats else None
        if memory is not None and memory.draws:
            raise ConfigError(
                f"[guard]: '{one.name}' remembers its draws from round to round, and with noise = 'seed' the round after a rejected one "
                "would draw the same noise again: use noise = 'os'."
            )
