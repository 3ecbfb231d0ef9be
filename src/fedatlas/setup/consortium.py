"""Turn an experiment file into parties that hold columns: their tables, with refusals and notices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas import machine
from fedatlas.config import ExperimentConfig
from fedatlas.config.parties import HYBRID, dealt, of_rows
from fedatlas.data.by_name import find_source
from fedatlas.data.cells import Reading, now
from fedatlas.data.dataset import Column, Split
from fedatlas.data.loaded import OWN_FRACTION, Loaded, LoadRequest, draw
from fedatlas.data.owner_tables import dealt_rows, read_owners
from fedatlas.data.partition import split
from fedatlas.data.party_tables import (
    Deal,
    PartyFile,
    PartyTable,
    alike,
    bits_of_parties,
    count_rows,
    deal,
    label_holder,
    read_party,
)
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError, DataError
from fedatlas.metrics.metric import fitting
from fedatlas.privacy.mechanism import on_rows
from fedatlas.rng import numpy_stream
from fedatlas.setup.checked import Checked
from fedatlas.setup.label_noise import with_noised_labels
from fedatlas.vertical.align import Align
from fedatlas.vertical.parties import Columns, of_classes
from fedatlas.vertical.scheme import Rows

FOLLOWED = {"classes": ("accuracy", "macro_f1", "auc"), "numbers": ("rmse", "mae", "r2")}
"""Task -> the metrics that ``[stop]`` can follow, as rows have them."""
TEST_LABELS = (
    "Labels of test rows have no noise: no epsilon covers figures on them. Labels of rows held out to stop by have noise, and figures on "
    "them are compared with it."
)
SEVERAL_LABELS = (
    "A row that several parties with labels have, but not all parties, trains at each of them with a label of its own: epsilons of these "
    "labels add up, to {} times that of one label."
)


class Consortium(NamedTuple):
    """A federation of parties that hold columns, ready to run."""

    checked: Checked
    tables: tuple[PartyTable, ...]
    parties: tuple[Columns, ...]  # of owners of rows, and then the roles without data
    notices: tuple[str, ...]  # notices about the tables
    root: bytes = b""  # the secret that the noise of labels follows from; b"": they have none
    label_figures: Mapping[str, Mapping[str, Any]] = {}  # mechanism -> figures of the noise of labels

    @property
    def config(self) -> ExperimentConfig:
        """The configuration with every key written out."""
        return self.checked.config

    @property
    def align(self) -> Align:
        """The method of matching rows."""
        return align_of(self.config)

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(one.name for one in self.parties)

    @property
    def rows(self) -> bool:
        """Whether parties hold rows of the same columns, each with its label."""
        return self.checked.of_columns().layout == "rows"

    @property
    def active(self) -> int:
        """Index of the party that holds the label."""
        return self.parties[0].active

    @property
    def holder(self) -> PartyTable:
        """The table of the party that holds the label."""
        return self.tables[self.active]

    @property
    def beginning(self) -> dict[str, Any]:
        """The coordinator's state before the first question: its facts about the parties."""
        known: dict[str, Any] = {"columns": [len(one.names) for one in self.tables], "task": self.holder.task}
        if self.rows:
            known["owners"] = list(range(len(self.tables)))
        return {"names": list(self.names), "active": self.active, **known, **of_classes(len(self.holder.class_names))}

    @property
    def test(self) -> float:
        """Share of the aligned rows for testing."""
        return rows_asked(self.config).test

    @property
    def held(self) -> float:
        """Share of the aligned rows held out for stopping."""
        return rows_asked(self.config).held


def consortium(whole: Checked, root: bytes = b"") -> Consortium:
    """Read all tables, without training or sending anything. ConfigError or DataError if one cannot be used.

    ``root``: the run's secret, from which noise of labels is drawn; b"": a new one.
    """
    tables = tuple(party_tables(whole.config))
    refuse_labels(whole.config, tables)
    return consortium_of(whole, tables, whole.config.engine.workers or machine.cores(), root)


