"""The columns of a client's rows, as the mathematics takes them."""

from __future__ import annotations

import numpy as np

from fedatlas.errors import DataError, unknown_name
from fedatlas.privacy.anonymise.choice import TARGET, AnonymityKeys
from fedatlas.privacy.anonymity.mondrian import MISSING, Quasi
from fedatlas.privacy.anonymity.rules import Sensitive
from fedatlas.privacy.own_rows import Columns, OwnRows


def quasi_of(chosen: AnonymityKeys, rows: OwnRows) -> list[Quasi]:
    """Return the quasi-identifiers. A missing category is the first, so that codes are one more than stored."""
    out = []
    for name in chosen.quasi:
        at = place_of(rows.columns, name)
        values, categories = rows.x[:, at].double().numpy(), rows.columns[at][1]
        if np.isinf(values).any():
            raise DataError(f"privacy.anonymise: column '{name}' holds an infinite number; correct it.")
        if categories:
            out.append(Quasi(name, np.where(np.isnan(values), 0.0, values + 1.0), ("", *categories)))
        else:
            out.append(Quasi(name, np.where(np.isnan(values), MISSING, values)))
    return out


def sensitive_of(chosen: AnonymityKeys, rows: OwnRows) -> list[Sensitive]:
    """Return the sensitive columns: numbers by rank, categories and classes as equally far apart."""
    out = []
    for name in chosen.sensitive:
        values, numeric = sensitive_values(name, rows)
        known, codes = np.unique(values, return_inverse=True)
        out.append(Sensitive.of(name, codes, len(known), ordered=numeric))
    return out


def sensitive_values(name: str, rows: OwnRows) -> tuple[np.ndarray, bool]:
    """Return the values of a sensitive column, missing ones as -1 or `MISSING`, and whether they are numbers."""
    if of_target(name, rows.columns):
        if rows.y.dim() != 1:
            raise DataError(
                "privacy.anonymise.sensitive = 'label': the target is not one value per row; name a column."
            )
        return rows.y.double().numpy(), not rows.classes
    at = place_of(rows.columns, name, f"; write '{TARGET}' for the target")
    values, numeric = rows.x[:, at].double().numpy(), not rows.columns[at][1]
    return np.where(np.isnan(values), MISSING if numeric else -1.0, values), numeric


def of_target(name: str, columns: Columns) -> bool:
    """Return whether a sensitive column is the target."""
    return name == TARGET and all(name != column for column, _ in columns)


def place_of(columns: Columns, name: str, more: str = "") -> int:
    """Return the place of a column by its name. DataError if there is none."""
    names = [column for column, _ in columns]
    if not names:
        raise DataError("privacy.anonymise: it takes a table whose columns have names; these rows have none.")
    if name not in names:
        raise DataError(f"privacy.anonymise: {str(unknown_name('column', name, names)).rstrip('.')}{more}.")
    return names.index(name)
