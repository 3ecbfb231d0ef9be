"""A node's rows as its file has them, the facts that it tells of them, and the facts of all nodes together.

No row leaves. Each node tells the columns, classes, categories, shapes and the kind of target of its file. A simulation
sees these at once. The server settles them for all nodes, and each node codes its rows accordingly. The file is the
user's own (`data.files`), or one that `fedatlas deploy trial` deals (``.rows``): a source's rows in stored form, with
scale and class names.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedatlas.config import ExperimentConfig
from fedatlas.data.cells import Reading, in_order, now
from fedatlas.data.dataset import Column, Dataset, Split, TaskKind
from fedatlas.data.files import load_file
from fedatlas.data.holes import drop_holes
from fedatlas.data.loaded import LoadRequest, limit_rows, numbered, split_test
from fedatlas.data.store import Store, sha256
from fedatlas.errors import ConfigError, DataError, PrivacyError
from fedatlas.files import write_bytes
from fedatlas.record.fingerprint import fingerprint
from fedatlas.registry import arguments
from fedatlas.wire import codec
from fedatlas.wire.fields import Bound, plain, record
from fedatlas.wire.messages import Count, Open

SUFFIX = ".rows"
ROUNDING = 1e-6  # of a row
PARTS = ("x", "y", "weight")
TOLD = ("special", "depth", "unit", "units", "reading")  # facts of a source that its nodes disclose
OF_THE_EXPERIMENT = (
    *("label", "task", "weight", "drop", "categories", "size"),
    *("thousands", "units", "background", "na", "dates"),
)
"""Keys of ``[data]`` that the experiment sets. Each node sets its file's place and format, and its test rows."""


FEW_TEXTS = (
    "its policy.toml counts texts in fewer than min_rows = {} cells as missing, which is all of column '{}' at this node, and "
    "data.missing = '{}' cannot do without them: name the column in data.drop, or lower min_rows there."
)

Form = tuple[Annotated[str, Bound(pattern="|".join(codec.DTYPES), what="a type of tensors")], tuple[Count, ...]]
"""(type, shape of one row)."""


class RowCounts(NamedTuple):
    """Rows by split."""

    train: Count = 0
    test: Count = 0


class RowsFacts(NamedTuple):
    """Facts of the rows of one node, with their number; or of the rows of all nodes."""

    name: str
    task: TaskKind
    class_names: tuple[str, ...]
    columns: tuple[str, ...]
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    ignore: int
    schema: tuple[tuple[str, tuple[str, ...]], ...]  # (column, its categories)
    facts: Open
    x: Form
    y: Form
    rows: RowCounts = RowCounts()
    weighted: bool = False
    empty: tuple[str, ...] = ()  # undisclosed columns: too few cells are filled


class NodeRows(NamedTuple):
    """Rows in stored form by split, and their facts."""

    about: RowsFacts
    splits: Mapping[str, Split]
    file: str = ""  # digest of the bytes of its file, by whose rows the splits are numbered

    @property
    def facts(self) -> RowsFacts:
        """Facts that a node tells of its rows, with their number."""
        rows = RowCounts(**{name: len(split.y) for name, split in self.splits.items()})
        return self.about._replace(rows=rows, weighted=self.splits["train"].weight is not None)


def rows_that_count(weight: Tensor | None, rows: int) -> int:
    """Return the least number of equal rows that any ``rows`` of the weighted rows amount to.

    This is Kish's (sum w)^2 / sum w^2. ``weight``: (n,). The least comes from a choice of some of the heaviest rows and
    otherwise the lightest. Without weights each row counts.
    """
    if weight is None or not rows or not bool(weight.any()):
        return rows if weight is None else 0
    w = torch.sort(weight.double() / weight.max()).values
    light, heavy = (torch.cat((w.new_zeros(1, 2), torch.stack((x, x * x), 1).cumsum(0)[:rows])) for x in (w, w.flip(0)))
    first, second = (light.flip(0) + heavy).unbind(1)
    found = torch.where(second > 0, first**2 / second, 0.0).min()
    return int(found + ROUNDING)


def with_empty_columns(held: NodeRows, least: int = 1) -> NodeRows:
    """Return rows whose columns without a filled cell tell no kind.

    Texts in fewer cells of a column than ``least`` also count as missing, because the names of the texts would tell
    them.
    """
    about, splits = held.about, dict(held.splits)
    if not about.schema:
        return held
    filled = torch.stack([(~torch.isnan(split.x)).sum(0) for split in splits.values()]).sum(0)
    texts = torch.tensor([bool(known) for _, known in about.schema])
    empty = (filled < 1) | (texts & (filled < least))
    if bool((empty & (filled > 0)).any()):
        splits = {name: split._replace(x=torch.where(empty, torch.nan, split.x)) for name, split in splits.items()}
    schema = tuple((name, () if gone else known) for (name, known), gone in zip(about.schema, empty, strict=True))
    told = tuple(name for (name, _), gone in zip(schema, empty, strict=True) if gone)
    return held._replace(about=about._replace(schema=schema, empty=told), splits=splits)


