"""What an attack found, for people at a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedatlas.wording import number

FIGURES = {
    "psnr": "PSNR in dB",
    "mse": "mean squared error of a pixel",
    "label": "share of labels found",
    "above_20_dB": "share of targets above 20 dB",
    "auc": "AUC",
    "accuracy": "balanced accuracy",
    "advantage": "advantage (true minus false positives)",
    "tpr_at_fpr_0.001": "true positives at 0.1% false ones",
}


def summed_up(found: Mapping[str, Any]) -> list[str]:
    """The same in a sentence or two."""
    lines = said(found)
    return [
        f"{lines[0]}:",
        *(line for line in lines if line.startswith("leak ") or ("unscored" in found and line == found["unscored"])),
    ]


def said(found: Mapping[str, Any]) -> list[str]:
    """Lines: the threat model, the figures with placebo and interval, what leaks."""
    role, many = found["role"], found["targets"]
    out = [
        f"{found['name']} from the view of {role}, {many} {'candidates' if found['kind'] == 'membership' else 'targets'}"
    ]
    out += [f"  {field}: {text}" for field, text in found["declaration"].items()]
    if "unscored" in found:
        return [*out, found["unscored"]]
    for key, one in found["metrics"].items():
        value = "not resolved (fewer than 10,000 non-members)" if one["value"] is None else number(one["value"])
        between = "" if one["low"] is None else f" [{number(one['low'])}, {number(one['high'])}]"
        beside = "" if one["placebo"] is None or one["value"] is None else f"; placebo {number(one['placebo'])}"
        out.append(f"{FIGURES.get(key, key)}: {value}{between}{beside}")
    for key, one in found["leaks"].items():
        if one["value"] is None:
            continue
        between = f"[{number(one['low'])}, {number(one['high'])}]"
        out.append(f"leak ({FIGURES.get(key, key)}, above the placebo): {number(one['value'])} {between}")
    return out
