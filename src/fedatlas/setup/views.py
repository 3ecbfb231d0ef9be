"""The views that a run keeps, and the attacks on them that its file declares: what cannot be is refused before data are read.

The view of a declared attack's role is kept for it. The attack is carried out when the run is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.roles import ViewRole
from fedatlas.attacks.view_attack import ViewAttack
from fedatlas.config import ExperimentConfig
from fedatlas.config.observe import ObserveConfig
from fedatlas.errors import ConfigError
from fedatlas.registry import arguments


def keys_of(table: Any) -> dict[str, Any]:
    """The keys of a table of ``[[attack]]`` that looks at a view, its role among them. ConfigError for several roles."""
    if table.role is not None and not isinstance(table.role, str):
        raise ConfigError(
            f"attack.{table.name}.role: several roles that put together what they saw are not in this version."
        )
    return {**table.parameters(), **({} if table.role is None else {"role": table.role})}


def build_view_attack(where: str, name: str, keys: Mapping[str, Any]) -> ViewAttack:
    """The attack with these keys; ConfigError, which names ``where`` they stand, for an unknown one."""
    builder = VIEW_ATTACKS[name]
    return builder(**arguments(where, builder, keys))


def view_attacks_of(config: ExperimentConfig) -> dict[str, ViewAttack]:
    """The tables of ``[[attack]]`` that look at views, by name; ConfigError for an unknown key and for a table that stands there twice."""
    found: dict[str, ViewAttack] = {}
    for table in config.attack:
        if table.name not in VIEW_ATTACKS:
            continue
        if table.name in found:
            raise ConfigError(
                f"[[attack]]: '{table.name}' stands there twice; declare it once, and try others with 'fedatlas attack'."
            )
        found[table.name] = build_view_attack(f"attack.{table.name}", table.name, keys_of(table))
    return found


def views_of(config: ExperimentConfig) -> ObserveConfig | None:
    """The views that are recorded: those that ``[observe]`` names, and those that declared attacks need."""
    needed = [(str(made.role), made.rounds) for made in view_attacks_of(config).values() if made.rounds is not None]
    given = config.observe
    if not needed:
        return given
    firsts, lasts = zip(*(rounds for _, rounds in needed), strict=True)
    roles = dict.fromkeys([*(given.roles if given else ()), *(role for role, _ in needed)])
    rounds = given.rounds if given else (min(firsts), max(lasts) if all(lasts) else 0)
    told: Mapping[str, Any] = {} if given is None else {"every": given.every, "limit": given.limit}
    return ObserveConfig(roles=tuple(roles), rounds=rounds, **told)


def check_observed(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError for a role that the algorithm does not have, for rounds that never come, and for an attack that could say nothing."""
    declared, views = view_attacks_of(config), views_of(config)
    if (views or declared) and algorithm.card.sends != "messages":
        raise ConfigError(
            f"[observe]: '{algorithm.name}' is a baseline in which no model crosses: leave the table out."
        )
    for made in declared.values():
        where = f"attack.{made.name}.role"
        check_kind_of_role(made, where)
        check_role(made.role, where, config, algorithm)
        if why := made.refuses(config):
            raise ConfigError(why)
    if views is None:
        return
    for text in views.roles:
        check_role(ViewRole.parse(text, "observe.roles"), "observe.roles", config, algorithm)
    if (first := views.rounds[0]) > config.rounds:
        raise ConfigError(f"observe.rounds begins at round {first}, and the run ends with round {config.rounds}.")


def check_kind_of_role(made: ViewAttack, where: str) -> None:
    """ConfigError for a role whose view does not show what the attack needs."""
    if made.role.kind not in made.roles:
        raise ConfigError(
            f"{where} = '{made.role}': '{made.name}' cannot work from this view; name one of {', '.join(made.roles)}."
        )


def check_role(role: ViewRole, where: str, config: ExperimentConfig, algorithm: Algorithm) -> None:
    """ConfigError for a role that nobody plays."""
    if role.kind == "server" and algorithm.serverless:
        raise ConfigError(f"{where} = '{role}': no server takes part in '{algorithm.name}'; name a client.")
    if role.kind == "successor" and algorithm.groups is None:
        raise ConfigError(
            f"{where} = '{role}': '{algorithm.name}' hands no model from client to client; take 'fedseq'."
        )
    if config.partition.clients:
        check_client(role, where, config.partition.clients)


def check_client(role: ViewRole, where: str, clients: int) -> None:
    """ConfigError for a client that does not exist."""
    if role.client is not None and role.client >= clients:
        raise ConfigError(f"{where} = '{role}': the clients are 0 to {clients - 1}.")


def check_observed_clients(config: ExperimentConfig, clients: int) -> None:
    """ConfigError for the same, where only the data tell how many clients there are."""
    views = views_of(config)
    for text in views.roles if views else ():
        check_client(ViewRole.parse(text, "observe.roles"), "observe.roles", clients)
