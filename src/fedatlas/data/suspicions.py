"""Probable mistakes in a whole table: keys as inputs, copies of the target, codes among quantities, dates as texts."""

from __future__ import annotations

import numpy as np

from fedatlas.data.cells import WHOLE
from fedatlas.data.dates import forms_of, proposed
from fedatlas.data.frame import Encoded, Roles

FEW = 50  # with fewer rows, distinct values prove nothing
MANY = 10  # whole numbers as classes; with more they may be a quantity
OFTEN = 0.01  # share of the rows from which an extreme value repeats like a code
FAR = 3.0  # times the largest gap between the other values
LOOKED_AT = 1000  # rows looked at first in a column that may copy the target


def of_target(roles: Roles, encoded: Encoded, keys: str = "data.") -> str:
    """Return a sentence about a target of many whole numbers that is read as classes; "" for another."""
    names = encoded.class_names
    if roles.task != "auto" or len(names) <= MANY or not all(WHOLE.fullmatch(name) for name in names):
        return ""
    return f"The target '{roles.label}' has {len(names)} whole numbers, read as classes; {keys}task = \"numbers\" makes it a quantity."


def of_owners(roles: Roles, encoded: Encoded, keys: str = "data.") -> str:
    """Return a sentence about a single owner, and about a different owner in each row; "" for others."""
    names, rows = encoded.client_names, len(encoded.kept)
    if len(names) == 1:
        return f"Column '{roles.client}' names one owner only, '{names[0]}': nobody is there to train with."
    if len(names) == rows >= FEW:
        return f"Column '{roles.client}' names another owner in every row, like a key: {keys}client is the column of who holds a row."
    return ""


def copies(roles: Roles, encoded: Encoded, keys: str = "data.") -> list[str]:
    """Return a sentence for each input that repeats the target: its values, or one value for each class."""
    y, x = encoded.rows.y.numpy(), encoded.rows.x.numpy()
    if len(y) < FEW:
        return []
    alike = [
        column.name
        for j, column in enumerate(encoded.schema)
        if same(x[:LOOKED_AT, j], y[:LOOKED_AT], encoded.task) and same(x[:, j], y, encoded.task)
    ]
    return [
        f"Column '{name}' says the same as the target '{roles.label}' in every row, so that nothing is left to learn: "
        f"{keys}drop leaves it out."
        for name in alike
    ]


def same(x: np.ndarray, y: np.ndarray, task: str) -> bool:
    """Return whether x (n,) is y (n,), or for classes another name of each class."""
    if np.isnan(x).any():
        return False
    if task == "numbers":
        return bool((x == y).all()) and len(np.unique(y)) > 1
    pairs = np.unique(np.stack([x.astype(np.float64), y.astype(np.float64)]), axis=1)
    return bool(1 < pairs.shape[1] == len(np.unique(x)) == len(np.unique(y)) < len(y))  # else classes tell nothing


def of_code(name: str, values: np.ndarray, keys: str = "data.") -> str:
    """Return a sentence if the smallest or largest of a column's numbers repeats like a code of a missing cell; "" if not."""
    known = values[np.isfinite(values)]
    found, counts = np.unique(known, return_counts=True)
    if len(known) < FEW or len(found) < 4:
        return ""
    for at, near, others in ((-1, -2, found[:-1]), (0, 1, found[1:])):
        value, gap = found[at], abs(found[at] - found[near])
        often = counts[at] >= max(OFTEN * len(known), 5)
        if often and like_a_code(value) and gap > FAR * np.diff(others).max():
            return (
                f"Column '{name}' holds {value:.0f} in {counts[at]} rows, far from its other numbers ({others[0]:g} to {others[-1]:g}): "
                f'if it is a code of a missing cell, {keys}na = ["{value:.0f}"] says so.'
            )
    return ""


def like_a_code(value: float) -> bool:
    """Return whether a number is a usual code for "no answer" in questionnaires: only nines, eights or sevens, or -1."""
    digits = f"{abs(value):.0f}"
    return value == np.rint(value) and (value == -1 or (set(digits) in ({"9"}, {"8"}, {"7"})))


def of_dates(name: str, cells: np.ndarray, keys: str = "data.") -> str:
    """Return a sentence if all these different texts are dates; "" if not. Fewer than three texts prove nothing."""
    forms = forms_of(cells.tolist()) if len(cells) > 2 else []
    return f"Column '{name}' looks like dates: {proposed(name, forms, keys)} reads them as days." if forms else ""
