"""Record attackers and the rule against them: who attacked, who was left out, accuracy on attacked classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fedatlas.attacks.backdoor import Backdoor
from fedatlas.attacks.labels import Flip
from fedatlas.attacks.malicious import Poisoning
from fedatlas.course.snapshot import Snapshot
from fedatlas.data.batches import Rows
from fedatlas.federation.host import Host
from fedatlas.model import Model
from fedatlas.setup.assembly import Setup
from fedatlas.setup.cohort import Drawn

SWAPPED, REST, SUCCESS = "swapped_accuracy", "rest_accuracy", "attack_success"
RECALL = "source_recall"  # of the classes that are turned into others: A4


def outcome(setup: Setup, federation: Host, drawn: Drawn | None) -> dict[str, Any]:
    """List the clients of a round that attacked, were left out, or sent an unusable update; each list is ascending.

    ``hostile``: clients whose update holds NaN or infinity, has other shapes or lacks parts; they are also left out. If
    a selection leaves out a superclient, all its clients are listed. ``unchanged``: the reason why the rule could not judge
    and the round changed nothing. Empty if neither an attack nor a rule is declared; None for each list if the cohort
    is secret.
    """
    if setup.defence is None:
        return {}
    how = setup.bench.protection
    if how is not None and how.secret_cohort:  # a row would reveal who took part
        return dict.fromkeys(("attackers", "left_out", "hostile"))
    now = federation.server.now
    seen, orders = now.seen, now.start.orders
    worked = federation.view.work if drawn else {}
    units = [set(unit.members) for unit in drawn.round.units] if drawn else []
    whole = {k for unit in units if unit & seen.unchosen for k in unit}
    return {
        "attackers": [k for k in sorted(orders) if k in worked],
        "left_out": sorted(seen.hostile | seen.unchosen | whole) if drawn else [],
        "hostile": sorted(seen.hostile) if drawn else [],
        **({"unchanged": seen.refused} if drawn and seen.refused else {}),
    }


def figures(now: Snapshot, evaluated: bool) -> dict[str, Any]:
    """Return accuracy on rows of attacked classes and on the others, and the attackers' success rate.

    Measured on the evaluation rows; success of a backdoor on those of other classes, with its patch. With personal
    models, means over honest clients with rows. Empty without label flips and backdoors.
    """
    poisonings = now.setup.checked.poisonings
    flips = [one.flip for one in poisonings if one.flip is not None]
    doors = [one.backdoor for one in poisonings if one.backdoor is not None]
    if not flips and not doors:
        return {}
    wanted = [SUCCESS] if doors or any(flip.wanted for flip in flips) else []
    keys = (*((SWAPPED, REST) if flips else ()), *((RECALL,) if sources(flips) else ()), *wanted)
    if not evaluated:
        return dict.fromkeys(keys)
    if now.setup.personal:
        hostile = now.attackers()
        honest = [k for k, n in now.setup.sizes.items() if n and k not in hostile]
        models: Iterable[Model] = map(now.client_model, honest)
    else:
        models = [next(iter(now.models().values()))]
    found = [of_model(model, now.evaluator.rows, flips, doors) for model in models]
    return {key: mean([one[key] for one in found]) for key in keys}


def of_model(
    model: Model, rows: Rows, flips: Sequence[Flip], doors: Sequence[Backdoor] = ()
) -> dict[str, float | None]:
    """Return the figures of one model; a figure without rows is None."""
    predicted = model.scores(rows.x, rows.y).predicted
    weight = torch.ones(rows.n, dtype=torch.float64) if rows.weight is None else rows.weight.double()
    there = torch.isin(rows.y, torch.tensor([c for flip in flips for c in flip.classes]))
    right = predicted == rows.y
    turned = torch.isin(rows.y, torch.tensor(sources(flips), dtype=torch.long))
    hit, of = 0.0, 0.0
    for a, b in dict.fromkeys(pair for flip in flips for pair in flip.wanted):
        mine = rows.y == a
        hit += float(weight[mine & (predicted == b)].sum())
        of += float(weight[mine].sum())
    for door in doors:
        mine = rows.y != door.target
        taken = model.scores(door.patched(rows.x[mine]), rows.y[mine]).predicted == door.target
        hit += float(weight[mine][taken].sum())
        of += float(weight[mine].sum())
    return {
        SWAPPED: weighted(right[there], weight[there]),
        REST: weighted(right[~there], weight[~there]),
        RECALL: weighted(right[turned], weight[turned]),
        SUCCESS: hit / of if of else None,
    }


def sources(flips: Sequence[Flip]) -> list[int]:
    """Return the classes that attackers turn into others without the way back, ascending."""
    return sorted({a for flip in flips if flip.kind == "flip" for a, _ in flip.wanted})


def weighted(hit: torch.Tensor, weight: torch.Tensor) -> float | None:
    """Return the weighted mean; None for an empty list."""
    total = float(weight.sum())
    return float((hit.double() * weight).sum()) / total if total else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the plain mean; None if a value is missing or there are none."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def chance(setup: Setup, number: int) -> dict[str, Any]:
    """Return the figures of a model that attackers made diverge in round ``number``.

    Its outputs are NaN or infinity, so it scores as a guess among the classes; figures of a number target are None.
    """
    right = 1 / setup.dataset.classes if setup.dataset.classes else None
    keys = ("accuracy", "macro_f1", "weighted_f1") if right is not None else ("rmse", "mae", "r2")
    return {"round": number, **dict.fromkeys(keys, right), "per_class_f1": None, "loss": None, "client_accuracy": None}


# ---------------------------------------------------------------------- the summary


def summary(now: Snapshot, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries ``attacks`` and ``aggregation`` of a summary; empty if neither is declared."""
    setup = now.setup
    if setup.defence is None:
        return {}
    found = now.attackers()
    attacks = [attack_entry(setup, one, table, found, rows) for table, one in enumerate(setup.checked.poisonings)]
    return {**({"attacks": attacks} if attacks else {}), "aggregation": aggregation(setup, found, rows)}


