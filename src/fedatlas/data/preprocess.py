"""Scaling, categories and missing values, computed between clients without pooling rows (`data.scale` in docs/experiment.md)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedatlas import summaries
from fedatlas.data.cells import OLDEST, OPTION, Reading, now, read_as
from fedatlas.data.dataset import Column, Dataset, HeldRows, Names, Partition, TaskKind, by_channel
from fedatlas.data.frame import raw_rows
from fedatlas.data.holes import Missing, refuse_holes, schema_of
from fedatlas.errors import ConfigError, DataError
from fedatlas.summaries import Learn, Message, Moments, Summary, Traffic

if TYPE_CHECKING:
    import pandas as pd

Constants = tuple[tuple[float, float], ...]
"""(mean, standard deviation) of each channel or numeric column."""
Scale = Literal["auto", "none", "federated", "client"]


@dataclass(frozen=True)
class ColumnRule:
    """The treatment of one raw column: (x - mean) / sd, or one 0/1 column for each of ``categories``; `indicator` adds one."""

    name: str
    categories: Names = ()  # those that a training client holds; () = numeric
    mean: float = 0.0
    sd: float = 1.0
    median: float | None = None  # replaces a missing number
    indicator: bool = False  # add a 0/1 column "missing"

    @property
    def outputs(self) -> Names:
        """Names of the model's columns made from it."""
        made = tuple(f"{self.name}={c}" for c in self.categories) if self.categories else (self.name,)
        return (*made, f"{self.name} missing") if self.indicator else made


class RowChange(Protocol):
    """A change of a table's new rows before they are prepared, as the clients' rows were changed before training."""

    @property
    def columns(self) -> tuple[Column, ...]: ...  # raw columns before it, in the order of the rules
    def __call__(self, raw: Tensor) -> Tensor:
        """Return rows (n, columns) coded by the rules' categories, for rows coded by `columns`; -1 = unknown category."""
        ...


