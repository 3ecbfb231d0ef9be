"""Masked twins: choices under secure aggregation without runs of their own. Scheme and protection are two factors.

Masks change a result only by rounding. So a choice under masks has the quality of the choice without them, where its federation
admits masks and the seeds of its rate agree: where they do not, a rounding may grow like any other disturbance. Its costs are the dry
run's, or those of the choice without masks times what masks cost where both were measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedatlas.privacy.mechanisms import MASKS, of_tables, server_sees
from fedatlas.recommender.choice_costs import costs_in, in_proportion, measured_in
from fedatlas.recommender.contest import Fitted
from fedatlas.recommender.masks import hidden, refused, under_masks
from fedatlas.recommender.requirements import SEES, Requirements
from fedatlas.recommender.shipped import Basis
from fedatlas.study.measurements import Floats, Ints
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import listed

STEADY = 0.05  # difference of accuracy between seeds above which a rate has no twin


def offered(basis: Basis, asked: Requirements) -> Basis:
    """Return the study with its masked twins, if the requirements ask that the server sees no single model."""
    return basis if SEES.index(asked.server_sees) < SEES.index("sums") else with_twins(basis)


def with_twins(basis: Basis) -> Basis:
    """Return the study with a masked twin of every choice that some federation of it admits under masks, if none was measured."""
    fitted, nodes = basis.fitted, basis.nodes_under_masks()
    open_to = {choice for (_, choice), plain in basis.configurations.items() if not hidden(plain)}
    open_to -= {*fitted.twins.values(), *(name.removesuffix(f"_{MASKS}") for name in fitted.choices if MASKS in name)}
    there = [j for j, name in enumerate(fitted.choices) if name in open_to and nodes[:, j].any()]
    plain = [fitted.choices[j] for j in there]
    if not plain:
        return basis._replace(masked=nodes)
    names = {name: f"{name}_{MASKS}" for name in plain}
    masked = {(i, names[c]): under_masks(one) for (i, c), one in basis.configurations.items() if c in names}
    sets = {names[c]: {**basis.sets[c], "privacy": under_masks(basis.sets[c])["privacy"]} for c in plain}
    wider = fitted._replace(
        choices=[*fitted.choices, *names.values()],
        sees=[*fitted.sees, *(server_sees(of_tables(sets[name]["privacy"])) for name in names.values())],
        kernels=[*fitted.kernels, *(fitted.kernels[j] for j in there)],
        gaps={quality: _more(y, there) for quality, y in fitted.gaps.items()},
        by_setting={quality: _more(y, there) for quality, y in fitted.by_setting.items()},
        by_data={quality: _more(y, there) for quality, y in fitted.by_data.items()},
        costs=_masked_costs(fitted, there),
        finishes=np.hstack([fitted.finishes, np.where(_sound(basis, nodes), fitted.finishes, np.nan)[:, there]]),
        references=_references(fitted, names),
        twins={**fitted.twins, **{masked: c for c, masked in names.items()}},
    )
    return basis._replace(
        fitted=wider,
        twins=wider.twins,
        sets={**basis.sets, **sets},
        picked={**basis.picked, **{(i, names[c]): one for (i, c), one in basis.picked.items() if c in names}},
        configurations={**basis.configurations, **masked},
        apart=_more(basis.apart, there),
        masked=_more(nodes, there),
        without_runs=tuple(names.values()),
    )


def _more(y: Any, columns: Sequence[int]) -> Any:
    """Return an array (n, J, ...) with some of its choices once more at its end."""
    return np.concatenate([y, y[:, columns]], axis=1)


def _sound(basis: Basis, nodes: Ints) -> Any:
    """Return (n, J) whether a choice could have run under masks in a setting, as far as is known."""
    here = np.exp(basis.fitted.x[:, :1]).round()
    return (nodes[..., 0] <= here) & (here <= nodes[..., 1]) & ~(basis.apart > STEADY)


def _references(fitted: Fitted, names: Row) -> tuple[str, ...]:
    """Return FedAvg, then FedAvg under masks, which may be a twin without runs."""
    first = fitted.references[:1]
    return (*fitted.references, *(names[name] for name in first if name in names))


def _masked_costs(fitted: Fitted, there: Sequence[int]) -> dict[str, Floats]:
    """Return cost -> (n, J, R) with those of the twins: their plain choice's, times the ratio of masked to plain where it was measured.

    Without any such measurement they are unknown, except epsilon, which masks do not change.
    """
    measured, places = measured_in(fitted), {name: j for j, name in enumerate(fitted.choices)}
    pairs = [(places[a], places[b]) for a, b in fitted.twins.items() if a in places and b in places]
    found = {cost: _more(y, there) for cost, y in fitted.costs.items()}
    for i, x in enumerate(fitted.x):
        both = ((k, a, b) for k in fitted.nearest(x) for a, b in pairs if measured[k, a] and measured[k, b])
        near, here = next(both, None), costs_in(fitted, i)
        for cost, y in fitted.costs.items():
            if np.isposinf(RESPONSES[cost].missing):
                continue
            if near is None:
                found[cost][i, len(places) :] = np.nan
            else:
                k, masked, plain = near
                found[cost][i, len(places) :] = in_proportion(y[k, masked], y[k, plain], here[cost][there])
    return found


def barred_twins(basis: Basis, order: Ints, nodes: float | None = None) -> dict[str, str]:
    """Return masked choice -> why it is not recommended in a federation whose nearest settings are ``order``.

    ``nodes``: how many there are; None if a dry run finds out whether masks admit them.
    """
    barred = {}
    for twin in basis.fitted.twins:
        near, j = basis.near(order, twin), basis.fitted.choices.index(twin)
        low, high = (0, 0) if nodes is None else basis.nodes_under_masks()[near, j]
        apart = basis.apart[near, j] if twin in basis.without_runs else 0.0
        if nodes is not None and not low <= nodes <= high:
            barred[twin] = (
                f"masks take {low} to {high} nodes in a round, and there are {nodes:g}."
                if high
                else refused(basis.configuration(near, twin), int(nodes))
            )
        elif apart > STEADY:
            barred[twin] = (
                f"the seeds of its rate differ by {100 * apart:.1f} points of accuracy in the nearest measured federation, so the "
                "rounding of masks could change as much: only runs can tell."
            )
    return barred


def twin_notes(basis: Basis, order: Ints, named: Sequence[str]) -> list[str]:
    """Return what is to be known about the twins among the choices that an answer names; ``order`` as in `barred_twins`."""
    twins, choices = [name for name in named if name in basis.without_runs], basis.fitted.choices
    if not twins:
        return []
    plain = listed([basis.fitted.twins[name] for name in twins])
    were, their = ("was", "its") if len(twins) == 1 else ("were", "their")
    notes = [
        f"{listed(twins)} {were} not run: {their} quality is that of {plain}, because masks change a result only by rounding."
    ]
    untold = [name for name in twins if np.isnan(basis.apart[basis.near(order, name), choices.index(name)])]
    if untold:
        notes.append(
            f"The study does not keep by how much the seeds of {listed(untold)} differ: where they do by more than "
            f"{100 * STEADY:g} points, rounding could change as much."
        )
    return notes
