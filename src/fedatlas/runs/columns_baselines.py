"""The gain from a party's columns: the same scheme trained without them, in the clear, judged on the same test rows.

============  ======================================================================================================
alone         the active party's columns only, on the rows that all parties have
alone_all     the same on all its rows but the test rows: a small overlap can cost more than the columns bring
without_NAME  all parties but one, if several parties hold no label
joined        all columns in one table, as if one party had them all: shows what privacy costs
true_labels   all parties, if their labels have noise: the same without that noise, which only a simulation can train
============  ======================================================================================================

The party with the label needs no noise to train by itself, so alone and joined use its labels as they are. Parties that are
left out change no label: without_NAME has the noise of the run.

Differences have intervals by the paired bootstrap: the same test rows are drawn for both models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedatlas.algorithm import RoundGenerator, State
from fedatlas.course.metric_figures import drawn_of
from fedatlas.federation.client_states import PartyState
from fedatlas.federation.columns_federation import columns_federation
from fedatlas.federation.cost import Cost
from fedatlas.federation.in_process import InProcess
from fedatlas.federation.link import Observer
from fedatlas.federation.start import RoundStart
from fedatlas.metrics.intervals import drawings, interval, usual_draws
from fedatlas.metrics.metric import Metric
from fedatlas.metrics.quality import LOWER_IS_BETTER
from fedatlas.record import row_secret
from fedatlas.record.checkpoint import Checkpoints
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.vertical.align import placed
from fedatlas.vertical.ids import seed_key
from fedatlas.vertical.judging import Judged
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import Columns, Floats, Whole, aligned, of_classes, order, places, tensor, true_labels
from fedatlas.vertical.scheme import How, Scheme
from fedatlas.vertical.split import parted

FIGURES: Mapping[str, tuple[str, ...]] = {"classes": ("auc", "accuracy", "loss"), "numbers": ("rmse", "loss")}
"""Task -> the figures that are compared; the first is the headline."""


class ColumnsGain(NamedTuple):
    """The baselines of a run, and what they show."""

    gain: dict[str, Any]  # of the summary
    judged: Mapping[str, Judged]  # "together" and each baseline -> what it says of the test rows


class Opened(NamedTuple):
    """A federation whose rows are aligned, and the coordinator's state."""

    federation: InProcess
    server: State
    bytes: int = 0  # sent up and down so far

    def state(self, party: int) -> State:
        """Return the state of a party."""
        found = self.federation.states.get(party)
        assert found is not None
        return dict(found)


class Finished(NamedTuple):
    """A run whose rounds are over: its parties with their states before training, and what became of it."""

    side: Side
    rounds: int
    states: tuple[State, ...]  # of all, at the end

    @property
    def state(self) -> State:
        """That of the party with the label."""
        return self.states[self.side.parties[0].active]

    @property
    def active(self) -> Columns:
        """The party with the label."""
        return self.side.parties[self.side.parties[0].active]

    @property
    def noised(self) -> bool:
        """Whether its labels have noise."""
        return self.active.noised is not None


def finished(path: Path, whole: Checked) -> Finished:
    """Read a finished run back from its folder."""
    parties, states = consortium(whole, row_secret.read_again(path, whole)).parties, PartyState()
    rounds = Checkpoints(path / "checkpoint", whole.config.hash()).load(states).run.round
    found = [states.get(k) or {} for k in range(len(parties))]
    before = tuple({key: one[key] for key in ("align", "split") if key in one} for one in found)
    return Finished(Side(parties, before), rounds, tuple(found))


def opened(side: Side, scheme: Scheme, how: How, name: str, observers: Iterable[Observer] = ()) -> Opened:
    """Return these parties' federation in this process, after the scheme has begun."""
    states = PartyState()
    for k, one in enumerate(side.states):
        states.after.put(k, one)
    federation = columns_federation(side.parties, scheme.questions(how), states, name=name, observers=observers)
    active = side.parties[0].active
    known: dict[str, Any] = dict(of_classes(side.parties[active].classes))
    if scheme.layout == "rows":
        known["owners"] = [one.party for one in side.parties if one.y is not None]
    server: State = {"names": [one.name for one in side.parties], "active": active, **known}
    begun = drive(federation, lambda: scheme.begin(how, server), 0)
    return Opened(federation, begun, sent_by(federation))


def grown(side: Side, scheme: Scheme, how: How, rounds: int) -> Judged:
    """Train these parties' model for so many rounds in the clear, and judge it on their test rows."""
    active = side.parties[0].active
    found = trained(side, scheme, scheme.clear(how), rounds, "baseline").state(active)
    return Judged(side.parties[active], found, scheme.outputs(found), "test")


