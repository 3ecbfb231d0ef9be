"""New rows changed as the clients' rows were, where the mechanisms of a run ask for it (`Work.new_rows`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn, SupportsIndex

import torch
from torch import Tensor

from fedatlas.config import ExperimentConfig
from fedatlas.data.dataset import Column
from fedatlas.data.preprocess import ColumnRule, Preprocess, recode
from fedatlas.errors import ConfigError, PrivacyError
from fedatlas.privacy.mechanism import Mechanism, on_rows
from fedatlas.privacy.own_rows import OwnRows
from fedatlas.record import row_secret
from fedatlas.setup.mechanism_choice import mechanisms_of
from fedatlas.setup.own_rows import read_new


class AsClients(NamedTuple):
    """The change of new rows in a finished run. It holds the run's secret, so that no pickle takes it."""

    mechanisms: tuple[Mechanism, ...]
    how: row_secret.RowsRead
    root: bytes
    rules: tuple[ColumnRule, ...]

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise PrivacyError(
            "this model reads rows that its clients' secret changes, and a secret is never written: predict from the run's folder."
        )

    @property
    def columns(self) -> tuple[Column, ...]:
        """The raw columns before the change."""
        return tuple(Column(*column) for column in self.how.columns)

    def __call__(self, raw: Tensor) -> Tensor:
        """Return the rows after the mechanisms, in the order and by the categories of the rules."""
        nothing = torch.zeros(len(raw), dtype=torch.int64)
        rows = OwnRows(raw, nothing, torch.arange(len(raw)), self.how.columns)
        made = read_new(self.mechanisms, rows, self.root, self.how.seed, self.how.parties, self.how.told)
        place = {name: j for j, (name, _) in enumerate(made.columns)}
        if lacking := [rule.name for rule in self.rules if rule.name not in place]:
            raise ConfigError(
                f"'{row_secret.TOLD}' of the run is damaged: new rows come without '{lacking[0]}', which the model reads; put the "
                "original back."
            )
        order = [place[rule.name] for rule in self.rules]
        return recode(made.x[:, order], [Column(*made.columns[j]) for j in order], self.rules)


def as_clients(done: Preprocess, path: Path, config: ExperimentConfig) -> Preprocess:
    """Return a run's preprocessing, which changes new rows first if the run's mechanisms ask for it.

    ConfigError if the folder lacks the clients' secret, unless all changes follow what they agreed on in the open: whoever has only
    the model cannot use it.
    """
    if (how := row_secret.reading(path)) is None:
        return done
    made = mechanisms_of(config)
    works = [one.work() for one in on_rows(made)]
    drawn = any(work.new_rows is not None and work.agree is None for work in works)
    if not (root := row_secret.read(path)) and drawn:
        raise ConfigError(
            f"'{path}' lacks '{row_secret.ROOT}', by which new rows are changed before the model reads them: its clients hold it."
        )
    return replace(done, change=AsClients(made, how, root, done.rules))
