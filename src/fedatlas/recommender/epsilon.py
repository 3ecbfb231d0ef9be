"""Epsilon of a choice in the user's federation: computed for his nodes and rounds, never interpolated. Nothing of torch is imported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedatlas.privacy import accountant
from fedatlas.privacy.ledger import Event


def for_any_nodes(plains: Iterable[Mapping[str, Any]], rounds: Sequence[int]) -> list[float] | None:
    """Epsilon of a choice whose central noise costs the same whatever the number of nodes, in all its configurations; None of others."""
    found = [({str(table["name"]): table for table in plain.get("privacy") or ()}, plain) for plain in plains]
    keys = {
        (t["central_dp"].get("delta"), t["central_dp"].get("noise_multiplier"), (p.get("cohort") or {}).get("fraction"))
        for t, p in found
        if "central_dp" in t
    }
    if len(keys) != 1 or next(iter(keys))[0] is None or any("central_dp" not in t for t, _ in found):
        return None
    return epsilons(found[0][1], 1, rounds)


def epsilons(plain: Mapping[str, Any], nodes: int, rounds: Sequence[int]) -> list[float] | None:
    """Epsilon after each number of rounds under a configuration; infinite without noise, None where the run alone can tell.

    Central noise: the accountant, at the configuration's delta or K^-1.1 for K nodes. Local noise is made for a whole run, whatever its
    length, so that its epsilon is the one that was asked for.
    """
    tables = {str(table["name"]): table for table in plain.get("privacy") or ()}
    if "nbafl" in tables:
        return None
    if "local_dp" in tables:
        return [float(tables["local_dp"]["epsilon"])] * len(rounds)
    if "central_dp" not in tables:
        return [math.inf] * len(rounds)
    table, cohort = tables["central_dp"], plain.get("cohort") or {}
    delta = table.get("delta") or float(nodes**-1.1)
    rate = float(cohort.get("fraction", 1.0))
    z = float(table.get("noise_multiplier", 1.0))
    event = Event("central_dp", 0, "gaussian", z, float(table["clip"]), "client", "add or remove", delta, rate)
    return [accountant.spent([event._replace(round=t) for t in range(1, r + 1)], delta).epsilon for r in rounds]
