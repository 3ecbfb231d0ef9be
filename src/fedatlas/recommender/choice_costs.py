"""The costs of all choices in one measured federation, so that they can be compared with each other.

Costs of different federations belong to different models: by them, masks could look cheaper than no masks. A choice that was not
measured in a federation costs there what its twin without masks, or else FedAvg, costs there, times the ratio of both in the nearest
federation in which both were measured.
"""

from __future__ import annotations

import numpy as np

from fedatlas.recommender.contest import Fitted
from fedatlas.study.measurements import Bools, Floats
from fedatlas.study.responses import RESPONSES


def costs_at(fitted: Fitted, at: Floats) -> dict[str, Floats]:
    """Return cost -> (J, R) in a federation with features ``at``: those of the nearest one, in proportion to nodes or rows."""
    measured, base = measured_in(fitted), _base(fitted)
    near = next(int(i) for i in fitted.nearest(at) if measured[i, base])
    nodes = float(np.exp(at[0] - fitted.x[near, 0]))
    factor = {"nodes": nodes, "rows": nodes * float(np.exp(at[1] - fitted.x[near, 1])), "": 1.0}
    return {cost: values * factor[RESPONSES[cost].grows] for cost, values in costs_in(fitted, near).items()}


def costs_in(fitted: Fitted, place: int) -> dict[str, Floats]:
    """Return cost -> (J, R) of all choices in a measured setting; nan for a choice that was never measured beside its partner."""
    measured, base = measured_in(fitted), _base(fitted)
    found = {cost: y[place].copy() for cost, y in fitted.costs.items()}
    order = fitted.nearest(fitted.x[place])
    for j, beside in sorted(_partners(fitted, base).items(), key=lambda pair: pair[1] != base):
        near = next((i for i in order if measured[i, j] and measured[i, beside]), None)
        if measured[place, j] or near is None:
            continue
        for cost, y in fitted.costs.items():
            found[cost][j] = in_proportion(y[near, j], y[near, beside], found[cost][beside])
    return found


def measured_in(fitted: Fitted) -> Bools:
    """Return (n, J) whether a choice has costs in a setting."""
    return np.asarray(np.isfinite(fitted.costs["bytes"]).any(axis=2))


def in_proportion(own: Floats, other: Floats, here: Floats) -> Floats:
    """Return ``here`` in the ratio of ``own`` to ``other``; ``own`` where there is no ratio, such as to an infinite epsilon."""
    ratio = np.isfinite(other) & (other != 0)
    return np.where(ratio, here * np.divide(own, other, out=np.ones_like(own), where=ratio), own)


def _base(fitted: Fitted) -> int:
    """Return the choice that others are compared with: FedAvg, or the one measured most often."""
    return int(measured_in(fitted).sum(axis=0).argmax()) if fitted.against is None else fitted.against


def _partners(fitted: Fitted, base: int) -> dict[int, int]:
    """Return choice -> the one that its ratio is taken to: its twin without masks, or else ``base``."""
    places = {name: j for j, name in enumerate(fitted.choices)}
    return {j: places.get(fitted.twins.get(name, ""), base) for name, j in places.items() if j != base}
