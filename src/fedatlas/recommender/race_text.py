"""The answer of a race as text, one line per item."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.recommender.answer_text import for_rounds, lines, miss_text
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import bytes_text, count, listed, number, share

LESS = 0.9  # of the bytes of the choice to take: what is cheaper than that is named
HEAD = ["choice", "rounds", "accuracy", "below the best by", "chance of best", "sent", "time", "epsilon"]


def lines_of(answer: Row, confidence: float) -> list[str]:
    """Return the whole answer, of a race or of a study."""
    if "race" not in answer:
        return lines(answer, confidence)
    out = [own_federation(answer), *race_lines(answer)]
    out += aligned(table_of(answer)) if answer["entries"] else []
    out += file_lines(answer)
    out += [f"Excluded: {one['choice']}: {one['reason']}" for one in answer["refused"]]
    return [*out, *(f"Note: {note}" for note in answer["notes"])]


def own_federation(answer: Row) -> str:
    """Return the user's federation."""
    at = answer["setting"]
    held = [count(at["nodes"], "node"), count(at["rows"], "training row"), count(at["classes"], "class", "classes")]
    return f"Your federation: {', '.join(held)}, h = {number(at['heterogeneity'])}."


def race_lines(answer: Row) -> list[str]:
    """Return what the race says, the answer first."""
    return [
        *said_lines(answer),
        *limit_lines(answer),
        *final_lines(answer),
        *work_lines(answer),
        *epsilon_lines(answer),
    ]


def points(value: float) -> str:
    """Return a difference of accuracy in points."""
    return f"{100 * value:.1f} points"


def said_lines(answer: Row) -> list[str]:
    """Return the end statement, or why there is none."""
    about, said = answer["race"], answer["race"]["statement"]
    mine = own_rows_lines(answer) if about["rows_of"] == "own" else []
    if said is None:
        return [*undecided(answer), *mine]
    first, others = said["first"], [name for name in said["among"] if name != said["first"]]
    many, sure = count(len(about["started"]), "choice"), share(said["confidence"])
    rows = f"{count(said['judged_rows'], 'training row')} that no rate and no cut has seen"
    entry = {one["choice"]: one for one in answer["entries"]}
    reached = f"accuracy is {accuracy_text(entry[first], about['ends'])} on {rows}"
    whom = " for other clients like yours" if said["drawn_by"] == "client" else ""
    if len(about["started"]) == 1:
        out, whom = [f"Only {first} was raced, so it is compared with nothing. Its {reached}."], ""
    elif not others and first in said["among"]:
        out = [f"{first} is the best of the {many} raced{whom}, with {sure} confidence. Its {reached}."]
    else:
        apart = "it" if first in said["among"] else "the best"
        out = [
            f"{first} is within {points(said['margin'])} of the best of the {many} raced{whom}, with {sure} confidence. Its {reached}.",
            f"These rows cannot tell {apart} from {listed(others)}; each is within {points(said['margin_of_all'])} of the best.",
        ]
    if whom:
        out.append(here_line(said))
    out += [needed_line(answer), cheapest_line(entry[said["cheapest"]], entry[first]) if others else ""]
    return [*filter(None, out), *mine]


def here_line(said: Row) -> str:
    """Return the end statement for the same clients, on other rows of theirs."""
    mine, first = f"For your own {said['clients']} clients", said["first"]
    others = [name for name in said["among_here"] if name != first]
    if not others:
        return (
            f"{mine} it is the best."
            if first in said["among_here"]
            else f"{mine} {listed(said['among_here'])} is better."
        )
    return f"{mine} it is within {points(said['margin_here'])} of the best, and not told apart from {listed(others)}."


def own_rows_lines(answer: Row) -> list[str]:
    """Return how far a race on one party's rows speaks for the federation, and what was measured in others."""
    top = answer["prior"]["top"]
    return [
        "This race had your rows dealt out, not your partners': with theirs the order may be another.",
        *([f"Measured in other federations, {for_rounds(top[0])} comes first."] if top else []),
    ]


