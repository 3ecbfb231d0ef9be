"""An answer of the recommender as text, one line per item."""

from __future__ import annotations

from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES, told
from fedatlas.wording import count, listed, number, share


def lines(answer: Row, confidence: float) -> list[str]:
    """Return the whole answer."""
    out = [federation(answer)]
    out += [line for i, entry in enumerate(answer["top"]) for line in choice_lines(i, entry, confidence)]
    out += first_lines(answer) if answer["top"] else miss_lines(answer, confidence)
    out += [f"Excluded: {one['choice']}: {one['reason']}" for one in answer["refused"]]
    out += record_lines(answer["track_record"])
    out += [measured_line(line) for line in answer.get("measured", {}).get("obtained", ())]
    return [*out, *(f"Note: {note}" for note in answer["notes"])]


def federation(answer: Row) -> str:
    """Return the user's federation, and its distance from the measured ones."""
    at, study = answer["setting"], answer["study"]
    held = [count(at["nodes"], "node"), count(at["rows"], "training row")]
    held += [count(at["classes"], "class", "classes")] if at["classes"] is not None else []
    measured = f"the study {study['name']}: {count(study['settings'], 'federation')}, {count(study['runs'], 'run')}"
    return f"Your federation: {', '.join(held)}, h = {number(at['heterogeneity'])}; {at['words']} ({measured})."


def for_rounds(entry: Row) -> str:
    """Return 'fedavg for 50 rounds'."""
    return f"{entry['choice']} for {count(entry['rounds'], 'round')}"


def choice_lines(i: int, entry: Row, confidence: float) -> list[str]:
    """Return the lines on one choice: predictions, binding limits, nearest evidence, file."""
    accuracy = entry["predicted"]["accuracy"]
    ends = f"at least {number(accuracy['low'])}, at most {number(accuracy['high'])}, each with {share(confidence)} confidence"
    known = {key: one["value"] for key, one in entry["predicted"].items() if one["value"] is not None}
    costs = ", ".join(told(key, value) for key, value in known.items() if not RESPONSES[key].quality)
    front = listed([one.name for one in RESPONSES.values() if one.front])
    stands = f"{'is' if entry['front'] else 'is not'} on the front of {front}"
    binding = f"; without the limit {' or '.join(entry['binding'])} it would do better" if entry["binding"] else ""
    out = [f"{i + 1}. {for_rounds(entry)}: accuracy {number(accuracy['value'])} ({ends}); {costs}."]
    out.append(f"   It keeps all limits with chance {share(entry['chance'])} and {stands}{binding}.")
    if entry["evidence"]:
        near = entry["evidence"][0]
        beside = f", the reference {number(near['reference'])}" if near["reference"] is not None else ""
        reached = f"it reached {number(near['accuracy'])}{beside}, all rows together {number(near['centralised'])}"
        out.append(f"   Nearest evidence, {near['data']} ({', '.join(near['setting'])}): {reached}.")
    return [*out, f"   File: {entry['experiment']}"]


def first_lines(answer: Row) -> list[str]:
    """Return why the first choice is first, if its figures do not explain it."""
    first, *rest = answer["top"]
    if first["choice"] != answer["reference"] or all(entry["utility"] <= first["utility"] for entry in rest):
        return []
    return [f"{first['choice']} is first because no other choice is clearly better at the requested confidence."]


def miss_lines(answer: Row, confidence: float) -> list[str]:
    """Return the message that nothing fits, and the nearest miss."""
    miss = answer["nearest_miss"]
    if miss is None:
        return ["None fits: no choice of the study is available to you; the lines below give the reasons."]
    missed = listed([miss_text(one["limit"], one["by"]) for one in miss["violates"]])
    short = f"it keeps all limits with chance {share(miss['chance'])} and misses {missed}"
    return [f"None fits with {share(confidence)} confidence. The nearest miss is {for_rounds(miss)}: {short}."]


def miss_text(limit: str, by: float | None) -> str:
    """Return how far a limit (or the confidence) is missed."""
    name = RESPONSES[limit].name if limit in RESPONSES else limit
    if by is None:
        return f"{name}, which is not known"
    return f"{name} by {told(limit, by) if limit in RESPONSES else number(by)}"


def record_lines(record: Row | None) -> list[str]:
    """Return the track record, and the results obtained with --measure."""
    if not record:
        return []
    asked, many, out = record["federations"], record["answered"], []
    if many:
        out.append(
            f"Track record: of the {asked} measured federations most like yours, each left out in turn, {many} got an answer. It kept all "
            f"limits in {record['kept']} and was within one point of the best in {record['near_best']}; FedAvg with a tuned rate did so in "
            f"{record['reference_kept']} and {record['reference_near_best']}."
        )
    else:
        out.append(f"Track record: none of the {asked} measured federations most like yours got an answer.")
    gap = record["difference"]
    if gap["value"] is not None:
        interval = f" ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})" if gap["low"] is not None else ""
        out.append(
            f"There the accuracy of the answer minus that of FedAvg is {100 * gap['value']:+.1f} points{interval} on average."
        )
    if record["wrong_none"]:
        out.append(f"In {record['wrong_none']} of them the answer was none although a measured choice kept the limits.")
    if known := record.get("obtained"):
        kept = f"{known['at_or_above_low']} at or above low, {known['at_or_below_high']} at or below high"
        error = f"mean error {100 * known['mean_error']:.1f} points"
        out.append(f"Measured afterwards: {count(known['predictions'], 'prediction')}, {kept}; {error}.")
    return out


def measured_line(line: Row) -> str:
    """Return the predicted and obtained value of one choice."""
    value, low, high = (number(line["predicted"][key]) for key in ("value", "low", "high"))
    return (
        f"Measured here: {for_rounds(line)} reached {number(line['obtained'])}; predicted: {value} ({low} to {high})."
    )
