"""Refusals of a deployed run, a sentence each, before any node is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import ExperimentConfig
from fedatlas.data.constants import values_of
from fedatlas.errors import ConfigError
from fedatlas.models.initial import by_digest, bytes_of, given, named, read_initial
from fedatlas.models.registry import MODELS
from fedatlas.privacy.mechanisms import every
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve
from fedatlas.transforms import TRANSFORMS

MOST_JUDGED = 0.5  # share of a node's rows that are for judging: with a larger one an operator would choose single rows


def with_values(config: ExperimentConfig) -> ExperimentConfig:
    """The experiment as parties elsewhere can read it: constants, and the digest of an initial model, stand in the place of their files.

    ConfigError for a file that cannot be used.
    """
    changed: dict[str, Any] = {}
    if isinstance(file := config.data.constants, str):
        changed["data"] = config.data.model_copy(update={"constants": values_of(file)})
    if data := initial_of(config):
        changed["model"] = config.model.model_copy(update={"init": named(data)})
    return config.model_copy(update=changed)


def initial_of(config: ExperimentConfig) -> bytes:
    """Return the file of the initial model, b"" if there is none. ConfigError for one that cannot be used."""
    init = config.model.init
    if not init or by_digest(init):
        return b""
    read_initial(init)
    return bytes_of(init)


def check_initial(config: Mapping[str, Any], data: bytes) -> None:
    """ConfigError unless a written-out experiment names exactly these bytes as its initial model, or names none and there are none."""
    init = config.get("model", {}).get("init") or ""
    if (named(data) if data else "") != init:
        raise ConfigError(
            "model.init: the file that came is not the one of the agreement; submit the experiment again."
        )
    if data:
        with given(data):
            read_initial(init)


def deployable(config: ExperimentConfig, names: Sequence[str]) -> Checked:
    """The experiment, resolved and checked. ConfigError for what these nodes cannot run."""
    whole = resolve(config)
    refuse(whole, names)
    check(whole)
    return whole


def refuse(whole: Checked, names: Sequence[str]) -> None:
    """Raise ConfigError for the first thing that is not possible between real parties, or not yet. ``names``: of the run's nodes."""
    if whole.config.tracking is not None:
        raise ConfigError("[tracking]: a deployed run tells no tool in this version; remove the table.")
    for words in _of_columns(whole, [*names]) if whole.columns else _of_rows(whole, len(names)):
        raise ConfigError(words)


def undeployable(algorithm: Algorithm) -> str:
    """Return why deployed runs cannot have an algorithm, by its record; "" if they can."""
    a, d = algorithm, algorithm.demands
    reasons = {
        a.refuses.get("deployment", ""): "deployment" in a.refuses,
        "pools all rows, and between real parties nobody holds all rows": a.card.sends == "rows",
        "lets nodes hear each other, and a server in the middle would see what only neighbours may": a.serverless,
        "hands models from client to client, which nodes do not do in this version": a.groups is not None,
        "works with public rows, which do not travel in this version": d.public is not None,
        "sends layers instead of the whole model, which nodes do not do in this version": d.layered,
        "gives clients models of their own, which nodes do not keep in this version": a.personal is not None,
        "does not declare what it asks (Algorithm.asks), which nodes compare": a.grammar is None,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _of_rows(whole: Checked, nodes: int) -> Iterator[str]:
    config = whole.config
    if why := undeployable(whole.algorithm):
        yield f"algorithm.name = '{whole.algorithm.name}': it {why}; choose another algorithm."
    for table, known in (("algorithm", ALGORITHMS), ("model", MODELS), ("compression", TRANSFORMS)):
        if (part := getattr(config, table)) is not None and part.name not in known:
            yield f"{table}.name = '{part.name}' is a plug-in, and nodes run only what fedatlas brings: take another."
    if config.seeds is not None:
        yield "seeds: a deployed run has one seed; write seed = N."
    if config.model.bn == "local":
        yield "model.bn = 'local': not in this version of deployment; use 'average'."
    if config.models:
        yield "[[models]]: nodes share one network in this version of deployment; use [model]."
    if config.public is not None:
        yield "[public]: public rows do not travel in this version of deployment; remove the table."
    if config.observe is not None:
        yield "[observe] keeps views of a simulation: not in a deployed run in this version; remove the table."
    if config.evaluation.drift:
        yield "evaluation.drift = true looks into clients' labels: not in a deployed run; remove it."
    if config.evaluation.clients:
        yield "evaluation.clients: nodes hold out no rows in this version of deployment; remove it."
    if config.evaluation.on != "test":
        yield "evaluation.on = 'validation': judging is on test rows in this version of deployment; remove it."
    able = " and ".join(f"'{name}'" for name, one in every().items() if one.limits.deployed)
    for one in whole.mechanisms:
        if not one.limits.deployed:
            yield f"[[privacy]] name = '{one.name}': not in this version of deployment; of the mechanisms it has {able}."
    if config.attack:
        yield "[[attack]]: an experiment file makes nobody attack between real parties; remove the tables."
    if config.aggregation is not None and config.aggregation.name != "mean":
        yield f"aggregation.name = '{config.aggregation.name}': not in this version of deployment; use 'mean'."
    if config.engine.plan == "stacked":
        yield "engine.plan = 'stacked' trains several clients at once, and a node is one: remove the key."
    if config.model.init and not by_digest(config.model.init):
        yield "model.init names a file of one machine, and an agreement holds its digest: submit the experiment again."
    if config.data.test_file:
        yield "data.test names a file: give it to the server (--test), or name a share that every node keeps for judging."
    if config.data.name == "file" and config.data.limit:
        yield "data.limit takes a part of the rows, and a node trains on all of its own: remove it."
    if isinstance(config.data.test, float) and config.data.test > MOST_JUDGED:
        share = f"data.test = {config.data.test:g}"
        yield f"{share} leaves few rows, and a node trains on half of its own at least: give {MOST_JUDGED} or less."
    if config.data.name == "file" and config.data.options().get("client"):
        yield "data.client says who owns a row, and each node owns its own: remove it."
    if isinstance(config.data.constants, str):
        yield "data.constants names a file of one machine, and an agreement holds its values: submit the experiment again."
    if config.partition.clients != nodes:
        yield (
            f"partition.clients = {config.partition.clients}: the run has {nodes} nodes; write partition.clients = {nodes}, "
            "or name those that take part with --nodes."
        )


def _of_columns(whole: Checked, names: list[str]) -> Iterator[str]:
    if not whole.config.parties:
        yield (
            "partition.name = 'vertical' deals the columns of one table, and between real parties each has its own table: "
            "write [[parties]], each with the name of its node."
        )
    if why := whole.of_columns().refusal(whole.how):
        yield why
    parties, listed = [*whole.parties], ", ".join(names)
    if odd := [name for name in parties if name not in names]:
        yield f"party '{odd[0]}' is not a node of this run: give each of [[parties]] the name of its node ({listed})."
    if parties != names:
        yield f"the run's nodes are {listed} and its parties {', '.join(parties)}: name the same."
