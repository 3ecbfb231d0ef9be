"""Randomised response: each client replaces the classes of its training rows by random ones, with known probabilities.

    response = the value          with p = e^epsilon / (e^epsilon + k - 1)
               any other of k     with q =         1 / (e^epsilon + k - 1) each

for the class of a row, and for every column of categories that is named. k counts the values that the experiment lists: those that
occur in the rows would tell something of them. A value is drawn once in a run, so that rounds reveal nothing more; a model, and all
that is made of it, is post-processing. Unit: a row whose class (and named categories) are replaced, at pure epsilon for each such value.
The other columns of a row, whether it is there, and which row it is are not protected.

A label that is a number, at a party that holds columns, is clipped to a public range and gets Laplace noise instead (`bounded`).

Source: Warner 1965; Kairouz, Oh and Viswanath 2014 for k values. P4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedatlas.errors import ConfigError, DataError
from fedatlas.privacy.column_bounds import Range
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Learns, Limits, Mechanism, Noise, Source, Words, Work
from fedatlas.privacy.randomised_response.bounded import LABEL_KEYS, NAME, of_numbers

if TYPE_CHECKING:
    from fedatlas.privacy.own_rows import OwnRows, RowsHow

Epsilon = Annotated[float, Field(gt=0, le=64)]
Names = tuple[str, ...]

LEARNS = Learns(
    "models made of rows with random classes: of a row's class no more than epsilon allows; no noise covers its other columns",
    "the models, made of random responses: no more than the server",
    "the server with all other clients learns no more than the server",
)
DONE = (
    "<b>Randomised response.</b> Every client replaced the classes of its training rows by random ones, once and before anything was "
    "computed from them, so that each class has an epsilon of {epsilon:g}."
)
COVERED = "Shares follow from the responses only, so the epsilon of randomised_response covers them, and no other epsilon does."
LABELS_ONLY = (
    "randomised_response protects the class of a row (and categories that it names), not the other columns: a model may still tell what "
    "they hold."
)


COUNTED = "randomised_response: epsilon = {:g} for each replaced value, of which a row has {}, once in a run."
UNLISTED = f"privacy.{NAME}.classes: list all of them, also those that no row has; those that occur in the rows are not looked up."
NO_CLASSES = (
    f"[[privacy]] '{NAME}': it replaces classes, and this target holds none; remove the table, or for a label of parties that hold columns "
    "give range = [LOWEST, HIGHEST] in place of 'classes': it is public, not looked up in the rows, and the noise is Laplace's."
)


def randomised_response(
    *,
    epsilon: Epsilon,
    classes: Names | None = None,
    columns: dict[str, Names] | None = None,
    noise: Source = "os",
    range: Range | None = None,
) -> Mechanism:
    """Every client replaces the classes of its training rows by random responses, once. Pure epsilon for each class.

    epsilon: of one value: a row's class, and each category that is named; at most 64, which changes nothing.
    classes: all classes, also those that no row has; they are public, and not looked up in the rows.
    columns: further columns of categories that are replaced, with all their categories: {kind = ["a", "b"]}.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    range: of a label that is a number, where parties hold columns: its public lowest and highest value. The label is clipped to it and
        gets Laplace noise of scale (highest - lowest) / epsilon.
    """
    if range is not None:
        return of_numbers({"epsilon": epsilon, "classes": classes, "columns": columns, "noise": noise, "range": range})
    lists: dict[str, Any] = {"": classes, **(columns or {})}
    for name, known in lists.items():
        if isinstance(known, tuple):
            check_values(name, known)
    many = 1 + len(columns or {})

    def rows(own: OwnRows, how: RowsHow) -> OwnRows:
        return responded(own, how, epsilon, classes, columns or {})

    def figures(pairs: Sequence[tuple[OwnRows, OwnRows]]) -> Mapping[str, Any]:
        return estimates([after for _, after in pairs], epsilon, columns or {})

    def entered() -> Event:
        return Event(NAME, 0, "response", 1 / epsilon, 1.0, "record", "replace", 0.0, source=noise, times=many)

    return Mechanism(
        name=NAME,
        keys={"epsilon": epsilon, "classes": classes, "columns": columns, "range": None, "noise": noise},
        place=-2,
        trust="nobody",
        learns=LEARNS,
        work=lambda: Work(rows=rows, row_figures=figures),
        words=Words(
            DONE,
            (LABELS_ONLY,),
            (f"{COUNTED.format(epsilon, many)} {LABELS_ONLY}",),
            rows=sentences,
            covers="the class of a row",
        ),
        acts_on="rows",
        entered=entered,
        limits=Limits(refuses=lambda asked: UNLISTED if classes is None else "", labels=LABEL_KEYS),
    )


def check_values(name: str, values: Names) -> None:
    """Raise ConfigError for a list of classes, or of a column's categories, that is too short or names one twice."""
    where = f"privacy.{NAME}.{f'columns.{name}' if name else 'classes'}"
    if len(values) < 2:
        raise ConfigError(f"{where}: list all of them, at least two; those that occur in the rows are not looked up.")
    if len({*values}) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ConfigError(f"{where}: '{twice}' is listed twice.")


