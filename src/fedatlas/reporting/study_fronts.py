"""The section of a study's page that says what accuracy costs: a front a setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Cell, Choice, Figure, Option, Table, Text
from fedatlas.reporting.drawing.charts import Axis, Named, Point, scatter
from fedatlas.reporting.study_parts import BASELINE, DRAWN, Analysis, named
from fedatlas.wording import bytes_text, count, csv_text, number, seconds_text, share


def fronts(found: Analysis) -> list[Block]:
    """A picture a setting, and a table of all."""
    names = named(found)
    drawn = [i for i, one in enumerate(found["settings"]) if one["choices"]][:DRAWN]
    figures = [front_figure(found["settings"][i], names[i], i) for i in drawn]
    blocks: list[Block] = [
        Text(
            "A choice stands on the front of its setting where none other is as good in accuracy, CPU-seconds and bytes, and better in "
            "one. The chance says how often it would stand there if the seeds were drawn anew."
        )
    ]
    if len(figures) == 1:
        blocks.append(figures[0])
    elif figures:
        blocks.append(
            Choice(
                "by-front", "In the setting", [Option(f.id, names[i], [f]) for i, f in zip(drawn, figures, strict=True)]
            )
        )
    if sum(bool(one["choices"]) for one in found["settings"]) > DRAWN:
        blocks.append(Text(f"Drawn are the first {DRAWN}; the table has all."))
    return [*blocks, front_table(found, names)]


def front_figure(one: Mapping[str, Any], name: str, i: int) -> Figure:
    """Accuracy over CPU-seconds, and over bytes told by the marks."""
    members, base = one["choices"], one["baseline"]
    on, off = ([m for m in members if m["on_front"] is front] for front in (True, False))
    groups = [
        Named("on the front", 0, [point(m) for m in on], [m["choice"] for m in on]),
        Named("beaten", 5, [point(m) for m in off], [m["choice"] for m in off]),
    ]
    if base["accuracy"] is not None:
        said = f"{BASELINE}: {number(base['accuracy'])}, {seconds_text(base['cpu_seconds'])} of CPU, {bytes_text(base['bytes'])} of rows"
        groups.append(Named(BASELINE, 3, [Point(max(base["cpu_seconds"], 1e-3), base["accuracy"], said)], [BASELINE]))
    keys = ["choice", "accuracy", "cpu_seconds", "bytes", "on_front", "chance"]
    table = [[m["choice"], m["quality"], *(m[k] for k in keys[2:])] for m in members]
    return Figure(
        f"front-{i + 1}",
        f"Accuracy and CPU-seconds: {name}",
        "Up and left is better. Bytes count for the front, too: a mark says its own.",
        partial(
            scatter,
            x=Axis("CPU-seconds", lambda v: f"{v:.3g}"),
            y=Axis("accuracy", number),
            groups=groups,
            label=f"Front: {name}",
        ),
        csv_text(keys, [*table, [BASELINE, base["accuracy"], base["cpu_seconds"], base["bytes"], None, None]]),
        (NARROW, WIDE),
    )


def point(m: Mapping[str, Any]) -> Point:
    """A choice in the picture of its setting."""
    chance = "" if m["chance"] is None else f", on the front with chance {share(m['chance'])}"
    said = f"{m['choice']}: {number(m['quality'])}, {seconds_text(m['cpu_seconds'])} of CPU, {bytes_text(m['bytes'])}{chance}"
    return Point(max(m["cpu_seconds"], 1e-3), m["quality"], said)


def front_table(found: Analysis, names: Sequence[str]) -> Table:
    """Every choice in every setting with its chance of standing on the front."""
    rows, table = [], []
    for one, name in zip(found["settings"], names, strict=True):
        for m in one["choices"]:
            stands = "on the front" if m["on_front"] else "beaten"
            chance = "one seed" if m["chance"] is None else f"chance {share(m['chance'])}"
            rows.append(
                [
                    Cell(m["choice"], name),
                    Cell(number(m["quality"])),
                    Cell(seconds_text(m["cpu_seconds"])),
                    Cell(bytes_text(m["bytes"])),
                    Cell(stands, chance),
                ]
            )
            table.append((name, m["choice"], m["quality"], m["cpu_seconds"], m["bytes"], m["on_front"], m["chance"]))
        base = one["baseline"]
        if base["accuracy"] is not None:
            rows.append(
                [
                    Cell(BASELINE, name),
                    Cell(number(base["accuracy"])),
                    Cell(seconds_text(base["cpu_seconds"])),
                    Cell(bytes_text(base["bytes"])),
                    Cell("–"),
                ]
            )
            table.append((name, BASELINE, base["accuracy"], base["cpu_seconds"], base["bytes"], None, None))
    head = [Cell("Choice"), Cell("Accuracy"), Cell("CPU-seconds"), Cell("Bytes"), Cell("Front")]
    keys = ["setting", "choice", "accuracy", "cpu_seconds", "bytes", "on_front", "chance"]
    folded = f"All {count(len(rows), 'line')}" if len(rows) > DRAWN else ""
    return Table("front-table", "Every choice in every setting", head, rows, csv_text(keys, table), folded=folded)