@dataclass(frozen=True)
class Preprocess:
    """Everything that turns raw rows into model inputs, and a model's outputs into predictions: ``preprocess.json``."""

    kind: Literal["table", "pictures", "tokens"]
    rules: tuple[ColumnRule, ...]
    scale: str  # as resolved: "federated" | "client" | "constants" (the source's, or given) | "none"
    missing: str
    input_scale: tuple[float, ...]  # pictures: x * scale + shift per channel
    input_shift: tuple[float, ...]
    shape: tuple[int, ...]  # of a row as the model sees it
    task: TaskKind
    class_names: Names
    target_mean: float  # prediction = output * sd + mean, in the target's unit
    target_sd: float
    client_constants: tuple[
        Constants, ...
    ] = ()  # scale = "client": (mean, sd) by client and numeric column; empty for a client without rows
    bytes_up: int = 0
    bytes_down: int = 0
    depth: int = 8  # bits of a grey picture's pixels
    reading: Reading = OLDEST  # how cells and pictures were read
    change: RowChange | None = field(default=None, compare=False)  # new rows are changed before; in no file

    @property
    def columns(self) -> Names:
        """Names of a table's model inputs, in order."""
        return tuple(name for rule in self.rules for name in rule.outputs)

    @property
    def schema(self) -> tuple[Column, ...]:
        """The raw columns, with their known categories."""
        return tuple(Column(rule.name, rule.categories) for rule in self.rules)

    def apply(
        self, rows: pd.DataFrame | Mapping[str, Sequence[Any]] | np.ndarray | Tensor, *, keep_holes: bool = False
    ) -> Tensor:
        """Turn new rows into model inputs: a table by column names (further columns are ignored), or an array in stored form.

        Categories that no training client held become zeros, with a UserWarning that counts them. A missing cell is
        filled if ``missing = "median"``. Otherwise it raises DataError or, with ``keep_holes``, makes its whole row
        NaN.
        """
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(np.ascontiguousarray(rows))
        if isinstance(rows, Tensor):
            return self._array(rows, keep_holes)
        if self.kind != "table":
            raise DataError(f"the model reads {self.kind}, not a table.")
        with read_as(self.reading):
            raw = raw_rows(rows, self.change.columns if self.change else self.schema, keys=OPTION)
        raw = self.change(raw) if self.change else raw
        for rule, column in zip(self.rules, raw.T, strict=True):
            if rule.categories and (unseen := int((column < 0).sum())):
                warnings.warn(
                    f"column '{rule.name}': {unseen} of {len(raw)} rows hold a category that no training client had; "
                    "the model treats them as having no category.",
                    stacklevel=2,
                )
        return encode(raw, self.rules, self.missing == "median", keep_holes)

    def _array(self, x: Tensor, keep_holes: bool) -> Tensor:
        if self.kind == "table":
            if x.dim() != 2 or x.shape[1] != len(self.rules):
                raise DataError(f"the model reads rows of {len(self.rules)} columns; these are {tuple(x.shape[1:])}.")
            x = x.to(torch.float32)
            return encode(self.change(x) if self.change else x, self.rules, self.missing == "median", keep_holes)
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(f"the model reads rows of shape {self.shape}; these are {tuple(x.shape[1:])}.")
        if self.kind == "tokens":
            return x.to(torch.int64)
        x = x.to(torch.float32)
        return x * by_channel(self.input_scale, x) + by_channel(self.input_shift, x) if self.input_scale else x

    def of_client(self, client: int) -> Preprocess:
        """Return the preprocessing for this client's rows: by its constants if ``scale = "client"`` and it has any."""
        own = self.client_constants[client] if client < len(self.client_constants) else ()
        if not own:
            return self
        mean, sd = map(list, zip(*own, strict=True))
        if self.kind == "pictures":
            return replace(
                self,
                input_scale=tuple(1 / s for s in sd),
                input_shift=tuple(-m / s for m, s in zip(mean, sd, strict=True)),
            )
        return replace(self, rules=_with_constants(self.rules, _numeric(self.rules), mean, sd))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, without ``reading`` for runs by the first rules, which did not write it."""
        values = {**asdict(replace(self, change=None)), "reading": self.reading.to_json()}
        del values["change"]
        if self.reading == OLDEST:
            del values["reading"]
        return values

    KEYS: ClassVar[Names] = (
        "kind",
        "rules",
        "scale",
        "missing",
        "input_scale",
        "input_shift",
        "shape",
        "task",
    )
    """Keys that `from_json` requires."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocess:
        """Invert `to_json`, also after a round trip through JSON (lists for tuples)."""
        rules = tuple(ColumnRule(**{**rule, "categories": tuple(rule["categories"])}) for rule in values["rules"])
        constants = tuple(tuple((mean, sd) for mean, sd in client) for client in values.get("client_constants", ()))
        tuples = {key: tuple(values[key]) for key in ("input_scale", "input_shift", "shape", "class_names")}
        reading = Reading.from_json(values.get("reading"))
        return cls(**{**values, **tuples, "rules": rules, "client_constants": constants, "reading": reading})


Done = tuple[Dataset, Preprocess]
"""A data set, and the preprocessing applied to it."""


