"""An answer of the recommender as text, one line per item."""

from __future__ import annotations

from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES, told
from fedatlas.wording import count, listed, number, share


def lines(answer: Row, confidence: float) -> list[str]:
    """Return the whole answer."""
    out = [federation(answer), *basis_lines(answer, confidence)]
    out += [line for i, entry in enumerate(answer["top"]) for line in choice_lines(i, entry, answer, confidence)]
    out += first_lines(answer) if answer["top"] else miss_lines(answer, confidence)
    out += [f"Excluded: {one['choice']}: {one['reason']}" for one in answer["refused"]]
    out += record_lines(answer)
    return [*out, *(f"Note: {note}" for note in answer["notes"])]


def basis_lines(answer: Row, confidence: float) -> list[str]:
    """Return what the answer rests on: a prior, computed figures, or nothing yet; and what to measure where it is not known."""
    out = []
    if answer["quality"] == "not asked":
        ordered = "" if by_cost(answer) else " The order follows the accuracy that the study measured elsewhere."
        out = [f"Costs only: no requirement is on quality, so nothing was trained and no quality is given.{ordered}"]
    if answer["quality"] == "prior":
        out = ["This is a prior: the choices were measured in other federations, not on your rows."]
    return [
        *out,
        *([not_known(answer, confidence)] if answer["answer"] == "not known" else []),
        *stay_lines(answer, confidence),
    ]


def stay_lines(answer: Row, confidence: float) -> list[str]:
    """Return that the reader should stay with FedAvg, where the first choice is not told apart from it."""
    if answer["answer"] != "found" or not answer["stay_with_fedavg"]:
        return []
    first, plain = answer["top"][0]["choice"], answer["reference"]
    if first == plain:
        return [f"Stay with FedAvg: no other choice is put before {plain}."]
    gap = answer["against_fedavg"]
    if gap is None or gap["low"] is None:
        return [f"Stay with FedAvg: {first} is not told apart from {plain}."]
    ends = f"{100 * gap['low']:+.1f} to {100 * gap['high']:+.1f}, each end with {share(confidence)} confidence"
    return [
        f"Stay with FedAvg: {first} is not told apart from {plain}; its accuracy differs by {100 * gap['value']:+.1f} points ({ends})."
    ]


def not_known(answer: Row, confidence: float) -> str:
    """Return what is not known, and what to measure."""
    if answer["quality"] == "not known":
        one_keeps = ", or whether one keeps your limits," if answer["limits"] else ""
        what = f"nothing like your federation was measured, so which choice is best{one_keeps} is not known"
        first = "Measure the choices below: "
    else:
        do = "keep all limits" if answer["limits"] else "finish"
        what = f"no choice can be promised to {do} with {share(confidence)} confidence, and one may"
        data = "" if answer["has_experiment"] else " with your data"
        first = f"Measure the choices below, in this order: run their files{data}, or "
    run = "run the command again"
    race = (
        f"{run} with minutes above 0"
        if answer["has_experiment"]
        else f"name your experiment in [federation] experiment and {run}"
    )
    return f"Not known: {what}. {first}{race}: it races the choices on your rows."


def federation(answer: Row) -> str:
    """Return the user's federation, and its distance from the measured ones."""
    at, study = answer["setting"], answer["study"]
    held = [count(at["nodes"], "node"), count(at["rows"], "training row")]
    held += [count(at["classes"], "class", "classes")] if at["classes"] is not None else []
    measured = f"the study {study['name']}, {count(study['settings'], 'federation')} and {count(study['runs'], 'run')}"
    h = number(at["heterogeneity"])
    return f"Your federation: {', '.join(held)}, h = {h}; {at['words']}. Answered from {measured}."


def for_rounds(entry: Row) -> str:
    """Return 'fedavg for 50 rounds'."""
    return f"{entry['choice']} for {count(entry['rounds'], 'round')}"


def by_cost(answer: Row) -> bool:
    """Return whether choices are weighed by costs only."""
    return not any(RESPONSES[name].quality for name, weight in answer["weights"].items() if weight)


def choice_lines(i: int, entry: Row, answer: Row, confidence: float) -> list[str]:
    """Return the lines on one choice: predictions, limits, nearest evidence, file."""
    known = {key: one["value"] for key, one in entry["predicted"].items() if one["value"] is not None}
    costs = ", ".join(told(key, value) for key, value in known.items() if not RESPONSES[key].quality)
    out = [
        f"{i + 1}. {for_rounds(entry)}: {accuracy_text(entry, confidence)}{costs}.",
        f"   {kept_text(entry, answer)}",
    ]
    if entry["evidence"]:
        near = entry["evidence"][0]
        beside = f", the reference {number(near['reference'])}" if near["reference"] is not None else ""
        reached = f"it reached {number(near['accuracy'])}{beside}, all rows together {number(near['centralised'])}"
        out.append(f"   Nearest evidence, {near['data']} ({', '.join(near['setting'])}): {reached}.")
    return [*out, f"   File: {entry['experiment']}"]


