"""Refusals of a deployed run, one sentence each, before any node is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedatlas.algorithm import Algorithm
from fedatlas.algorithms import ALGORITHMS
from fedatlas.config import ExperimentConfig
from fedatlas.data.constants import values_of
from fedatlas.deployment.plain_refusals import (
    COLUMNS,
    algorithm_refused,
    clients_refused,
    mechanism_refused,
    of_all,
    of_rows,
)
from fedatlas.errors import ConfigError
from fedatlas.models.initial import by_digest, bytes_of, given, named, read_initial
from fedatlas.models.registry import MODELS
from fedatlas.privacy.mechanism import on_rows
from fedatlas.privacy.mechanisms import every
from fedatlas.setup.checked import Checked
from fedatlas.setup.refusals import check
from fedatlas.setup.resolution import resolve
from fedatlas.transforms import TRANSFORMS


def with_values(config: ExperimentConfig) -> ExperimentConfig:
    """Return the experiment as remote parties can read it.

    Constants, and the digest of an initial model, replace their files.

    ConfigError for a file that cannot be used.
    """
    changed: dict[str, Any] = {}
    if isinstance(file := config.data.constants, str):
        changed["data"] = config.data.model_copy(update={"constants": values_of(file)})
    if data := initial_of(config):
        changed["model"] = config.model.model_copy(update={"init": named(data)})
    return config.model_copy(update=changed)


def initial_of(config: ExperimentConfig) -> bytes:
    """Return the bytes of the initial model's file, or b"" without one. ConfigError for a file that cannot be used."""
    init = config.model.init
    if not init or by_digest(init):
        return b""
    read_initial(init)
    return bytes_of(init)


def check_initial(config: Mapping[str, Any], data: bytes) -> None:
    """Raise ConfigError unless these bytes are the initial model that a written-out experiment names; b"" if it names none."""
    init = config.get("model", {}).get("init") or ""
    if (named(data) if data else "") != init:
        raise ConfigError(
            "model.init: the file that came is not the one of the agreement; submit the experiment again."
        )
    if data:
        with given(data):
            read_initial(init)


def deployable(config: ExperimentConfig, names: Sequence[str]) -> Checked:
    """Return the experiment, resolved and checked. ConfigError if these nodes cannot run it."""
    whole = resolve(config)
    refuse(whole, names)
    check(whole)
    return whole


def refuse(whole: Checked, names: Sequence[str]) -> None:
    """Raise ConfigError for the first thing that real parties cannot do, or cannot do yet.

    ``names``: of the run's nodes.
    """
    for words in of_all(whole.config.plain()):
        raise ConfigError(words)
    for words in _of_columns(whole, [*names]) if whole.columns else _of_rows(whole, len(names)):
        raise ConfigError(words)


def undeployable(algorithm: Algorithm) -> str:
    """Return why an algorithm cannot be deployed, from its record; "" if it can."""
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
        yield algorithm_refused(whole.algorithm.name, why)
    for table, known in (("algorithm", ALGORITHMS), ("model", MODELS), ("compression", TRANSFORMS)):
        if (part := getattr(config, table)) is not None and part.name not in known:
            yield f"{table}.name = '{part.name}' is a plug-in, and nodes run only what fedatlas brings: take another."
    able = [name for name, one in every().items() if one.limits.deployed]
    for one in whole.mechanisms:
        if not one.limits.deployed:
            yield one.limits.undeployed or mechanism_refused(one.name, able)
    yield from of_rows(config.plain())
    if config.model.init and not by_digest(config.model.init):
        yield "model.init names a file of one machine, and an agreement holds its digest: submit the experiment again."
    if config.data.name == "file" and config.data.options().get("client"):
        yield "data.client says who owns a row, and each node owns its own: remove it."
    if isinstance(config.data.constants, str):
        yield "data.constants names a file of one machine, and an agreement holds its values: submit the experiment again."
    if config.partition.clients != nodes:
        yield clients_refused(config.partition.clients, nodes)


def _of_columns(whole: Checked, names: list[str]) -> Iterator[str]:
    if not whole.config.parties:
        yield COLUMNS
    scheme = whole.of_columns()
    if why := scheme.refusal(whole.how):
        yield why
    for one in on_rows(whole.mechanisms):
        if not one.limits.deployed:
            yield mechanism_refused(one.name, [*scheme.mechanisms])
    parties, listed = [*whole.parties], ", ".join(names)
    if odd := [name for name in parties if name not in names]:
        yield f"party '{odd[0]}' is not a node of this run: give each of [[parties]] the name of its node ({listed})."
    if parties != names:
        yield f"the run's nodes are {listed} and its parties {', '.join(parties)}: name the same."
