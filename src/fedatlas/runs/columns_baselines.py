"""Would a party's columns help? The same scheme trained without them, on the same rows, in the clear, judged on the same test rows.

============  ======================================================================================================
alone         the active party's columns only, on the rows that all parties have
alone_all     the same on all its rows but those that test: a small overlap can cost more than the columns bring
without_NAME  all parties but one, where there are several that hold no label
joined        all columns in one table, as if somebody had them all: what privacy costs
============  ======================================================================================================

Differences have intervals by the paired bootstrap: the test rows are drawn alike for both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.algorithm import RoundGenerator, State
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.cost import Cost
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.start import RoundStart
from fedatlas.metrics.intervals import drawings, interval
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import consortium
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.parties import Columns, Whole, order, places, tensor
from fedatlas.vertical.scheme import How, Scheme

FIGURES: Mapping[str, tuple[str, ...]] = {"classes": ("auc", "accuracy", "loss"), "numbers": ("rmse", "loss")}
"""Task -> the figures that are compared; the first is the headline."""


class Side(NamedTuple):
    """Parties to train with, and their states as an alignment leaves them."""

    parties: tuple[Columns, ...]
    states: tuple[State, ...]


class Opened(NamedTuple):
    """A federation whose rows are aligned, and what is known left of the link."""

    federation: InProcess
    server: State


def opened(side: Side, scheme: Scheme, how: How, name: str) -> Opened:
    """These parties in this process, behind the first round of the scheme."""
    states = PartyState()
    for k, one in enumerate(side.states):
        states.after.put(k, one)
    federation = columns_federation(side.parties, scheme.questions(how), states, name=name)
    server: State = {"names": [one.name for one in side.parties], "active": side.parties[0].active}
    return Opened(federation, drive(federation, lambda: scheme.begin(how, server), 0))


def grown(side: Side, scheme: Scheme, how: How, rounds: int) -> Judged:
    """The model of these parties after so many rounds in the clear, judged on their test rows."""
    how, active = scheme.clear(how), side.parties[0].active
    federation, server = opened(side, scheme, how, "baseline")
    for number in range(1, rounds + 1):
        server = drive(federation, partial(scheme.step, how, server, number), number)
    found = federation.states.get(active)
    assert found is not None
    return Judged(side.parties[active], found, scheme.outputs(found), "test")


def trial(side: Side, scheme: Scheme, how: How) -> Cost:
    """What one round costs, which is thrown away; under encryption, too, where ``how`` says so."""
    federation, server = opened(side, scheme, how, "trial")
    number = scheme.trial(how).number
    drive(federation, lambda: scheme.step(how, server, number), number)
    return federation.cost


def drive(federation: Any, make: Callable[[], RoundGenerator], number: int) -> State:
    """One round, whole."""
    state = federation.drive(make, RoundStart(number, 1.0))
    assert state is not None
    return dict(state)


def kept(parties: Sequence[Columns], states: PartyState, which: Sequence[int]) -> Side:
    """Some of the parties, numbered anew, with nothing in their states but the alignment and the split."""
    names = tuple(parties[k].name for k in which)
    active = list(which).index(parties[0].active)
    chosen = [parties[k]._replace(party=i, active=active, parties=names) for i, k in enumerate(which)]
    return Side(tuple(chosen), tuple(beginning(states, k) for k in which))


def beginning(states: PartyState, k: int) -> State:
    """A party's state as the alignment and the split left it."""
    state = states.get(k)
    assert state is not None
    return {key: state[key] for key in ("align", "split")}


def joined(parties: Sequence[Columns], states: PartyState) -> Side:
    """One party that holds all columns of the common rows."""
    whole = kept(parties, states, range(len(parties)))
    active = parties[parties[0].active]
    x = np.concatenate([one.x[order(s)] for one, s in zip(whole.parties, whole.states, strict=True)], axis=1)
    names = tuple(f"{one.name}: {column}" for one in parties for column in one.names)
    rows = order(whole.states[active.party])
    y = None if active.y is None else active.y[rows]
    weight = None if active.weight is None else active.weight[rows]
    one = active._replace(
        party=0, active=0, parties=("joined",), name="joined", ids=(), x=x, names=names, y=y, weight=weight
    )
    return Side((one,), ({**whole.states[active.party], "align": {"order": tensor(np.arange(len(x)))}},))