def preprocess(
    dataset: Dataset,
    partition: Partition,
    scale: Scale = "auto",
    missing: Missing = "error",
    *,
    scale_target: bool = True,
    learn: Learn | None = None,
) -> Done:
    """Turn raw rows into model inputs by constants from the clients' summaries; return (data set, preprocessing applied).

    ``scale = "auto"``: tables "federated", all other data as their source defines. "federated": numbers minus the mean
    over all clients' training rows, divided by their standard deviation, from n, sum x, sum x^2 (pictures: per
    channel).

    "client": each client's rows by its mean and standard deviation. The rows that it keeps out of training
    (`Partition.kept`) are scaled too, but do not affect these two numbers. Rows of other splits, and training rows that
    no client holds, use the mean of the clients' constants. "none": as stored.

    Categories become one 0/1 column each, from the union over training clients. They and the indicator columns are
    never scaled. A numeric target keeps its unit. Its mean and deviation over all clients are kept with it
    (`Dataset.targets`). They are 0 and 1 if ``scale = "none"``, or without ``scale_target``, for a loss that reads the
    target in its unit.

    ``missing``: "error", "drop" (rows with a missing cell were removed before: `drop_holes`), "median" (the exact
    median over all clients' cells, from counts, and an indicator column if any training row has a missing cell).

    ``learn`` asks the clients and adds up their answers. All constants come from its sums. None: one client after
    another, in this process.
    """
    learn = learn or summaries.in_process(partition.parties(dataset.train))
    if dataset.train.x.dtype == torch.int64:
        if scale not in {"auto", "none"}:
            raise ConfigError(
                f"data.scale = '{scale}': '{dataset.name}' holds token ids, which are not scaled; store numbers as float32."
            )
        return dataset, _untouched(dataset, "tokens", scale, missing)
    refuse_holes(dataset, missing)
    mean, sd, traffic = 0.0, 1.0, Traffic()
    if scale_target and scale != "none" and dataset.task == "numbers":
        learnt = learn(summaries.TARGET_MOMENTS, {})
        target, traffic = Moments(**learnt.sum), learnt.traffic
        mean, sd = float(target.mean()), float(target.sd())
    if dataset.train.x.dim() == 2 and dataset.train.x.is_floating_point():
        dataset, done = _table(dataset, partition, scale, missing, learn)
    else:
        dataset, done = _pictures(dataset, partition, scale, missing, learn)
    traffic = traffic.plus(Traffic(done.bytes_up, done.bytes_down))
    done = replace(done, target_mean=mean, target_sd=sd, bytes_up=traffic.up, bytes_down=traffic.down)
    return with_record(dataset, done)


def with_record(dataset: Dataset, done: Preprocess) -> Done:
    """Return the data set with its preprocessing recorded in its facts, and the preprocessing with its pictures' depth."""
    facts = {
        **dataset.facts,
        "scale": done.scale,
        "missing": done.missing,
        "preprocess_bytes": {"up": done.bytes_up, "down": done.bytes_down},
    }
    dataset = replace(dataset, target_mean=done.target_mean, target_sd=done.target_sd, facts=facts)
    return dataset, replace(done, depth=dataset.facts.get("depth", 8), reading=_reading(dataset))


def _reading(dataset: Dataset) -> Reading:
    """Return how the rows were read: by the rules of this context, with the keys of the source."""
    return Reading.from_json({**now().to_json(), **dataset.facts.get("reading", {})})


def _untouched(dataset: Dataset, kind: Literal["table", "pictures", "tokens"], scale: str, missing: str) -> Preprocess:
    return Preprocess(
        kind,
        (),
        scale,
        missing,
        dataset.scale,
        dataset.shift,
        dataset.shape,
        dataset.task,
        dataset.class_names,
        0.0,
        1.0,
        reading=_reading(dataset),
    )


class _Constants(NamedTuple):
    """Constants of each column, float64: of all clients' rows, or the mean of the clients' constants together with these."""

    mean: Tensor
    sd: Tensor
    own: tuple[Constants, ...]  # (mean, sd) by client and column, with scale = "client"
    traffic: Traffic


def _constants(
    moments: Summary, message: Message, scale: str, dataset: Dataset, partition: Partition, learn: Learn
) -> _Constants:
    """Return the constants for scaling columns with ``scale = "federated"`` or "client"."""
    if scale == "federated":
        learnt = learn(moments, message)
        whole = Moments(**learnt.sum)
        return _Constants(whole.mean(), whole.sd(), (), learnt.traffic)
    asked = summaries.constants_of(moments)
    learnt = learn(asked, message)
    mean, sd = (learnt.sum[what] / learnt.sum["clients"] for what in ("mean", "sd"))
    own = []  # each client computes and keeps them
    for rows in partition.clients:
        found = asked.of(HeldRows(dataset.train, rows), message) if len(rows) else {}
        own.append(tuple(zip(found["mean"].tolist(), found["sd"].tolist(), strict=True)) if found else ())
    return _Constants(mean, sd, tuple(own), learnt.traffic)