def consortium_of(whole: Checked, tables: Sequence[PartyTable], workers: int = 1, root: bytes = b"") -> Consortium:
    """Return the parties with these tables. ConfigError if the scheme does not learn such a label. ``root``: as `consortium` takes it."""
    active = holder_of(whole.config, tables)
    tables, noised, root, figures = with_noised_labels(whole.mechanisms, tables, root, whole.config.seed, active)
    scheme, task = whole.of_columns(), tables[active].task
    if task not in scheme.tasks:
        raise ConfigError(
            f"algorithm.name = '{scheme.name}' learns a label of {' or '.join(scheme.tasks)}, and the label of "
            f"'{tables[active].name}' is of {task}: choose another scheme or another label."
        )
    if why := scheme.unfit(whole.how, task, len(tables[active].class_names)):
        raise ConfigError(f"algorithm.name = '{scheme.name}': {why}; change the algorithm's keys or the label.")
    if tables[active].weight is not None and not scheme.weighted:
        raise ConfigError(
            f"algorithm.name = '{scheme.name}' counts all rows alike: remove the key 'weight' of '{tables[active].name}'."
        )
    check_metric(whole.config, task, tables[active].name)
    names, seed = (*(one.name for one in tables), *scheme.roles), whole.config.seed
    apart = [without_rows(name, tables[active]) for name in scheme.roles]
    noises = (*noised, *(None for _ in apart))
    parties = tuple(
        columns_of(k, one, active, names, seed, workers)._replace(noised=noises[k])
        for k, one in enumerate((*tables, *apart))
    )
    said = said_of_owners(tables) if scheme.layout == "rows" else said_of(tables)
    said = [*said, *scheme.warnings(whole.how), *notices_of_labels(whole, tables)]
    return Consortium(whole, tables, parties, tuple(said), root, figures)


def holder_of(config: ExperimentConfig, tables: Sequence[PartyTable]) -> int:
    """Return the party with the label: the first that has one, or the one that is dealt the labels of common rows."""
    if not config.parties and config.partition.name == HYBRID:
        asked = dealt(config.partition.parameters(), HYBRID).label_party
        return label_holder(asked, [one.name for one in tables])
    return next(k for k, one in enumerate(tables) if one.y is not None)


def without_rows(name: str, table: PartyTable) -> PartyTable:
    """Return the empty table of a role without data, with an owner's columns and classes."""
    x = np.empty((0, len(table.names)))
    found = PartyTable(name, (), table.schema, x, table.names, task=table.task, class_names=table.class_names)
    return found._replace(reading=table.reading)


def check_metric(config: ExperimentConfig, task: str, name: str) -> None:
    """Raise ConfigError if the metric does not fit the label of the party ``name``, or ``[stop]`` cannot follow it."""
    asked = config.evaluation.metric
    if config.evaluation.positive is not None:
        raise ConfigError(
            "evaluation.positive: where parties hold columns, pr_auc is about the second class; remove the key."
        )
    if asked is None:
        return
    fitting(asked, "numbers" if task == "numbers" else "classes", name)
    able = FOLLOWED[task]
    if config.stop is not None and asked not in able:
        raise ConfigError(
            f"evaluation.metric = '{asked}': where parties hold columns, [stop] follows {' or '.join(able)}; use one of them, or "
            "remove [stop]."
        )


def align_of(config: ExperimentConfig) -> Align:
    """Return the method of matching rows."""
    found = Align(config.align.name, config.align.group) if config.align is not None else Align()
    if not config.parties or of_rows(config.algorithm.name):
        return found
    plan = config.parties[0].ids  # that of all parties
    return found._replace(keys=plan.rules, linked=plan.linked)