def trained(side: Side, scheme: Scheme, how: How, rounds: int, name: str, observers: Iterable[Observer] = ()) -> Opened:
    """Return these parties' federation after so many rounds, from rows that are aligned and split."""
    federation, server, sent = opened(side, scheme, how, name, observers)
    for number in range(1, rounds + 1):
        server = drive(federation, partial(scheme.step, how, server, number), number)
        sent += sent_by(federation)
    return Opened(federation, server, sent)


def drawn_rows(whole: Checked) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return (x, y) of the training rows and of the test rows that a run draws, of an experiment with a single party."""
    (one,), (state,) = matched(consortium(whole))
    own = aligned(one, state)
    assert own.y is not None
    train, test = ((own.x[places(state, name)], own.y[places(state, name)]) for name in ("train", "test"))
    return train, test


def matched(held: Consortium) -> Side:
    """Return parties that have the same ids, with their rows as a run aligns and splits them."""
    states = [placed(one, {}, seed_key(one.seed), np.arange(len(one.ids))) for one in held.parties]
    own = aligned(held.parties[held.active], states[held.active])
    assert own.y is not None
    parts = parted(own.y, own.task, {"test": held.test, "held": held.held}, own.seed)
    split = {name: tensor(rows) for name, rows in parts.items()}
    return Side(held.parties, tuple({**one, "split": split} for one in states))


def sent_by(federation: InProcess) -> int:
    """Return the bytes of the last drive, up and down."""
    return federation.cost.bytes_up + federation.cost.bytes_down


def trial(side: Side, scheme: Scheme, how: How, rounds: int, before: bool = False) -> tuple[list[Cost], int]:
    """Return the cost of each round that is tried, and discarded, and the bytes of the scheme's beginning; encrypted if ``how`` says so.

    ``before``: try the first round, of those that ask nothing of others.
    """
    federation, server, begun = opened(side, scheme, how, "trial")
    asked, found = scheme.trial(how), []
    first = 1 if before else min(asked.number, rounds)
    last = first if before else min(first + (asked.turns or len(side.parties)) - 1, rounds)
    for number in range(first, last + 1):
        drive(federation, partial(scheme.step, how, server, number), number)
        found.append(federation.cost)
    return found, begun


def drive(federation: Any, make: Callable[[], RoundGenerator], number: int) -> State:
    """Drive one whole round and return the coordinator's state after it."""
    state = federation.drive(make, RoundStart(number, 1.0))
    assert state is not None
    return dict(state)


def kept(all_: Side, which: Sequence[int]) -> Side:
    """Return some of the parties, renumbered from 0."""
    names = tuple(all_.parties[k].name for k in which)
    active = list(which).index(all_.parties[0].active)
    chosen = [all_.parties[k]._replace(party=i, active=active, parties=names) for i, k in enumerate(which)]
    return Side(tuple(chosen), tuple(all_.states[k] for k in which))


def unnoised(all_: Side) -> Side:
    """Return the parties with their labels as they are."""
    return all_._replace(parties=tuple(map(true_labels, all_.parties)))


def joined(all_: Side) -> Side:
    """Return a single party that holds all columns of the common rows."""
    active = all_.parties[0].active
    one, state = all_.parties[active], all_.states[active]
    x = np.concatenate([held.x[order(own)] for held, own in zip(*all_, strict=True)], axis=1)
    names = tuple(f"{held.name}: {column}" for held in all_.parties for column in held.names)
    one = aligned(one, state)._replace(party=0, active=0, parties=("joined",), name="joined", x=x, names=names)
    return Side((one,), ({**state, "align": {"order": tensor(np.arange(len(x)))}},))


def all_rows(all_: Side) -> Side:
    """Return the active party alone with all its rows; rows that no other party has are training rows, too."""
    alone = kept(all_, [all_.parties[0].active])
    state = alone.states[0]
    common = order(state)
    others: Whole = np.setdiff1d(np.arange(len(alone.parties[0].x)), common)
    train = np.concatenate([places(state, "train"), np.arange(len(common), len(common) + len(others))])
    split = {**state["split"], "train": tensor(train)}
    return Side(alone.parties, ({"align": {"order": tensor(np.concatenate([common, others]))}, "split": split},))


