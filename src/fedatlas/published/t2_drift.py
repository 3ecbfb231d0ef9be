"""X13: how four strategies recover on HAR from a drift of prior or features, with and without a guard (D13, T2 row 11)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from fedatlas.metrics.recovery import Recovery, recovery
from fedatlas.published.gates import Gate, GateVerdict, Part, PartRuns, Runs, Target
from fedatlas.published.t2_istat import FOUR
from fedatlas.published.t2_istat import tables as curve_tables
from fedatlas.study.plain import Row

KINDS = ("prior", "feature")
ROUNDS, AT, QUICK = 40, 15, 20
LIMIT = 1600  # records, the smaller of the two sizes in T2
GUARDS: Mapping[str, Row] = {
    "off": {},
    "old": {"guard": {"from": "test", "rows": 500, "tol": 0.02}},
    "new": {"guard": {"from": "test", "rows": 500, "tol": 0.02, "drifted": True}},
}
JUDGED = {"off": "no guard", "old": "guard on old test rows", "new": "guard on new test rows"}
NOTES = (
    "HAR with 1,600 records, 8 clients, majority even, local training as in T2: SGD 0.02, momentum 0.9, 20 epochs, batches of 32.",
    "X13 names no number of records. T2 has 1,600 and 7,724, and says that strategies differ more visibly with 1,600.",
    "From round 15 of 40 on (a smaller version: from the middle on) all clients' rows and all test rows are changed.",
    "The guard commits a model unless its macro F1 on rows of the server is more than 0.02 below the best of the last ten versions;",
    "it takes 500 test rows, of which a prior thins the rare classes.",
    "Each cell: rounds until macro F1 is 95% of the mean of the five rounds before the drift for three rounds in a row (never counts as",
    "the rounds that are left), the depth of the drop, the area lost, and how many rounds were rejected since the drift.",
)


def drift_recovery(quick: bool = False, shorter: int | None = None) -> Target:
    """HAR under drift: FedAvg, HWFedAvg, NWFedAvg, FedYogi, two kinds of drift, no guard and two."""
    rounds, seeds = shorter or (QUICK if quick else ROUNDS), (1,) if quick else (1, 2, 3)
    at = AT if rounds == ROUNDS else max(1, rounds // 2)
    parts = tuple(
        Part(named(kind, name, guard), tables(kind, name, guard, rounds, at), seeds)
        for kind in KINDS
        for guard in GUARDS
        for name in FOUR
    )
    gates = [
        Gate(f"{kind}, {JUDGED[guard]}", "figures", "reported", each(kind, guard), partial(cells, at=at))
        for kind in KINDS
        for guard in GUARDS
    ]
    gates += [row11(kind, at) for kind in KINDS]
    gates += [adapting(kind, at) for kind in KINDS]
    source = "this software (X13); the slides of Santos et al. 2023 say that faster learning may help after a drift (T2, row 11)"
    title = "Drift on HAR: recovery of four strategies, with and without a guard"
    return Target(
        "drift", title, source, parts, tuple(gates), NOTES, keeps=("round", "accuracy", "macro_f1", "committed")
    )


def named(kind: str, algorithm: str, guard: str) -> str:
    """Return the name of a part."""
    return f"{kind}-{algorithm}-{guard}"


def each(kind: str, guard: str) -> tuple[str, ...]:
    """Return the parts of the four strategies."""
    return tuple(named(kind, name, guard) for name in FOUR)


def tables(kind: str, algorithm: str, guard: str, rounds: int, at: int) -> dict[str, Any]:
    """Return the configuration of one cell."""
    plain = curve_tables(algorithm, "majority_even", rounds, LIMIT)
    return {**plain, "drift": {"kind": kind, "at": at}, **GUARDS[guard]}


def recovered(runs: PartRuns, at: int) -> list[Recovery]:
    """Return the recovery of each seed."""
    found = [recovery(runs.known(seed, "macro_f1"), at) for seed in runs.rows]
    return [one for one in found if one is not None]


def mean(found: list[Recovery], figure: Callable[[Recovery], float]) -> float:
    """Return the mean of a figure over seeds."""
    return math.fsum(map(figure, found)) / len(found)


def rejected(runs: PartRuns, at: int) -> float:
    """Return how many rounds were rejected since the drift, as a mean over seeds."""
    return sum(row.get("committed") is False for rows in runs.rows.values() for row in rows[at:]) / len(runs.rows)


def cells(runs: Runs, at: int) -> GateVerdict:
    """Report recovery rounds, depth, area and rejected commits of each strategy, as means over seeds."""
    said = []
    for part, one in runs.items():
        found = recovered(one, at)
        never = sum(not each.recovered for each in found)
        flag = f" (never in {never} of {len(found)})" if never else ""
        figures = f"depth {mean(found, lambda x: x.depth):.3f}, area {mean(found, lambda x: x.area):.2f}"
        said.append(
            f"{part.split('-')[1]} {mean(found, lambda x: x.rounds):.1f} rounds{flag}, {figures}, {rejected(one, at):.1f} rejected"
        )
    return GateVerdict("; ".join(said), None)


def row11(kind: str, at: int) -> Gate:
    """Return row 11 of T2: HWFedAvg recovers no later than NWFedAvg. It is stated, and not gated."""

    def check(runs: Runs) -> GateVerdict:
        hw, nw = (mean(recovered(one, at), lambda x: x.rounds) for one in runs.values())
        return GateVerdict(f"{hw:.1f} and {nw:.1f} rounds: {'holds' if hw <= nw else 'does not hold'}", None)

    parts = named(kind, "hwfedavg", "off"), named(kind, "nwfedavg", "off")
    return Gate(
        f"11 {kind}", "faster learning may help after a drift", "reported: rounds of HWFedAvg <= NWFedAvg", parts, check
    )


def adapting(kind: str, at: int) -> Gate:
    """Report how many of the rounds since the drift a guard on old test rows refused, over all strategies."""

    def check(runs: Runs) -> GateVerdict:
        since = sum(len(rows) - at for one in runs.values() for rows in one.rows.values())
        refused = sum(rejected(one, at) * len(one.rows) for one in runs.values())
        return GateVerdict(f"{refused / since:.0%} of the rounds since the drift", None)

    published = "a guard judged on the old test set may refuse every adaptation"
    return Gate(f"{kind}, refused by old rows", published, "reported: rejected rounds", each(kind, "old"), check)
