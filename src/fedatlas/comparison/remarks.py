"""Cautions about a comparison: runs that end too early, a rate that suits one scheme, pooled rows that do worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedatlas.privacy.mechanisms import MECHANISMS, of_table
from fedatlas.privacy.terms import protects
from fedatlas.verdict.noise import FEWEST, SHARE, last_swing
from fedatlas.wording import count, listed, number

LEAST, NOTHING = 0.02, 1e-9  # least rise that counts: share of the curve's range, and absolute
RATE = "local.lr"


def still_gains(values: Sequence[float | None], *, lower_is_better: bool = False) -> bool:
    """Return whether a figure still improves over the last judged rounds, by more than it swings there.

    ``values``: those of the judged rounds, without the initial model.
    """
    known = [v for v in values if v is not None and math.isfinite(v)]
    last, swing = known[-max(FEWEST, round(SHARE * len(known))) :], last_swing(known)
    if swing is None:
        return False
    rise = float(np.polyfit(np.arange(len(last)), last, 1)[0]) * (len(last) - 1)
    return (-rise if lower_is_better else rise) > max(swing, LEAST * (max(known) - min(known)), NOTHING)


def rounds_remark(
    curves: Mapping[str, Sequence[Sequence[float | None]]], *, lower_is_better: bool = False
) -> list[str]:
    """Return which schemes still gain at the end in most seeds.

    ``curves``: scheme -> one list per seed, the figure by round.
    """
    gaining = [
        name
        for name, found in curves.items()
        if 2 * sum(still_gains(one, lower_is_better=lower_is_better) for one in found) > len(found)
    ]
    if not gaining:
        return []
    verb = "gains" if len(gaining) == 1 else "gain"
    return [f"{listed(gaining)} still {verb} in the last rounds: with more rounds the order may be another."]


def rate_remark(keys: Sequence[str], rates: Sequence[float], file: str) -> list[str]:
    """Return that one rate was used for all schemes, and how to tune it; nothing if rates were compared, or differ.

    ``keys``: those with several values. ``rates``: each scheme's `local.lr`. ``file``: the experiment.
    """
    if len(set(rates)) != 1 or not any(key.partition(".")[0] == "algorithm" for key in keys):
        return []
    rate = rates[0]
    command = f"fedatlas tune {file} algorithm.name=SCHEME {RATE}={rate / 10:g}..{3 * rate:g}"
    said = f"All schemes ran with {RATE}={rate:g}, which may suit one better than another: '{command}' picks a scheme's own"
    return [f"{said}, and a study with [tuning] compares schemes each with its own."]


def pooled_remark(row: Mapping[str, Any], *, lower_is_better: bool = False) -> list[str]:
    """Return that pooled rows do worse than a scheme, by more than its spread over seeds. ``row``: the scheme's."""
    pooled, mean = row["centralised"], row["mean"]
    if pooled is None or (pooled - mean if lower_is_better else mean - pooled) <= (row["sd"] or 0.0):
        return []
    figures = f"Pooled training, {number(pooled)}, is worse than {row['scheme']}, {number(mean)}"
    return [f"{figures}: the same local settings suit it badly, so it is no upper bound here."]


def baselines_remark(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return that only some seeds of a scheme have baselines, so its answer covers these. ``runs``: seed -> summary."""
    compared = [seed for seed, one in runs.items() if one.get("answer", {}).get("compared")]
    if not compared or len(compared) == len(runs):
        return []
    some = f"{'seed' if len(compared) == 1 else 'seeds'} {listed([*map(str, compared)])}"
    said = f"Only {some} of {count(len(runs), 'seed')} have baselines, and the answer whether to federate is over these"
    return [f"{said}; the same command with --baselines trains those of the others."]


def epsilon_remark(schemes: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return epsilon of a run of each scheme that states one, whom it is about, and that runs on the same rows add up.

    ``schemes``: scheme -> the summaries of its runs. Of several seeds the largest epsilon counts.
    """
    told: dict[str, list[str]] = {}
    for name, runs in schemes.items():
        found = [one["privacy"] for one in runs if isinstance(one.get("privacy", {}).get("epsilon"), float | int)]
        if not found:
            continue
        worst = max(found, key=lambda one: float(one["epsilon"]))
        whom = protects(of_table(one) for one in worst["mechanisms"] if one["name"] in MECHANISMS)
        seeded = ", whose noise is the seed's and protects nobody" if worst.get("noise") == "seed" else ""
        told.setdefault(whom, []).append(
            f"{float(worst['epsilon']):.3g} with {name} (delta {worst['delta']:.3g}){seeded}"
        )
    if not told:
        return []
    each = "; ".join(f"{listed(figures)}, about {whom}" for whom, figures in told.items())
    apart = " Figures about different things do not compare." if len(told) > 1 else ""
    both = (
        "Runs that read the same rows add up, also those of schemes not taken: fedatlas epsilon RUN... states the sum."
    )
    return [f"Epsilon of a run: {each}.{apart} {both}"]
