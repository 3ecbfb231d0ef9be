"""A description of how a table was read, and warnings about probable mistakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np

from fedatlas.data.cells import difference, marks_of, missing, no_numbers, now, numbers, one_owner, texts, value_of
from fedatlas.data.dataset import Column
from fedatlas.data.frame import MOSTLY, Encoded, Roles, marked
from fedatlas.data.suspicions import FEW, copies, of_code, of_dates, of_owners, of_target

if TYPE_CHECKING:
    import pandas as pd

MARKS = 0.5  # share of cells up to which texts among numbers look like codes for missing cells
NAMED = 8  # columns or classes listed by name; the rest are counted
ROUNDED = 0.01  # share of a column's standard deviation that rounding to 32 bits may change
_NAMED: ContextVar[int] = ContextVar("named", default=NAMED)


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


@contextmanager
def all_named() -> Iterator[None]:
    """Name every column and class inside the block."""
    token = _NAMED.set(1 << 62)
    try:
        yield
    finally:
        _NAMED.reset(token)


def listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the rest."""
    most = _NAMED.get()
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def doubts(table: pd.DataFrame, roles: Roles, encoded: Encoded, bits: int = 32) -> list[str]:
    """Return a warning for each input with ``bits`` bits that is probably not an input or not a category, and for similar names."""
    named = f"the target '{roles.label}'"
    found = [same_classes(named, encoded.class_names)]
    if encoded.class_names:
        found.append(said_of_marks(f"The target '{roles.label}'", encoded.class_names))
    found.append("" if roles.same_owner else same_owners(f"column '{roles.client}'", encoded.client_names))
    found += (
        [of_target(roles, encoded), excepted(roles, encoded), of_owners(roles, encoded), *copies(roles, encoded)]
        if now().rules > 2
        else []
    )
    return [*filter(None, found), *of_inputs(table, encoded.schema, roles.categories, bits=bits)]


def of_inputs(
    table: pd.DataFrame, schema: Sequence[Column], codes: Collection[str], keys: str = "data.", bits: int = 32
) -> list[str]:
    """Return the warnings about inputs with ``bits`` bits. ``codes``: columns of known codes. ``keys``: prefix of a key."""
    found = [doubt(table[column.name], column, codes, keys, bits) for column in schema]
    alike = [same_classes(f"column '{column.name}'", column.categories, by_number=False) for column in schema]
    if now().rules > 2 and "" in table.columns and not missing(texts(table[""])).all():
        found.append("A column without a name in the header was left out: give it a name to use it.")
    return [*filter(None, found), *filter(None, alike)]


def same_classes(what: str, names: Sequence[str], by_number: bool = True) -> str:
    """Return a sentence if two names differ only in case, in the form of Unicode or in the spelling of a number; else ""."""

    def common(name: str) -> Hashable:
        value = value_of(name) if by_number and now().rules > 1 else None
        return (one_owner(name) if now().rules > 1 else name.casefold()) if value is None else value

    if (pair := alike(names, common)) is None:
        return ""
    a, b = pair
    how = "" if a.casefold() == b.casefold() else f" and differ {difference(a, b)}"
    return f"'{a}' and '{b}' are two classes of {what}{how}: write them alike if they mean the same."


def same_owners(what: str, names: Sequence[str]) -> str:
    """Return a sentence if two owners differ only in spelling; else ""."""
    if now().rules < 2 or (pair := alike(names, one_owner)) is None:
        return ""
    return (
        f"'{pair[0]}' and '{pair[1]}' are two owners of {what} and differ {difference(*pair)}: "
        "if they are one, write them alike or set data.same_owner = true."
    )


def alike(names: Sequence[str], common: Callable[[str], Hashable]) -> tuple[str, str] | None:
    """Return the first two names with the same value of ``common``; None without any."""
    first: dict[Hashable, str] = {}
    for name in names:
        if (other := first.setdefault(common(name), name)) != name:
            return other, name
    return None


def excepted(roles: Roles, encoded: Encoded) -> str:
    """Return a sentence about a target that is read as classes because of a few texts among its numbers; "" for another."""
    marks = no_numbers(encoded.class_names)
    strange = int(np.isin(encoded.rows.y.numpy(), [encoded.class_names.index(mark) for mark in marks]).sum())
    numbers_ = len(encoded.class_names) - len(marks)
    if roles.task != "auto" or numbers_ < 2 or not 0 < strange <= MARKS * len(encoded.kept) or len(marks) >= numbers_:
        return ""
    return (
        f"The target '{roles.label}' holds numbers except for '{marks[0]}' ({strange} cells), so it is read as "
        f"{len(encoded.class_names)} classes: data.na names texts of missing cells."
    )


def said_of_marks(what: str, cells: Sequence[str], keys: str = "data.") -> str:
    """Return a sentence if most of these different texts are numbers with marks; else ""."""
    said = marked(np.array(cells), keys)
    first = next((cell for cell in no_numbers(cells) if marks_of(cell)), "")
    return f"{what} holds '{first}', so it is read as {len(cells)} texts: {said}." if said else ""


def doubt(cells: pd.Series, column: Column, codes: Collection[str], keys: str = "data.", bits: int = 32) -> str:
    """Return a warning about one input; "" without one."""
    if column.categories and column.name not in codes:
        if said := said_of_marks(f"Column '{column.name}'", column.categories, keys):
            return said
        found, counts = np.unique(texts(cells), return_counts=True)
        known = ~missing(found)
        if now().rules > 2 and (said := of_dates(column.name, found[known], keys)):
            return said
        if now().rules > 2 and len(cells) >= FEW and known.sum() == len(cells):
            return f"Column '{column.name}' has a different text in every row, like a key: {keys}drop leaves it out."
        often = dict(zip(found[known].tolist(), counts[known].tolist(), strict=True))
        marks = [cell for cell in no_numbers(often) if cell != "?"]
        strange = sum(often[cell] for cell in marks)
        if 0 < strange <= (MARKS if now().rules > 2 else 1 - MOSTLY) * sum(often.values()):
            return (
                f"Column '{column.name}' holds numbers except for '{marks[0]}' ({strange} cells), so it is read as "
                f"{len(column.categories)} categories: leave such cells empty, or name the column in {keys}categories."
            )
        return ""
    values = numbers(cells)
    if values is None or len(values) < FEW:
        return ""
    known = values[np.isfinite(values)]
    if now().rules > 2 and (said := _coded(column.name, known, keys)):
        return said
    lost = np.abs(known - known.astype(np.float32)).max(initial=0.0)
    if bits == 32 and len(np.unique(known)) > 1 and lost > ROUNDED * known.std():
        return (
            f"Column '{column.name}' varies by {known.std():.3g} around {known.mean():.9g}, which is too fine for 32-bit numbers: subtract "
            "a fixed number from it first."
        )
    whole = bool(np.isfinite(values).all() and (values == np.rint(values)).all())
    if whole and len(np.unique(values)) == len(values) and column.name not in dict(now().dates):
        return (
            f"Column '{column.name}' has a different whole number in every row, like a key: {keys}drop leaves it out."
        )
    return ""


def _coded(name: str, known: np.ndarray, keys: str) -> str:
    """Return a warning about numbers that are codes of missing cells, or dates without marks; "" for none."""
    if name in dict(now().dates):
        return ""
    if said := of_code(name, known, keys):
        return said
    eight = bool((known == np.rint(known)).all() and (known >= 1e7).all() and (known < 1e8).all())
    return of_dates(name, np.unique(known.astype(np.int64)).astype(str), keys) if eight else ""
