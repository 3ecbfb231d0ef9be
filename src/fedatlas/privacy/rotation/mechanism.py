"""Geometric perturbation: all clients rotate and translate the numbers of their rows by one secret of theirs.

===========  ==================================================  ==================================================
u            numbers of a row, in units of their public ranges   R   random orthogonal matrix, the same for all clients
z            what the client trains on, and predicts from        t   random translation, the same for all clients
===========  ==================================================  ==================================================

    z = R u + t + y,     u = 2 (x - low) / (high - low) - 1,     y from N(0, scale^2 I), of training rows only

R is the orthogonal factor of a matrix of normal draws, its signs those of a positive diagonal, and so uniform. Distances between rows stay
(without y), so that learners by distances find the same, and a network finds the same with its first layer rotated. R and t come from a
secret that all clients share and the server does not know. So the server cannot judge by rows of its own, and nobody can use the model
without the secret. Columns that are not rotated stay as they are.

It hides values from somebody who sees rotated rows and knows nothing else. p + 1 rows known to be among them undo a rotation of p columns
exactly, and independent components undo much of it without any (`attacks`). It states no epsilon.

Source: Chen and Liu 2008, in "Privacy-Preserving Data Mining". P6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedatlas.errors import ConfigError
from fedatlas.privacy.column_bounds import Bounds, bounds_of, check_bounds, numeric
from fedatlas.privacy.mechanism import Learns, Limits, Mechanism, Noise, Source, Words, Work
from fedatlas.privacy.terms import BEFORE_AND_AFTER
from fedatlas.registry import Rate

if TYPE_CHECKING:
    from torch import Tensor

    from fedatlas.algorithm import Algorithm
    from fedatlas.privacy.own_rows import OwnRows, RowsHow

NAME = "rotation"
LEARNS = Learns(
    "models of rotated rows; it does not know the rotation, and can neither judge by rows of its own nor use the model on new rows",
    "the rotation, as all clients share it: of another client's rows what the models show",
    "the server with one client knows the rotation: the models are then models of plain rows",
)
DONE = (
    "<b>Rotated rows.</b> All clients rotated and translated the numbers of their rows by one secret of theirs, before anything was "
    "computed from them. New rows have to be rotated alike, which whoever has the secret (<code>rows.secret</code>) can do."
)
NO_EPSILON = (
    "rotation states no epsilon: as many rows of which somebody knows the values as there are columns, and one more, undo it, and so "
    "does any client. For a guarantee add a mechanism of differential privacy."
)


def rotation(*, bounds: Bounds, scale: Rate = 0.0, columns: tuple[str, ...] = (), noise: Source = "os") -> Mechanism:
    """All clients rotate and translate their rows by a secret that the server does not know. It states no epsilon.

    bounds: the public range of each column, {age = [0, 120], ...}, or one range [0, 1] for all: ranges are made alike before.
    scale: standard deviation of the noise that is added to training rows, as a share of half a range.
    columns: the columns that are rotated together; none named: all, which then have to be numbers.
    noise: the operating system's randomness, or "seed": repeatable, and protects nobody.
    """
    check_bounds(NAME, bounds)

    def rows(own: OwnRows, how: RowsHow) -> OwnRows:
        return rotated(own, how, bounds, columns, scale)

    def new_rows(own: OwnRows, how: RowsHow) -> OwnRows:
        return rotated(own, how, bounds, columns, 0.0)

    def figures(pairs: Sequence[tuple[OwnRows, OwnRows]]) -> Mapping[str, Any]:
        import torch

        from fedatlas.privacy.rotation.attacks import figures_of

        if not pairs:
            return {}
        chosen = chosen_of(pairs[0][0], columns)
        u = torch.cat([in_units(before, chosen, bounds) for before, _ in pairs])
        return figures_of(u.numpy(), torch.cat([after.x[:, chosen] for _, after in pairs]).double().numpy())

    return Mechanism(
        name=NAME,
        keys={"bounds": bounds, "scale": scale, "columns": columns, "noise": noise},
        place=0,
        trust="clients",
        learns=LEARNS,
        work=lambda: Work(rows=rows, new_rows=new_rows, row_figures=figures),
        words=Words(DONE, (NO_EPSILON,), (NO_EPSILON,), rows=sentences),
        acts_on="rows",
        blind=True,
        limits=Limits(why_not=why_not),
    )


def why_not(algorithm: Algorithm) -> str:
    """Object to public rows: the server holds them, and does not know the rotation."""
    return "the server does not know the rotation of its public rows" if algorithm.demands.public is not None else ""


def rotated(own: OwnRows, how: RowsHow, bounds: Bounds, columns: Sequence[str] = (), scale: float = 0.0) -> OwnRows:
    """Return the rows with their chosen columns rotated. A missing cell makes all of these columns missing in its row."""
    import torch

    from fedatlas.privacy.noise import gaussian

    chosen = chosen_of(own, columns)
    u = in_units(own, chosen, bounds)
    R, t = drawn(len(chosen), how.shared)
    z = u @ R.T + t
    if scale:
        z = z + gaussian(z.numel(), scale, Noise(secret=how.own), "rotation").view_as(z)
    x, names = own.x.clone(), list(own.columns)
    x[:, chosen] = torch.where(torch.isnan(u).any(1, keepdim=True), torch.nan, z).to(x.dtype)
    for i, j in enumerate(chosen):
        names[j] = f"rotated {i + 1}", ()
    return own._replace(x=x, columns=tuple(names))


def chosen_of(own: OwnRows, columns: Sequence[str]) -> list[int]:
    """Return the places of the columns to rotate. ConfigError if none is named and one holds categories."""
    chosen = numeric(NAME, own, columns)
    if not columns and len(chosen) < len(own.columns):
        odd = next(name for name, categories in own.columns if categories)
        raise ConfigError(
            f"[[privacy]] '{NAME}': column '{odd}' holds categories, which have no rotation: leave it out with data.drop, or name "
            f"the columns to rotate in privacy.{NAME}.columns; others stay as they are."
        )
    return chosen


def in_units(own: OwnRows, chosen: Sequence[int], bounds: Bounds) -> Tensor:
    """Return (n, p) the chosen columns in units of their ranges: -1 at the lowest value, 1 at the highest; float64."""
    import torch

    ends = torch.tensor([bounds_of(NAME, bounds, own.columns[j][0]) for j in chosen], dtype=torch.float64)
    low, high = ends[:, 0], ends[:, 1]
    return 2 * (own.x[:, list(chosen)].double() - low) / (high - low) - 1


def drawn(p: int, secret: bytes) -> tuple[Tensor, Tensor]:
    """Return R (p, p), orthogonal and uniform, and t (p,), normal, as the secret has them; float64."""
    import torch

    from fedatlas.privacy.noise import gaussian

    made = gaussian(p * p + p, 1.0, Noise(secret=secret), "rotation")
    q, r = torch.linalg.qr(made[: p * p].view(p, p))
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0).double()
    return q * signs, made[p * p :]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """Return how well two attacks undo the rotation of this run, in sentences."""
    if not found:
        return []
    known = ", ".join(f"{rows} known rows {error:.2g}" for rows, error in found["known_sample"].items())
    undone = (
        f"Who sees rotated rows and knows the values of some undoes the rotation of {found['columns']} columns. Error of all other "
        f"values, in standard deviations: {known}."
    )
    said = [undone]
    if found.get("ica") is not None:
        said.append(
            f"Who knows none and looks for independent components finds values that correlate with the columns by {found['ica']:.2f} on "
            f"average, where the rotated columns do by {found['as_seen']:.2f}."
        )
    return [*said, BEFORE_AND_AFTER]