def responded(
    own: OwnRows, how: RowsHow, epsilon: float, classes: Names | None, columns: Mapping[str, Names]
) -> OwnRows:
    """Return the rows with responses in place of their classes, and of the categories of named columns.

    ConfigError for a target of numbers or tokens, for classes that are not listed at all, and for a column that has no categories.
    DataError for a value that is not listed, and for a missing category.
    """
    import torch

    from fedatlas.privacy.randomised_response.response import odds, responses

    if not own.classes or own.y.dim() != 1:
        raise ConfigError(NO_CLASSES)
    if classes is None:
        raise ConfigError(UNLISTED)
    noise, x, told = Noise(secret=how.own), own.x.clone(), list(own.columns)
    y = places("classes", own.classes, classes)[own.y.numpy()]
    y = responses(y, odds(epsilon, len(classes)), noise, "class")
    for name, known in columns.items():
        j = next((j for j, (column, had) in enumerate(own.columns) if column == name and had), None)
        if j is None:
            raise ConfigError(f"privacy.{NAME}.columns: '{name}' is no column of categories; name one that is.")
        if bool(torch.isnan(x[:, j]).any()):
            raise DataError(
                f"column '{name}' has missing cells, which have no random response: set data.missing = 'drop', or remove it from "
                f"privacy.{NAME}.columns."
            )
        codes = places(f"columns.{name}", own.columns[j][1], known)[x[:, j].long().numpy()]
        codes = responses(codes, odds(epsilon, len(known)), noise, "column", name)
        x[:, j], told[j] = torch.from_numpy(codes).to(x.dtype), (name, known)
    return own._replace(x=x, y=torch.from_numpy(y).to(own.y.dtype), columns=tuple(told), classes=classes)


def places(key: str, had: Sequence[str], known: Names) -> Any:
    """Return the place of each name among the listed ones. DataError for one that is not listed."""
    import numpy as np

    if strange := [name for name in had if name not in known]:
        raise DataError(
            f"privacy.{NAME}.{key} lacks '{strange[0]}', which the rows have: list every value that may occur."
        )
    return np.array([known.index(name) for name in had], np.int64)


def estimates(parties: Sequence[OwnRows], epsilon: float, columns: Mapping[str, Names]) -> Mapping[str, Any]:
    """Return the share of each class, and of each category of a named column, estimated from all clients' responses only."""
    import torch

    from fedatlas.privacy.randomised_response.response import estimate, odds

    if not parties:
        return {}

    def found(values: list[Any], known: Sequence[str]) -> dict[str, Any]:
        counts = torch.bincount(torch.cat(values).long(), minlength=len(known)).tolist()
        of = odds(epsilon, len(known))
        shares, errors = estimate(counts, of)
        each = {name: {"share": s, "error": e} for name, s, e in zip(known, shares, errors, strict=True)}
        return {"kept": float(of.p), "values": each}

    classes = found([rows.y for rows in parties], parties[0].classes)
    place = {name: j for j, (name, _) in enumerate(parties[0].columns)}
    return {
        "classes": classes,
        "columns": {
            name: found([rows.x[:, place[name]] for rows in parties], parties[0].columns[place[name]][1])
            for name in columns
        },
    }


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the figures of a run in sentences."""
    out = []
    for what, one in [("class", found.get("classes")), *found.get("columns", {}).items()]:
        if one:
            each = [f"{name} {x['share']:.1%} (error {x['error']:.1%})" for name, x in [*one["values"].items()][:12]]
            out.append(
                f"Of {what}: a value stayed with a chance of {one['kept']:.1%}. Shares of the values before, estimated from the "
                f"responses without bias: {', '.join(each)}."
            )
    return [*out, COVERED] if out else []