def needed_line(answer: Row) -> str:
    """Return what a small margin would need; "" where it is reached."""
    said, have = answer["race"]["statement"], answer["setting"]["rows"]
    if said["wished"] is None:
        return ""
    seeds = f" and {said['seeds_for_wished']} seeds instead of 3" if said["seeds_for_wished"] > 3 else ""
    needed = float(f"{said['rows_for_wished']:.2g}")
    rows = f"{needed:,.0f} training rows in all (you have {have:,.0f})"
    mine = " for your own clients" if said["drawn_by"] == "client" else ""
    return f"A margin of {points(said['wished'])}{mine} would need about {rows}{seeds}."


def cheapest_line(entry: Row, first: Row) -> str:
    """Return the choice that sends least of those that are not told apart; "" if it saves less than a tenth."""
    least, sent = (one["predicted"]["bytes"]["value"] for one in (entry, first))
    if least > LESS * sent:
        return ""
    return f"The cheapest of them is {entry['choice']}: {bytes_text(least)}, within {points(entry['behind_best'])} of the best."


def undecided(answer: Row) -> list[str]:
    """Return what is known where the work was up before an end statement."""
    about = answer["race"]
    unit = about["unit"]
    if not about["started"]:
        many = len(about["not_tried"])
        if not many:
            return ["None fits: no choice is left to race; the lines below give the reasons."]
        return [
            (
                f"No race: none of {count(many, 'choice')} reaches 20 rounds in a third of the {unit} given. "
                f"All of them would take {amount(about['all_tried'], unit)}."
            )
        ]
    best = sorted(one["choice"] for one in answer["entries"] if one["among_best"])
    behind = [one["choice"] for one in answer["entries"] if not one["among_best"]]
    apart = f" On these rows {listed(behind)} {'is' if len(behind) == 1 else 'are'} worse." if behind else ""
    return [
        (
            f"Not decided: the work was up before the end statement. Left after {about['looks'][-1]['rounds']} rounds, in no order: "
            f"{listed(best)}. {amount(about['needed'], unit).capitalize()} would decide."
        ),
        (
            "Their accuracies below are on the rows by which rates and cuts were picked, each end of an interval with "
            f"{share(about['ends'])} confidence.{apart}"
        ),
    ]


def amount(value: float | None, unit: str) -> str:
    """Return an amount of work."""
    if value is None:
        return "-"
    return f"{value:,.0f} rounds of runs" if unit == "rounds" else f"{max(value, 0.1):.1f} minutes"


def limit_lines(answer: Row) -> list[str]:
    """Return the nearest miss where nothing fits, and what a binding limit costs."""
    out, miss = [], answer["nearest_miss"]
    if miss is not None:
        missed = listed([miss_text(one) for one in miss["violates"]])
        sure = share(answer["race"]["ends"])
        fits = (
            "None fits."
            if answer["answer"] == "none"
            else f"Not known: no choice raced can be promised to keep all limits with {sure} confidence, and one may."
        )
        out.append(
            f"{fits} The nearest miss is {for_rounds(miss)}, measured on your rows with accuracy {accuracy_text(miss)}: it misses "
            f"{missed}; chance to keep all limits: {share(miss['chance'])}."
        )
    return [*out, *answer["race"]["changes"]]


def final_lines(answer: Row) -> list[str]:
    """Return what the file to take reaches on the test rows."""
    done = answer["race"]["final"]
    if done is None:
        return []
    if done["accuracy"] is None:
        return [f"Run on all training rows, {done['choice']} ended as {done['status']}: {done['reason']}"]
    ends = f" ({number(done['low'])} to {number(done['high'])} with 95% confidence)" if done["low"] is not None else ""
    rows = count(done["test_rows"], "test row") if done["test_rows"] else "the test rows"
    return [
        (
            f"Trained on all training rows, {done['choice']} reaches accuracy {number(done['accuracy'])}{ends} on {rows}, which "
            "no rate, no cut and no comparison has read."
        )
    ]