def _numeric(rules: Sequence[ColumnRule]) -> list[int]:
    return [j for j, rule in enumerate(rules) if not rule.categories]


def _table(dataset: Dataset, partition: Partition, scale: Scale, missing: Missing, learn: Learn) -> Done:
    """Compute the rules of a table's columns and apply them."""
    schema = schema_of(dataset)
    resolved = {"auto": "federated" if dataset.schema else "none"}.get(scale, scale)
    rules, traffic = _categories(schema, learn)
    if missing == "median":
        rules, more = _medians(rules, learn)
        traffic = traffic.plus(more)
    coded = dataset.with_inputs(lambda x: recode(x, schema, rules))
    x_train = coded.train.x
    numeric = _numeric(rules)
    constants: tuple[Constants, ...] = ()
    if resolved in {"federated", "client"} and numeric:
        asked = {"columns": numeric, "fill": _fills(rules, x_train.dtype)}
        mean, sd, constants, more = _constants(summaries.COLUMN_MOMENTS, asked, resolved, dataset, partition, learn)
        traffic = traffic.plus(more)
        rules = _with_constants(rules, numeric, mean.tolist(), sd.tolist())
    fills = missing == "median"
    made = coded.with_inputs(lambda x: encode(x, rules, fills))
    train = made.train.x.clone() if made.train.x is x_train else made.train.x
    for k, own in enumerate(constants):  # only scale = "client" has constants
        if not own:
            continue
        at = torch.from_numpy(partition.held(k))
        train[at] = encode(x_train[at], _with_constants(rules, numeric, *map(list, zip(*own, strict=True))), fills)
    made = made.with_splits(train=made.train._replace(x=train))
    made = replace(made, columns=tuple(name for rule in rules for name in rule.outputs), schema=())
    done = replace(_untouched(made, "table", resolved, missing), rules=rules, client_constants=constants)
    return made, replace(done, input_scale=(), input_shift=(), bytes_up=traffic.up, bytes_down=traffic.down)


def _with_constants(
    rules: Sequence[ColumnRule], numeric: Sequence[int], mean: Sequence[float], sd: Sequence[float]
) -> tuple[ColumnRule, ...]:
    out = list(rules)
    for j, m, s in zip(numeric, mean, sd, strict=True):
        out[j] = replace(rules[j], mean=m, sd=s)
    return tuple(out)


def _categories(schema: Sequence[Column], learn: Learn) -> tuple[tuple[ColumnRule, ...], Traffic]:
    """Return a rule for each column. The categories are those that any training client holds."""
    names = {j: column.categories for j, column in enumerate(schema) if column.categories}
    kept, traffic = summaries.categories(learn, names)
    if empty := [schema[j].name for j, known in kept.items() if not known]:
        raise DataError(f"column '{empty[0]}' is missing in all training rows; leave it out with data.drop.")
    return tuple(ColumnRule(column.name, kept.get(j, ())) for j, column in enumerate(schema)), traffic


def _medians(rules: Sequence[ColumnRule], learn: Learn) -> tuple[tuple[ColumnRule, ...], Traffic]:
    """Return the rules with medians for numbers, and indicators for columns with a missing cell in a training row."""
    found, traffic = learn(summaries.MISSING, {})
    holes, numeric = found["missing"], _numeric(rules)
    out = [replace(rule, indicator=bool(holes[j] > 0)) for j, rule in enumerate(rules)]
    if numeric:
        values, more = summaries.medians(learn, numeric, found["n"] - holes[numeric])
        traffic = traffic.plus(more)
        for j, value in zip(numeric, values.tolist(), strict=True):
            if math.isnan(value):
                raise DataError(
                    f"column '{rules[j].name}' is missing in all training rows; leave it out with data.drop."
                )
            out[j] = replace(out[j], median=value)
    return tuple(out), traffic