def accuracy_text(entry: Row, confidence: float) -> str:
    """Return the forecast of accuracy with its bounds; "" if there is none."""
    accuracy = entry["predicted"]["accuracy"]
    if accuracy["value"] is None:
        return ""
    ends = f"at least {number(accuracy['low'])}, at most {number(accuracy['high'])}, each with {share(confidence)} confidence"
    return f"accuracy {number(accuracy['value'])} ({ends}); "


def kept_text(entry: Row, answer: Row) -> str:
    """Return whether a choice keeps the limits, and how sure that is; of no limits, how often its runs finish."""
    names = [name.partition(".")[2] for name in answer["limits"]]
    measured = {"epsilon"} if entry["choice"] in answer.get("epsilon_of_runs", ()) else set()
    if entry["chance"] is None and any(RESPONSES[name].quality for name in names):
        others = "" if all(RESPONSES[name].quality for name in names) else "; it keeps the others"
        first = f"Whether it keeps your limits on quality is not known{others}"
    elif entry["chance"] is None and not set(names) <= {*answer["computed"]} - measured:
        first = (
            "It keeps all limits if it costs in your federation what it does in the nearest measured one, in proportion"
        )
    elif entry["chance"] is None:
        first = (
            "It keeps all limits, which are computed for your federation"
            if names
            else "Your requirements have no limits"
        )
    elif not names:
        first = f"It finishes with chance {share(entry['chance'])}"
    else:
        first = f"It keeps all limits with chance {share(entry['chance'])}"
    front = listed([one.name for one in RESPONSES.values() if one.front])
    stands = "" if entry["front"] is None else f" and {'is' if entry['front'] else 'is not'} on the front of {front}"
    binding = f"; without the limit {' or '.join(entry['binding'])} it would do better" if entry["binding"] else ""
    return f"{first}{stands}{binding}."


def first_lines(answer: Row) -> list[str]:
    """Return why the first choice is first, if its figures do not explain it."""
    first, *rest = answer["top"]
    if answer["answer"] == "not known" or answer["quality"] == "not asked":
        return []
    if first["choice"] != answer["reference"] or all(entry["utility"] <= first["utility"] for entry in rest):
        return []
    return [f"{first['choice']} is first because no other choice is clearly better at the requested confidence."]


def miss_lines(answer: Row, confidence: float) -> list[str]:
    """Return the message that nothing fits, and the nearest miss."""
    miss = answer["nearest_miss"]
    if miss is None:
        return ["None fits: no choice of the study is available to you; the lines below give the reasons."]
    missed = listed([miss_text(one) for one in miss["violates"]])
    nearest = f"The nearest miss is {for_rounds(miss)}: it"
    if answer["any_fits"] in (None, 0) and not {one["limit"] for one in miss["violates"]} <= set(answer["computed"]):
        near = "None fits if choices cost in your federation what they do in the nearest measured one, in proportion."
        return [f"{near} {nearest} misses {missed}."]
    if miss["chance"] is None or not answer["limits"]:
        return [f"None fits. {nearest} misses {missed}."]
    if answer["any_fits"] == 0:
        return [f"None fits: computed costs exclude every choice. {nearest} misses {missed}."]
    fits = f"None fits, with {share(confidence)} confidence: the chance that any choice fits is {share(answer['any_fits'])}."
    return [f"{fits} {nearest} keeps all limits with chance {share(miss['chance'])} and misses {missed}."]


def miss_text(missed: Row) -> str:
    """Return how far a limit (or the confidence) is missed."""
    limit, by = missed["limit"], missed["by"]
    name = RESPONSES[limit].name if limit in RESPONSES else limit
    if missed.get("infinite"):
        return f"{name}, which is infinite without noise" if limit == "epsilon" else f"{name}, which is infinite"
    if by is None:
        return f"{name}, which is not known"
    return f"{name} by {told(limit, by) if limit in RESPONSES else number(by)}"


def record_lines(answer: Row) -> list[str]:
    """Return the track record."""
    record = answer["track_record"]
    return left_out_lines(record, answer) if record and record["federations"] else []


def left_out_lines(record: Row, answer: Row) -> list[str]:
    """Return how good the answers were in measured federations that were left out in turn."""
    asked, many, out = record["federations"], record["answered"], []
    if many:
        did = "kept all limits" if answer["limits"] else "finished"
        fedavg = f"; FedAvg with a tuned rate did so in {record['reference_kept']} and {record['reference_near_best']}"
        out.append(
            f"Track record: of the {asked} measured federations most like yours, each left out in turn, {many} got an answer. It {did} "
            f"in {record['kept']} and was within one point of the best in {record['near_best']}"
            f"{fedavg if answer['reference'] else ''}."
        )
    else:
        out.append(f"Track record: none of the {asked} measured federations most like yours got an answer.")
    gap = record["difference"]
    if gap["value"] is not None:
        interval = f" ({100 * gap['low']:+.1f} to {100 * gap['high']:+.1f})" if gap["low"] is not None else ""
        out.append(
            f"There the accuracy of the answer minus that of FedAvg is {100 * gap['value']:+.1f} points{interval} on average."
        )
    if record["not_known"]:
        out.append(f"In {record['not_known']} of them the answer was not known.")
    if record["wrong_none"]:
        out.append(f"In {record['wrong_none']} of them the answer was none although a measured choice kept the limits.")
    return out
