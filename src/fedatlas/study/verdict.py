"""The sentences that open a study's page: which choice wins where, by how much, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.wording import count

FEW = 6  # settings that are named one by one


def sentences(found: Mapping[str, Any]) -> list[str]:
    """The answer of an analysis (`study.analyse`), a sentence each."""
    settings = [one for one in found["settings"] if one["first"]]
    if not settings:
        return ["No setting has a run that came to its end, so nothing can be said."]
    out = few(settings) if len(settings) <= FEW else many(found, settings)
    if found["seeds"] == 1:
        out.append(
            "With one seed nothing says how far chance goes: no difference here has an interval, and none is told apart."
        )
    return [
        *out,
        *against_reference(found),
        *beside_baseline(settings),
        *main_effects(found),
        *lost(found),
        *same(found),
    ]


def few(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence a setting."""
    out = []
    for one in settings:
        where = levels_text(one["levels"])
        first, lead = one["first"], one["lead"]
        accuracy = one_of(one, first[0])
        reached = f" (accuracy {accuracy:.3f})" if accuracy is not None else ""
        if len(first) > 1:
            others = listed(first)
            behind = f"; {lead['over']} is behind by {margin(lead)}" if lead else ""
            out.append(f"{where}: {others} cannot be told apart{reached}{behind}.")
        elif lead:
            out.append(f"{where}: {first[0]} wins{reached}, by {margin(lead)} over {lead['over']}.")
        else:
            out.append(f"{where}: {first[0]} is the only choice that came to its end{reached}.")
    return out


def many(found: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """How often each choice wins, where most, and how often nobody does."""
    out, total = [], len(settings)
    winners = sorted(
        (one for one in found["record"] if one["alone"] and not one["twin"]), key=lambda one: -one["alone"]
    )
    for one in winners:
        gains = [s["lead"]["value"] for s in settings if s["first"] == [one["choice"]] and s["lead"]]
        by = f", by {100 * float(np.median(gains)):.1f} points over the next in the middle case" if gains else ""
        out.append(
            f"{one['choice']} wins in {one['alone']} of {count(total, 'setting')}{by}{most_where(one, settings)}."
        )
    open_ones = [one for one in settings if len(one["first"]) > 1]
    if open_ones:
        among = sorted(((sum(c in one["first"] for one in open_ones), c) for c in found["choices"]), reverse=True)
        usual = listed([f"{name} ({n})" for n, name in among if n][:4])
        out.append(
            f"In {len(open_ones)} of {total} the best cannot be told apart from others; among them stand {usual}."
        )
    return out


def most_where(one: Mapping[str, Any], settings: Sequence[Mapping[str, Any]]) -> str:
    """The level of a setting's factor in which a choice wins far more often than elsewhere; "" where none stands out."""
    best, text = 0.0, ""
    share = one["alone"] / len(settings)
    for factor in settings[0]["levels"]:
        for level in sorted({s["levels"][factor] for s in settings}):
            here = [s for s in settings if s["levels"][factor] == level]
            won = sum(s["first"] == [one["choice"]] for s in here)
            if len(here) >= 3 and won / len(here) - share > max(best, 0.15):
                best, text = won / len(here) - share, f", most of all with {factor} {level} ({won} of {len(here)})"
    return text


def against_reference(found: Mapping[str, Any]) -> list[str]:
    """Each choice beside FedAvg, in one sentence."""
    reference = found["reference"]
    told = [one for one in found["record"] if one["difference"] is not None and not one["twin"]]
    if reference is None or not told or len(found["settings"]) <= 1:
        return []
    parts = [
        f"{one['choice']} is better in {one['better']} and worse in {one['worse']} of {one['settings']} "
        f"({100 * one['least']:+.1f} to {100 * one['most']:+.1f} points)"
        for one in told
    ]
    return [f"Beside {reference}, each with the rate that was picked for it: {'; '.join(parts)}."]


def beside_baseline(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far the best choices lie from training on all rows together."""
    pairs = [(one["baseline"]["accuracy"], one_of(one, one["first"][0])) for one in settings]
    gaps = [base - best for base, best in pairs if base is not None and best is not None]
    if not gaps:
        return []
    base = float(np.mean([base for base, best in pairs if base is not None and best is not None]))
    below, least, most = (100 * float(x) for x in (np.mean(gaps), min(gaps), max(gaps)))
    text = f"All rows in one place reach {base:.3f} on average; the best choice of a setting lies {below:.1f} points below that"
    return [f"{text} ({least:.1f} to {most:.1f})."]


def main_effects(found: Mapping[str, Any]) -> list[str]:
    """Which factor moves accuracy most."""
    spread: dict[str, list[float]] = {}
    for effect in found["effects"].get("accuracy", {}).get("effects", ()):
        if len(effect["factors"]) == 1:
            spread.setdefault(effect["factors"][0], []).append(effect["estimate"])
    if len(spread) < 2:
        return []
    sizes = sorted(((max(x) - min(x), factor) for factor, x in spread.items()), reverse=True)
    parts = [f"{factor} by {100 * size:.1f}" for size, factor in sizes]
    return [
        f"From its best to its worst level, on average over the others, accuracy moves in points with {listed(parts)}."
    ]


def lost(found: Mapping[str, Any]) -> list[str]:
    """Runs that have no accuracy: an average says nothing of them."""
    out = []
    for choice, statuses in sorted(found["outcomes"].items()):
        bad = {status: n for status, n in statuses.items() if status not in ("done", "planned", "running")}
        if bad:
            told = listed([f"{n} {status}" for status, n in sorted(bad.items())])
            out.append(f"{choice}: {told} of {count(sum(statuses.values()), 'run')}; they stand in no average above.")
    waiting = sum(n for s in found["outcomes"].values() for status, n in s.items() if status in ("planned", "running"))
    return [*out, *([f"{count(waiting, 'run')} of cells had not ended when this was written."] if waiting else [])]


def same(found: Mapping[str, Any]) -> list[str]:
    """Choices that stand for each other."""
    return [
        f"{one} has the quality of {other} by construction: masks change costs and what the server sees."
        for one, other in sorted(found["twins"].items())
    ]


def one_of(setting: Mapping[str, Any], choice: str) -> float | None:
    """The accuracy of a choice in a setting."""
    return next((one["quality"] for one in setting["choices"] if one["choice"] == choice), None)


def margin(lead: Mapping[str, Any]) -> str:
    """A difference in points of accuracy, with its interval."""
    if lead["low"] is None:
        return f"{100 * lead['value']:.1f} points"
    return f"{100 * lead['value']:.1f} points ({100 * lead['low']:.1f} to {100 * lead['high']:.1f})"


def levels_text(levels: Mapping[str, str]) -> str:
    """A setting as people name it."""
    return ", ".join(f"{factor} {level}" for factor, level in levels.items()) or "The one setting"


def listed(names: Sequence[str]) -> str:
    """One name, two with "and", more with commas: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
