"""The section of a study's page on effects on accuracy: main effects, pairs, and all effects as tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fedatlas.reporting.blocks import NARROW, WIDE, Block, Choice, Figure, Option, TableBlock, TableCell, Text
from fedatlas.reporting.drawing.charts import Axis, Point, Series, dots
from fedatlas.study.measurements import levels_text
from fedatlas.study.page_parts import BASELINE, Analysis, heat_figure, ordered
from fedatlas.study.plain import Row
from fedatlas.study.responses import RESPONSES
from fedatlas.wording import capital, count, csv_text, interval_text, number, signed

OVER = {
    "seeds": "they describe only these cells.",
    "data sets": "they speak of further data sets like these.",
    "settings": "they speak of further federations with these data.",
}
STEPS = {
    "nodes": "twice the nodes",
    "rows": "twice the rows",
    "heterogeneity": "0.1 more heterogeneity (h)",
}


def effects_blocks(found: Analysis) -> list[Block]:
    """Return main effects and pairs on accuracy as pictures, and the effects on every response as tables."""
    blocks: list[Block] = []
    about = found["effects"].get("accuracy")
    if about:
        blocks.append(
            Text(
                "An effect is the distance of a level from the mean of all measured cells, averaged over the other factors. For a pair it "
                f"is the distance from the sum of both effects. All intervals of a response hold at once; {OVER[about['over']]}"
            )
        )
        blocks += slopes_blocks("accuracy", about)
        factors = list(dict.fromkeys(tuple(e["factors"]) for e in about["effects"]))
        alone, both = ([f for f in factors if len(f) == n] for n in (1, 2))
        both = [pair for pair in both if all((factor,) in alone for factor in pair)]  # a mean needs both main effects
        one = [Option(f"o{i}", f[0], [main_figure(about, f[0])]) for i, f in enumerate(alone)]
        two = [Option(f"o{i}", " and ".join(f), [pair_figure(found, about, *f)]) for i, f in enumerate(both)]
        asked = (("by-level", "Accuracy by the levels of", one), ("by-pair", "Accuracy by the pair", two))
        blocks += [Choice(*choice) for choice in asked if choice[2]]
        if about["open"]:
            told = f"These cells cannot determine {count(len(about['open']), 'effect')}; analysis.json names them."
            blocks.append(Text(told, tone="notice"))
    blocks += [
        block for name, of in found["effects"].items() if name != "accuracy" for block in slopes_blocks(name, of)
    ]
    return [*blocks, *(effects_table(name, of) for name, of in found["effects"].items())]


def slopes_blocks(name: str, about: Row) -> list[Block]:
    """Return the table of the slopes of a response, if the cells tell any; of accuracy it is open."""
    if not about["slopes"]:
        return []
    text = partial(difference_text, text=RESPONSES[name].text)
    rows = []
    for one in about["slopes"]:
        of = "the mean of all choices" if one["choice"] is None else f"{one['choice']}, beyond that mean"
        interval = interval_text(one["low"], one["high"], text) or "none with so few"
        rows.append(
            [TableCell(STEPS[one["fact"]]), TableCell(of), TableCell(text(one["estimate"])), TableCell(interval)]
        )
    title = f"{capital(RESPONSES[name].name)} by nodes, rows and heterogeneity"
    caption = f"{title}: the change within a data set, with simultaneous intervals; {OVER[about['slopes_over']]}"
    csv = csv_text(["fact", "choice", "change", "low", "high"], [tuple(one.values()) for one in about["slopes"]])
    head = [TableCell(x) for x in ("With", "Of", "Change", "Interval")]
    return [TableBlock(f"slopes-{name}", caption, head, rows, csv, folded="" if name == "accuracy" else title)]


def main_figure(about: Row, factor: str) -> Figure:
    """Return the mean of each level with its interval, and the baseline."""
    own = sorted((e for e in about["effects"] if e["factors"] == [factor]), key=lambda e: ordered(e["levels"][0]))
    names, mean = [e["levels"][0] for e in own], about["mean"]
    base, whole = about["baseline"].get(factor, {}), about["baseline"][""][""]
    points, beside = [], []
    for i, (e, name) in enumerate(zip(own, names, strict=True)):
        y = mean + e["estimate"]
        low, high = (None if e[k] is None else mean + e[k] for k in ("low", "high"))
        points.append(Point(i, y, f"{name}: {number(y)} {interval_text(low, high)}", low, high))
        at = base.get(name, whole if not base else None)
        beside += [] if at is None else [Point(i, at, f"{BASELINE}, {name}: {number(at)}")]
    series = [Series("mean of the cells", 0, points), Series(BASELINE, 3, beside)]
    label = f"Accuracy by {factor}"
    how = "Mean accuracy of the cells with each level, its simultaneous interval, and pooled training (all rows together)."
    draw = partial(dots, names=names, title=factor, y=Axis("accuracy", number), series=series, label=label)
    table = [(name, p.y, p.low, p.high, base.get(name, whole)) for name, p in zip(names, points, strict=True)]
    csv = csv_text([factor, "accuracy", "low", "high", "centralised"], table)
    return Figure(f"effect-{factor}", label, how, draw, csv, (NARROW, WIDE))


def pair_figure(found: Analysis, about: Row, *factors: str) -> Figure:
    """Return the means of pairs of levels; the last line is the baseline."""
    one, other = factors if found["factors"][factors[0]] == "choice" else factors[::-1]  # a choice goes into the lines
    by_levels = {frozenset(zip(e["factors"], e["levels"], strict=True)): e for e in about["effects"]}
    main = {pair: e["estimate"] for key, e in by_levels.items() if len(key) == 1 for pair in key}
    rows, columns = (sorted((level for factor, level in main if factor == name), key=ordered) for name in (one, other))

    def cell(row: str, column: str) -> tuple[float | None, str]:
        e = by_levels.get(frozenset(((one, row), (other, column))))
        if e is None:
            return None, ""
        v, beyond = about["mean"] + main[one, row] + main[other, column] + e["estimate"], signed(e["estimate"])
        return (
            v,
            f"{row}, {column}: {number(v)}; {beyond} from the sum of both effects ({interval_text(e['low'], e['high'])})",
        )

    values = [[cell(row, column) for column in columns] for row in rows]
    base, whole = about["baseline"].get(other, {}), about["baseline"][""][""]
    pooled = [(column, base.get(column, whole)) for column in columns]
    values.append([(v, f"{BASELINE}, {column}: {number(v)}") for column, v in pooled])
    rows.append(BASELINE)
    label = f"Accuracy by {one} and {other}"
    beyond = "Fitted mean accuracy of each pair, with its difference from the sum of both effects"
    how = f"{beyond}; the last line is all rows together, by {other}."
    return heat_figure(f"effect-{one}-{other}", label, how, (one, other), rows, columns, values)


def effects_table(name: str, about: Row) -> TableBlock:
    """Return all effects on a response, folded."""
    title, text = capital(RESPONSES[name].name), RESPONSES[name].text
    signed_text = partial(difference_text, text=text)
    rows, table = [], []
    for e in about["effects"]:
        named = list(zip(e["factors"], e["levels"], strict=True))
        interval = interval_text(e["low"], e["high"], signed_text) or "none with one seed"
        rows.append([TableCell(levels_text(named)), TableCell(signed_text(e["estimate"])), TableCell(interval)])
        both = [x for pair in (*named, (None, None))[:2] for x in pair]
        table.append((*both, e["estimate"], e["low"], e["high"]))
    base = about["baseline"][""][""]
    beside = f"; {BASELINE} {text(base)}" if base is not None else ""
    caption = f"{title}: mean {text(about['mean'])}{beside}. Effects with their simultaneous intervals"
    head = [TableCell("Level, or pair"), TableCell("Effect"), TableCell("Interval")]
    csv = csv_text(["factor", "level", "factor 2", "level 2", "effect", "low", "high"], table)
    folded = f"{title}: all {count(len(rows), 'effect')}"
    return TableBlock(f"effects-{name}", caption, head, rows, csv, folded=folded)


def difference_text(v: float, text: Callable[[float], str]) -> str:
    """Return a difference in the unit of its response; without a sign where it is written as 0."""
    size = text(abs(v))
    return f"{'−' if v < 0 else '+'}{size}" if any(digit in size for digit in "123456789") else size
