"""Anonymise a table, and measure what is lost and what is left of the risk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedatlas.anonymisation.roles import (
    ColumnRoles,
    looks_identifying,
    plain_texts,
    quasi_columns,
    sensitive_columns,
    telling,
)
from fedatlas.privacy.anonymity.cells import generalised
from fedatlas.privacy.anonymity.measures import Risk, alike, discernibility, losses, risk, sizes
from fedatlas.privacy.anonymity.mondrian import mondrian
from fedatlas.privacy.anonymity.rules import Conditions, Sensitive, entropy

if TYPE_CHECKING:
    import pandas as pd


class SensitiveFound(NamedTuple):
    """A sensitive column as it came out: in the class that is least diverse, and in the one farthest from the table."""

    values: int  # different ones in the table
    distinct: int
    entropy: float  # the largest l for which all classes are entropy l-diverse
    distance: float
    how: str  # of the distance


class Anonymised(NamedTuple):
    """An anonymised table, and its figures. Rows are sorted by their cells, so that their order tells nothing."""

    table: pd.DataFrame
    roles: ColumnRoles
    rules: Conditions
    rows: int  # read
    left_out: int
    before: np.ndarray  # rows that look alike in the quasi-identifiers, per class
    after: np.ndarray
    loss: dict[str, float]  # by quasi-identifier
    sensitive: dict[str, SensitiveFound]
    doubts: tuple[str, ...]

    @property
    def mean_loss(self) -> float:
        """Return the loss over all quasi-identifiers, from 0 to 1."""
        return float(np.mean([*self.loss.values()]))

    @property
    def risk(self) -> tuple[Risk, Risk]:
        """Return the risk before and after."""
        return risk(self.before), risk(self.after)

    def record(self) -> dict[str, Any]:
        """Return its figures as plain values."""
        before, after = self.risk
        return {
            "rows": self.rows,
            "left_out": self.left_out,
            "classes": len(self.after),
            "smallest_class": int(self.after.min()),
            "roles": {key: list(names) for key, names in self.roles._asdict().items()},
            "rules": self.rules._asdict(),
            "loss": {"mean": self.mean_loss, "columns": self.loss},
            "discernibility": {"before": squares(self.before), "after": squares(self.after, self.left_out)},
            "risk": {"before": before._asdict(), "after": after._asdict()},
            "sensitive": {name: found._asdict() for name, found in self.sensitive.items()},
            "notices": list(self.doubts),
        }


def anonymised(
    table: pd.DataFrame, roles: ColumnRoles, rules: Conditions, trees: Mapping[str, Any], suppress: float = 0.0
) -> Anonymised:
    """Return the table with generalised cells. ``suppress``: the largest share of rows that may be left out.

    PrivacyError if not even one class of all rows keeps the rules.
    """
    quasi, sensitive = quasi_columns(table, roles, trees), sensitive_columns(table, roles, trees)
    of = mondrian(quasi, rules, sensitive, int(suppress * len(table))).of
    kept = table.drop(columns=list(roles.drop)).assign(
        **{one.name: generalised(one, plain_texts(table[one.name]).tolist(), of) for one in quasi}
    )[of >= 0]
    cells = [np.unique(plain_texts(kept[name]), return_inverse=True)[1] for name in (*roles.quasi, *kept.columns)]
    written = kept.iloc[np.lexsort(cells[::-1])].reset_index(drop=True)
    return Anonymised(
        written,
        roles,
        rules,
        len(table),
        int((of < 0).sum()),
        sizes(alike(quasi)),
        sizes(of),
        dict(zip(roles.quasi, losses(quasi, of), strict=True)),
        {one.name: _found(one, of) for one in sensitive},
        tuple(_doubts(table, roles)),
    )


def _found(column: Sensitive, of: np.ndarray) -> SensitiveFound:
    order = np.argsort(of, kind="stable")[(of < 0).sum() :]
    parts = np.split(column.codes[order], np.cumsum(sizes(of))[:-1])
    found = [np.unique(part, return_counts=True) for part in parts]
    how = "by hierarchy" if column.tree is not None else "by rank" if column.ordered else "equal"
    return SensitiveFound(
        len(np.unique(column.codes)),
        min(len(values) for values, _ in found),
        min(float(np.exp(entropy(counts))) for _, counts in found),
        max(column.distance(values, counts) for values, counts in found),
        how,
    )


def squares(rows_alike: np.ndarray, left_out: int = 0) -> int:
    """Return the discernibility of classes of these sizes."""
    of = np.repeat(np.arange(len(rows_alike)), rows_alike)
    return discernibility(np.concatenate((of, np.full(left_out, -1))))


def _doubts(table: pd.DataFrame, roles: ColumnRoles) -> Sequence[str]:
    """Return what the choice of roles leaves open."""
    out = []
    others = roles.others(list(map(str, table.columns)))
    if names := list(looks_identifying(table, others)):
        out.append(
            f"Column '{names[0]}' stays as it is, but most of its cells occur once: if others may know them, drop it or make it a "
            "quasi-identifier."
            + (f" The same holds for {len(names) - 1} more: {', '.join(names[1:])}." if names[1:] else "")
        )
    out += [
        f"Column '{name}' stays as it is and tells '{one}', which is generalised: drop it or make it a quasi-identifier, too."
        for name, one in telling(table, others, roles.quasi)
    ]
    if not roles.sensitive:
        out.append(
            "No column is named as sensitive: all rows of a class may have the same value in a column that stays as it is, and then the "
            "value of each person in it is known."
        )
    return out
