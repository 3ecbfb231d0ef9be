"""The sentences that open a study's page: the best choice in each setting, its lead, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedatlas.study.measurements import levels_text
from fedatlas.study.page_parts import accuracy_of
from fedatlas.study.plain import Row
from fedatlas.wording import count, interval_text, listed

FEW = 6  # most settings named one by one


def sentences(found: Row) -> list[str]:
    """Return the answer of an analysis (`study.analyse`), one sentence each."""
    settings = [one for one in found["settings"] if one["first"]]
    if not settings:
        return ["No run of any setting finished, so there is nothing to report."]
    out = [*map(in_setting, settings)] if len(settings) <= FEW else over_settings(found, settings)
    if found["seeds"] == 1:
        out.append(
            "With one seed, chance cannot be measured: no difference here has an interval, so no choices can be told apart."
        )
    return [
        *out,
        *against_reference(found),
        *against_baseline(settings),
        *main_effects(found),
        *lost_runs(found),
        *twins(found),
    ]


def in_setting(one: Row) -> str:
    """Return the sentence on one setting."""
    where, first, lead = levels_text(one["levels"]), one["first"], one["lead"]
    accuracy = accuracy_of(one, first[0])
    reached = f" (accuracy {accuracy:.3f})" if accuracy is not None else ""
    if len(first) > 1:
        behind = f"; {lead['over']} is behind by {margin(lead)}" if lead else ""
        return f"{where}: {listed(first)} cannot be told apart{reached}{behind}."
    if lead:
        return f"{where}: {first[0]} wins{reached}, by {margin(lead)} over {lead['over']}."
    return f"{where}: {first[0]} is the only choice that finished{reached}."


def over_settings(found: Row, settings: Sequence[Row]) -> list[str]:
    """Return how often each choice wins, where most often, and how often no choice does."""
    out, total = [], len(settings)
    winners = (one for one in found["record"] if one["alone"] and not one["twin"])
    for one in sorted(winners, key=lambda one: -one["alone"]):
        gains = [s["lead"]["value"] for s in settings if s["first"] == [one["choice"]] and s["lead"]]
        by = f", by {points(float(np.median(gains)))} points over the next in the median setting" if gains else ""
        out.append(
            f"{one['choice']} wins in {one['alone']} of {count(total, 'setting')}{by}{most_where(one, settings)}."
        )
    ties = [one for one in settings if len(one["first"]) > 1]
    if ties:
        among = sorted(((sum(c in one["first"] for one in ties), c) for c in found["choices"]), reverse=True)
        usual = listed([f"{name} ({n})" for n, name in among if n][:4])
        out.append(f"In {len(ties)} of {total} the best cannot be told apart from others; among them are {usual}.")
    return out


def most_where(one: Row, settings: Sequence[Row]) -> str:
    """Return the level of a setting's factor in which a choice wins far more often than elsewhere; "" if none stands out."""
    best, text = 0.0, ""
    share = one["alone"] / len(settings)
    for factor in settings[0]["levels"]:
        for level in sorted({s["levels"][factor] for s in settings}):
            here = [s for s in settings if s["levels"][factor] == level]
            won = sum(s["first"] == [one["choice"]] for s in here)
            if len(here) >= 3 and won / len(here) - share > max(best, 0.15):
                best, text = won / len(here) - share, f", most often with {factor} {level} ({won} of {len(here)})"
    return text


def against_reference(found: Row) -> list[str]:
    """Return each choice compared with FedAvg, in one sentence."""
    told = [one for one in found["record"] if one["difference"] is not None and not one["twin"]]
    if found["reference"] is None or not told or len(found["settings"]) <= 1:
        return []
    parts = [
        f"{one['choice']} is better in {one['better']} and worse in {one['worse']} of {one['settings']} "
        f"({100 * one['least']:+.1f} to {100 * one['most']:+.1f} points)"
        for one in told
    ]
    return [f"Compared with {found['reference']}, each with the rate picked for it: {'; '.join(parts)}."]


def against_baseline(settings: Sequence[Row]) -> list[str]:
    """Return the distance of the best choices from pooled training."""
    pairs = [(one["baseline"]["accuracy"], accuracy_of(one, one["first"][0])) for one in settings]
    known = [(base, base - best) for base, best in pairs if base is not None and best is not None]
    if not known:
        return []
    base, gaps = float(np.mean([base for base, _ in known])), [gap for _, gap in known]
    below = f"{points(float(np.mean(gaps)))} points below that ({interval_text(min(gaps), max(gaps), points)})"
    return [f"All rows in one place reach {base:.3f} on average; the best choice of a setting lies {below}."]


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


def margin(lead: Row) -> str:
    """Return a difference in points of accuracy, with its interval."""
    interval = interval_text(lead["low"], lead["high"], points)
    return f"{points(lead['value'])} points{f' ({interval})' if interval else ''}"


def points(value: float) -> str:
    """Return a share in points: 0.0789 -> '7.9'."""
    return f"{100 * value:.1f}"