def check_texts(read: NodeRows, told: NodeRows, missing: str, least: int) -> None:
    """Raise PrivacyError if texts of a few cells count as missing and ``data.missing`` cannot do without them."""
    gone = sorted({*told.about.empty} - {*read.about.empty})
    if gone and missing != "median" and any(len(split.y) for split in told.splits.values()):
        raise PrivacyError(FEW_TEXTS.format(least, gone[0], missing))


def without_holes(held: NodeRows) -> NodeRows:
    """Return the rows that have no missing cell. DataError if a split has no such row."""
    return held._replace(splits=drop_holes(dataset_of(held.about, held.splits)).splits)


def facts_of(dataset: Dataset) -> RowsFacts:
    """Return the facts of the rows of a data set."""
    d, (x, y) = dataset, dataset.train[:2]
    return RowsFacts(
        d.name,
        d.task,
        d.class_names,
        d.columns,
        d.scale,
        d.shift,
        d.ignore,
        tuple((column.name, column.categories) for column in d.schema),
        {key: value for key, value in d.facts.items() if key in TOLD},
        (codec.NAMES[x.dtype], tuple(x.shape[1:])),
        (codec.NAMES[y.dtype], tuple(y.shape[1:])),
    )


def dataset_of(about: RowsFacts, splits: Mapping[str, Split]) -> Dataset:
    """Return the data set with these facts and rows."""
    d, schema = about, tuple(Column(*column) for column in about.schema)
    return Dataset(
        d.name, dict(splits), d.task, d.class_names, d.columns, (), d.scale, d.shift, d.ignore, schema, facts=d.facts
    )


def two_rows(about: RowsFacts) -> Split:
    """Return two rows of zeros, which show the form of rows where there are no real ones."""
    x, y = (torch.zeros((2, *shape), dtype=codec.DTYPES[dtype]) for dtype, shape in (about.x, about.y))
    return Split(x, y, weight=torch.ones(2) if about.weighted else None)


def write_stored(path: Path, dataset: Dataset, splits: Mapping[str, Split]) -> None:
    """Write the rows of these splits in stored form."""
    kept = {
        name: {part: x for part in PARTS if (x := getattr(split, part)) is not None} for name, split in splits.items()
    }
    write_bytes(path, codec.encode({"about": plain(facts_of(dataset)), "splits": kept}))


def read_rows(path: Path, config: ExperimentConfig, form: Mapping[str, str] = {}) -> NodeRows:
    """Read the raw rows of a node's or a server's file. DataError or ConfigError for a file that cannot be used.

    ``form``: format of this file, by `OF_THE_FILE`. It is not disclosed.
    """
    if path.suffix == SUFFIX:
        if not path.exists():
            raise DataError(f"there is no file '{path}'.")
        found = codec.decode(path.read_bytes(), own=True)
        stored = NodeRows(
            record(RowsFacts, found["about"], "about"),
            {name: Split(**split).numbered() for name, split in found["splits"].items()},
            digest_of(path),
        )
        return with_empty_columns(stored)
    if config.data.name != "file":
        raise ConfigError(
            f"data.name = '{config.data.name}': nodes read files of their own; write data.name = 'file' and, for a table, data.label."
        )
    options = {key: value for key, value in config.data.options().items() if key in OF_THE_EXPERIMENT}
    request = LoadRequest(Store.default(), config.seed, drop_unusable=config.data.missing != "error", few_classes=True)
    given = arguments("data", load_file, {**options, **form, "path": str(path)})
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
        facts=told(loaded.facts),
    )
    bare = {name: split._replace(client=None).numbered() for name, split in splits.items()}
    return with_empty_columns(NodeRows(facts_of(whole), bare, digest_of(path)))


def digest_of(path: Path) -> str:
    """Return a digest of the bytes of a node's file, or of all files of a folder in the order of their names.

    An experiment cannot change it. Judgements of any rows of the file, however read, may concern the same people.
    """
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    return fingerprint(map(sha256, files))


