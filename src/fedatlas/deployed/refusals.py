"""What a deployed run cannot do in this version, a sentence each; said before any node is asked."""

from __future__ import annotations

from fedatlas.algorithm import Algorithm
from fedatlas.config import ExperimentConfig
from fedatlas.errors import ConfigError
from fedatlas.privacy.mechanisms import Mechanism, SecAgg

ABLE = (
    "fedsgd",
    "fedavg",
    "fedavgm",
    "hwfedavg",
    "nwfedavg",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedprox",
    "feddyn",
    "scaffold",
    "moon",
    "fednova",
)


def refuse(config: ExperimentConfig, algorithm: Algorithm, mechanisms: tuple[Mechanism, ...], nodes: int) -> None:
    """ConfigError for the first thing that is not possible between real parties, or not yet."""
    for words in _said(config, algorithm, mechanisms, nodes):
        raise ConfigError(words)


def _said(config: ExperimentConfig, algorithm: Algorithm, mechanisms: tuple[Mechanism, ...], nodes: int) -> list[str]:
    out = []
    if algorithm.name == "centralised":
        out.append(
            "'centralised' pools all rows, and between real parties nobody holds all rows: choose another algorithm."
        )
    if algorithm.serverless:
        out.append(
            f"'{algorithm.name}' lets nodes hear each other, and a server in the middle would see what only neighbours may."
        )
    if algorithm.name not in ABLE:
        out.append(
            f"algorithm.name = '{algorithm.name}': not in this version of deployment; it runs {', '.join(ABLE)}."
        )
    if config.seeds is not None:
        out.append("seeds: a deployed run has one seed; write seed = N.")
    if config.model.bn == "local":
        out.append("model.bn = 'local': not in this version of deployment; use 'average'.")
    if config.models:
        out.append("[[models]]: nodes share one network in this version of deployment; use [model].")
    if config.public is not None:
        out.append("[public]: public rows do not travel in this version of deployment; remove the table.")
    if config.observe is not None:
        out.append("[observe] keeps views of a simulation: not in a deployed run in this version; remove the table.")
    if config.evaluation.drift:
        out.append("evaluation.drift = true looks into clients' labels: not in a deployed run; remove it.")
    if config.evaluation.clients:
        out.append("evaluation.clients: nodes hold out no rows in this version of deployment; remove it.")
    if config.evaluation.on != "test":
        out.append("evaluation.on = 'validation': judging is on test rows in this version of deployment; remove it.")
    out += [
        f"[[privacy]] name = '{one.name}': of the mechanisms, 'secagg' alone is deployed in this version."
        for one in mechanisms
        if not isinstance(one, SecAgg)
    ]
    if config.parties or config.align is not None:
        out.append(
            "[[parties]] and [align]: columns that several parties hold are not deployed in this version; remove them."
        )
    if config.attack:
        out.append("[[attack]]: nobody attacks by an experiment file between real parties; remove the tables.")
    if config.aggregation is not None and config.aggregation.name != "mean":
        out.append(f"aggregation.name = '{config.aggregation.name}': not in this version of deployment; use 'mean'.")
    if config.engine.plan == "stacked":
        out.append("engine.plan = 'stacked' trains several clients at once, and a node is one: remove the key.")
    if config.model.init:
        out.append("model.init names a file of this machine, which nodes do not have: remove it.")
    if config.data.test_file:
        out.append(
            "data.test names a file: give it to the server (--test), or name a share that every node keeps for judging."
        )
    if config.data.name == "file" and config.data.options().get("client"):
        out.append("data.client says who owns a row, and each node owns its own: remove it.")
    if config.data.constants is not None:
        out.append("data.constants names a file of this machine, which nodes do not have: remove it.")
    if config.partition.clients != nodes:
        out.append(
            f"partition.clients = {config.partition.clients}: the run has {nodes} nodes; write partition.clients = {nodes}."
        )
    return out
