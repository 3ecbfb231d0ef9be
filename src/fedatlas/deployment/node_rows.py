"""A node's rows as its file has them, what it says of them, and what all nodes say together. Nothing here leaves a row.

What a simulator sees at one glance (columns, classes, categories, shapes, which kind of target) each node says of its own file, and
the server settles what holds for all; a node then codes its rows by that. The file is the user's own (`data.files`), or what
`fedatlas deploy trial` deals: the stored form of a source's rows, with its scale and its class names (``.rows``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Column, Dataset, Split
from fedatlas.data.files import load_file
from fedatlas.data.loaded import Request, limit_rows, numbered, split_test
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError, DataError
from fedatlas.files import write_bytes
from fedatlas.registry import arguments
from fedatlas.wire import codec

SUFFIX = ".rows"
PARTS = ("x", "y", "weight")
OF_THE_EXPERIMENT = ("label", "task", "weight", "drop", "categories", "size")
"""Keys of ``[data]`` that are the experiment's; where a file lies, and what is tested on, is each node's own business."""


class NodeRows(NamedTuple):
    """Rows in stored form by split, and what they are."""

    about: Mapping[str, Any]
    splits: Mapping[str, Split]

    @property
    def facts(self) -> dict[str, Any]:
        """What a node says of its rows: what they are, and how many."""
        rows = {name: len(split.y) for name, split in self.splits.items()}
        return {**self.about, "rows": rows, "weighted": self.splits["train"].weight is not None}


def about(dataset: Dataset) -> dict[str, Any]:
    """What the rows of a data set are, as plain values."""
    x, y = dataset.train.x, dataset.train.y
    return {
        "name": dataset.name,
        "task": dataset.task,
        "class_names": list(dataset.class_names),
        "columns": list(dataset.columns),
        "scale": list(dataset.scale),
        "shift": list(dataset.shift),
        "ignore": dataset.ignore,
        "schema": [[column.name, list(column.categories)] for column in dataset.schema],
        "facts": {key: value for key, value in dataset.facts.items() if key in {"special", "depth", "unit", "units"}},
        "x": [codec.NAMES[x.dtype], list(x.shape[1:])],
        "y": [codec.NAMES[y.dtype], list(y.shape[1:])],
    }


def dataset_of(about: Mapping[str, Any], splits: Mapping[str, Split]) -> Dataset:
    """The data set that these are the rows of."""
    schema = tuple(Column(name, tuple(categories)) for name, categories in about["schema"])
    return Dataset(
        about["name"],
        dict(splits),
        about["task"],
        class_names=tuple(about["class_names"]),
        columns=tuple(about["columns"]),
        scale=tuple(about["scale"]),
        shift=tuple(about["shift"]),
        ignore=about["ignore"],
        schema=schema,
        facts=dict(about["facts"]),
    )


def blank(about: Mapping[str, Any], weighted: bool) -> Split:
    """Two rows of zeros, for whoever has to know what rows look like and has none."""
    (dtype, shape), (target, more) = about["x"], about["y"]
    x, y = torch.zeros((2, *shape), dtype=codec.DTYPES[dtype]), torch.zeros((2, *more), dtype=codec.DTYPES[target])
    return Split(x, y, weight=torch.ones(2) if weighted else None)


def write_stored(path: Path, dataset: Dataset, splits: Mapping[str, Split]) -> None:
    """The rows of these splits in stored form."""
    kept = {
        name: {part: x for part in PARTS if (x := getattr(split, part)) is not None} for name, split in splits.items()
    }
    write_bytes(path, codec.encode({"about": about(dataset), "splits": kept}))


def read_rows(path: Path, config: ExperimentConfig) -> NodeRows:
    """The rows of a node's or a server's file, raw. DataError, ConfigError for what cannot be used."""
    if path.suffix == SUFFIX:
        if not path.exists():
            raise DataError(f"there is no file '{path}'.")
        found = codec.decode(path.read_bytes())
        return NodeRows(found["about"], {name: Split(**split) for name, split in found["splits"].items()})
    if config.data.name != "file":
        raise ConfigError(
            f"data.name = '{config.data.name}': nodes read files of their own; write data.name = 'file' and, for a table, data.label."
        )
    options = {key: value for key, value in config.data.options().items() if key in OF_THE_EXPERIMENT}
    request = Request(Store.default(), config.seed, drop_unusable=config.data.missing != "error", few_classes=True)
    given = arguments("data", load_file, {**options, "path": str(path)})
    loaded = numbered(load_file(request, **given))
    if isinstance(config.data.test, float):
        loaded = split_test(loaded, config.data.test, config.seed)
    loaded = limit_rows(loaded, config.data.limit, config.seed)
    splits = {"train": loaded.train, **({"test": loaded.test} if loaded.test is not None else {})}
    whole = Dataset(
        "file",
        splits,
        loaded.task,
        loaded.class_names,
        columns=loaded.columns,
        scale=loaded.scale,
        shift=loaded.shift,
        schema=loaded.schema,
    )
    bare = {name: split._replace(client=None, row=None) for name, split in splits.items()}
    return NodeRows(about(whole), bare)


MUST_AGREE = {
    "task": "the target is of the kind",
    "x": "rows are",
    "y": "targets are",
    "scale": "pictures are scaled by",
    "weighted": "weights are there:",
}


def agreed(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What holds for all: classes and categories of anybody, in order. DataError where two parties' rows do not go together."""
    first, *others = facts
    known = dict(facts[first])
    for name in others:
        check_alike(first, known, name, facts[name])
        known["class_names"] = joined(known["class_names"], facts[name]["class_names"])
        known["schema"] = [
            [column, joined(mine, theirs)]
            for (column, mine), (_, theirs) in zip(known["schema"], facts[name]["schema"], strict=True)
        ]
    if known["task"] == "classes" and len(known["class_names"]) < 2:
        raise DataError(f"all nodes hold one class only ('{known['class_names'][0]}'): there is nothing to learn.")
    return {key: value for key, value in known.items() if key not in {"rows", "weighted"}}


