"""An answer of the recommender as a person reads it, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedatlas.wording import bytes_text, count, flops_text, number, seconds_text, share

TEXT: dict[str, Callable[[float], str]] = {
    "bytes": bytes_text,
    "cpu_seconds": lambda v: f"{seconds_text(v)} of CPU",
    "seconds": lambda v: f"{seconds_text(v)} by the clock",
    "flops": lambda v: f"{flops_text(v)} operations",
    "memory": lambda v: f"{v:.0f} MiB",
    "messages": lambda v: f"{v:,.0f} messages",
    "epsilon": lambda v: f"epsilon {v:.3g}",
}
QUALITY = {"accuracy": "accuracy", "macro_f1": "macro-F1", "client_accuracy_p10": "the tenth client in a hundred"}
NAMES = {**QUALITY, "cpu_seconds": "CPU-seconds"}


def lines(answer: Mapping[str, Any], confidence: float) -> list[str]:
    """The whole answer."""
    out = [federation(answer)]
    out += [line for i, entry in enumerate(answer["top"]) for line in choice_lines(i, entry, confidence)]
    out += first_lines(answer) if answer["top"] else miss_lines(answer, confidence)
    out += [f"Out of the question: {one['choice']}: {one['reason']}" for one in answer["refused"]]
    out += record_lines(answer["track_record"])
    out += [here(line) for line in answer.get("measured", {}).get("obtained", ())]
    return [*out, *(f"Note: {note}" for note in answer["notes"])]


def federation(answer: Mapping[str, Any]) -> str:
    """The user's federation, and how near it is to what was measured."""
    at, study = answer["setting"], answer["study"]
    held = [count(at["nodes"], "node"), count(at["rows"], "training row")]
    held += [count(at["classes"], "class", "classes")] if at["classes"] is not None else []
    measured = f"the study {study['name']}: {count(study['settings'], 'federation')}, {count(study['runs'], 'run')}"
    return f"Your federation: {', '.join(held)}, h = {number(at['heterogeneity'])}; {at['words']} ({measured})."


def choice_lines(i: int, entry: Mapping[str, Any], confidence: float) -> list[str]:
    """One choice: what is foreseen, which limit binds, where it was measured, its file."""
    accuracy = entry["predicted"]["accuracy"]
    ends = f"at least {number(accuracy['low'])}, at most {number(accuracy['high'])}, each with {share(confidence)} confidence"
    costs = [TEXT[key](v["value"]) for key, v in entry["predicted"].items() if key in TEXT and v["value"] is not None]
    stands = f"{'stands' if entry['front'] else 'does not stand'} on the front of accuracy, CPU-seconds and bytes"
    what = f"{entry['choice']} for {count(entry['rounds'], 'round')}"
    out = [f"{i + 1}. {what}: accuracy {number(accuracy['value'])} ({ends}); {', '.join(costs)}."]
    out.append(f"   It keeps all limits with chance {share(entry['chance'])} and {stands}{binding(entry['binding'])}.")
    if entry["evidence"]:
        near = entry["evidence"][0]
        beside = f", the reference {number(near['reference'])}" if near["reference"] is not None else ""
        reached = f"it reached {number(near['accuracy'])}{beside}, all rows together {number(near['centralised'])}"
        out.append(f"   Nearest evidence, {near['data']} ({', '.join(near['setting'])}): {reached}.")
    return [*out, f"   File: {entry['experiment']}"]


def binding(limits: list[str]) -> str:
    """The limits without which it would do better."""
    return f"; without the limit {' or '.join(limits)} it would do better" if limits else ""


def first_lines(answer: Mapping[str, Any]) -> list[str]:
    """Why the first one stands first, where that is not its figures."""
    first, *rest = answer["top"]
    if first["choice"] == answer["reference"] and any(entry["utility"] > first["utility"] for entry in rest):
        return [
            f"{first['choice']} stands first because no other choice is told apart from it with the confidence asked for."
        ]
    return []


def miss_lines(answer: Mapping[str, Any], confidence: float) -> list[str]:
    """That nothing fits, and what comes nearest."""
    miss = answer["nearest_miss"]
    if miss is None:
        return ["None fits: no choice of the study is open to you; the lines below say why."]
    parts = []
    for one in miss["violates"]:
        text, name = TEXT.get(one["limit"], number), NAMES.get(one["limit"], one["limit"])
        parts.append(f"{name}, which is not known" if one["by"] is None else f"{name} by {text(one['by'])}")
    what = f"The nearest miss is {miss['choice']} for {count(miss['rounds'], 'round')}"
    short = f"it keeps all limits with chance {share(miss['chance'])} and misses {' and '.join(parts)}"
    return [f"None fits with {share(confidence)} confidence. {what}: {short}."]


def record_lines(record: Mapping[str, Any] | None) -> list[str]:
    """The track record, and what was obtained by those who measured."""
    if not record:
        return []
    asked, many, out = record["federations"], record["answered"], []
    if not many:
        out.append(
            f"Track record: asked the same in the {asked} measured federations most like yours, it answered none in all."
        )
    else:
        out.append(
            f"Track record: of the {asked} measured federations most like yours, each left out in turn, {many} got an answer. It kept all "
            f"limits in {record['kept']} and came within one point of the best in {record['near_best']}; FedAvg with a tuned rate did in "
            f"{record['reference_kept']} and {record['reference_near_best']}."
        )
    gap = record["difference"]
    if gap["value"] is not None:
        interval = f" ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})" if gap["low"] is not None else ""
        out.append(
            f"There the answer's accuracy less that FedAvg's is {100 * gap['value']:+.1f} points{interval} on average."
        )
    if record["wrong_none"]:
        out.append(f"In {record['wrong_none']} of them it said none although something measured kept the limits.")
    if known := record.get("obtained"):
        kept = f"{known['at_or_above_low']} at or above low, {known['at_or_below_high']} at or below high"
        error = f"mean error {100 * known['mean_error']:.1f} points"
        out.append(f"Measured afterwards: {count(known['predictions'], 'prediction')}, {kept}; {error}.")
    return out


def here(line: Mapping[str, Any]) -> str:
    """Predicted against obtained, of one choice."""
    predicted = line["predicted"]
    told = f"{number(predicted['value'])} ({number(predicted['low'])} to {number(predicted['high'])})"
    what = f"{line['choice']} for {count(line['rounds'], 'round')}"
    return f"Measured here: {what} reached {number(line['obtained'])}; predicted were {told}."
