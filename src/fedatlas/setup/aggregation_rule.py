"""``[aggregation]``: the rule by which the clients' changes become one, and where none can stand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.aggregation.rules import LATER, RULES, Rule
from fedatlas.algorithm import Algorithm, Task, Transform
from fedatlas.attacks.poisoning import Poisoning
from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.federation.defence import Defence
from fedatlas.privacy.mechanism import Mechanism
from fedatlas.privacy.mechanisms import every
from fedatlas.registry import arguments
from fedatlas.setup.cohort import usual_size

FAMILIES: Mapping[str, str] = {
    "baseline": "its clients send no updates",
    "matching": "its server matches units of models before it averages them, and no rule is made for that",
    "client weighting": "its weights are its point, and this rule ignores weights",
    "distillation": "its clients send scores, which its server averages itself",
}
"""Family of algorithms -> why rules cannot stand in it."""


def rule_of(config: ExperimentConfig) -> Rule | None:
    """The rule that ``[aggregation]`` names; ConfigError for an unknown name or key."""
    table = config.aggregation
    if table is None:
        return None
    if table.name in LATER:
        raise ConfigError(f"aggregation.name = '{table.name}': not in this version, which has {', '.join(RULES)}.")
    if table.name not in RULES:
        raise unknown_name("rule", table.name, RULES)
    made: Rule = RULES[table.name](**arguments("aggregation", RULES[table.name], table.parameters()))
    return made


def defence_of(config: ExperimentConfig, rule: Rule | None, poisonings: Sequence[Poisoning]) -> Defence | None:
    """The server's defence against hostile clients; None where neither an attack nor a rule other than the mean is declared."""
    judging = rule if rule is not None and rule.name != "mean" else None
    return Defence(judging, bytes_of(config.engine.memory)) if judging is not None or poisonings else None


def why_not(rule: Rule, algorithm: Algorithm) -> str:
    """Why a rule cannot stand in an algorithm; "" where it can."""
    family = algorithm.card.family
    if rule.name == "mean":
        return ""
    if family in FAMILIES and not (family == "client weighting" and rule.weighted):
        return FAMILIES[family]
    if algorithm.card.communication == "decentralised, single-sided trust":
        return "its nodes hand on shares of a sum that have to add up, and a rule keeps no sum"
    train = algorithm.tasks.get("train")
    if isinstance(train, Task) and (train.shows or train.sealing.silent):
        return "its server averages single models itself, for which rules are not in this version"
    return ""


def check_rule(
    config: ExperimentConfig,
    algorithm: Algorithm,
    rule: Rule | None,
    mechanisms: Sequence[Mechanism],
    transform: Transform | None,
) -> None:
    """ConfigError for a rule that the configuration by itself forbids."""
    if rule is None or rule.name == "mean":
        return
    where = f"aggregation.name = '{rule.name}'"
    for one in mechanisms:
        if one.sums_only:
            raise ConfigError(
                f"{where}: not under '{one.name}', which shows the server only sums; remove one of the two tables."
            )
        if at_server(one):
            able = " or ".join(name for name, other in every().items() if not (other.sums_only or at_server(other)))
            raise ConfigError(
                f"{where}: not under '{one.name}', whose noise is made for a sum; take {able}, or remove one of the two."
            )
        if transform is not None:
            raise ConfigError(f"{where}: not under '{one.name}' with [compression]; remove one of the three tables.")
    if why := why_not(rule, algorithm):
        raise ConfigError(
            f"{where}: not with '{algorithm.name}': {why}; write aggregation.name = \"mean\", or remove the table."
        )
    if algorithm.groups is None and not algorithm.serverless and config.partition.clients:
        check_enough(rule, cohort_of(config, config.partition.clients), "clients in a round")


def at_server(mechanism: Mechanism) -> bool:
    """Whether a mechanism's server adds up what clients send in a way of its own, or noises the sum."""
    work = mechanism.work()
    return work.total is not None or work.release is not None


def cohort_of(config: ExperimentConfig, clients: int) -> int:
    """Return how many clients a round has, on average where each is drawn for itself."""
    return math.floor(usual_size(config, clients) + 1e-9)


def check_enough(rule: Rule, n: int, what: str) -> None:
    """ConfigError where f is too large for so many changes."""
    if why := rule.refusal(n):
        key = "lower aggregation.f" if rule.f else "let more take part"
        raise ConfigError(f"aggregation: {why} {what}; {key}, or take another rule.")


def check_hearing(
    rule: Rule | None, algorithm: Algorithm, facts: Mapping[str, Any], clients: int, config: ExperimentConfig
) -> None:
    """ConfigError where f is too large for the nodes that hear fewest, or for the clients that turned out to hold rows."""
    if rule is None or rule.name == "mean":
        return
    if algorithm.serverless:
        check_enough(rule, neighbours_of(algorithm, facts) + 1, "models that a node hears, its own included")
    elif algorithm.groups is None:
        check_enough(rule, cohort_of(config, clients), "clients in a round")


def neighbours_of(algorithm: Algorithm, facts: Mapping[str, Any]) -> int:
    """The neighbours of the node that has fewest; 0 where a server takes part."""
    return int(facts["degrees"][0]) if algorithm.serverless and "degrees" in facts else 0


def rule_notices(rule: Rule | None) -> list[str]:
    """Notices about a rule."""
    if rule is None or rule.weighted:
        return []
    return [
        f"'{rule.name}' ignores how many rows clients have: every change counts alike, since a client could claim any number."
    ]
