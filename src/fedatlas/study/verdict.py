"""The sentences that follow a study's answer: pooled training, the effects of factors, and runs without a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedatlas.study.plain import Row
from fedatlas.wording import count, listed, number, signed


def sentences(found: Row) -> list[str]:
    """Return the sentences behind the answer of an analysis (`study.analyse`)."""
    out = []
    if found["seeds"] == 1:
        out.append(
            "With one seed, chance cannot be measured: no difference here has an interval, so no choices can be told apart."
        )
    return [
        *out,
        *against_reference(found),
        *against_pooled(found),
        *main_effects(found),
        *lost_runs(found),
        *twins(found),
        *kinds_of_epsilon(found),
    ]


def kinds_of_epsilon(found: Row) -> list[str]:
    """Return whom the epsilon of each choice is about, if they are about different things."""
    kinds: dict[str, list[str]] = {}
    for choice, whom in found["epsilon_of"].items():
        kinds.setdefault(whom, []).append(choice)
    if len(kinds) < 2:
        return []
    each = "; ".join(f"about {whom} under {listed(names)}" for whom, names in kinds.items())
    return [f"Epsilon is {each}: figures of different kinds do not compare."]


def against_reference(found: Row) -> list[str]:
    """Return each choice compared with FedAvg over the settings, in one sentence."""
    one, settings = found["reference"], found["answer"]["settings"]
    if one is None or len(settings) <= 1:
        return []
    parts = []
    for choice in found["choices"]:
        both = [s for s in settings if choice in s["means"] and one in s["means"]]
        if choice == one or not both:
            continue
        apart = [(p["one"], p["other"]) for s in both for p in s["pairs"] if p["apart"]]
        signs = [-1.0 if s["answer"]["asked"]["lower_is_better"] else 1.0 for s in both]
        gaps = [sign * (s["means"][choice] - s["means"][one]) for sign, s in zip(signs, both, strict=True)]
        parts.append(
            f"{choice} is better in {apart.count((choice, one))} and worse in {apart.count((one, choice))} of {len(both)} "
            f"({range_text(gaps, signed)})"
        )
    tuned = ", each with the values picked for it" if found["tuned"] else ""
    return [f"Compared with {one}{tuned}, over the settings: {'; '.join(parts)}."] if parts else []


def against_pooled(found: Row) -> list[str]:
    """Return the distance of the choices to take from pooled training."""
    told = [one["answer"] for one in found["answer"]["settings"] if one["answer"] is not None]
    known = [(one["pooled"], one["together"], one["asked"]["lower_is_better"]) for one in told]
    pairs = [(p, t - p if lower else p - t) for p, t, lower in known if p is not None and t is not None]
    if not pairs:
        return []
    base, gaps = float(np.mean([p for p, _ in pairs])), [gap for _, gap in pairs]
    mean = number(float(np.mean(gaps)))
    spread = f" ({range_text(gaps)} over the settings)" if len(gaps) > 1 else ""
    return [
        f"Training on all rows in one place reaches {number(base)} on average; the choice to take is worse by {mean}{spread}."
    ]


def main_effects(found: Row) -> list[str]:
    """Return the factors by their effect on accuracy."""
    spread: dict[str, list[float]] = {}
    for effect in found["effects"].get("accuracy", {}).get("effects", ()):
        if len(effect["factors"]) == 1:
            spread.setdefault(effect["factors"][0], []).append(effect["estimate"])
    if len(spread) < 2:
        return []
    sizes = sorted(((max(x) - min(x), factor) for factor, x in spread.items()), reverse=True)
    parts = listed([f"{factor} {points(size)}" for size, factor in sizes])
    return [
        f"Between the best and the worst level of a factor, averaged over the others, accuracy differs by these points: {parts}."
    ]


def lost_runs(found: Row) -> list[str]:
    """Return sentences on runs without accuracy, which no average includes."""
    out, waiting = [], 0
    for choice, statuses in sorted(found["outcomes"].items()):
        bad = [f"{n} {s}" for s, n in sorted(statuses.items()) if s not in ("done", "planned", "running")]
        waiting += sum(statuses.get(status, 0) for status in ("planned", "running"))
        if bad:
            out.append(
                f"{choice}: {listed(bad)} of {count(sum(statuses.values()), 'run')}; no average above includes them."
            )
    return [*out, *([f"{count(waiting, 'run')} of cells had not finished when this was written."] if waiting else [])]


def twins(found: Row) -> list[str]:
    """Return sentences on choices with the quality of another."""
    return [
        f"{one} has the same quality as {other} by construction: masks change only costs and what the server sees."
        for one, other in sorted(found["twins"].items())
    ]


def range_text(values: Sequence[float], text: Callable[[float], str] = number) -> str:
    """Return the smallest and the largest value, in words that no interval has: 'from 0.008 to 0.013'."""
    return f"from {text(min(values))} to {text(max(values))}"


def points(value: float) -> str:
    """Return a share in points: 0.0789 -> '7.9'."""
    return f"{100 * value:.1f}"
