"""Additive perturbation: each client adds noise of a published law to the numbers of its training rows.

===========  ==================================================  ==================================================
x            a number of a row                                   y   noise, independent of x and of all other noise
z = x + y    what the client trains on instead                   s   `scale` times the width of the column's range
===========  ==================================================  ==================================================

    uniform   y in (-s, s]          Gaussian   y from N(0, s^2)

The noise of a cell is drawn once in a run: if each round drew another, their mean would show x. The ranges are public and given by the
user, as a range computed from rows would show two of them. No differential privacy follows: uniform noise excludes values, and a
Gaussian one of this size states no epsilon for a whole row. What it gives is stated as the paper does (`reconstruction`).

Deviation from the sources: there the noisy rows are published; here they stay at their client, and models made of them leave.

Source: Agrawal and Srikant 2000; Agrawal and Aggarwal 2001. P5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fedatlas.privacy.column_bounds import Bounds, bounds_of, check_bounds, numeric
from fedatlas.privacy.mechanism import Learns, Limits, Mechanism, Noise, Source, Words, Work
from fedatlas.registry import Rate

if TYPE_CHECKING:
    from fedatlas.privacy.own_rows import OwnRows, RowsHow

NAME = "additive_noise"
Law = Literal["uniform", "gaussian"]

LEARNS = Learns(
    "models made of rows with noise; the target, categories, and which cells are missing had none",
    "the models, made of rows with noise: no more than the server",
    "the server with all other clients learns no more than the server",
)
DONE = (
    "<b>Noise in the rows.</b> Every client added {kind} noise of {scale:g} times a column's range to the numbers of its training rows, "
    "once and before anything was computed from them. Models predict on rows as they are."
)
UNCOVERED = "These figures of columns follow from the training rows with this noise: no epsilon covers them."
NO_EPSILON = (
    "additive_noise states no epsilon: it limits how well a number of one row can be guessed, and protects neither categories nor the "
    "target. For a guarantee add a mechanism of differential privacy."
)


def additive_noise(
    *,
    bounds: Bounds,
    kind: Law = "uniform",
    scale: Rate = 0.5,
    columns: tuple[str, ...] = (),
    noise: Source = "os",
) -> Mechanism:
    """Every client adds noise to the numbers of its training rows, once. It states no epsilon.

    bounds: the public range of each column, {age = [0, 120], ...}, or one range [0, 1] for all; not looked up in the rows.
    kind: the law of the noise, "uniform" or "gaussian".
    scale: half the width of uniform noise, or the standard deviation of a Gaussian, as a share of the range.
    columns: the columns that get noise; none named: all columns of numbers.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    check_bounds(NAME, bounds)

    def rows(own: OwnRows, how: RowsHow) -> OwnRows:
        return noisy(own, how, bounds, kind, scale, columns)

    def figures(pairs: Sequence[tuple[OwnRows, OwnRows]]) -> Mapping[str, Any]:
        from fedatlas.privacy.additive_noise.figures import figures_of

        return figures_of([after for _, after in pairs], bounds, kind, scale, columns)

    return Mechanism(
        name=NAME,
        keys={"bounds": bounds, "kind": kind, "scale": scale, "columns": columns, "noise": noise},
        place=-1,
        trust="nobody",
        learns=LEARNS,
        work=lambda: Work(rows=rows, row_figures=figures),
        words=Words(DONE, (NO_EPSILON,), (NO_EPSILON,), rows=sentences),
        acts_on="rows",
        limits=Limits(deployed=True),
    )


def noisy(own: OwnRows, how: RowsHow, bounds: Bounds, kind: Law, scale: float, columns: Sequence[str] = ()) -> OwnRows:
    """Return the rows with noise in their numbers; scale = 0 changes nothing. ConfigError for rows without such columns."""
    from fedatlas.privacy.noise import gaussian, uniform

    chosen, x = numeric(NAME, own, columns), own.x.clone()
    for j in chosen:
        name = own.columns[j][0]
        low, high = bounds_of(NAME, bounds, name)
        draw = uniform if kind == "uniform" else gaussian
        y = draw(len(x), scale * (high - low), Noise(secret=how.own), "column", name)
        x[:, j] = (x[:, j].double() + y).to(x.dtype)
    return own._replace(x=x)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return the figures of a run in sentences."""
    said = [
        f"{name}: a value is as hard to guess as one among an interval of {one['privacy']:.4g}, and of {one['privacy_left']:.4g} for "
        f"somebody who sees it with its noise: a loss of {one['loss']:.0%}."
        for name, one in found.get("columns", {}).items()
    ]
    more = found.get("columns_in_all", 0) - len(said)
    return [*said, *([f"{more} more columns are not listed."] if said and more else []), *([UNCOVERED] if said else [])]
