"""``fedatlas anonymise``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from fedatlas.commands import Json, emit
from fedatlas.errors import ConfigError

Columns = list[str] | None
Quasi = Annotated[
    list[str], Option(metavar="A,B", help="Columns by which somebody may know a person: they are generalised.")
]
Sensitive = Annotated[
    Columns, Option(metavar="A,B", help="Columns that should not be learnt about a person: --l and --t hold for them.")
]
Drop = Annotated[Columns, Option(metavar="A,B", help="Columns that name a person: they are left out.")]
Distance = Annotated[
    float, Option("--t", help="Distance of a class's sensitive values from those of the table, at most.", min=0, max=1)
]
Recursive = Annotated[
    float | None, Option(metavar="C", help="Demand recursive (C, l)-diversity: no value is too frequent in a class.")
]
Codes = Annotated[Columns, Option(metavar="A,B", help="Columns of numbers that are codes, not quantities.")]
Groups = Annotated[
    Path | None, Option(metavar="FILE.toml", help="Groups of categories by column; a cell becomes the name of a group.")
]
Suppress = Annotated[
    float, Option(help="Share of rows that may be left out where this keeps others narrow.", min=0, max=0.99)
]


def anonymise(
    table: Annotated[Path, Argument(metavar="IN", help="The table: .csv, .csv.gz, .tsv, .xlsx or .parquet.")],
    out: Annotated[Path, Argument(metavar="OUT.csv", help="CSV to write; an existing file is not overwritten.")],
    quasi: Quasi,
    sensitive: Sensitive = None,
    drop: Drop = None,
    k: Annotated[int, Option("--k", help="Rows that look alike, at least.", min=1)] = 5,
    l: Annotated[float, Option("--l", help="Different sensitive values in each class, at least.", min=1)] = 1,  # noqa: E741
    t: Distance = 1.0,
    entropy: Annotated[
        bool, Option("--entropy", help="Count sensitive values by their entropy, not one by one.")
    ] = False,
    recursive: Recursive = None,
    categories: Codes = None,
    hierarchies: Groups = None,
    suppress: Suppress = 0.0,
    report: Annotated[Path | None, Option(help="Page to write (default: OUT.html).")] = None,
    decimal: Annotated[str, Option(help="Decimal mark of the file, where looking does not tell.")] = "",
    separator: Annotated[str, Option(help="Character between columns of the file.")] = "",
    encoding: Annotated[str, Option(help="Encoding of the file's text.")] = "",
    sheet: Annotated[str, Option(help="Sheet of the workbook.")] = "",
    as_json: Json = False,
) -> None:
    """Generalise a table until every row looks like k - 1 others, and write it with a page about loss and risk."""
    from fedatlas.anonymisation.calls import anonymise as anonymise_
    from fedatlas.anonymisation.text import lines

    found = anonymise_(
        table,
        out,
        quasi=_names(quasi),
        sensitive=_names(sensitive),
        drop=_names(drop),
        categories=_names(categories),
        k=k,
        l=l,
        t=t,
        diversity=_diversity(entropy, recursive),
        c=3.0 if recursive is None else recursive,
        hierarchies=hierarchies,
        suppress=suppress,
        report=report,
        decimal=decimal,
        separator=separator,
        encoding=encoding,
        sheet=sheet,
        prefix="--",
    )
    page = report or out.with_suffix(".html")
    if as_json:
        emit({**found.record(), "table": str(out), "page": str(page)})
    else:
        typer.echo("\n".join([*lines(found), f"{out} written; the page: {page}"]))


def _diversity(entropy: bool, recursive: float | None) -> Literal["distinct", "entropy", "recursive"]:
    if entropy and recursive is not None:
        raise ConfigError("--entropy and --recursive: give one of them.")
    return "entropy" if entropy else "distinct" if recursive is None else "recursive"


def _names(given: Columns) -> list[str]:
    """Return the names of an option: separated by commas, the option as often as one likes."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]
