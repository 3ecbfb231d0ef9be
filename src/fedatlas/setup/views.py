"""The views that a run keeps, and the attacks on them that its file declares; both are checked before data are read.

A declared attack has its role's view recorded, and is carried out when the run is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.fake_class import unfit
from fedatlas.attacks.roles import OF_A_CHAIN, ViewRole
from fedatlas.attacks.view_attack import ViewAttack
from fedatlas.config import ExperimentConfig
from fedatlas.config.observe import ObserveConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.registry import arguments
from fedatlas.setup.mechanism_choice import mechanisms_of

NO_MODELS = "with reveal = 'clients' no message holds a model that could be read, and this attack needs one"


def keys_of(table: Any) -> dict[str, Any]:
    """Return the keys of an ``[[attack]]`` table on a view, its role included. ConfigError for several roles."""
    if table.role is not None and not isinstance(table.role, str):
        raise ConfigError(
            f"attack.{table.name}.role: this version has no attack by several roles together; name one role."
        )
    return {**table.parameters(), **({} if table.role is None else {"role": table.role})}


def build_view_attack(where: str, name: str, keys: Mapping[str, Any]) -> ViewAttack:
    """Return the attack with these keys; ConfigError for an unknown key, with its place given by ``where``."""
    builder = VIEW_ATTACKS[name]
    return builder(**arguments(where, builder, keys))


def view_attacks_of(config: ExperimentConfig) -> dict[str, ViewAttack]:
    """Return the attacks on views by name. ConfigError for an unknown key, and for an attack declared twice."""
    found: dict[str, ViewAttack] = {}
    for table in config.attack:
        if table.name not in VIEW_ATTACKS:
            continue
        if table.name in found:
            raise ConfigError(
                f"[[attack]]: '{table.name}' is declared twice; declare it once, and try others with 'fedatlas attack'."
            )
        found[table.name] = build_view_attack(f"attack.{table.name}", table.name, keys_of(table))
    return found


def views_of(config: ExperimentConfig) -> ObserveConfig | None:
    """Return the views to record: those that ``[observe]`` names, and those that declared attacks need."""
    needed = [
        (str(role), made.rounds)
        for made in view_attacks_of(config).values()
        if made.rounds is not None
        for role in made.views
    ]
    given = config.observe
    if not needed:
        return given
    firsts, lasts = zip(*(rounds for _, rounds in needed), strict=True)
    roles = dict.fromkeys([*(given.roles if given else ()), *(role for role, _ in needed)])
    rounds = given.rounds if given else (min(firsts), max(lasts) if all(lasts) else 0)
    told: Mapping[str, Any] = {} if given is None else {"every": given.every, "limit": given.limit}
    return ObserveConfig(roles=tuple(roles), rounds=rounds, **told)


def check_observed(config: ExperimentConfig, algorithm: Algorithm) -> None:
    """Raise ConfigError for a role that the algorithm lacks, for rounds beyond the run, and for an unsuited attack."""
    declared, views = view_attacks_of(config), views_of(config)
    if (views or declared) and algorithm.card.sends != "messages":
        raise ConfigError(f"[observe]: '{algorithm.name}' is a baseline that sends no models: remove the table.")
    for made in declared.values():
        where = f"attack.{made.name}.role"
        check_kind_of_role(made, where)
        check_role(made.role, where, config, algorithm)
        if why := made.refuses(config):
            raise ConfigError(why)
        if getattr(config.model.loss, "fake", None) and (why := unfit(made.name)):
            raise ConfigError(why)
        if made.rounds is not None and any(one.closed for one in mechanisms_of(config)):
            raise ConfigError(f"{where}: {NO_MODELS}; remove the table, or write reveal = 'server'.")
        if hidden := [one.name for one in mechanisms_of(config) if made.single and one.sums_only]:
            raise ConfigError(
                f"attack '{made.name}' judges the updates of single clients, and under [[privacy]] '{hidden[0]}' the server sees only "
                "their sum: remove one of the two tables."
            )
    if views is None:
        return
    for text in views.roles:
        check_role(ViewRole.parse(text, "observe.roles"), "observe.roles", config, algorithm)
    if (first := views.rounds[0]) > config.rounds:
        raise ConfigError(f"observe.rounds begins at round {first}, but the run ends with round {config.rounds}.")


def check_kind_of_role(made: ViewAttack, where: str) -> None:
    """Raise ConfigError for a role whose view does not show what the attack needs."""
    if made.role.kind not in made.roles:
        raise ConfigError(
            f"{where} = '{made.role}': '{made.name}' cannot work with this view; name one of {', '.join(made.roles)}."
        )


def seconds_questions(mechanisms: Sequence[Mechanism]) -> frozenset[str]:
    """Return the questions of a second server; empty if none takes part."""
    protocols = [one.work().protocol for one in mechanisms if one.sums_only]
    return frozenset(what for one in protocols if one is not None for what in one.second_server)


def check_role(role: ViewRole, where: str, config: ExperimentConfig, algorithm: Algorithm) -> None:
    """Raise ConfigError for a role that does not exist in this experiment."""
    if role.kind == "second_server" and not seconds_questions(mechanisms_of(config)):
        raise ConfigError(f"{where} = '{role}': only one server takes part in this experiment; name 'server'.")
    if role.kind == "server" and algorithm.serverless:
        raise ConfigError(f"{where} = '{role}': no server takes part in '{algorithm.name}'; name a client.")
    if role.kind in OF_A_CHAIN and algorithm.groups is None:
        raise ConfigError(
            f"{where} = '{role}': '{algorithm.name}' passes no model from client to client; use 'fedseq'."
        )
    if config.partition.clients:
        check_client(role, where, config.partition.clients)


def check_client(role: ViewRole, where: str, clients: int) -> None:
    """Raise ConfigError for a client that does not exist."""
    if role.client is not None and role.client >= clients:
        raise ConfigError(f"{where} = '{role}': the clients are 0 to {clients - 1}.")


def check_observed_clients(config: ExperimentConfig, clients: int) -> None:
    """Raise ConfigError for an observed client that does not exist, once the data tell how many clients there are."""
    views = views_of(config)
    for text in views.roles if views else ():
        check_client(ViewRole.parse(text, "observe.roles"), "observe.roles", clients)


def check_declared_attacks(config: ExperimentConfig, rows: Sequence[int]) -> None:
    """Raise ConfigError for a declared attack that is meaningless if clients hold ``rows`` rows each."""
    for made in view_attacks_of(config).values():
        if why := made.refuses_run(config, rows):
            raise ConfigError(why)
