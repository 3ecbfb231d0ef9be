"""Epsilon of a choice in the user's federation: computed for their nodes and rounds, never interpolated. Imports nothing from torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedatlas.privacy import accountant
from fedatlas.privacy.ledger import Event
from fedatlas.privacy.mechanism import Protection
from fedatlas.privacy.mechanisms import of_table


def for_any_nodes(plains: Iterable[Mapping[str, Any]], rounds: Sequence[int]) -> list[float] | None:
    """Return epsilon of a choice whose noise costs the same for any number of nodes, in all its configurations; None for others."""
    found = list(plains)
    bills = {_bill(plain, nodes) for plain in found for nodes in (2, 3)}
    return epsilons(found[0], 1, rounds) if len(bills) == 1 and None not in bills else None


def epsilons(plain: Mapping[str, Any], nodes: int, rounds: Sequence[int]) -> list[float] | None:
    """Return epsilon after each number of rounds under a configuration; infinite without noise, None if only the run can tell.

    Noise calibrated for a whole run of any length has the epsilon that was requested. For other noise, epsilon comes from the ledger's
    events of a run with ``nodes``.
    """
    how = _protection(plain, nodes)
    if how.noising is None:
        return [math.inf] * len(rounds)
    if how.noising.for_all_rounds:
        return None if how.noising.epsilon is None else [how.noising.epsilon] * len(rounds)
    (event,) = how.released(1, (0,))
    return [accountant.spent([event._replace(round=t) for t in range(1, r + 1)], how.delta()).epsilon for r in rounds]


def _protection(plain: Mapping[str, Any], nodes: int) -> Protection:
    tables, cohort = plain.get("privacy") or (), plain.get("cohort") or {}
    return Protection(tuple(map(of_table, tables)), nodes, 1, float(cohort.get("fraction", 1.0)), 0)


def _bill(plain: Mapping[str, Any], nodes: int) -> Event | None:
    """Return the event of a round, the same for every client; None without noise, or if noise is calibrated for a whole run."""
    how = _protection(plain, nodes)
    if how.noising is None or how.noising.for_all_rounds:
        return None
    (event,) = how.released(1, (0,))
    return event._replace(sensitivity=1.0)
