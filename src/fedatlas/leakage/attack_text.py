"""The findings of an attack, as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.view_attack import is_leak
from fedatlas.wording import NO_LEAK, count, no_leak, number


def attack_sentence(found: Mapping[str, Any]) -> str:
    """Return a sentence or two: the role of the view, and what leaks."""
    heading, *_ = lines = attack_lines(found)
    return " ".join(
        [
            f"{heading}:",
            *(line for line in lines if line.startswith(("leak ", NO_LEAK)) or line == found.get("unscored")),
        ]
    )


def attack_lines(found: Mapping[str, Any]) -> list[str]:
    """Return lines: the threat model, the figures with placebo and interval, and what leaks."""
    attack = VIEW_ATTACKS[found["name"]](role=found["role"], **found["keys"])
    out = [f"{found['name']} from the view of {found['role']}, {count(found['targets'], attack.thing)}"]
    out += [f"  {field}: {text}" for field, text in found["declaration"].items()]
    if "unscored" in found:
        return [*out, found["unscored"]]
    for key, one in found["metrics"].items():
        unresolved = one["value"] is None
        value = "not resolved (fewer than 10,000 non-members)" if unresolved else number(one["value"])
        placebo = "" if one["placebo"] is None or unresolved else f"; placebo {number(one['placebo'])}{_spread(one)}"
        out.append(f"{attack.figures[key]}: {value}{_interval(one)}{placebo}")
    for key, one in found["leaks"].items():
        if one["value"] is not None:
            out.append(f"leak ({attack.figures[key]}, above the placebo): {number(one['value'])}{_interval(one)}")
    out += found.get("notes", ())
    leak = found["leaks"].get(attack.leak, {})
    none = f"{no_leak(leak, count(found['targets'], attack.thing), attack.figures[attack.leak])}."
    return [*out, *([] if is_leak(leak) else [none])]


def _spread(one: Mapping[str, Any]) -> str:
    low, high = one.get("placebo_low"), one.get("placebo_high")
    return "" if low is None else f" [{number(low)}, {number(high)}]"


def _interval(one: Mapping[str, Any]) -> str:
    return "" if one["low"] is None else f" [{number(one['low'])}, {number(one['high'])}]"
