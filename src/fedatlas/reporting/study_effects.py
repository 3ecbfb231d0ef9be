"""The section of a study's page that says what moves accuracy: main effects, pairs, and all effects as tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Cell, Choice, Figure, Option, Table, Text
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots, heat
from fedatlas.reporting.study_parts import BASELINE, RESPONSES, Analysis, ordered, shaded
from fedatlas.wording import count, csv_text, interval_text, number, signed


def effects(found: Analysis) -> list[Block]:
    """Main effects and pairs of accuracy in pictures; of every response as tables."""
    blocks: list[Block] = []
    about = found["effects"].get("accuracy")
    if about:
        blocks.append(
            Text(
                "An effect is how far a level lies from the mean of all cells measured, the other factors being averaged over; of a pair, "
                "how far it lies from the sum of both. All intervals of a response hold at once. They speak of these cells alone."
            )
        )
        alone = [f for f in dict.fromkeys(tuple(e["factors"]) for e in about["effects"]) if len(f) == 1]
        pairs = [f for f in dict.fromkeys(tuple(e["factors"]) for e in about["effects"]) if len(f) == 2]
        options = [Option(f"o{i}", f[0], [main_figure(about, f[0])]) for i, f in enumerate(alone)]
        blocks += [Choice("by-level", "Accuracy by the levels of", options)] if options else []
        both = [
            Option(f"o{i}", f"{f[0]} and {f[1]}", [pair_figure(found, about, (f[0], f[1]))])
            for i, f in enumerate(pairs)
        ]
        blocks += [Choice("by-pair", "Accuracy by two together:", both)] if both else []
        if about["open"]:
            blocks.append(
                Text(
                    f"The cells cannot tell {count(len(about['open']), 'effect')}, which analysis.json names.",
                    tone="notice",
                )
            )
    return [*blocks, *(effects_table(name, of) for name, of in found["effects"].items())]


def main_figure(about: Mapping[str, Any], factor: str) -> Figure:
    """The mean of each level with its interval, beside the baseline."""
    own = sorted((e for e in about["effects"] if e["factors"] == [factor]), key=lambda e: ordered(e["levels"][0]))
    names, mean = [e["levels"][0] for e in own], about["mean"]
    base = about["baseline"].get(factor, {})
    whole = about["baseline"][""][""]
    points, beside = [], []
    for i, e in enumerate(own):
        low, high = (None if e[k] is None else mean + e[k] for k in ("low", "high"))
        points.append(
            Point(
                i,
                mean + e["estimate"],
                f"{names[i]}: {number(mean + e['estimate'])} {interval_text(low, high)}",
                low,
                high,
            )
        )
        at = base.get(names[i], whole if not base else None)
        beside += [] if at is None else [Point(i, at, f"{BASELINE}, {names[i]}: {number(at)}")]
    series = [Series("mean of the cells", 0, points), Series(BASELINE, 3, beside)]
    return Figure(
        f"effect-{factor}",
        f"Accuracy by {factor}",
        "Mean accuracy of the cells with each level, and its simultaneous interval; beside it training on all rows together.",
        partial(
            dots, names=names, title=factor, y=Axis("accuracy", number), series=series, label=f"Accuracy by {factor}"
        ),
        csv_text(
            [factor, "accuracy", "low", "high", "centralised"],
            [(names[i], p.y, p.low, p.high, base.get(names[i], whole)) for i, p in enumerate(points)],
        ),
        (NARROW, WIDE),
    )


def pair_figure(found: Analysis, about: Mapping[str, Any], factors: tuple[str, str]) -> Figure:
    """Means of pairs of levels, with the baseline as a further line (of a choice) or column."""
    one, other = factors if found["factors"][factors[0]] == "choice" else factors[::-1]  # a choice goes into lines
    mains = {(e["factors"][0], e["levels"][0]): e["estimate"] for e in about["effects"] if len(e["factors"]) == 1}
    pairs = {
        frozenset(zip(e["factors"], e["levels"], strict=True)): e for e in about["effects"] if len(e["factors"]) == 2
    }
    rows, columns = (sorted((level for factor, level in mains if factor == name), key=ordered) for name in (one, other))
    base, whole = about["baseline"].get(other, {}), about["baseline"][""][""]
    values: list[list[tuple[float | None, str]]] = []
    for row in rows:
        line: list[tuple[float | None, str]] = []
        for column in columns:
            e = pairs.get(frozenset(((one, row), (other, column))))
            v = None if e is None else about["mean"] + mains[one, row] + mains[other, column] + e["estimate"]
            said = (
                ""
                if e is None
                else f"{row}, {column}: {number(v)}; {signed(e['estimate'])} beyond both alone ({interval_text(e['low'], e['high'])})"
            )
            line.append((v, said))
        values.append(line)
    beside = [base.get(column, whole) for column in columns]
    rows, values = (
        [*rows, BASELINE],
        [*values, [(v, f"{BASELINE}, {c}: {number(v)}") for v, c in zip(beside, columns, strict=True)]],
    )
    cells = shaded(values)
    return Figure(
        f"effect-{one}-{other}",
        f"Accuracy by {one} and {other}",
        f"Fitted mean accuracy of each pair, and what it is beyond both effects alone; the last line is all rows together, by {other}.",
        partial(
            heat, rows=rows, columns=columns, cells=cells, titles=(one, other), label=f"Accuracy by {one} and {other}"
        ),
        csv_text([one, *columns], [[row, *(v for v, _ in line)] for row, line in zip(rows, values, strict=True)]),
        (NARROW, WIDE),
    )


def effects_table(name: str, about: Mapping[str, Any]) -> Table:
    """All effects on a response, folded."""
    title, text = RESPONSES.get(name, (name, number))
    rows = [
        [
            Cell(", ".join(f"{f} {v}" for f, v in zip(e["factors"], e["levels"], strict=True))),
            Cell(signed_text(e["estimate"], text)),
            Cell(interval_text(e["low"], e["high"], partial(signed_text, text=text)) or "one seed: none"),
        ]
        for e in about["effects"]
    ]
    keys = ["factor", "level", "factor 2", "level 2", "effect", "low", "high"]
    table = [
        (
            *[x for pair in zip((*e["factors"], None)[:2], (*e["levels"], None)[:2], strict=True) for x in pair],
            e["estimate"],
            e["low"],
            e["high"],
        )
        for e in about["effects"]
    ]
    base = about["baseline"][""][""]
    beside = f"; {BASELINE} {text(base)}" if base is not None else ""
    caption = f"{title}: mean {text(about['mean'])}{beside}. Effects with their simultaneous intervals"
    head = [Cell("Level, or pair"), Cell("Effect"), Cell("Interval")]
    return Table(
        f"effects-{name}",
        caption,
        head,
        rows,
        csv_text(keys, table),
        folded=f"{title}: all {count(len(rows), 'effect')}",
    )


def signed_text(v: float, text: Any) -> str:
    """A difference in the unit of its response."""
    return f"{'−' if v < 0 else '+'}{text(abs(v))}"
