"""The gain from a party's columns: the model's loss with and without them, and the label holder's alternatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from markupsafe import Markup

from fedatlas.metrics.intervals import over_seeds
from fedatlas.reporting.blocks import Block, Cells, Figure, TableBlock, TableCell, lead, notice
from fedatlas.reporting.columns_privacy import mixed
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots
from fedatlas.reporting.entries import Entry, Plain, Subject
from fedatlas.wording import NAMES, capital, count, csv_text, interval_note, interval_text, number, signed, tick

RUN = "fedatlas run --resume FOLDER --baselines"


def columns_gain_blocks(subject: Subject) -> list[Block]:
    """Return the section; a hint if no baseline was trained."""
    found = subject.summary.get("gain")
    if not found and subject.summary.get("answer", {}).get("asked", {}).get("judge"):
        return [notice("Not measured: in a deployed run nobody trains without the others.")]
    if not found:
        hint = Markup(
            "This run has no baseline to compare with: <code>{}</code> grows the same trees without each party."
        ).format(RUN)
        return [notice(hint)]
    figure = found["figure"]
    verdicts = [lead(verdict(name, one[figure], figure)) for name, one in found["parties"].items()]
    small = overlap_costs(found, figure)
    notices = [notice(small)] if small else []
    return [
        *verdicts,
        *notices,
        *mixed(subject.summary),
        _parties(found),
        _sides(subject.summary, found),
        *_picture(found, figure),
    ]


def columns_gain_over(entries: Sequence[Entry]) -> list[Block]:
    """Return each run's gain from each party's columns, and the mean over the seeds of a folder; [] without baselines."""
    rows, table = list[Cells](), []
    for entry in entries:
        known = [one for one in entry.subjects if one.summary.get("gain")]
        gains = dict[str, list[float | None]]()
        for subject in known:
            found = subject.summary["gain"]
            for name, one in found["parties"].items():
                gain = one[found["figure"]]
                sides = [found["sides"][side][found["figure"]] for side in ("together", found["without"][name])]
                note = interval_note(gain["low"], gain["high"], signed)
                rows.append([subject.label, name, *map(number, sides), TableCell(signed(gain["value"]), note)])
                table.append((subject.label, name, *sides, gain["value"], gain["low"], gain["high"]))
                gains.setdefault(name, []).append(gain["value"])
        for name, values in gains.items() if len(known) > 1 else ():
            spread = over_seeds(values)
            over = f"mean of {count(spread.n, 'seed')}, sd {number(spread.sd)}"
            rows.append([entry.label, name, "", "", TableCell(signed(spread.mean), over)])
    if not rows:
        return []
    figures = {NAMES[one.summary["gain"]["figure"]] for e in entries for one in e.subjects if one.summary.get("gain")}
    words = " or ".join(sorted(figures))
    head = ["run", "party", f"{words} with it", "without it", "gain from its columns"]
    text = csv_text(("run", "party", "with", "without", "gain", "low", "high"), table)
    caption = "With and without each party, by run; below each gain its 95% interval on the run's test rows"
    return [TableBlock("gain-parties", caption, head, rows, text)]


def better(figure: str) -> str:
    """Return the name of a gain."""
    return {"auc": "higher AUC", "accuracy": "higher accuracy", "rmse": "lower error"}[figure]


def verdict(name: str, one: Mapping[str, float | None], figure: str) -> str:
    """Return a sentence on whether a party's columns help."""
    value, low, high = one["value"], one["low"], one["high"]
    if value is None or low is None or high is None:
        return f"These test rows cannot show what the columns of '{name}' contribute."
    ends = f"{signed(value)} {NAMES[figure]}, 95% interval {signed(low)} to {signed(high)}"
    if low > 0:
        return f"The columns of '{name}' help: {better(figure)} with them ({ends})."
    if high < 0:
        return f"The columns of '{name}' do harm: the model is better without them ({ends})."
    return f"These test rows do not show that the columns of '{name}' help ({ends})."