def attack_entry(
    setup: Setup, one: Poisoning, table: int, found: Mapping[int, int], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Summarise one table of ``[[attack]]``: its attackers, their rounds and the effect."""
    mine = sorted(k for k, each in found.items() if each == table)
    known = setup.dataset.class_names
    flip: dict[str, Any] = {}
    if one.flip is not None:
        pairs = one.flip.numbers
        flip = {
            "pairs": [list(pair) for pair in pairs],
            "classes": [[known[a], known[b]] for a, b in pairs],
            "kind": one.flip.kind,
            "draw": one.flip.draw,
        }
    return {
        "name": one.name,
        "declaration": one.declares.plain(),
        **({"target": known[one.backdoor.target]} if one.backdoor is not None else {}),
        "unit": one.unit,
        "clients": mine,
        "rounds": list(one.rounds),
        "attacked_rounds": sum(bool(mine) and one.active(row["round"]) for row in rows),
        **flip,
        **{key: rows[-1].get(key) for key in (SWAPPED, REST, RECALL) if flip and key in rows[-1]},
        **{key: rows[-1].get(key) for key in (SUCCESS,) if (flip or one.backdoor) and key in rows[-1]},
    }


def aggregation(setup: Setup, found: Mapping[int, int], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the rule, and how often attackers and honest clients took part and were left out."""
    took = {True: 0, False: 0}
    left = {True: 0, False: 0}
    for row in rows[1:]:
        if row["attackers"] is None or row["clients"] is None:
            continue
        there = {k for one in row["clients"] for k in (one if isinstance(one, list) else [one])}
        hostile = set(row["attackers"])
        for k in there | set(row["left_out"]):
            took[k in hostile] += 1
            left[k in hostile] += k in row["left_out"]
    rule = setup.checked.rule
    return {
        "name": "mean" if rule is None else rule.name,
        **({"pre": rule.pre} if rule is not None and rule.pre else {}),
        **({} if rule is None or rule.f is None else {"f": rule.f}),
        "attackers": {"took_part": took[True], "left_out": left[True]},
        "honest": {"took_part": took[False], "left_out": left[False]},
        "hostile_updates": sum(len(row["hostile"] or ()) for row in rows),
        "unchanged_rounds": [row["round"] for row in rows if row.get("unchanged")],
    }