def rows_asked(config: ExperimentConfig) -> Rows:
    """Return how the experiment matches and splits its rows. Its parties are those of ``[[parties]]``."""
    test = config.data.test if isinstance(config.data.test, float) else OWN_FRACTION
    held = config.evaluation.validation if config.evaluation.on == "validation" else 0.0
    return Rows(align_of(config), len(config.parties), test, held)


def columns_of(k: int, table: PartyTable, active: int, names: tuple[str, ...], seed: int, workers: int = 1) -> Columns:
    """Return a party's table in the form that the protocols use."""
    found = Columns(k, table.name, active, names, table.ids, table.x, table.names, table.y, table.weight, table.task)
    found = found._replace(later=table.later, linked=table.linked)
    return found._replace(seed=seed, workers=workers, classes=len(table.class_names), rules=table.reading.rules)


def party_tables(config: ExperimentConfig) -> list[PartyTable]:
    """Return each party's table: from its own file, or columns (or rows) of one table dealt to the parties."""
    if of_rows(config.algorithm.name):
        return owners_tables(config)
    if config.parties:
        drop = config.data.missing == "drop"
        files = files_of(config)
        first = next(k for k, one in enumerate(files) if one.label)
        return alike([read_party(file, drop, some=bool(file.label) and k > first) for k, file in enumerate(files)])
    how = dealt(config.partition.parameters(), config.partition.name)
    loaded = whole_table(config)
    rows = loaded.train
    schema = loaded.schema or tuple(Column(str(j)) for j in range(rows.x.shape[1]))
    weight = None if rows.weight is None else rows.weight.numpy()
    plan = Deal(how.parties, how.columns, how.label_party, how.overlap, how.shared)
    about = (loaded.task, loaded.class_names)
    reading = Reading.from_json({**now().to_json(), **loaded.facts.get("reading", {})})
    return deal(schema, rows.x.numpy(), rows.y.numpy(), weight, about, plan, config.seed, reading)


def owners_tables(config: ExperimentConfig) -> list[PartyTable]:
    """Return the table of each owner of rows: from its own file, or rows of one table as ``[partition]`` deals them.

    DataError for a class without rows, and for classes of which there is only one.
    """
    drop = config.data.missing == "drop"
    if config.parties:
        tables = read_owners(files_of(config), drop)
    else:
        loaded, part = whole_table(config), config.partition
        rows = loaded.train
        owners = None if rows.client is None else rows.client.numpy()
        given = (part.name, part.parameters(), rows.y.numpy(), owners, part.clients, config.seed, part.min_size)
        dealt_ = split(*given, loaded.facts.get("owners", ""))
        if dealt_.feature_skew:
            raise ConfigError(
                f"partition.name = '{part.name}' changes inputs as they are read: use one that only deals rows."
            )
        if rows.weight is not None:
            raise ConfigError("data.weight: all rows count alike here: leave the key out.")
        tables = dealt_rows(loaded, rows, dealt_.clients, drop)
    names = tables[0].class_names
    if len(names) == 1:
        raise DataError(f"the label has only one class ('{names[0]}') at all parties: there is nothing to learn.")
    if absent := [name for c, name in enumerate(names) if not any(np.any(one.y == c) for one in tables)]:
        raise DataError(f"no party has a row of class '{absent[0]}': leave it out of the label's classes.")
    return tables


def files_of(config: ExperimentConfig) -> list[PartyFile]:
    """Return ``[[parties]]`` in the form that the reader of their files uses."""
    return [PartyFile(**one.model_dump(exclude_none=True)) for one in config.parties]


