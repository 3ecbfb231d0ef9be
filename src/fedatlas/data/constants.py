"""``data.constants``: scaling constants and encodings from a file in the form of ``preprocess.json``, not from rows.

Constants computed from rows reveal something about them, and under differential privacy they would cost budget.
Constants from public statistics, or from an earlier run on public rows, reveal nothing. The file needs
`Preprocess.KEYS`. A numeric target takes its ``target_mean`` and ``target_sd``, by default 0 and 1. Further keys are
ignored. Between real parties, the values replace the name of the file (`values_of`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedatlas.data.dataset import Column, Dataset
from fedatlas.data.holes import Missing, refuse_holes, schema_of
from fedatlas.data.kept import located
from fedatlas.data.preprocess import ColumnRule, Done, Preprocess, encode, recode, with_record
from fedatlas.errors import ConfigError

TABLE = ""  # replaces the name of a file if the experiment holds the values
USUAL: Mapping[str, Any] = {"class_names": (), "target_mean": 0.0, "target_sd": 1.0}  # of keys that may be left out
KNOWN = (*Preprocess.KEYS, *USUAL, "client_constants", "depth")


def values_of(file: str) -> dict[str, Any]:
    """Return the values of a ``data.constants`` file that are used.

    ConfigError if it is missing, malformed or invalid.
    """
    read_constants(file)
    return {key: value for key, value in _loaded(file).items() if key in KNOWN}


def _loaded(file: str) -> Any:
    try:
        return json.loads(located(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise wrong(file, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise wrong(file, f"it cannot be read as JSON ({error})") from None


def read_constants(constants: str | Mapping[str, Any]) -> Preprocess:
    """Return the preprocessing of ``data.constants``, from its file or its values.

    ConfigError if missing, malformed or invalid.
    """
    file, values = (constants, _loaded(constants)) if isinstance(constants, str) else (TABLE, constants)
    lacking = [key for key in Preprocess.KEYS if not isinstance(values, dict) or key not in values]
    if lacking:
        raise wrong(file, f"it lacks the key '{lacking[0]}'")
    try:
        given = Preprocess.from_json({**USUAL, **{key: values[key] for key in KNOWN if key in values}})
        check_numbers(given)
    except (KeyError, TypeError, ValueError) as error:
        raise wrong(file, f"it does not have the form of a run's preprocess.json ({error})") from None
    if given.client_constants:
        raise wrong(file, "its constants differ from client to client (data.scale = 'client')")
    return given


def wrong(file: str, why: str) -> ConfigError:
    """Return the ConfigError for a file, or for values, that cannot be used."""
    named = "data.constants" if file == TABLE else f"data.constants = '{file}'"
    return ConfigError(
        f"{named}: {why}; give a file in the form of preprocess.json, made for rows with the same columns."
    )


def check_numbers(given: Preprocess) -> None:
    """Raise ValueError for a constant that is not a finite number, or a deviation of 0 or less."""
    deviations = [given.target_sd, *(rule.sd for rule in given.rules)]
    medians = [rule.median for rule in given.rules if rule.median is not None]
    centres = [given.target_mean, *(rule.mean for rule in given.rules)]
    every: list[Any] = [*deviations, *medians, *centres, *given.input_scale, *given.input_shift]
    for x in every:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            raise ValueError(f"{x!r} is not a finite number")
    if min(deviations) <= 0:
        raise ValueError("a deviation is not above 0")


def with_constants(
    dataset: Dataset, constants: str | Mapping[str, Any], missing: Missing = "error", *, scale_target: bool = True
) -> Done:
    """Turn raw rows into model inputs by the constants of a file, or its values; return (data set, preprocessing applied).

    The counterpart of `preprocess`, which computes constants with the clients. The file may list a table's columns in
    another order, which the model then uses. Clients send nothing, so no bytes are counted. ConfigError for the
    constants of another table. ``missing`` decides whether missing cells are refused or filled with the file's medians.
    """
    given = read_constants(constants)
    check_alike(dataset, given, constants if isinstance(constants, str) else TABLE, missing)
    refuse_holes(dataset, missing)
    mean, sd = (given.target_mean, given.target_sd) if dataset.task == "numbers" and scale_target else (0.0, 1.0)
    done = replace(given, missing=missing, class_names=dataset.class_names, target_mean=mean, target_sd=sd)
    done = replace(done, scale="none" if given.scale == "none" else "constants", bytes_up=0, bytes_down=0)
    if given.kind == "table":
        dataset, done = of_table(dataset, done)
    else:
        dataset = replace(dataset, scale=given.input_scale, shift=given.input_shift)
    return with_record(dataset, done)


def of_table(dataset: Dataset, done: Preprocess) -> Done:
    """Return a table's rows encoded by the rules, in the order of the rules."""
    schema = schema_of(dataset)
    place = {column.name: j for j, column in enumerate(schema)}
    order = [place[rule.name] for rule in done.rules]
    told = [schema[j] for j in order]
    done = replace(done, shape=(len(done.columns),), input_scale=(), input_shift=())

    def made(x: Tensor) -> Tensor:
        ordered = x if order == list(range(len(order))) else x[:, torch.tensor(order)]
        return encode(recode(ordered, told, done.rules), done.rules, done.missing == "median")

    return replace(dataset.with_inputs(made), columns=done.columns, schema=()), done


