"""Attacks on the views of a run: their figures compared with the placebo's, pictures and curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedatlas.attacks import VIEW_ATTACKS
from fedatlas.attacks.view_attack import Arrays, Picture, ViewAttack, is_leak
from fedatlas.reporting.blocks import Block, Cells, Figure, Figures, TableBlock, TableCell, TermList, Text, lead, notice
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots, power_curve
from fedatlas.reporting.drawing.pixels import pairs
from fedatlas.reporting.entries import Plain, Subject
from fedatlas.wording import DASH, count, csv_text, interval_text, no_leak, number, tick

THREAT = {
    "who": "who",
    "how": "how",
    "when": "when",
    "where": "its target",
    "why": "its goal",
    "knowledge": "what it knows",
    "knows": "whose honest changes it sees",
    "budget": "its limits",
}
INTRO = (
    "Attacks on what a role saw of this run. Each is compared with a placebo, the result of the attack without "
    "any information about its target; a value beyond what chance gives is a leak. Where none is seen, this does not prove "
    "that there is none."
)


def spots(width: int, names: tuple[str, str], values: Sequence[tuple[Any, ...]], label: str) -> str:
    """Draw values (place, series, y, low, high) as dots with intervals; ``names`` of the two axes."""
    places, kinds = (list(dict.fromkeys(one[i] for one in values)) for i in (0, 1))
    series = [
        Series(kind, style, [_spot(places, *one) for one in values if one[1] == kind])
        for style, kind in enumerate(kinds)
    ]
    return dots(width, places, names[0], Axis(names[1], tick, zero=True), series, label)


def _spot(places: Sequence[str], place: str, kind: str, y: float, low: float | None, high: float | None) -> Point:
    return Point(places.index(place), y, f"{place}, {kind}: {number(y)} {interval_text(low, high)}".strip(), low, high)


DRAWINGS: Mapping[str, Callable[..., str]] = {"pairs": pairs, "curve": power_curve, "dots": spots}
"""``draw`` of a `Picture` -> the function that draws it."""


def leak_blocks(subject: Subject) -> list[Block]:
    """Return the section of a run whose views were attacked; empty for any other."""
    out: list[Block] = [Text(INTRO)] if subject.leaks else []
    for record, arrays in subject.leaks:
        out += _one(subject, record, arrays)
    return out


def threat_facts(declaration: Mapping[str, str]) -> TermList:
    """Return the declaration of an attack."""
    return TermList([(THREAT[field], text) for field, text in declaration.items() if text])


def _one(subject: Subject, record: Plain, arrays: Arrays) -> list[Block]:
    attack = VIEW_ATTACKS[record["name"]](role=record["role"], **record["keys"])
    about = f"{record['name']}, from the view of {_role(record['role'])}"
    if "unscored" in record:
        return [notice(f"{about}: {record['unscored']}")]
    leak, things = record["leaks"].get(attack.leak, {}), count(record["targets"], attack.thing)
    verdict = "a leak" if is_leak(leak) else no_leak(leak, things, attack.figures[attack.leak])
    return [
        lead(f"{about}, {things}: {verdict}."),
        _table(subject, attack, record),
        *(Text(note) for note in record.get("notes", ())),
        *(Figures([_figure(subject, record["name"], one)]) for one in attack.pictures(arrays)),
        threat_facts(record["declaration"]),
    ]


def _role(text: str) -> str:
    kind, _, client = text.partition(":")
    return {"client": f"client {client}", "successor": f"the client after client {client}"}.get(kind, f"the {kind}")


def _table(subject: Subject, attack: ViewAttack, record: Plain) -> TableBlock:
    rows, plain = list[Cells](), []
    for key, one in record["metrics"].items():
        leak = record["leaks"].get(key)
        rows.append([attack.figures[key], _value(one), _placebo(one), _value(leak) if leak else DASH])
        ends = [(leak or {}).get(k) for k in ("value", "low", "high")]
        plain.append([key, one["value"], one["low"], one["high"], one["placebo"], *ends])
    head = ["figure", "value", "placebo", "leak"]
    columns = ("figure", "value", "low", "high", "placebo", "leak", "leak_low", "leak_high")
    return TableBlock(f"{subject.key}-{attack.name}", f"Figures of {attack.name}", head, rows, csv_text(columns, plain))


def _placebo(one: Plain) -> TableCell:
    ends = interval_text(one["placebo_low"], one["placebo_high"]) if one.get("placebo_low") is not None else ""
    return TableCell(number(one["placebo"]) if one["placebo"] is not None else DASH, ends)


def _value(one: Plain) -> TableCell:
    if one["value"] is None:
        return TableCell("not resolved", "fewer than 10,000 non-members")
    return TableCell(number(one["value"]), interval_text(one["low"], one["high"]))


def _figure(subject: Subject, name: str, one: Picture) -> Figure:
    draw = partial(DRAWINGS[one.draw], names=one.names, values=one.values, label=f"{one.label} of {name}")
    csv = csv_text(one.columns, one.rows)
    return Figure(f"{subject.key}-{name}-{one.id}", one.title, one.how, draw, csv)
