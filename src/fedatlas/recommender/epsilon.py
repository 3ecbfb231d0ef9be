"""Epsilon of a choice in the user's federation: computed for their nodes and rounds, never interpolated. Imports nothing from torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedatlas.privacy import accountant
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Mechanism, Noising, Protection
from fedatlas.privacy.mechanisms import of_table, of_tables


def for_any_nodes(plains: Iterable[Mapping[str, Any]], rounds: Sequence[int]) -> list[float] | None:
    """Return epsilon of a choice whose noise costs the same for any number of nodes, in all its configurations; None for others."""
    found = list(plains)
    bills = {_bill(plain, nodes) for plain in found for nodes in (2, 3)}
    return epsilons(found[0], 1, rounds) if len(bills) == 1 and None not in bills else None


def epsilons(
    plain: Mapping[str, Any], nodes: int, rounds: Sequence[int], delta: float | None = None, runs: int = 1
) -> list[float] | None:
    """Return epsilon after each number of rounds under a configuration; infinite without noise, None if only the run can tell.

    ``delta``: at which it is stated; None: the configuration's own. ``runs``: of this length, on the same clients, composed.
    Noise calibrated for a whole run of any length has, at its own delta, the epsilon that was requested. Any other epsilon comes
    from the ledger's events of a run with ``nodes``.
    """
    how = _protection(plain, nodes)
    if how.noising is None:
        return [math.inf] * len(rounds)
    if only_the_run_tells(how.noising):
        return None
    if how.noising.for_all_rounds and delta is None and runs == 1:
        return [how.noising.epsilon or math.inf] * len(rounds)
    at, out = how.delta() if delta is None else delta, []
    for r in rounds:
        once = _protection(plain, nodes, r).planned(r)
        again = [event._replace(round=event.round + run * r) for run in range(runs) for event in once]
        out.append(accountant.spent(again, at).epsilon)
    return out


def release_of(plain: Mapping[str, Any], nodes: int, rounds: int) -> Event | None:
    """Return the event of a round under a configuration; None without noise, or if only the run can tell."""
    how = _protection(plain, nodes, rounds)
    if how.noising is None or only_the_run_tells(how.noising):
        return None
    return how.planned(rounds)[0]


def only_the_run_tells(noising: Noising) -> bool:
    """Return whether epsilon follows from more than the experiment file: from server steps, or from each client's rows."""
    return (noising.for_all_rounds and noising.epsilon is None) or noising.unit == "record"


def stated_at(plain: Mapping[str, Any], delta: float | None) -> Mapping[str, Any]:
    """Return a configuration whose noise is stated at ``delta``, where this leaves the noise as it is; unchanged for None."""
    tables = [
        {**table, "delta": delta} if "delta" in (one := of_table(table)).keys and not calibrated(one) else table
        for table in plain.get("privacy") or ()
    ]
    return {**plain, "privacy": tables} if tables and delta is not None else plain


def calibrated(one: Mechanism) -> bool:
    """Return whether a mechanism's noise follows from its delta and the rounds of the run."""
    return one.noise is not None and one.noise.for_all_rounds


def _protection(plain: Mapping[str, Any], nodes: int, rounds: int = 1) -> Protection:
    tables, cohort = plain.get("privacy") or (), plain.get("cohort") or {}
    fraction = float(cohort.get("fraction", min(cohort.get("size", nodes) / nodes, 1.0)))
    return Protection(of_tables(tables), nodes, rounds, fraction, 0, guarded=plain.get("guard") is not None)


def _bill(plain: Mapping[str, Any], nodes: int) -> Event | None:
    """Return the event of a round, the same for every client; None without noise, or if it is made for a whole run."""
    how = _protection(plain, nodes)
    run = how.noising is not None and (how.noising.for_all_rounds or how.noising.planned is not None)
    if how.noising is None or run or only_the_run_tells(how.noising):
        return None
    (event,) = how.released(1, (0,))
    return event._replace(sensitivity=1.0)