def check_alike(dataset: Dataset, given: Preprocess, file: str, missing: Missing) -> None:
    """Raise ConfigError if the constants belong to other data: another kind, target, shape, columns or classes."""
    kind = kind_of(dataset)
    if kind == "tokens":
        raise ConfigError(f"data.constants: '{dataset.name}' holds token ids, which are not scaled; remove the key.")
    if kind != given.kind:
        raise wrong(file, f"it was made for {given.kind}, but '{dataset.name}' holds {kind}")
    if dataset.task != given.task:
        raise wrong(file, f"its target is of the kind '{given.task}', but that of '{dataset.name}' is '{dataset.task}'")
    if given.class_names and given.class_names != dataset.class_names:
        raise wrong(file, f"its classes are not those of '{dataset.name}' ({named(dataset.class_names)})")
    if kind == "pictures":
        if given.shape != dataset.shape:
            raise wrong(
                file,
                f"its rows have the shape {list(given.shape)}, but those of '{dataset.name}' {list(dataset.shape)}",
            )
        if {len(given.input_scale), len(given.input_shift)} not in ({0}, {1}, {dataset.shape[0]}):
            raise wrong(file, f"input_scale and input_shift need one number, or one per channel ({dataset.shape[0]})")
        return
    check_columns(dataset, schema_of(dataset), given.rules, file)
    if missing == "median" and (bare := [r.name for r in given.rules if not r.categories and r.median is None]):
        raise wrong(file, f"data.missing = 'median' needs the median of column '{bare[0]}', which it lacks")


def check_columns(dataset: Dataset, schema: Sequence[Column], rules: Sequence[ColumnRule], file: str) -> None:
    """Raise ConfigError if a column is missing on one side, occurs twice, or is numeric on only one side."""
    have, told = {column.name: column for column in schema}, {rule.name: rule for rule in rules}
    if len(told) < len(rules):
        raise wrong(file, "it lists a column twice")
    if absent := [name for name in have if name not in told]:
        raise wrong(file, f"it lacks column '{absent[0]}' of '{dataset.name}'")
    if strange := [name for name in told if name not in have]:
        raise wrong(file, f"'{dataset.name}' has no column '{strange[0]}'")
    for name, column in have.items():
        if bool(column.categories) != bool(told[name].categories):
            words = ("texts", "numbers") if column.categories else ("numbers", "categories")
            raise wrong(
                file, f"column '{name}' of '{dataset.name}' holds {words[0]}, but the file has {words[1]} for it"
            )


def kind_of(dataset: Dataset) -> str:
    """Return the kind of the rows, as `Preprocess.kind` names it."""
    x = dataset.train.x
    if x.dtype == torch.int64:
        return "tokens"
    return "table" if x.dim() == 2 and x.is_floating_point() else "pictures"


def named(names: Sequence[Any]) -> str:
    """Return the first three names, joined."""
    shown = ", ".join(map(str, names[:3]))
    return f"{shown}, ..." if len(names) > 3 else shown