def check_alike(first: str, known: Mapping[str, Any], name: str, other: Mapping[str, Any]) -> None:
    """DataError where the rows of two parties do not go together."""
    columns = [[column for column, _ in facts["schema"]] for facts in (known, other)]
    if columns[0] != columns[1]:
        odd = sorted({*columns[0]} ^ {*columns[1]})
        what = f"only one of them has '{odd[0]}'" if odd else "their order differs"
        raise DataError(f"the columns of '{first}' and '{name}' differ: {what}; give all files the same columns.")
    for (column, mine), (_, theirs) in zip(known["schema"], other["schema"], strict=True):
        if bool(mine) != bool(theirs):
            who, whose = (name, first) if theirs else (first, name)
            raise DataError(
                f"column '{column}' holds texts at '{who}' and numbers at '{whose}': correct the cells, or name it in data.categories."
            )
    for key, words in MUST_AGREE.items():
        if known[key] != other[key]:
            raise DataError(
                f"{words} {shown(known[key])} at '{first}' and {shown(other[key])} at '{name}': "
                f"{'say which with data.task' if key == 'task' else 'give all files the same form'}."
            )


def shown(value: Any) -> str:
    """As a sentence says it."""
    return f"{value[0]} of shape {tuple(value[1])}" if isinstance(value, list) and len(value) == 2 else f"{value}"


def joined(mine: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """The names of both, in order: numbers by value, texts by letters; names that agree stay as they are."""
    if list(mine) == list(theirs):
        return list(mine)
    both = {*mine, *theirs}
    try:
        return sorted(both, key=float)
    except ValueError:
        return sorted(both)


def coded(held: NodeRows, about: Mapping[str, Any]) -> dict[str, Split]:
    """A party's rows with the classes and categories that all agreed on, in place of those of its own file."""
    splits = dict(held.splits)
    if about["task"] == "classes" and held.about["class_names"] != about["class_names"]:
        places = torch.tensor([about["class_names"].index(name) for name in held.about["class_names"]])
        splits = {name: split._replace(y=places[split.y]) for name, split in splits.items()}
    for j, ((_, own), (_, known)) in enumerate(zip(held.about["schema"], about["schema"], strict=True)):
        if own != known:
            places = torch.tensor([float(known.index(name)) for name in own])
            splits = {name: split._replace(x=recoded(split.x, j, places)) for name, split in splits.items()}
    return splits


def recoded(x: Tensor, column: int, places: Tensor) -> Tensor:
    """Codes of a column -> their places among the agreed ones; missing cells stay."""
    x = x.clone()
    there = ~torch.isnan(x[:, column])
    x[there, column] = places[x[there, column].long()]
    return x
