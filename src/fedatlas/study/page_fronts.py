"""The section of a study's page on the cost of accuracy: one front per setting, over the responses whose record says ``front``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Choice, Figure, Option, TableBlock, TableCell, Text
from fedatlas.reporting.drawing.charts import Axis, Named, Point, scatter
from fedatlas.study.page_parts import BASELINE, DRAWN, Analysis, setting_names
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES, told, which
from fedatlas.wording import capital, count, csv_text, listed, number, share

TAIL = ("on_front", "chance")  # last columns of the CSV


def front_blocks(found: Analysis) -> list[Block]:
    """Return a picture for each setting, and a table of all."""
    names, axes = setting_names(found), [RESPONSES[axis].name for axis in which(front=True)]
    drawn = [i for i, one in enumerate(found["settings"]) if one["choices"]][:DRAWN]
    figures = [front_figure(found["settings"][i], names[i], i) for i in drawn]
    blocks: list[Block] = [
        Text(
            f"A choice is on the front of its setting if no other choice is at least as good in {listed(axes)}, and better in one of them. "
            "The chance is how often it would be there with other seeds."
        )
    ]
    if len(figures) == 1:
        blocks.append(figures[0])
    elif figures:
        options = [Option(f.id, names[i], [f]) for i, f in zip(drawn, figures, strict=True)]
        blocks.append(Choice("by-front", "In the setting", options))
    if sum(bool(one["choices"]) for one in found["settings"]) > DRAWN:
        blocks.append(Text(f"The first {DRAWN} settings are drawn; the table has all of them."))
    return [*blocks, front_table(found, names)]


def members(one: Row) -> list[Row]:
    """Return the choices of a setting, then the baseline, with the accuracy under its name."""
    base = {"choice": BASELINE, **one["baseline"], "on_front": None, "chance": None}
    return [*({**m, "accuracy": m["quality"]} for m in one["choices"]), base]


def front_figure(one: Row, name: str, i: int) -> Figure:
    """Return the picture of accuracy over CPU-seconds; the marks' tips give the other responses."""
    keys, every = ["choice", *which(front=True), *TAIL], members(one)
    y, x = which(front=True)[:2]
    drawn = [m for m in every if m[y] is not None]
    groups = []
    for label, style, stands in (("on the front", 0, True), ("not on the front", 5, False), (BASELINE, 3, None)):
        here = [m for m in drawn if m["on_front"] is stands]
        if here or stands is not None:
            points = [Point(max(m[x], 1e-3), m[y], tip(m)) for m in here]
            groups.append(Named(label, style, points, [m["choice"] for m in here]))
    axes = Axis(RESPONSES[x].name, lambda v: f"{v:.3g}"), Axis(RESPONSES[y].name, number)
    return Figure(
        f"front-{i + 1}",
        f"{capital(RESPONSES[y].name)} and {RESPONSES[x].name}: {name}",
        "Up and left is better. The other costs also count for the front: each mark shows its own.",
        partial(scatter, x=axes[0], y=axes[1], groups=groups, label=f"Front: {name}"),
        csv_text(keys, [[m[key] for key in keys] for m in every]),
        (NARROW, WIDE),
    )


def tip(m: Row) -> str:
    """Return the words of a mark."""
    chance = "" if m["chance"] is None else f", on the front with chance {share(m['chance'])}"
    return f"{m['choice']}: {', '.join(told(axis, m[axis]) for axis in which(front=True))}{chance}"


def front_table(found: Analysis, names: Sequence[str]) -> TableBlock:
    """Return every choice in every setting with its chance of being on the front."""
    axes, rows, values = which(front=True), [], []
    for one, name in zip(found["settings"], names, strict=True):
        for m in members(one):
            if m["accuracy"] is None:
                continue
            chance = "one seed" if m["chance"] is None else f"chance {share(m['chance'])}"
            stands = {
                True: TableCell("on the front", chance),
                False: TableCell("not on it", chance),
                None: TableCell("–"),
            }[m["on_front"]]
            rows.append(
                [TableCell(m["choice"], name), *(TableCell(RESPONSES[axis].text(m[axis])) for axis in axes), stands]
            )
            values.append((name, *(m[key] for key in ("choice", *axes, *TAIL))))
    head = [TableCell("Choice"), *(TableCell(capital(RESPONSES[axis].name)) for axis in axes), TableCell("Front")]
    folded = f"All {count(len(rows), 'line')}" if len(rows) > DRAWN else ""
    csv = csv_text(["setting", "choice", *axes, *TAIL], values)
    return TableBlock("front-table", "Every choice in every setting", head, rows, csv, folded=folded)