def work_lines(answer: Row) -> list[str]:
    """Return what was raced, cut and not tried, and what the clock decided."""
    about, out = answer["race"], []
    if not about["started"]:
        return []
    looks = [look["rounds"] for look in about["looks"]]
    given = about["work"] if about["unit"] == "rounds" else about["minutes"]
    spent = f"{amount(about['spent'], about['unit'])} of {given:g}"
    short = [f"{name} after at most {far}" for name in about["started"] if (far := about["rounds"][name]) < looks[0]]
    out.append(
        f"Raced: {listed(about['started'])}, each with {count(about['tuning_points'], 'tuning point')}; "
        f"compared after {listed([str(x) for x in looks])} rounds{f', {listed(short)}' if short else ''} ({spent})."
    )
    for cut in about["cut"]:
        gain = f", and gains at most {points(cut['gain'])} later elsewhere" if cut["gain"] else ""
        out.append(
            f"Cut after {cut['rounds']} rounds: {cut['arm']}, at least {points(cut['at_least'])} below {cut['leader']}{gain}."
        )
    if about["failed"]:
        names = [f"{name} ({count(many, 'run')})" for name, many in about["failed"].items()]
        out.append(f"Without a model, and counted as always naming the most frequent class: {listed(names)}.")
    if about["given_up"]:
        out.append(f"Given up after one tuning point, since its runs proved too slow: {listed(about['given_up'])}.")
    if about["not_tried"]:
        out.append(
            f"Not tried: {listed(about['not_tried'])}. All would be in {amount(about['all_tried'], about['unit'])}."
        )
    if about["unit"] == "minutes":
        out.append(clock_line(about))
    return out


def clock_line(about: Row) -> str:
    """Return what the clock decided."""
    far = " and how far they run" if about["could_go_on"] else ""
    return (
        f"The clock decided how many choices are tried{far}: each was timed for one round, and again by its runs after every stage. "
        f"These took {about['spent'] / max(about['foreseen'], 1e-9):.1f} times as long as foreseen."
    )


def epsilon_lines(answer: Row) -> list[str]:
    """Return epsilon of the run, and of the run with its race."""
    if not answer["top"] or not answer["race"]["decided"]:
        return []
    final = answer["race"]["epsilon"]["final"]
    own = "The run adds no noise, so it has no epsilon" if final is None else f"Epsilon of the run is {final:.3g}"
    return [
        f"{own}. With the race there is none: it reads scores of your rows without noise, so the choice itself is not private."
    ]


def accuracy_text(entry: Row, ends: float | None = None) -> str:
    """Return an accuracy with its bounds; ``ends``: the confidence of each, to be said."""
    one = entry["predicted"]["accuracy"]
    each = "" if ends is None else f", each end with {share(ends)} confidence"
    return f"{number(one['value'])} ({number(one['low'])} to {number(one['high'])}{each})"


def table_of(answer: Row) -> list[list[str]]:
    """Return a heading and a line for each choice that started, the best first."""
    rows = [HEAD]
    for entry in sorted(answer["entries"], key=lambda entry: -entry["predicted"]["accuracy"]["value"]):
        value = {key: one["value"] for key, one in entry["predicted"].items()}
        costs = [
            RESPONSES[key].text(value[key]) if value[key] is not None else "no noise"
            for key in ("bytes", "seconds", "epsilon")
        ]
        rows.append(
            [
                entry["choice"],
                str(entry["rounds"]),
                accuracy_text(entry),
                "0" if entry["behind_best"] == 0 else f"at most {points(entry['behind_best'])}",
                share(entry["chance_best"]),
                *costs,
            ]
        )
    return rows + [
        [cut["arm"], str(cut["rounds"]), "cut", f"at least {points(cut['at_least'])}", "", "", "", ""]
        for cut in answer["race"]["cut"]
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of equal columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows]


def file_lines(answer: Row) -> list[str]:
    """Return the files."""
    pilot, out = answer["race"]["rows_of"] == "own", []
    for i, entry in enumerate(answer["top"]):
        edge = f"; its {listed(entry['at_edge'])} is at the edge of what was tried" if entry["at_edge"] else ""
        rates = ", ".join(f"{key} = {value}" for key, value in entry["rates"].items())
        what = "Pilot with your partners" if pilot else "File"
        out.append(f"{what} {i + 1}: {entry['experiment']} ({for_rounds(entry)}{f', {rates}' if rates else ''}{edge})")
    if "page" in answer:
        out.append(f"Picture: {answer['page']}")
    return out
