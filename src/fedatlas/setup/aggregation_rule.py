"""``[aggregation]``: the rule that combines the clients' changes, and the algorithms that cannot use it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedatlas.aggregation.before_rule import PRE, before
from fedatlas.aggregation.rules import RULES, Rule
from fedatlas.algorithm import Algorithm, Local, Public, Solver, Task, Transform
from fedatlas.algorithms.median_by_sums import NEAR, by_sums, why_no_sums
from fedatlas.attacks.malicious import Poisoning
from fedatlas.config import ExperimentConfig, bytes_of
from fedatlas.errors import ConfigError, unknown_name
from fedatlas.federation.defence import ROOT, Defence
from fedatlas.grammar import Form
from fedatlas.privacy.mechanism import Mechanism, on_updates
from fedatlas.privacy.mechanisms import every
from fedatlas.registry import arguments, keywords
from fedatlas.setup.checked import Checked
from fedatlas.setup.cohort import usual_size

FAMILIES: Mapping[str, str] = {
    "baseline": "its clients send no updates",
    "matching": "its server matches units of models before it averages them, and rules do not support that",
    "client weighting": "the method consists in its weights, and this rule ignores weights",
}
"""Family of algorithms -> why it cannot use a rule."""

BY_SUMS = (
    "'geometric_median' by secure sums withstands clients with bad data, but not one that claims more rows or sends other "
    "numbers: no sum shows a client's part."
)

ROOT_TASK = Task(options=Local(epochs=1, public=Public(), solver=Solver(batch_size=10)), stateful=False)
"""One pass over the public rows in batches of ten, at the clients' rate."""


def rule_of(config: ExperimentConfig) -> Rule | None:
    """Return the rule that ``[aggregation]`` names, or None. ConfigError for an unknown name or key."""
    table = config.aggregation
    if table is None:
        return None
    if table.name not in RULES:
        raise unknown_name("rule", table.name, RULES)
    builder, given = RULES[table.name], table.parameters()
    pre = None if table.pre == "none" else table.pre
    if table.s is not None and pre != "bucketing":
        raise ConfigError('aggregation.s is the size of a bucket: write pre = "bucketing", or remove the key.')
    own = {} if table.s is None else {"s": table.s}
    if pre and "f" not in keywords(builder):
        own["f"] = given.pop("f", None)
    rule: Rule = builder(**arguments("aggregation", builder, given))
    return rule if pre is None else before(pre, rule, **arguments("aggregation", PRE[pre], own))


def defence_of(config: ExperimentConfig, rule: Rule | None, poisonings: Sequence[Poisoning]) -> Defence | None:
    """Return the server's defence against hostile clients.

    None if neither an attack nor a rule other than the mean is declared.
    """
    judging = rule if rule is not None and rule.judges else None
    return Defence(judging, bytes_of(config.engine.memory)) if judging is not None or poisonings else None


def why_not(rule: Rule, algorithm: Algorithm) -> str:
    """Return why a rule cannot be used with an algorithm; "" if it can."""
    family = algorithm.card.family
    if not rule.judges:
        return ""
    if family in FAMILIES and not (family == "client weighting" and rule.weighted):
        return FAMILIES[family]
    if algorithm.card.communication == "decentralised, single-sided trust":
        return "its nodes pass on shares of a sum that must add up, and a rule does not keep the sum"
    train = algorithm.tasks.get("train")
    apart = isinstance(train, Task) and bool(train.shows or train.sealing.silent)
    if apart and not algorithm.ruled:
        return "its server averages individual models itself, and does not leave that to the rule (Algorithm.ruled)"
    return no_root(algorithm) if rule.rooted else ""


def no_root(algorithm: Algorithm) -> str:
    """Return why the server's own rows give no change to compare with; "" if they do."""
    if algorithm.serverless:
        return "no server takes part whose rows could be trusted"
    if algorithm.ruled:
        return "its server averages scores, or several models, and its own rows train only one"
    if algorithm.grammar is None:
        return "its rounds are its own and declare no asks, and the rule adds one"
    return algorithm.refuses.get("root", "")


def under_rule(
    config: ExperimentConfig, algorithm: Algorithm, rule: Rule, mechanisms: Sequence[Mechanism]
) -> Algorithm:
    """Return the algorithm with the asks that a rule adds: for the server's own rows, or for a median by masked sums."""
    if rule.rooted and config.public is not None and not why_not(rule, algorithm):
        return algorithm if unrooted(algorithm, mechanisms) else with_root(algorithm)
    if config.aggregation is None or not by_masks(rule, mechanisms) or why_no_sums(algorithm):
        return algorithm
    steps = arguments("aggregation", RULES[rule.name], config.aggregation.parameters())
    return by_sums(algorithm, steps["nu"], steps["iterations"])


def unrooted(algorithm: Algorithm, mechanisms: Sequence[Mechanism]) -> str:
    """Return the name of a mechanism that cannot be next to a training of public rows; "" if there is none."""
    rooted = with_root(algorithm)
    hindered = (one for one in mechanisms if one.limits.why_not(rooted) and not one.limits.why_not(algorithm))
    return next((one.name for one in hindered), "")


def by_masks(rule: Rule, mechanisms: Sequence[Mechanism]) -> bool:
    """Whether a rule works by secure sums: the geometric median, next to one mechanism that shows only sums and adds no noise."""
    hides = [one.sums_only == "wholly" and one.noise is None and not at_server(one) for one in mechanisms]
    return rule.name == "geometric_median" and not rule.pre and hides == [True]


def check_masked(where: str, algorithm: Algorithm, transform: Transform | None, mechanism: Mechanism) -> None:
    """Raise ConfigError for a geometric median that cannot be had by secure sums."""
    why = "" if NEAR in algorithm.tasks else why_no_sums(algorithm)
    if transform is not None:
        why = "[compression] shortens changes, and none is sent"
    if why:
        raise ConfigError(
            f"{where} under '{mechanism.name}': not with '{algorithm.name}': {why}; remove one of the tables."
        )


