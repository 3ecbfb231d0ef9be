"""From the experiment file to parties that hold columns: their tables, what is refused of them, what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedatlas import machine
from fedatlas.config import ExperimentConfig
from fedatlas.config.parties import dealt
from fedatlas.data.by_name import find_source
from fedatlas.data.dataset import Column, Split
from fedatlas.data.loaded import OWN_FRACTION, Loaded, LoadRequest, draw
from fedatlas.data.party_tables import Deal, PartyFile, PartyTable, count_rows, deal, read_party
from fedatlas.data.store import Store
from fedatlas.errors import ConfigError, DataError
from fedatlas.rng import numpy_stream
from fedatlas.setup.checked import Checked
from fedatlas.vertical.align import Align
from fedatlas.vertical.parties import Columns


class Consortium(NamedTuple):
    """A federation of parties that hold columns, ready to be asked."""

    checked: Checked
    tables: tuple[PartyTable, ...]
    parties: tuple[Columns, ...]
    notices: tuple[str, ...]  # what the user should know of the tables

    @property
    def config(self) -> ExperimentConfig:
        """The configuration, every key written out."""
        return self.checked.config

    @property
    def align(self) -> Align:
        """How rows are matched."""
        return align_of(self.config)

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names."""
        return tuple(one.name for one in self.tables)

    @property
    def active(self) -> int:
        """The place of the party that holds the label."""
        return self.parties[0].active

    @property
    def holder(self) -> PartyTable:
        """The table of the party that holds the label."""
        return self.tables[self.active]

    @property
    def beginning(self) -> dict[str, Any]:
        """The state left of the link before anything is asked."""
        return {"names": list(self.names), "active": self.active}

    @property
    def test(self) -> float:
        """Share of the aligned rows that test."""
        return self.config.data.test if isinstance(self.config.data.test, float) else OWN_FRACTION

    @property
    def held(self) -> float:
        """Share of the aligned rows that are held out to stop by."""
        return self.config.evaluation.validation if self.config.evaluation.on == "validation" else 0.0


def consortium(whole: Checked) -> Consortium:
    """Read all tables; ConfigError or DataError, in a sentence, for what cannot be used. Trains nothing, sends nothing."""
    tables = tuple(party_tables(whole.config))
    refuse_labels(whole.config, tables)
    return consortium_of(whole, tables, whole.config.engine.workers or machine.cores())


def consortium_of(whole: Checked, tables: Sequence[PartyTable], workers: int = 1) -> Consortium:
    """The parties with these tables. ConfigError where the scheme does not learn such a label."""
    active = next(k for k, one in enumerate(tables) if one.y is not None)
    scheme, task = whole.of_columns(), tables[active].task
    if task not in scheme.tasks:
        raise ConfigError(
            f"algorithm.name = '{scheme.name}' learns a label of {' or '.join(scheme.tasks)}, and the label of "
            f"'{tables[active].name}' is of {task}: choose another scheme or another label."
        )
    names, seed = tuple(one.name for one in tables), whole.config.seed
    parties = tuple(columns_of(k, one, active, names, seed, workers) for k, one in enumerate(tables))
    return Consortium(whole, tuple(tables), parties, tuple(said_of(tables)))


def align_of(config: ExperimentConfig) -> Align:
    """How rows are matched."""
    return Align(config.align.name, config.align.group) if config.align is not None else Align()


def columns_of(k: int, table: PartyTable, active: int, names: tuple[str, ...], seed: int, workers: int = 1) -> Columns:
    """A party's table as the protocols take it."""
    return Columns(
        k, table.name, active, names, table.ids, table.x, table.names, table.y, table.weight, table.task, seed, workers
    )


def party_tables(config: ExperimentConfig) -> list[PartyTable]:
    """Each party's own file, or the columns of one table dealt to parties."""
    if config.parties:
        drop = config.data.missing == "drop"
        return [read_party(file, drop) for file in files_of(config)]
    how = dealt(config.partition.parameters())
    loaded = whole_table(config)
    rows = loaded.train
    schema = loaded.schema or tuple(Column(str(j)) for j in range(rows.x.shape[1]))
    weight = None if rows.weight is None else rows.weight.numpy()
    plan = Deal(how.parties, how.columns, how.label_party, how.overlap)
    about = (loaded.task, loaded.class_names)
    return deal(schema, rows.x.numpy(), rows.y.numpy(), weight, about, plan, config.seed)


def files_of(config: ExperimentConfig) -> list[PartyFile]:
    """``[[parties]]`` as what reads their files takes them."""
    return [PartyFile(**one.model_dump(exclude_none=True)) for one in config.parties]


def whole_table(config: ExperimentConfig) -> Loaded:
    """The table of ``[data]``, all its rows as training rows, as many as ``limit`` says."""
    source = find_source(config.data.name)
    request = LoadRequest(Store.default(), config.seed, drop_unusable=config.data.missing != "error")
    loaded: Loaded = source.load(request, **config.data.options())
    rows = loaded.train if loaded.test is None else together(loaded.train, loaded.test)
    if rows.x.dim() != 2 or loaded.task == "tokens":
        raise ConfigError(
            f"data.name = '{config.data.name}' is no table of columns, which alone can be dealt to parties."
        )
    if config.data.limit:
        if config.data.limit > len(rows.y):
            raise ConfigError(f"data.limit = {config.data.limit}: there are only {len(rows.y)} rows; 0 keeps all.")
        rows = rows.take(draw(rows, loaded.task, config.data.limit, numpy_stream(config.seed, "split", "limit")))
    return Loaded(rows, None, loaded.task, loaded.class_names, loaded.columns, loaded.schema, facts=loaded.facts)


def together(train: Split, test: Split) -> Split:
    """Training and test rows of a source, whose tests come from the aligned rows here."""
    return Split(train.x, train.y, None, train.weight).join(Split(test.x, test.y, None, test.weight))


def refuse_labels(config: ExperimentConfig, tables: Sequence[PartyTable]) -> None:
    """DataError where a party that does not hold the label has a column of its name."""
    label, holder = next(((one.label, one.name) for one in config.parties if one.label), (None, ""))
    for one in tables:
        if one.y is None and label in {column.name for column in one.schema}:
            raise DataError(
                f"party '{one.name}' has a column '{label}' as an input, the label of '{holder}': "
                f'drop = ["{label}"] leaves it out, or rename it if it is something else.'
            )


def said_of(tables: Sequence[PartyTable]) -> list[str]:
    """What the user should know of the tables."""
    out = []
    for one in tables:
        if one.without_id:
            verb = "has" if one.without_id == 1 else "have"
            out.append(f"{count_rows(one.without_id)} of '{one.name}' {verb} no id and cannot be matched.")
        if one.left_out:
            out.append(f"{count_rows(one.left_out)} of '{one.name}' without a label or weight left out.")
        if len(one.x) and (
            constant := [n for n, x in zip(one.names, one.x.T, strict=True) if len(np.unique(x[~np.isnan(x)])) < 2]
        ):
            few = ", ".join(constant[:5])
            out.append(f"Columns of '{one.name}' with one value alone tell nothing: {few}.")
    return out
