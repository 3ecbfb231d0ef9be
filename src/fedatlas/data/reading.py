"""A description of how a table was read, and warnings where it was probably meant otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.data.dataset import Column
from fedatlas.data.frame import MOSTLY, Encoded, Roles, missing, no_numbers, numbers, texts

if TYPE_CHECKING:
    import pandas as pd

NAMED = 8  # columns or classes that are named; the rest are counted
ROUNDED = 0.01  # share of a column's standard deviation that rounding to 32 bits may change
FEW = 50  # with fewer rows, distinct values prove nothing


def in_words(roles: Roles, encoded: Encoded) -> str:
    """Return the target, the inputs and the columns left out, in words for a reader who knows the table."""
    classes = f" ({len(encoded.class_names)} classes: {listed(encoded.class_names)})" if encoded.class_names else ""
    kind = classes or " (a number)"
    plain = [column.name for column in encoded.schema if not column.categories]
    named = [f"{c.name} ({len(c.categories)} categories)" for c in encoded.schema if c.categories]
    inputs = [*([f"{listed(plain)} (numbers)"] if plain else []), *([listed(named)] if named else [])]
    other = [f"{what} {name}" for what, name in (("owner", roles.client), ("weight", roles.weight)) if name]
    said = [f"target {roles.label}{kind}", f"inputs {'; '.join(inputs)}", *other]
    return "; ".join([*said, *([f"left out {listed(roles.drop)}"] if roles.drop else [])])


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the rest."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def doubts(table: pd.DataFrame, roles: Roles, schema: Iterable[Column]) -> list[str]:
    """Return a warning for each input that is probably not a category or not an input, and for names that may mean the same."""
    found = [said for column in schema if (said := doubt(table[column.name], column, roles))]
    return [*found, *(said for column in schema if (said := alike(f"column '{column.name}'", column.categories)))]


def alike(what: str, names: Sequence[str]) -> str:
    """Return a sentence if two names differ only in case; else ""."""
    first: dict[str, str] = {}
    for name in names:
        if (other := first.setdefault(name.casefold(), name)) != name:
            return f"'{other}' and '{name}' are two classes of {what}: write them alike if they mean the same."
    return ""


def doubt(cells: pd.Series, column: Column, roles: Roles) -> str:
    """Return a warning about one input; "" for none."""
    if column.categories and column.name not in roles.categories:
        found, counts = np.unique(texts(cells), return_counts=True)
        known = ~missing(found)
        often = dict(zip(found[known].tolist(), counts[known].tolist(), strict=True))
        marks = [cell for cell in no_numbers(often) if cell != "?"]
        strange = sum(often[cell] for cell in marks)
        if 0 < strange <= (1 - MOSTLY) * sum(often.values()):
            return (
                f"Column '{column.name}' holds numbers except for '{marks[0]}' ({strange} cells), so it is read as "
                f"{len(column.categories)} categories: leave such cells empty, or name the column in data.categories."
            )
        return ""
    values = numbers(cells)
    if values is None or len(values) < FEW:
        return ""
    known = values[np.isfinite(values)]
    lost = np.abs(known - known.astype(np.float32)).max(initial=0.0)
    if len(np.unique(known)) > 1 and lost > ROUNDED * known.std():
        return (
            f"Column '{column.name}' varies by {known.std():.3g} around {known.mean():.9g}, which is too fine for 32-bit numbers: subtract "
            "a fixed number from it first."
        )
    whole = bool(np.isfinite(values).all() and (values == np.rint(values)).all())
    if whole and len(np.unique(values)) == len(values):
        return f"Column '{column.name}' has a different whole number in every row, like a key: data.drop leaves it out."
    return ""