def with_root(algorithm: Algorithm) -> Algorithm:
    """Return an algorithm whose server also trains the public rows from the model that clients are sent, in every round (B6)."""
    if (grammar := algorithm.grammar) is None:
        return algorithm
    demands = algorithm.demands
    if demands.public is None:
        demands = demands._replace(public={"from": "test", "per_class": 10}, public_labels=True)
    return algorithm._replace(
        tasks={**algorithm.tasks, ROOT: ROOT_TASK},
        asks=grammar._replace(round=(*grammar.round, Form(ROOT, "each", to="server"))),
        demands=demands,
    )


def check_rule(
    config: ExperimentConfig,
    algorithm: Algorithm,
    rule: Rule | None,
    mechanisms: Sequence[Mechanism],
    transform: Transform | None,
) -> None:
    """Raise ConfigError for a rule that the configuration rules out by itself."""
    if rule is None or not rule.judges:
        return
    where = f"aggregation.name = '{rule.name}'" + (f", pre = '{rule.pre}'" if rule.pre else "")
    if rule.rooted and config.public is None:
        raise ConfigError(f"{where} compares with the change of public rows, and there are none: add a table [public].")
    if rule.rooted and (name := unrooted(algorithm, mechanisms)):
        raise ConfigError(
            f"{where}: not under '{name}', whose account does not cover the training of public rows; remove one of the two."
        )
    if config.model.bn == "recalibrate":
        raise ConfigError(
            f"{where}: not with model.bn = 'recalibrate', whose statistics are sums that no rule judges; use 'average'."
        )
    if by_masks(rule, mechanisms):
        check_masked(where, algorithm, transform, mechanisms[0])
        return
    for one in on_updates(mechanisms):
        if one.sums_only:
            raise ConfigError(
                f"{where}: not under '{one.name}', which shows the server only sums; remove one of the two tables."
            )
        if at_server(one):
            able = " or ".join(name for name, other in every().items() if not (other.sums_only or at_server(other)))
            raise ConfigError(
                f"{where}: not under '{one.name}', whose noise is made for a sum; use {able}, or remove one of the two."
            )
        if transform is not None:
            raise ConfigError(f"{where}: not under '{one.name}' with [compression]; remove one of the three tables.")
    if why := why_not(rule, algorithm):
        instead = "remove the table" if rule.pre else 'write aggregation.name = "mean", or remove the table'
        raise ConfigError(f"{where}: not with '{algorithm.name}': {why}; {instead}.")
    if algorithm.groups is None and not algorithm.serverless and config.partition.clients:
        check_enough(rule, cohort_of(config, config.partition.clients), "clients in a round")


def at_server(mechanism: Mechanism) -> bool:
    """Return whether a mechanism replaces the server's sum of what clients send, or adds noise to it."""
    work = mechanism.work()
    return work.total is not None or work.release is not None


def cohort_of(config: ExperimentConfig, clients: int) -> int:
    """Return how many clients a round has, rounded down; the mean if each is drawn independently."""
    return math.floor(usual_size(config, clients) + 1e-9)


def check_enough(rule: Rule, n: int, what: str) -> None:
    """Raise ConfigError if f is too large for ``n`` changes; ``what`` names them in the message."""
    if why := rule.refusal(n):
        key = "lower aggregation.f" if rule.f else "let more take part"
        raise ConfigError(f"aggregation: {why} {what}; {key}, or choose another rule.")


def check_hearing(
    rule: Rule | None, algorithm: Algorithm, facts: Mapping[str, Any], clients: int, config: ExperimentConfig
) -> None:
    """Raise ConfigError if f is too large for the node with the fewest neighbours, or for the clients with rows."""
    if rule is None or not rule.judges:
        return
    if algorithm.serverless:
        check_enough(rule, neighbours_of(algorithm, facts) + 1, "models that a node hears, its own included")
    elif algorithm.groups is None:
        check_enough(rule, cohort_of(config, clients), "clients in a round")


def neighbours_of(algorithm: Algorithm, facts: Mapping[str, Any]) -> int:
    """Return the smallest number of neighbours of any node; 0 if a server takes part."""
    return int(facts["degrees"][0]) if algorithm.serverless and "degrees" in facts else 0


def rule_notices(whole: Checked, facts: Mapping[str, Any], sizes: Sequence[int]) -> list[str]:
    """Return notices about a rule: what it ignores, and where it withstands less than its name promises."""
    config, algorithm, rule = whole.config, whole.algorithm, whole.rule
    if rule is None or not rule.judges:
        return []
    if by_masks(rule, whole.mechanisms):
        return [BY_SUMS]
    said = [] if rule.weighted else [IGNORES.format(rule.name)]
    n = neighbours_of(algorithm, facts) + 1 if algorithm.serverless else cohort_of(config, sum(m > 0 for m in sizes))
    if algorithm.groups is None and rule.counts_on_f and rule.f is None and not rule.tolerated(n):
        said.append(NOBODY.format(rule.title, n))
    if algorithm.name == "fedseq_inter" and config.algorithm.parameters().get("period") != 1:
        said.append(SLOTS)
    return said


IGNORES = "'{}' ignores how many rows clients have, since a client could claim any number: every change counts equally."
NOBODY = "'{}' assumes that none of {} changes is hostile, since floor(0.2 n) is 0; give aggregation.f."
SLOTS = (
    "'fedseq_inter': a hostile model stays in its slot, and the next superclient there begins with it, so more slots turn hostile "
    "until they are averaged; algorithm.period = 1 averages in every round."
)
