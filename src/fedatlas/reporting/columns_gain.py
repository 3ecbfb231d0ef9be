"""Whether a party's columns help: the model's loss without them, compared with what else the party with the label could do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from markupsafe import Markup

from fedatlas.reporting.blocks import Block, Cell, Figure, Table, lead, notice
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.wording import NAMES, capital, csv_text, interval_note, interval_text, number, signed, tick

RUN = "fedatlas run --resume FOLDER --baselines"


def columns_gain_blocks(subject: Subject) -> list[Block]:
    """The section; a hint where no baseline was trained."""
    found = subject.summary.get("gain")
    if not found:
        hint = Markup(
            "This run has nothing to compare with: <code>{}</code> trains the same without each party."
        ).format(RUN)
        return [notice(hint)]
    figure = found["figure"]
    verdicts = [lead(verdict(name, one[figure], figure)) for name, one in found["parties"].items()]
    small = overlap_costs(found, figure)
    notices = [notice(small)] if small else []
    return [*verdicts, *notices, _parties(found), _sides(subject.summary, found), _picture(found, figure)]


def better(figure: str) -> str:
    """The name of a gain."""
    return {"auc": "higher AUC", "accuracy": "higher accuracy", "rmse": "lower error"}[figure]


def verdict(name: str, one: Mapping[str, float | None], figure: str) -> str:
    """Whether a party's columns help, in a sentence."""
    value, low, high = one["value"], one["low"], one["high"]
    if value is None or low is None or high is None:
        return f"What the columns of '{name}' bring cannot be said on these test rows."
    ends = f"{signed(value)} {NAMES[figure]}, 95% interval {signed(low)} to {signed(high)}"
    if low > 0:
        return f"The columns of '{name}' help: {better(figure)} with them ({ends})."
    if high < 0:
        return f"The columns of '{name}' do harm: the model is better without them ({ends})."
    return f"These test rows do not show that the columns of '{name}' help ({ends})."


def overlap_costs(found: Plain, figure: str) -> str:
    """A sentence where the party with the label does better by itself on all its rows; "" where it does not."""
    against = found["against"].get("alone_all")
    if against is None or against[figure]["value"] is None or against[figure]["value"] >= 0:
        return ""
    sure = against[figure]["high"] is not None and against[figure]["high"] < 0
    rows, common = found["rows"]["alone_all"], found["rows"]["alone"]
    return (
        f"The party with the label {'does' if sure else 'may do'} better alone on all its {rows:,} training rows than together on the "
        f"{common:,} common ones: the small overlap costs more than the columns bring."
    )


def _parties(found: Plain) -> Table:
    figure, rows, table = found["figure"], [], []
    for name, one in found["parties"].items():
        sides = [number(found["sides"][side][figure]) for side in ("together", found["without"][name])]
        gain = one[figure]
        rows.append([name, *sides, Cell(signed(gain["value"]), interval_note(gain["low"], gain["high"], signed))])
        table += [(name, key, x["value"], x["low"], x["high"]) for key, x in one.items()]
    head = ["party", f"{NAMES[figure]} with it", "without it", "what its columns bring"]
    text = csv_text(("party", "figure", "gain", "low", "high"), table)
    return Table("gain-parties", "With and without each party", head, rows, text)


TITLES = {
    "together": "all parties",
    "alone": "the party with the label alone, on the common rows",
    "alone_all": "the party with the label alone, on all its rows",
    "joined": "all columns in one table",
}


def side_name(side: str) -> str:
    """The name of a side."""
    return TITLES.get(side, f"without {side.removeprefix('without_')}")


def _sides(s: Plain, found: Plain) -> Table:
    figures = list(found["sides"]["together"])
    rows = []
    for side, values in found["sides"].items():
        trained = found["rows"].get(side, s["rows"]["train"])
        rows.append([side_name(side), f"{trained:,}", *(number(values[key]) for key in figures)])
    text = csv_text(("side", *figures), [(side, *values.values()) for side, values in found["sides"].items()])
    head = ["who trained", "on rows", *(NAMES[key] for key in figures)]
    return Table("gain-table", "What else could be done", head, rows, text)


def _picture(found: Plain, figure: str) -> Figure:
    against = {side: one[figure] for side, one in found["against"].items()}
    drawn = {side: one for side, one in against.items() if one["value"] is not None}
    points = []
    for i, (side, one) in enumerate(drawn.items()):
        said = f"against {side_name(side)}: {signed(one['value'])} ({interval_text(one['low'], one['high'], signed)})"
        points.append(Point(i, one["value"], said, one["low"], one["high"]))
    names = [SHORT.get(side, side_name(side)) for side in drawn]
    y = Axis(f"{NAMES[figure]} gained against", signed_tick, zero=True)
    label = f"{NAMES[figure]} gained by all parties together"
    return Figure(
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


def signed_tick(v: float) -> str:
    """A difference on an axis."""
    return f"+{tick(v)}" if v > 0 else tick(v)


SHORT = {"alone": "alone", "alone_all": "alone, all", "joined": "one table"}
