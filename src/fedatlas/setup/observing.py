"""What cannot be observed, said before data are read; and which attacks on views an experiment declares."""

from __future__ import annotations

from fedatlas.algorithm import Algorithm
from fedatlas.attacks.roles import Role
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError


def check_observed(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError for a role that the algorithm does not have, and for rounds that never come."""
    if config.observe is None:
        return
    if algorithm.card.sends != "messages":
        raise ConfigError(
            f"[observe]: '{algorithm.name}' is a baseline in which no model crosses: leave the table out."
        )
    for text in config.observe.roles:
        check_role(Role.parse(text, "observe.roles"), "observe.roles", config, algorithm)
    first = config.observe.rounds[0]
    if first > config.rounds:
        raise ConfigError(f"observe.rounds begins at round {first}, and the run ends with round {config.rounds}.")


def check_role(role: Role, where: str, config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError for a role that nobody plays."""
    if role.kind == "server" and algorithm.serverless:
        raise ConfigError(f"{where} = '{role}': no server takes part in '{algorithm.name}'; name a client.")
    if role.kind == "successor" and algorithm.groups is None:
        raise ConfigError(
            f"{where} = '{role}': '{algorithm.name}' hands no model from client to client; take 'fedseq'."
        )
    if config.partition.clients:
        check_client(role, where, config.partition.clients)


def check_client(role: Role, where: str, clients: int) -> None:
    """ConfigError for a client that there is not."""
    if role.client is not None and role.client >= clients:
        raise ConfigError(f"{where} = '{role}': the clients are 0 to {clients - 1}.")


def check_observed_clients(config: ExperimentConfig, clients: int) -> None:
    """The same, where their number is known with the data only."""
    for text in config.observe.roles if config.observe else ():
        check_client(Role.parse(text, "observe.roles"), "observe.roles", clients)