def whole_table(config: ExperimentConfig) -> Loaded:
    """Return the table of ``[data]`` with all its rows as training rows, or a draw of ``limit`` of them."""
    source = find_source(config.data.name)
    drop = config.data.missing != "error"
    request = LoadRequest(Store.default(), config.seed, drop_unusable=drop, bits=bits_of_parties())
    loaded: Loaded = source.load(request, **config.data.options())
    rows = loaded.train if loaded.test is None else together(loaded.train, loaded.test)
    if rows.x.dim() != 2 or loaded.task == "tokens":
        raise ConfigError(
            f"data.name = '{config.data.name}' is not a table, and only the columns of a table can be dealt to parties."
        )
    if config.data.limit:
        if config.data.limit > len(rows.y):
            raise ConfigError(f"data.limit = {config.data.limit}: there are only {len(rows.y)} rows; 0 keeps all.")
        rows = rows.take(draw(rows, loaded.task, config.data.limit, numpy_stream(config.seed, "split", "limit")))
    return Loaded(rows, None, loaded.task, loaded.class_names, loaded.columns, loaded.schema, facts=loaded.facts)


def together(train: Split, test: Split) -> Split:
    """Join the training and test rows of a source; here test rows are drawn from the aligned rows."""
    return Split(train.x, train.y, None, train.weight).join(Split(test.x, test.y, None, test.weight))


def refuse_labels(config: ExperimentConfig, tables: Sequence[PartyTable]) -> None:
    """Raise DataError if a party that does not hold the label has a column with the label's name."""
    label, holder = next(((one.label, one.name) for one in config.parties if one.label), (None, ""))
    for one in tables:
        if one.y is None and label in {column.name for column in one.schema}:
            raise DataError(
                f"party '{one.name}' has an input column '{label}', which is the label of '{holder}': "
                f'leave it out with drop = ["{label}"], or rename it if it is something else.'
            )


def notices_of_labels(whole: Checked, tables: Sequence[PartyTable]) -> list[str]:
    """Return what is said before a run whose labels have noise."""
    changing = on_rows(whole.mechanisms)
    seeded = [f"'{one.name}': noise = \"seed\" protects nobody." for one in changing if one.keys.get("noise") == "seed"]
    said = [line for one in changing for line in one.words.notices]
    most = min(sum(one.y is not None for one in tables), len(tables) - 1)  # of a row that all have, one label counts
    several = [SEVERAL_LABELS.format(most)] if whole.config.parties and most > 1 else []
    return [*said, *seeded, *several, TEST_LABELS] if changing else []


def said_of_owners(tables: Sequence[PartyTable]) -> list[str]:
    """Return notices about the tables of owners of rows."""
    out: list[str] = []
    for one in tables:
        out += one.doubts
        if one.left_out:
            out.append(f"{count_rows(one.left_out)} of '{one.name}' left out: no label, or a missing cell.")
        if absent := [name for c, name in enumerate(one.class_names) if not np.any(one.y == c)]:
            out.append(f"'{one.name}' has no row of class '{absent[0]}': others teach it.")
    low = np.min([one.x.min(axis=0) for one in tables], axis=0)
    high = np.max([one.x.max(axis=0) for one in tables], axis=0)
    if constant := [name for name, a, b in zip(tables[0].names, low, high, strict=True) if a == b]:
        out.append(
            f"Columns with a single value carry no information; their coefficient is 0: {', '.join(constant[:5])}."
        )
    return out


def said_of(tables: Sequence[PartyTable]) -> list[str]:
    """Return notices about the tables."""
    out: list[str] = []
    for one in tables:
        out += one.doubts
        if one.without_id:
            verb = "has" if one.without_id == 1 else "have"
            out.append(f"{count_rows(one.without_id)} of '{one.name}' {verb} no id and cannot be matched.")
        if one.left_out:
            out.append(f"{count_rows(one.left_out)} of '{one.name}' left out: no label or weight.")
        if one.called and one.y is not None and (lacks := int(np.isnan(one.y).sum())):
            out.append(
                f"{count_rows(lacks)} of '{one.name}' without a label: they train only if all parties have them."
            )
        if len(one.x) and (
            constant := [n for n, x in zip(one.names, one.x.T, strict=True) if len(np.unique(x[~np.isnan(x)])) < 2]
        ):
            few = ", ".join(constant[:5])
            out.append(f"Columns of '{one.name}' with a single value carry no information: {few}.")
    return out
