"""`anonymise`: from a file or a DataFrame to an anonymised table, its figures and its page."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedatlas.anonymisation.anonymised import Anonymised, anonymised
from fedatlas.anonymisation.roles import ColumnRoles
from fedatlas.data.cells import Reading, read_as, with_keys
from fedatlas.data.decimals import with_points
from fedatlas.data.table_file import as_given, read_table
from fedatlas.errors import ConfigError
from fedatlas.privacy.anonymity.rules import Conditions, Diversity

if TYPE_CHECKING:
    import pandas as pd


def anonymise(
    data: str | Path | pd.DataFrame,
    out: str | Path | None = None,
    *,
    quasi: Sequence[str],
    sensitive: Sequence[str] = (),
    drop: Sequence[str] = (),
    k: int = 5,
    l: float = 1,  # noqa: E741
    t: float = 1.0,
    diversity: Diversity = "distinct",
    c: float = 3.0,
    categories: Sequence[str] = (),
    hierarchies: str | Path | Mapping[str, Any] | None = None,
    suppress: float = 0.0,
    report: str | Path | None = None,
    decimal: str = "",
    separator: str = "",
    encoding: str = "",
    sheet: str = "",
    prefix: str = "",
) -> Anonymised:
    """Generalise a table (a file, a DataFrame) so that every row looks like at least k - 1 others in its ``quasi`` columns.

    out: CSV to write, and its page next to it, or at ``report``; neither is overwritten. sensitive: columns of which every class
    has ``l`` values (``diversity``: distinct, entropy, or recursive with ``c``) and a distribution at most ``t`` away from the
    table's. drop: identifiers, which are left out. categories: columns of numbers that are codes. hierarchies: column -> groups
    of groups that end in lists of values, or a TOML file of them. suppress: the largest share of rows that may be left out.
    ``decimal``, ``separator``, ``encoding`` and ``sheet`` are those of the file. prefix: of an option in a message.

    The result has ``table``, ``loss``, ``risk`` and `record`. ConfigError, DataError or PrivacyError in one sentence.
    """
    names = {"quasi": quasi, "sensitive": sensitive, "drop": drop, "categories": categories}
    if odd := next((key for key, given in names.items() if isinstance(given, str)), ""):
        raise ConfigError(f"{odd} is a list of columns: {odd}=['{names[odd]}'].")
    roles = ColumnRoles(*(tuple(dict.fromkeys(map(str, given))) for given in names.values()))
    rules = Conditions(k, l, t, diversity, c)
    check_rules(rules, roles, suppress, prefix)
    places = _places(data, out, report)
    form = with_keys(decimal=decimal, separator=separator, encoding=encoding, sheet=sheet)
    table = _table(data, roles, form, prefix)
    roles.check([*table.columns], prefix)
    trees = _trees(hierarchies, roles, prefix)
    found = anonymised(table, roles, rules, trees, suppress)
    if places:
        _write(found, *places)
    return found


def check_rules(rules: Conditions, roles: ColumnRoles, suppress: float, prefix: str) -> None:
    """Raise ConfigError for rules outside their range, or that lack a sensitive column."""
    if rules.k < 1 or rules.l < 1 or not 0 <= rules.t <= 1 or rules.c <= 0 or not 0 <= suppress < 1:
        raise ConfigError(
            f"{prefix}k and {prefix}l are at least 1, {prefix}t lies between 0 and 1, {prefix}c is above 0, and {prefix}suppress is a "
            "share below 1."
        )
    if rules.diversity not in ("distinct", "entropy", "recursive"):
        raise ConfigError(f"{prefix}diversity = '{rules.diversity}': take distinct, entropy or recursive.")
    if rules.diversity != "entropy" and rules.l != int(rules.l):
        raise ConfigError(f"{prefix}l = {rules.l:g}: a whole number, unless diversity is measured by entropy.")
    if (rules.l > 1 or rules.t < 1) and not roles.sensitive:
        raise ConfigError(f"{prefix}l and {prefix}t are about sensitive columns: name them with {prefix}sensitive.")
    if suppress and rules.t < 1:
        raise ConfigError(
            f"{prefix}suppress does not go with {prefix}t: each row left out changes the table that classes are compared with."
        )


def _places(data: Any, out: str | Path | None, report: str | Path | None) -> tuple[Path, Path] | None:
    """Return the files to write, table and page; None if there is nothing to write."""
    if out is None:
        if report is not None:
            raise ConfigError("report is written together with the table: give out, too.")
        return None
    table = Path(out)
    if table.suffix.lower() != ".csv":
        raise ConfigError(f"'{table}': the anonymised table is written as CSV; give a name that ends in .csv.")
    page = Path(report) if report is not None else table.with_suffix(".html")
    for path in (table, page):
        if path.exists():
            same = isinstance(data, str | Path) and Path(data).exists() and path.samefile(data)
            raise ConfigError(
                f"'{path}' {'is the table to read' if same else 'exists already'}: give another name, or remove it."
            )
    return table, page


def _table(data: str | Path | pd.DataFrame, roles: ColumnRoles, form: Reading, prefix: str) -> pd.DataFrame:
    if not isinstance(data, str | Path):
        frame = data.set_axis([str(name) for name in data.columns], axis=1)
        return as_given(frame, "the DataFrame", prefix).reset_index(drop=True)
    with read_as(form):
        table = read_table(data, prefix)
        numeric = [name for name in table.columns if name not in (*roles.drop, *roles.categories)]
        return with_points(table, numeric, f"'{data}'", prefix)


def _trees(given: str | Path | Mapping[str, Any] | None, roles: ColumnRoles, prefix: str) -> Mapping[str, Any]:
    """Return the hierarchies by column. ConfigError for a file that is none, and for a column that is not generalised."""
    trees: Mapping[str, Any] = {}
    if isinstance(given, str | Path):
        try:
            trees = tomllib.loads(Path(given).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"there is no file '{given}': {prefix}hierarchies names a TOML file.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"'{given}' is not TOML ({error}).") from None
    elif given is not None:
        trees = given
    for name in trees:
        if name not in (*roles.quasi, *roles.sensitive):
            raise ConfigError(
                f"there is a hierarchy of '{name}', but it is no column of {prefix}quasi or {prefix}sensitive."
            )
    return trees


def _write(found: Anonymised, table: Path, page: Path) -> None:
    from fedatlas.anonymisation.page import render
    from fedatlas.files import write_text

    write_text(table, found.table.to_csv(index=False))
    write_text(page, render(found, table.name))
