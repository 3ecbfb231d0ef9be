"""Which views a run keeps, and which attacks on them its file declares: what cannot be is refused before data are read.

An attack that is declared has the view of its role kept for it, and is carried out when the run is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.attacks.inference import INFERENCE, Inference
from fedatlas.attacks.roles import Role
from fedatlas.config import ExperimentConfig
from fedatlas.config.observe import ObserveConfig
from fedatlas.errors import ConfigError
from fedatlas.registry import arguments

MEMBERSHIP = "membership"
NO_ROWS = (
    "attack 'membership' needs rows that clients held out, as non-members: write clients = 0.5 under [evaluation] (the test rows of a "
    "data set are other people's, and no game)."
)


def keys_of(table: Any) -> dict[str, Any]:
    """The keys of a table of ``[[attack]]`` that looks at a view, its role among them. ConfigError for several roles."""
    if table.role is not None and not isinstance(table.role, str):
        raise ConfigError(
            f"attack.{table.name}.role: several roles that put together what they saw are not in this version."
        )
    return {**table.parameters(), **({} if table.role is None else {"role": table.role})}


def inferences_of(config: ExperimentConfig) -> dict[str, Inference]:
    """The tables of ``[[attack]]`` that look at views, by name; ConfigError for an unknown key and for one that stands there twice."""
    found: dict[str, Inference] = {}
    for table in config.attack:
        if table.name not in INFERENCE:
            continue
        if table.name in found:
            raise ConfigError(
                f"[[attack]]: '{table.name}' stands there twice; declare it once, and try others with 'fedatlas attack'."
            )
        builder = INFERENCE[table.name]
        found[table.name] = builder(**arguments(f"attack.{table.name}", builder, keys_of(table)))
    return found


def views_of(config: ExperimentConfig) -> ObserveConfig | None:
    """What is recorded: what ``[observe]`` names, and the views that declared attacks look at."""
    needed = [
        made for made in inferences_of(config).values() if made.kind != MEMBERSHIP or made.role.kind != "outsider"
    ]
    if not needed:
        return config.observe
    given = config.observe
    roles = dict.fromkeys([*(given.roles if given else ()), *(str(made.role) for made in needed)])
    first = all(made.kind == "inversion" for made in needed)
    rounds = given.rounds if given else (0, 2) if first else (0, 0)
    told: Mapping[str, Any] = {} if given is None else {"every": given.every, "limit": given.limit}
    return ObserveConfig(roles=tuple(roles), rounds=rounds, **told)


def check_observed(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError for a role that the algorithm does not have, for rounds that never come, and for an attack that could say nothing."""
    declared, views = inferences_of(config), views_of(config)
    if (views or declared) and algorithm.card.sends != "messages":
        raise ConfigError(
            f"[observe]: '{algorithm.name}' is a baseline in which no model crosses: leave the table out."
        )
    for made in declared.values():
        check_role(made.role, f"attack.{made.name}.role", config, algorithm)
    if MEMBERSHIP in declared and not config.evaluation.clients:
        raise ConfigError(NO_ROWS)
    if views is None:
        return
    for text in views.roles:
        check_role(Role.parse(text, "observe.roles"), "observe.roles", config, algorithm)
    if (first := views.rounds[0]) > config.rounds:
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
    views = views_of(config)
    for text in views.roles if views else ():
        check_client(Role.parse(text, "observe.roles"), "observe.roles", clients)