def recode(x: Tensor, schema: Sequence[Column], rules: Sequence[ColumnRule]) -> Tensor:
    """Recode categories from the schema's list to the rules' list; -1 if no training client holds the category, and for -1."""
    if not any(column.categories for column in schema):
        return x
    x = x.clone()
    for j, (column, rule) in enumerate(zip(schema, rules, strict=True)):
        if column.categories:
            place = {name: i for i, name in enumerate(rule.categories)}
            codes = torch.tensor([*(float(place.get(name, -1)) for name in column.categories), -1.0])
            known = ~torch.isnan(x[:, j])
            x[known, j] = codes[x[known, j].long()]
    return x


def _fills(rules: Sequence[ColumnRule], dtype: torch.dtype) -> Tensor:
    """Return the median of each column, NaN for none."""
    return torch.tensor([torch.nan if rule.median is None else rule.median for rule in rules], dtype=dtype)


def encode(x: Tensor, rules: Sequence[ColumnRule], fills: bool, keep_holes: bool = False) -> Tensor:
    """Turn raw rows coded by the rules' categories (n, columns) into model inputs, float32 (n, outputs).

    ``fills``: a missing category becomes zeros (numbers have their median). Otherwise a missing cell raises DataError
    or, with ``keep_holes``, makes its row NaN.
    """
    if all(rule == ColumnRule(rule.name) for rule in rules) and not bool(torch.isnan(x).any()):
        return x
    gone = torch.isnan(x)
    filled = summaries.filled(x, _fills(rules, x.dtype))
    out, lost = [], torch.zeros(len(x), dtype=torch.bool)
    for j, rule in enumerate(rules):
        hole = gone[:, j] & (not fills) if rule.categories else torch.isnan(filled[:, j])
        if bool(hole.any()) and not keep_holes:
            raise _hole(rule, hole)
        lost |= hole
        if rule.categories:
            codes = torch.where(gone[:, j], -1.0, x[:, j])
            out.append((codes[:, None] == torch.arange(len(rule.categories))).to(torch.float32))
        else:
            out.append(((filled[:, j].to(torch.float64) - rule.mean) / rule.sd).to(torch.float32)[:, None])
        if rule.indicator:
            out.append(gone[:, j, None].to(torch.float32))
    made = torch.cat(out, 1)
    made[lost] = torch.nan
    return made


def _hole(rule: ColumnRule, gone: Tensor) -> DataError:
    return DataError(
        f"column '{rule.name}' is missing in {int(gone.sum())} rows, and the model was trained without missing cells: correct such "
        "rows or leave them out (fedatlas predict --holes empty)."
    )


def _pictures(dataset: Dataset, partition: Partition, scale: Scale, missing: Missing, learn: Learn) -> Done:
    """Compute per-channel constants of pictures (or of any rows of more than two dimensions)."""
    if scale in {"auto", "none"}:
        if scale == "none":
            dataset = replace(dataset, scale=(), shift=())
        return dataset, _untouched(dataset, "pictures", "constants" if dataset.scale else "none", missing)
    mean, sd, constants, traffic = _constants(summaries.PICTURE_MOMENTS, {}, scale, dataset, partition, learn)
    applied = replace(dataset, scale=tuple((1 / sd).tolist()), shift=tuple((-mean / sd).tolist()))
    done = _untouched(applied, "pictures", scale, missing)
    done = replace(done, client_constants=constants, bytes_up=traffic.up, bytes_down=traffic.down)
    if scale == "federated":
        return applied, done
    made = dataset.with_inputs(lambda x: _standardise(x, mean, sd))
    for k, found in enumerate(constants):
        if not found:
            continue
        at, (own_mean, own_sd) = torch.from_numpy(partition.held(k)), torch.tensor(found, dtype=torch.float64).T
        made.train.x[at] = _standardise(dataset.train.x[at], own_mean, own_sd)
    return replace(made, scale=(), shift=()), done  # the constants returned are for new pictures


def _standardise(x: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    x = x.to(torch.float32)
    return (x - by_channel(mean, x)) / by_channel(sd, x)