def sides_of(all_: Side) -> dict[str, Side]:
    """Return the baselines by name."""
    active, many, true = all_.parties[0].active, range(len(all_.parties)), unnoised(all_)
    sides = {"alone": kept(true, [active])}
    if len(all_.parties[active].x) > len(order(all_.states[active])):
        sides["alone_all"] = all_rows(true)
    if len(many) > 2:
        without = {all_.parties[k].name: [j for j in many if j != k] for k in many if k != active}
        sides |= {f"without_{name}": kept(all_, rest) for name, rest in without.items()}
    more = {"true_labels": true} if all_.parties[active].noised is not None else {}
    return {**sides, "joined": joined(true), **more}


def gain(path: Path, whole: Checked, said: Callable[[str], None]) -> ColumnsGain:
    """Return ``gain`` of the summary: the figures of a finished run and of each baseline, and what each party brings.

    What a party's columns bring is the difference to the baseline without them, with its interval.
    """
    scheme, done = whole.of_columns(), finished(path, whole)
    parties, rounds, active = done.side.parties, done.rounds, done.active
    word = scheme.words.product(active.classes)
    said(f"Baselines for comparison, in the clear: the same {word}s without each party ...")
    sides = sides_of(done.side)
    judged = {"together": Judged(active, done.state, scheme.outputs(done.state), "test")}
    judged |= {name: grown(side, scheme, whole.how, rounds) for name, side in sides.items()}
    if done.noised:  # the spread of labels with noise is the unit of all losses
        for one in judged.values():
            one.unit = judged["together"].unit
    others = [one.name for one in parties if one is not active]
    without = {name: "alone" if len(others) == 1 else f"without_{name}" for name in others}
    rows = {name: len(places(side.states[0], "train")) for name, side in sides.items()}
    return ColumnsGain({**compared(judged, active, whole, without), "rows": rows}, judged)


def compared(
    judged: Mapping[str, Judged], active: Columns, whole: Checked, without: Mapping[str, str]
) -> dict[str, Any]:
    """Return the figures of each model, and by how much that of all is better. ``active``: who judges; ``without``: as `by_metric`."""
    keys, exact = FIGURES[active.task], {name: one.figures() for name, one in judged.items()}
    metric = judged["together"].metric(whole.config.evaluation.metric)
    drawn = {name: redrawn(one, active.seed) for name, one in judged.items()}
    against = {
        name: {key: better(key, exact["together"], exact[name], drawn["together"], drawn[name]) for key in keys}
        for name in judged
        if name != "together"
    }
    return {
        "figure": keys[0],
        "sides": {name: {key: one[key] for key in keys} for name, one in exact.items()},
        "parties": {name: against[other] for name, other in without.items()},
        "without": without,
        "against": against,
        "metric": by_metric(judged, metric, active.seed, without),
    }


def by_metric(judged: Mapping[str, Judged], metric: Metric, seed: int, without: Mapping[str, str]) -> dict[str, Any]:
    """Return each model's value by the run's metric, and what each party's columns bring by it.

    ``without``: party -> the baseline without its columns.
    """
    names = list(judged)
    said = {k: judged[name].said() for k, name in enumerate(names)}
    draws = usual_draws(len(judged["together"].y))
    found = dict(zip(names, drawn_of(metric, said, seed, ("gain",), draws).values(), strict=True))
    against = {
        name: found["together"].better_than(other, metric).ends() for name, other in found.items() if name != "together"
    }
    return {
        "name": metric.name,
        "values": {name: one.value for name, one in found.items()},
        "parties": {name: against[other] for name, other in without.items()},
        "against": against,
    }


def redrawn(one: Judged, seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """Map each figure to its values over the bootstrap draws of the test rows; every model gets the same draws."""
    weighted = one.weighted()
    found = [weighted(drawn) for drawn in drawings(len(one.y), seed, "gain")]
    return {key: np.concatenate([each[key] for each in found]) for key in FIGURES[one.task]}


def better(
    key: str,
    one: Mapping[str, Any],
    other: Mapping[str, Any],
    mine: Mapping[str, Any],
    theirs: Mapping[str, Any],
    spread: float = 1.0,
) -> dict[str, float | None]:
    """Return by how much one model's figure is better than another's, with its interval.

    Positive is better, also for figures of which lower is better. ``spread``: factor of the interval's width.
    """
    sign = -1.0 if key in LOWER_IS_BETTER else 1.0
    known = one[key] is not None and other[key] is not None
    value = sign * (one[key] - other[key]) if known else np.nan
    draws = sign * (mine[key] - theirs[key])
    found = interval(value, draws if spread == 1.0 else value + spread * (draws - value), 0.95)
    return {"value": found.estimate, "low": found.low, "high": found.high}
