"""The one place where mechanisms change the labels of parties that hold columns (`Work.rows`), before anything is computed from them.

All rows of a party that have a label get noise, in the order of its file, by draws that follow from the run's secret. So which rows
are common, which of them test, and how often a run was resumed changes no draw. A row without a label stays without one.

Figures are those of the party whose labels of common rows count. Others may have labels of the same rows, with draws of their own:
told, these would be a second release of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedatlas.data.party_tables import PartyTable, renumbered
from fedatlas.privacy.mechanism import Mechanism, on_rows
from fedatlas.privacy.own_rows import OwnRows, fresh_root, how_of
from fedatlas.vertical.parties import Floats


class NoisedLabels(NamedTuple):
    """The parties' tables, and their labels with noise."""

    tables: tuple[PartyTable, ...]  # classes are those that a mechanism lists, in its order
    labels: tuple[Floats | None, ...]  # (rows,) of each party; None: it has no label, or no noise
    root: bytes = b""  # the secret that the noise follows from; b"": there is no noise
    figures: Mapping[
        str, Mapping[str, Any]
    ] = {}  # mechanism -> figures of its noise, which follow from labels with noise only


def with_noised_labels(
    mechanisms: Sequence[Mechanism], tables: Sequence[PartyTable], root: bytes, seed: int, holder: int
) -> NoisedLabels:
    """Return the tables with the labels of all rows after the mechanisms, one after another.

    ``root``: the run's secret; b"": a new one. ``holder``: the party whose labels of common rows count. ConfigError or DataError for
    labels that a mechanism cannot change.
    """
    changing, labels, figures = on_rows(mechanisms), list[Floats | None](), dict[str, Mapping[str, Any]]()
    if not changing:
        return NoisedLabels(tuple(tables), tuple(None for _ in tables))
    root, found = root or fresh_root(), []
    for k, table in enumerate(tables):
        if table.y is None:
            found.append(table)
            labels.append(None)
            continue
        rows = _rows(table)
        for one in changing:
            before, work = rows, one.work()
            assert work.rows is not None
            rows = work.rows(before, how_of(one.name, one.keys, root, seed, k, len(tables)))
            if work.row_figures is not None and k == holder:
                figures[one.name] = work.row_figures([(before, rows)])
        noisy = table.y.copy()
        noisy[~np.isnan(table.y)] = rows.y.numpy()
        labels.append(noisy)
        # a warning about an input that repeats the label is computed from labels without noise
        found.append(table._replace(y=_recoded(table, rows.classes), class_names=rows.classes, doubts=()))
    return NoisedLabels(tuple(found), tuple(labels), root, figures)


def _rows(table: PartyTable) -> OwnRows:
    """Return the labels of the rows that have one, in the form that a mechanism changes, without the other columns."""
    assert table.y is not None
    y = torch.from_numpy(table.y[~np.isnan(table.y)])
    n = len(y)
    return OwnRows(
        torch.zeros(n, 0), y.long() if table.class_names else y, torch.arange(n), classes=tuple(table.class_names)
    )


def _recoded(table: PartyTable, classes: Sequence[str]) -> Floats:
    """Return the labels as they are, with classes numbered as ``classes`` are."""
    assert table.y is not None
    return renumbered(table.y, table.class_names, classes) if table.class_names else table.y