def overlap_costs(found: Plain, figure: str) -> str:
    """Return a sentence if the party with the label does better by itself on all its rows; else ""."""
    against = found["against"].get("alone_all")
    if against is None or against[figure]["value"] is None or against[figure]["value"] >= 0:
        return ""
    sure = against[figure]["high"] is not None and against[figure]["high"] < 0
    rows, common = found["rows"]["alone_all"], found["rows"]["alone"]
    return (
        f"The party with the label {'does' if sure else 'may do'} better alone, on all its {rows:,} training rows than together on the "
        f"{common:,} common ones: the small overlap costs more than the columns gain."
    )


def _parties(found: Plain) -> TableBlock:
    figure, rows, table = found["figure"], [], []
    for name, one in found["parties"].items():
        sides = [number(found["sides"][side][figure]) for side in ("together", found["without"][name])]
        gain = one[figure]
        rows.append([name, *sides, TableCell(signed(gain["value"]), interval_note(gain["low"], gain["high"], signed))])
        table += [(name, key, x["value"], x["low"], x["high"]) for key, x in one.items()]
    head = ["party", f"{NAMES[figure]} with it", "without it", "gain from its columns"]
    text = csv_text(("party", "figure", "gain", "low", "high"), table)
    return TableBlock("gain-parties", "With and without each party", head, rows, text)


TITLES = {
    "together": "all parties",
    "alone": "the party with the label alone, on the common rows",
    "alone_all": "the party with the label alone, on all its rows",
    "joined": "all columns in one table",
    "true_labels": "all parties, labels without noise",
}


def side_name(side: str) -> str:
    """Return the name of a side."""
    return TITLES.get(side, f"without {side.removeprefix('without_')}")


def _sides(s: Plain, found: Plain) -> TableBlock:
    figures = list(found["sides"]["together"])
    rows = []
    for side, values in found["sides"].items():
        trained = found["rows"].get(side, s["rows"]["train"])
        rows.append([side_name(side), f"{trained:,}", *(number(values[key]) for key in figures)])
    text = csv_text(("side", *figures), [(side, *values.values()) for side, values in found["sides"].items()])
    head = ["trained by", "rows", *(NAMES[key] for key in figures)]
    return TableBlock("gain-table", "The alternatives", head, rows, text)


def _picture(found: Plain, figure: str) -> list[Figure]:
    """Return the picture of the gains; none if no side has the figure, such as an AUC on test rows of one class."""
    against = {side: one[figure] for side, one in found["against"].items()}
    drawn = {side: one for side, one in against.items() if one["value"] is not None}
    if not drawn:
        return []
    points = []
    for i, (side, one) in enumerate(drawn.items()):
        said = f"against {side_name(side)}: {signed(one['value'])} ({interval_text(one['low'], one['high'], signed)})"
        points.append(Point(i, one["value"], said, one["low"], one["high"]))
    names = [SHORT.get(side, side_name(side)) for side in drawn]
    y = Axis(f"{NAMES[figure]} gained against", signed_tick, zero=True)
    label = f"{NAMES[figure]} gained by all parties together"
    picture = Figure(
        "gain-sides",
        capital(label),
        "How much better the model of all parties is than each of the others, on the same test rows; a line is a 95% interval. "
        "Above 0, together is better.",
        partial(dots, names=names, title="", y=y, series=[Series("", 0, points)], label=label),
        csv_text(
            ("against", "gain", "low", "high"),
            [(side, one["value"], one["low"], one["high"]) for side, one in against.items()],
        ),
    )
    return [picture]


def signed_tick(v: float) -> str:
    """Return the label of a difference on an axis."""
    return f"+{tick(v)}" if v > 0 else tick(v)


SHORT = {"alone": "alone", "alone_all": "alone, all", "joined": "one table", "true_labels": "no noise"}