def told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a source that its node discloses. Of the reading these are only what all parties know."""
    found = {key: value for key, value in facts.items() if key in TOLD}
    if "reading" in found:
        shared = Reading.from_json(found.pop("reading")).shared()
        found |= {"reading": shared.to_json()} if shared != Reading(shared.rules) else {}
    return found


def with_names(held: NodeRows, names: Collection[str]) -> NodeRows:
    """Return rows that tell only these names of classes and categories.

    Cells with another category count as missing. Rows of another class are left out.
    """
    about, splits = held.about, dict(held.splits)
    schema = tuple((column, tuple(name for name in known if name in names)) for column, known in about.schema)
    for j, ((_, mine), (_, kept)) in enumerate(zip(about.schema, schema, strict=True)):
        if mine != kept:
            places = torch.tensor([float(kept.index(name)) if name in kept else math.nan for name in mine])
            splits = {name: split._replace(x=recoded(split.x, j, places)) for name, split in splits.items()}
    classes = tuple(name for name in about.class_names if name in names)
    if about.task == "classes" and classes != about.class_names:
        places = torch.tensor([classes.index(name) if name in classes else -1 for name in about.class_names])
        splits = {name: of_classes(split, places) for name, split in splits.items()}
    return held._replace(about=about._replace(class_names=classes, schema=schema), splits=splits)


def of_classes(split: Split, places: Tensor) -> Split:
    """Return the rows whose class has a place, labelled with that place."""
    y = places[split.y]
    kept = split.take((y >= 0).nonzero().flatten().numpy())
    return kept._replace(y=places[kept.y])


MUST_AGREE = {
    "task": "the target is of the kind",
    "x": "rows are",
    "y": "targets are",
    "scale": "pictures are scaled by",
    "weighted": "weights are there:",
}


def agreed(facts: Mapping[str, RowsFacts]) -> RowsFacts:
    """Return the facts of all rows, with the classes and categories of all parties in order.

    DataError if two parties' rows do not fit.
    """
    first, *others = facts
    known = facts[first]
    for name in others:
        check_alike(first, known, name, other := facts[name])
        pairs = zip(known.schema, other.schema, strict=True)
        known = known._replace(
            class_names=joined(known.class_names, other.class_names, True),
            schema=tuple((column, joined(mine, theirs, False)) for (column, mine), (_, theirs) in pairs),
            empty=tuple(column for column in known.empty if column in other.empty),
        )
    if known.task == "classes" and len(known.class_names) < 2:
        raise DataError(f"all nodes hold only one class ('{known.class_names[0]}'): there is nothing to learn.")
    return known._replace(rows=RowCounts(), empty=())


def check_alike(first: str, known: RowsFacts, name: str, other: RowsFacts) -> None:
    """Raise DataError if the rows of two parties do not fit together."""
    columns = [[column for column, _ in facts.schema] for facts in (known, other)]
    if columns[0] != columns[1]:
        odd = sorted({*columns[0]} ^ {*columns[1]})
        what = f"only one of them has '{odd[0]}'" if odd else "their order differs"
        raise DataError(f"the columns of '{first}' and '{name}' differ: {what}; give all files the same columns.")
    for (column, mine), (_, theirs) in zip(known.schema, other.schema, strict=True):
        if bool(mine) != bool(theirs) and column not in {*known.empty, *other.empty}:
            who, whose = (name, first) if theirs else (first, name)
            raise DataError(
                f"column '{column}' holds texts at '{who}' and numbers at '{whose}': correct the cells, or name it in data.categories."
            )
    for key, words in MUST_AGREE.items():
        if (mine := getattr(known, key)) != (theirs := getattr(other, key)):
            raise DataError(
                f"{words} {shown(mine)} at '{first}' and {shown(theirs)} at '{name}': "
                f"{'say which with data.task' if key == 'task' else 'give all files the same form'}."
            )


def shown(value: Any) -> str:
    """Return a value in the form that an error shows."""
    form = isinstance(value, tuple) and value[1:] and isinstance(value[1], tuple)
    return f"{value[0]} of shape {value[1]}" if form else f"{list(value) if isinstance(value, tuple) else value}"


def joined(mine: tuple[str, ...], theirs: tuple[str, ...], classes: bool) -> tuple[str, ...]:
    """Return the names of both, in the order of one file with all rows. Names that are equal stay as they are."""
    if mine == theirs:
        return mine
    both = {*mine, *theirs}
    if now().rules < 2:
        with contextlib.suppress(ValueError):
            return tuple(sorted(both, key=float))
    return in_order(both) if classes and now().rules > 1 else tuple(sorted(both))


def coded(held: NodeRows, about: RowsFacts) -> dict[str, Split]:
    """Return a party's rows coded by the agreed classes and categories, without their numbers in its file."""
    splits, own = {name: split._replace(row=None) for name, split in held.splits.items()}, held.about
    if about.task == "classes" and own.class_names != about.class_names:
        places = torch.tensor([about.class_names.index(name) for name in own.class_names])
        splits = {name: split._replace(y=places[split.y]) for name, split in splits.items()}
    for j, ((_, mine), (_, known)) in enumerate(zip(own.schema, about.schema, strict=True)):
        if mine != known:
            places = torch.tensor([float(known.index(name)) for name in mine])
            splits = {name: split._replace(x=recoded(split.x, j, places)) for name, split in splits.items()}
    return splits


def recoded(x: Tensor, column: int, places: Tensor) -> Tensor:
    """Replace the codes of a column by their places among the agreed ones. Missing cells stay."""
    x = x.clone()
    there = ~torch.isnan(x[:, column])
    x[there, column] = places[x[there, column].long()]
    return x