def all_rows(parties: Sequence[Columns], states: PartyState) -> Side:
    """The active party alone with all its rows: those that nobody else has train, too."""
    alone = kept(parties, states, [parties[0].active])
    state = alone.states[0]
    common = order(state)
    others: Whole = np.setdiff1d(np.arange(len(alone.parties[0].x)), common)
    train = np.concatenate([places(state, "train"), np.arange(len(common), len(common) + len(others))])
    split = {**state["split"], "train": tensor(train)}
    return Side(alone.parties, ({"align": {"order": tensor(np.concatenate([common, others]))}, "split": split},))


def gain(path: Path, whole: Checked, said: Callable[[str], None]) -> dict[str, Any]:
    """``gain`` of the summary: figures of a finished run and of each baseline, and of each party what its columns bring, with intervals."""
    scheme, parties, states = whole.of_columns(), consortium(whole).parties, PartyState()
    said(f"Baselines for comparison, in the clear: the same {scheme.words.round}s without each party ...")
    done = Checkpoints(path / "checkpoint", whole.config.hash()).load(states).run
    active = parties[0].active
    state = states.get(active)
    assert state is not None
    together = Judged(parties[active], state, scheme.outputs(state), "test")
    passive = [k for k in range(len(parties)) if k != active]
    sides = {"alone": kept(parties, states, [active])}
    if len(parties[active].x) > len(order(state)):
        sides["alone_all"] = all_rows(parties, states)
    if len(passive) > 1:
        rest = {k: [j for j in range(len(parties)) if j != k] for k in passive}
        sides |= {f"without_{parties[k].name}": kept(parties, states, rest[k]) for k in passive}
    sides["joined"] = joined(parties, states)
    judged = {"together": together}
    judged |= {name: grown(side, scheme, whole.how, done.round) for name, side in sides.items()}
    seed, task = parties[0].seed, parties[active].task
    without = {parties[k].name: "alone" if len(passive) == 1 else f"without_{parties[k].name}" for k in passive}
    drawn = {name: redrawn(one, task, seed) for name, one in judged.items()}
    compared = {
        name: compare(judged["together"], one, drawn["together"], drawn[name])
        for name, one in judged.items()
        if name != "together"
    }
    return {
        "figure": FIGURES[task][0],
        "sides": {name: figures(one, task) for name, one in judged.items()},
        "parties": {name: compared[other] for name, other in without.items()},
        "without": without,
        "against": compared,
        "rows": {name: rows_of(side) for name, side in sides.items()},
    }


def rows_of(side: Side) -> int:
    """Rows that a side trains on."""
    return len(places(side.states[0], "train"))


def figures(one: Judged, task: str) -> dict[str, float | None]:
    """The compared figures of one side."""
    found = one.figures()
    return {key: found[key] for key in FIGURES[task]}


def redrawn(one: Judged, task: str, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """figure -> what it comes to for each drawing of the test rows, the same drawings for every side."""
    weighted = one.weighted()
    found = [weighted(drawn) for drawn in drawings(len(one.y), seed, "gain")]
    return {key: np.concatenate([each[key] for each in found]) for key in FIGURES[task]}


def compare(
    one: Judged, other: Judged, mine: Mapping[str, np.ndarray[Any, Any]], theirs: Mapping[str, np.ndarray[Any, Any]]
) -> dict[str, dict[str, float | None]]:
    """figure -> how much better ``one`` is, with its interval: more of what should be high, less of what should be low."""
    exact, less, out = one.figures(), other.figures(), {}
    for key in mine:
        sign = -1.0 if key in LOWER_IS_BETTER else 1.0
        known = exact[key] is not None and less[key] is not None
        value = sign * (exact[key] - less[key]) if known else np.nan
        middle = interval(value, sign * (mine[key] - theirs[key]), 0.95)
        out[key] = {"value": middle.estimate, "low": middle.low, "high": middle.high}
    return out
