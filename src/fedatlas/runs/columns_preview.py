"""Preview a run of parties that hold columns: what matching and rounds would send, and about how long they would take.

A round is tried on a few rows, paired by position rather than by id, and discarded. If the scheme's cost is a straight
line in the number of rows (`Scheme.trial`), it is tried on two sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedatlas import machine
from fedatlas.algorithm import State
from fedatlas.privacy.mechanism import Trial
from fedatlas.runs import alignment
from fedatlas.runs.columns_baselines import trial
from fedatlas.runs.privacy_preview import of_rows
from fedatlas.setup.checked import Checked
from fedatlas.setup.consortium import Consortium, consortium
from fedatlas.vertical.owners import Side
from fedatlas.vertical.parties import labels, tensor
from fedatlas.vertical.split import parted


class Tried(NamedTuple):
    """The cost of a round on so many rows."""

    rows: int
    bytes: int
    seconds: float
    begun: int  # bytes before the first round, when the rows are matched and split


@machine.one_thread_an_operator()
def rehearsed(whole: Checked) -> dict[str, Any]:
    """Return who holds what, and the expected bytes and seconds of alignment and rounds, before anything is matched."""
    seeds = whole.config.seeds or (whole.config.seed,)
    held, *_ = [consortium(whole.with_seed(seed)) for seed in seeds]  # all, to find refusals
    scheme, rounds = whole.of_columns(), whole.config.rounds
    if scheme.layout == "rows":
        return of_owners(held, len(seeds))
    matching = alignment.looked_at(held)
    most = min(len(one.x) for one in held.parties)
    asked = scheme.trial(whole.how)
    found = expected([one_round(held, min(size, most)) for size in asked.rows], most)
    before = min(asked.number - 1, rounds)
    own = found if before in (0, rounds) else expected([one_round(held, min(n, most), True) for n in asked.rows], most)
    sent, took = (before * mine + (rounds - before) * all_ for mine, all_ in zip(own[1:3], found[1:3], strict=True))
    return {
        **matching,
        "privacy": {**protection(held, most), **of_rows(whole.mechanisms, len(seeds))},
        "bytes_alignment": matching["bytes"],
        "seconds_alignment": matching["seconds"],
        "trees": rounds,
        "trees_before": before,
        "round": scheme.words.product(len(held.holder.class_names)),
        "protected": scheme.protected(whole.how),
        "rows_at_most": most,
        "bytes_per_tree": found.bytes,
        "seconds_per_tree": found.seconds,
        "seeds": len(seeds),
        "bytes_beginning": found.begun,
        "bytes": len(seeds) * (matching["bytes"] + found.begun + round(sent)),
        "seconds": len(seeds) * (matching["seconds"] + took),
    }


def of_owners(held: Consortium, seeds: int) -> dict[str, Any]:
    """Return the same for owners of rows of the same columns, whose rows are split as in a run; nothing is sent."""
    whole = held.checked
    scheme = whole.of_columns()
    about = dict(scheme.rehearsed(whole.how, owners_side(held)))
    return {
        "owners": {one.name: len(one.ids) for one in held.tables},
        **about,
        "said": scheme.said(whole.how, len(held.holder.class_names)),
        "protected": scheme.protected(whole.how),
        "notices": list(held.notices),
        "seeds": seeds,
        "bytes": seeds * about["bytes"],
        "seconds": seeds * about["seconds"],
    }


def owners_side(held: Consortium) -> Side:
    """Return owners of rows and the roles apart, with the split of each owner's rows as in a run."""
    shares, states = {"test": held.test, "held": 0.0}, list[State]()
    for one in held.parties:
        parts = {} if one.y is None else parted(one.y, one.task, shares, one.seed, one.party)
        states.append({"split": {part: tensor(rows) for part, rows in parts.items()}} if parts else {})
    return Side(held.parties, tuple(states))


def protection(held: Consortium, rows: int) -> dict[str, Any]:
    """Return the mechanisms of the run, and what their previews find, such as the time of a key."""
    found: dict[str, Any] = {"mechanisms": [one.name for one in held.checked.mechanisms]}
    for one in held.checked.mechanisms:
        found |= {} if one.preview is None else one.preview(Trial(len(held.parties), rows, 0))
    return found


def expected(made: list[Tried], rows: int) -> Tried:
    """Return the expected cost of a round of so many rows: on the line through two trials, or in proportion to one."""
    if len(made) == 2 and made[0].rows < made[1].rows:
        few, many = made
        share = (rows - few.rows) / (many.rows - few.rows)
        more = max(many.seconds - few.seconds, 0.0)
        sent, begun = (round(a + share * (b - a)) for a, b in ((few.bytes, many.bytes), (few.begun, many.begun)))
        return Tried(rows, sent, few.seconds + share * more, begun)
    one, scaled = made[-1], rows / made[-1].rows
    return Tried(rows, round(one.bytes * scaled), one.seconds * scaled, round(one.begun * scaled))


def one_round(held: Consortium, rows: int, before: bool = False) -> Tried:
    """Return the mean cost of the rounds that are tried on the first ``rows`` rows of each party. ``before``: as `trial`."""
    whole = held.checked
    costs, begun = trial(paired(held, rows), whole.of_columns(), whole.how, whole.config.rounds, before)
    seconds = sum(sum(cost.seconds.values()) - cost.seconds.get("keys", 0.0) for cost in costs)
    sent = sum(cost.bytes_up + cost.bytes_down for cost in costs)
    return Tried(rows, round(sent / len(costs)), seconds / len(costs), begun)


def paired(held: Consortium, rows: int) -> Side:
    """Return the parties with the first ``rows`` rows of each, paired by position and split as in a run."""
    active = held.parties[held.active]
    at = np.arange(rows)
    y = labels(active, {"align": {"order": tensor(at)}})
    split = parted(y, active.task, {"test": held.test, "held": held.held}, active.seed)
    state: State = {"align": {"order": tensor(at)}, "split": {part: tensor(places) for part, places in split.items()}}
    return Side(held.parties, tuple(state for _ in held.parties))
