"""``judged.npz``: results of a run's final models on the rows that they are judged on, row by row.

==============================  ====================================================================================
``score`` ``weight``            (n,) share of right answers or squared error, and the row's weight
``true``                        (n,) class numbers, or numbers in the target's unit
``predicted`` ``outputs``       (n,) the same; (n,) log-odds of class 1 of two, or (n, C) log-probabilities
``owner``                       (n,) the client that owns the row, -1 for none: only natural owners
``trivial-...``                 the same fields of the constant model
``test-...``                    of a run judged on validation rows: the same fields of the test rows that no choice has used
==============================  ====================================================================================

A name ends in ``-K`` if it belongs to client K. For ``weight``, ``true`` and ``trivial-...`` that is if the client is
judged on rows that it held out, for the others also if the client has its own model. ``true``, ``predicted`` and
``outputs`` are there if the run's metric needs them, and if they are not too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedatlas.metrics.metric import Said

Arrays = Mapping[str, NDArray[Any]]
TRIVIAL = "trivial-"
TEST = "test-"
OWNER = "owner"
OF_ROWS = ("weight", "true")  # fields that all models share


def named(said: Said, model: str, rows: str, kind: str = "") -> dict[str, NDArray[Any]]:
    """Return the arrays of a model under their names. ``model``, ``rows``: "" or "-K"; ``kind``: "" or `TRIVIAL`."""
    fields = said._asdict()
    own = {f"{kind}{name}{model}": x for name, x in fields.items() if name not in OF_ROWS}
    shared = {f"{name}{rows}": fields[name] for name in OF_ROWS} if not kind else {}
    return {name: x for name, x in {**own, **shared}.items() if x is not None}


def said_of(arrays: Arrays, client: int | None = None, kind: str = "") -> Said | None:
    """Return the results of a client's model, or of the shared one, on the rows it is judged on; None if they are not kept.

    ``kind``: "" or `TRIVIAL`, for the constant model on the same rows.
    """
    one = f"-{client}"
    rows = one if f"weight{one}" in arrays else ""
    model = one if f"{kind}score{one}" in arrays else ""
    if f"{kind}score{model}" not in arrays or f"weight{rows}" not in arrays:
        return None
    if rows and not model:  # this client's rows were not kept with the shared model
        return None
    from_model = {name: arrays.get(f"{kind}{name}{model}") for name in ("score", "predicted", "outputs")}
    return Said(**from_model, **{name: arrays.get(f"{name}{rows}") for name in OF_ROWS})  # type: ignore[arg-type]


def of_test(arrays: Arrays) -> Arrays:
    """Return the arrays of the test rows of a run that is judged on validation rows, under the names of other runs."""
    return {name.removeprefix(TEST): x for name, x in arrays.items() if name.startswith(TEST)}


def own_of(arrays: Arrays, client: int, kind: str = "") -> Said | None:
    """Return the same for only the client's own rows; None if it has none, or they are not kept."""
    said = said_of(arrays, client, kind)
    if said is None or f"weight-{client}" in arrays:
        return said
    mine = arrays[OWNER] == client if OWNER in arrays else np.zeros(len(said.weight), bool)
    return said.at(mine) if mine.any() else None
