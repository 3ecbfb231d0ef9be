"""A client's training rows with one value per class in the quasi-identifiers, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from fedatlas.errors import DataError, PrivacyError
from fedatlas.privacy.anonymise.agreed_cuts import agree, by_agreed
from fedatlas.privacy.anonymise.choice import AnonymityKeys
from fedatlas.privacy.anonymise.columns import place_of, quasi_of, sensitive_of
from fedatlas.privacy.anonymity.measures import alike, discernibility, losses, risk, sizes
from fedatlas.privacy.anonymity.mondrian import MISSING, Quasi, mondrian
from fedatlas.privacy.mechanism import Work
from fedatlas.privacy.own_rows import OwnRows, RowsHow

Pairs = Sequence[tuple[OwnRows, OwnRows]]


def work_of(chosen: AnonymityKeys) -> Work:
    """Return the mechanism at work."""
    figures = partial(row_figures, chosen)
    if chosen.boundaries == "local":
        return Work(rows=partial(by_own, chosen), row_figures=figures)
    read = partial(by_agreed, chosen)
    return Work(rows=read, new_rows=read, agree=partial(agree, chosen), row_figures=figures)


def by_own(chosen: AnonymityKeys, rows: OwnRows, how: RowsHow) -> OwnRows:
    """Return rows generalised by their own cuts. DataError if not even all of them as one class keep the conditions."""
    columns, sensitive = quasi_of(chosen, rows), sensitive_of(chosen, rows)
    try:
        of = mondrian(columns, chosen.conditions(), sensitive).of
    except PrivacyError as error:
        raise DataError(
            f"privacy.anonymise: {error} This is about the training rows of client {how.party}; boundaries = 'counts' asks for it in the "
            "union only."
        ) from None
    x = rows.x.clone()
    for column in columns:
        at = place_of(rows.columns, column.name)
        x[:, at] = torch.from_numpy(class_values(column, of)[of]).to(x.dtype)
    return rows._replace(x=x)


def class_values(column: Quasi, of: np.ndarray) -> np.ndarray:
    """Return one value per class, float64 (classes,): the mean, or the most frequent category, in stored form."""
    classes = int(of.max()) + 1
    if column.categories:
        counts = np.zeros((classes, len(column.categories)), np.int64)
        np.add.at(counts, (of, column.values.astype(np.int64)), 1)
        found = counts.argmax(axis=1)
        return np.where(found == 0, np.nan, found - 1.0)
    known = column.values != MISSING
    many = np.bincount(of[known], minlength=classes)
    total = np.bincount(of[known], column.values[known], minlength=classes)
    mean = total / np.maximum(many, 1)
    first = np.full(classes, np.nan)
    first[of[known][::-1]] = column.values[known][::-1]
    same = np.ones(classes, bool)
    np.logical_and.at(same, of[known], column.values[known] == first[of[known]])
    return np.where(same, first, np.where(many > 0, mean, np.nan))  # a mean of equal numbers may differ in its last bit


def row_figures(chosen: AnonymityKeys, pairs: Pairs) -> Mapping[str, Any]:
    """Return where k holds, the smallest class there, the loss, and the risk before and after, of all clients' rows.

    A deployed server has no rows, and is told only where k holds.
    """
    said = {"holds": "for every client" if chosen.boundaries == "local" else "in the union", "k": chosen.k}
    if not pairs:
        return said
    before = [quasi_of(chosen, rows) for rows, _ in pairs]
    held = [alike(quasi_of(chosen, rows)) for _, rows in pairs]  # the class of each row, by client
    union = [alike(joined([quasi_of(chosen, rows) for rows in side])) for side in zip(*pairs, strict=True)]
    of = union[1]
    if chosen.boundaries == "local":
        starts = np.cumsum([0, *(int(one.max()) + 1 for one in held)])
        of = np.concatenate([one + start for one, start in zip(held, starts, strict=False)])
    whole = [without_gaps(column) for column in joined(before)]
    loss = losses(whole, of)
    return {
        **said,
        "classes": len(sizes(of)),
        "smallest_class": int(sizes(of).min()),
        "smallest_class_of_a_client": min(int(sizes(one).min()) for one in held),
        "loss": float(np.mean(loss)),
        "loss_by_column": dict(zip(chosen.quasi, loss, strict=True)),
        "discernibility": discernibility(of),
        "risk_before": risk(sizes(union[0]))._asdict(),
        "risk_after": risk(sizes(union[1]))._asdict(),
    }


def joined(parts: Sequence[Sequence[Quasi]]) -> list[Quasi]:
    """Return the columns of several clients as one table."""
    return [one[0]._replace(values=np.concatenate([part.values for part in one])) for one in zip(*parts, strict=True)]


def without_gaps(column: Quasi) -> Quasi:
    """Return a column of categories without the one that stands for missing cells, if it has none."""
    if not column.categories or not column.values.all():
        return column
    return column._replace(values=column.values - 1, categories=column.categories[1:])
