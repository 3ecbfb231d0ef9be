"""Kinds of picture: lines, bars, dots with intervals, shaded tables, named points, points and curves against the diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from fedatlas.reporting.drawing import svg
from fedatlas.reporting.drawing.scales import Band, Linear, linear, logarithmic
from fedatlas.reporting.drawing.svg import Frame, place
from fedatlas.wording import count, share, tick

MARKED = 150  # points of a line that are still marked one by one
TOLD = 1500  # cells of a shaded table that still show their number
LEVELS = 12  # of shading, if there are too many cells to tell apart
PLOT = 190.0  # height of a plot area


class Axis(NamedTuple):
    """The title of an axis, the format of its values, and the choice of its ticks (`scales.linear`)."""

    title: str
    text: Callable[[float], str] = tick
    unit: float = 1.0
    zero: bool = False
    whole: bool = False


class Point(NamedTuple):
    """A value at a place, its text, and its interval if it has one."""

    x: float
    y: float
    tip: str = ""
    low: float | None = None
    high: float | None = None
    size: float = 1.0


class Series(NamedTuple):
    """Points that belong together.

    ``thin``: in the background, without marks and without a name in the legend. ``hollow``: single marks, not joined
    and not named.
    """

    label: str
    style: int
    points: Sequence[Point]
    thin: bool = False
    hollow: bool = False


class Bars(NamedTuple):
    """One value per slot. Several `Bars` are stacked."""

    label: str
    style: int
    values: Sequence[float]
    tips: Sequence[str]


class Panel(NamedTuple):
    """The plot area of a picture with its vertical axis: the common part of lines, bars, dots and scatters."""

    frame: Frame
    up: Linear
    key: str  # the legend
    heads: Sequence[str] = ()  # names of slots as they are drawn
    slanted: bool = False

    @property
    def band(self) -> Band:
        """The slots."""
        return Band(len(self.heads), self.frame.left, self.frame.right)

    def drawing(self, y: Axis, title: str, label: str, drawn: Iterable[str], across: str = "") -> str:
        """Return the whole picture. Its horizontal axis is ``across``, or that of the slots."""
        across = across or svg.band_axis(self.frame, self.band, self.heads, title, slanted=self.slanted)
        axes = svg.y_axis(self.frame, self.up, y.text) + across
        return svg.drawing(self.frame, label, svg.heading(y.title), self.key, axes, *drawn)


def panel(
    width: int,
    y: Axis,
    values: Iterable[float],
    legend: Sequence[tuple[str, int]],
    high: float = PLOT,
    names: Sequence[str] = (),
    bars: bool = False,
    least: int = 2,
) -> Panel:
    """Return a plot area of height ``high`` for these values, with a legend of at least ``least`` entries; over slots with ``names``."""
    key, top = svg.legend(legend if len(legend) >= least else [], width, 32, bars=bars)
    bottom = top + high
    up = linear(values, bottom, top, zero=y.zero or bars, unit=y.unit)
    left = svg.left_of([y.text(v) for v in up.ticks])
    if not names:
        return Panel(Frame(width, left, width - 14, top, bottom, 40), up, key)
    heads, slanted, below = _heads(names, (width - 8 - left) / len(names))
    left = max(left, below - 46) if slanted else left  # a slanted name extends to the left of its slot
    return Panel(Frame(width, left, width - 8, top, bottom, below), up, key, heads, slanted)


def lines(width: int, x: Axis, y: Axis, series: Sequence[Series], label: str) -> str:
    """Draw values along a measured axis, one line per series."""
    named = [(s.label, s.style) for s in series if not s.thin and not s.hollow]
    points = [p for s in series for p in s.points]
    made = panel(width, y, (p.y for p in points), named)
    left, right = made.frame.left, made.frame.right
    parts = max(2, int((right - left) / 60))
    x_scale = linear((p.x for p in points), left, right, parts=parts, tight=True, whole=x.whole, unit=x.unit)
    drawn = []
    for s in sorted(series, key=lambda s: not s.thin):
        places = [(x_scale(p.x), made.up(p.y)) for p in s.points]
        if s.hollow:
            drawn += [svg.ring(*at, s.style) for at in places]
            continue
        drawn.append(svg.line(places, s.style, thin=s.thin))
        apart = math.ceil(len(places) / MARKED)
        marked = [] if s.thin else [i for i in range(len(places)) if (len(places) - 1 - i) % apart == 0]
        size = 1.0 if len(places) <= 40 else 0.6
        drawn += [svg.mark(*places[i], s.style, s.points[i].tip, size) for i in marked]
    return made.drawing(y, "", label, drawn, svg.x_axis(made.frame, x_scale, x.text, x.title))


def bars(width: int, names: Sequence[str], title: str, y: Axis, stacks: Sequence[Bars], label: str) -> str:
    """Draw amounts, one bar per slot, stacked if there are several kinds."""
    totals = [sum(values) for values in zip(*(s.values for s in stacks), strict=True)]
    made = panel(width, y, totals, [(s.label, s.style) for s in stacks], names=names, bars=True)
    band, up = made.band, made.up
    wide = band.step * (0.72 if band.step > 3 else 1.0)
    drawn, under = [], [0.0] * len(names)
    for stack in stacks:
        for i, (value, said) in enumerate(zip(stack.values, stack.tips, strict=True)):
            high, low = up(under[i] + value), up(under[i])
            under[i] += value
            if value:
                drawn.append(
                    f'<rect class="bar s{stack.style}" x="{place(band(i) - wide / 2)}" y="{place(high)}" '
                    f'width="{place(wide)}" height="{place(low - high)}"{svg.tip(said)}/>'
                )
    return made.drawing(y, title, label, drawn)


def _heads(names: Sequence[str], step: float) -> tuple[list[str], bool, float]:
    """Return the names of slots as they are drawn: cut, whether they are slanted, and their height below the plot.

    Whole numbers are never slanted. Some of them are left out instead.
    """
    heads = svg.shortened(names, 14)
    widest = max(map(svg.text_width, heads), default=0.0)
    slanted = widest + 4 > step and not all(head.isdigit() for head in heads)
    return heads, slanted, 36 + 0.72 * widest if slanted else 40.0


def dots(
    width: int, names: Sequence[str], title: str, y: Axis, series: Sequence[Series], label: str, join: bool = False
) -> str:
    """Draw a few values per slot, side by side, with their intervals.

    ``join`` links the first two. A point's x is its slot.
    """
    roomy = (width - 60) / len(names) >= 5 * len(series)
    ends = [v for s in series for p in s.points for v in ((p.low, p.high) if roomy else ()) if v is not None]
    values = [*(p.y for s in series for p in s.points), *ends]
    made = panel(width, y, values, [(s.label, s.style) for s in series], PLOT + 30, names)
    band, up = made.band, made.up
    apart = min(band.step * 0.28, 13.0) if roomy else 0.0
    size = 1.0 if band.step >= 20 else 0.75 if band.step >= 8 else 0.5
    drawn, places = [], []
    for i, s in enumerate(series):
        offset = (i - (len(series) - 1) / 2) * apart
        places.append({int(p.x): (band(int(p.x)) + offset, up(p.y)) for p in s.points})
        drawn += [_whisker(places[-1][int(p.x)][0], up, p, s.style) for p in s.points if roomy]
        drawn += [svg.mark(*places[-1][int(p.x)], s.style, p.tip, size) for p in s.points]
    links = (
        [svg.line([places[0][k], places[1][k]], FAINT, thin=True) for k in places[0] if k in places[1]] if join else []
    )
    return made.drawing(y, title, label, [*links, *drawn])


FAINT = svg.COLOURS - 1  # the grey of the series


def _whisker(x: float, y: Linear, p: Point, style: int) -> str:
    if p.low is None or p.high is None:
        return ""
    return f'<path class="whisker s{style}" d="M{place(x)} {place(y(p.low))}V{place(y(p.high))}"/>'


class Shaded(NamedTuple):
    """A cell: the strength of its colour (0 to 1, None = empty), its printed text, its tooltip."""

    shade: float | None
    text: str = ""
    tip: str = ""


def shaded(what: str, n: float, total: float, things: tuple[str, str] = ("row", "rows")) -> Shaded:
    """Return a cell that holds ``n`` of ``total``. The larger its share, the stronger its colour."""
    part = n / total if total else 0.0
    text = f"{n:.0f}" if n else ""
    return Shaded(max(part, 0.03) if n else 0.0, text, f"{what}: {count(n, *things)} ({share(part)})")


def heat(
    width: int,
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[Shaded]],
    titles: tuple[str, str],
    label: str,
) -> str:
    """Draw a table of shades; ``titles`` of rows and columns.

    If there are too many cells to print, the cells of a shade are drawn together.
    """
    letters = 22 if width > 500 else 12
    names = svg.shortened(rows, letters)
    left, right = svg.left_of(names) + 6, width - 6.0  # names have wider letters than numbers
    heads, slanted, below = _heads(columns, (right - left) / len(columns))
    left = max(left, below - 36) if slanted else left  # a slanted name extends to the left of its slot
    band = Band(len(columns), left, right)
    high = min(max(band.step, 18.0), 26.0) if len(rows) <= 14 else max(3.0, min(18.0, 360 / len(rows)))
    frame = Frame(width, left, right, 24, 24 + high * len(rows), below)
    down = Band(len(rows), frame.top, frame.bottom)
    told = len(rows) * len(columns) <= TOLD
    body = (_cells if told else _shades)(cells, band, down)
    every = max(1, math.ceil(13 / high))
    ticks = "".join(
        f'<text class="row" x="{place(left - 6)}" y="{place(down(i) + 4)}" text-anchor="end">{escape(names[i])}</text>'
        for i in range(0, len(rows), every)
    )
    return svg.drawing(
        frame,
        label,
        svg.heading(titles[0]),
        ticks,
        svg.band_axis(frame, band, heads, titles[1], slanted=slanted),
        body,
    )


def _cells(cells: Sequence[Sequence[Shaded]], across: Band, down: Band) -> str:
    gap = 1.0 if min(across.step, down.step) > 8 else 0.0
    longest = max(len(cell.text) for row in cells for cell in row)
    printed = 6.4 * longest <= across.step and down.step >= 12
    out = []
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell.shade is None:
                continue
            x, y = across(j) - across.step / 2, down(i) - down.step / 2
            out.append(
                f'<rect class="cell" x="{place(x)}" y="{place(y)}" width="{place(across.step - gap)}" '
                f'height="{place(down.step - gap)}" fill-opacity="{place(cell.shade)}"{svg.tip(cell.tip)}/>'
            )
            if printed and cell.text:
                ink = "on" if cell.shade > 0.62 else "off"
                out.append(
                    f'<text class="{ink}" x="{place(across(j) - gap / 2)}" y="{place(down(i) + 4)}" text-anchor="middle">'
                    f"{escape(cell.text)}</text>"
                )
    return "".join(out)


def _shades(cells: Sequence[Sequence[Shaded]], across: Band, down: Band) -> str:
    paths: dict[int, list[str]] = {}
    box = f"h{place(across.step)}v{place(down.step)}h{place(-across.step)}z"
    for i, row in enumerate(cells):
        for j, cell in enumerate(row):
            if cell.shade:
                start = f"M{place(across(j) - across.step / 2)} {place(down(i) - down.step / 2)}"
                paths.setdefault(math.ceil(cell.shade * LEVELS), []).append(start + box)
    return "".join(
        f'<path class="cell" fill-opacity="{place(level / LEVELS)}" d="{"".join(d)}"/>'
        for level, d in sorted(paths.items())
    )


class Named(NamedTuple):
    """Points with names next to them. ``join``: a line goes through them."""

    label: str
    style: int
    points: Sequence[Point]
    names: Sequence[str]
    join: bool = False


def scatter(width: int, x: Axis, y: Axis, groups: Sequence[Named], label: str) -> str:
    """Draw named points over a logarithmic axis of amounts."""
    points = [p for g in groups for p in g.points]
    made = panel(width, y, (p.y for p in points), [(g.label, g.style) for g in groups if g.points], PLOT + 30, least=1)
    frame, up = made.frame, made.up
    across = logarithmic([p.x for p in points], frame.left + 12, frame.right - 12)
    drawn, taken = [], [(across(math.log10(p.x)) - 5, up(p.y) - 5, 10.0, 10.0) for p in points]
    for g in groups:
        places = [(across(math.log10(p.x)), up(p.y)) for p in g.points]
        drawn += [svg.line(sorted(places), g.style, thin=True)] if g.join else []
        drawn += [svg.mark(*at, g.style, p.tip, p.size) for at, p in zip(places, g.points, strict=True)]
        for at, name in zip(places, g.names, strict=True):
            drawn.append(_beside(at, svg.short(name, 22), frame, taken))
    return made.drawing(y, "", label, drawn, svg.x_axis(frame, across, lambda v: x.text(10**v), x.title))


def _beside(at: tuple[float, float], name: str, frame: Frame, taken: list[tuple[float, float, float, float]]) -> str:
    """Place a name where it covers nothing: right, left, above or below its point.

    It is left out if there is no room.
    """
    wide = svg.text_width(name)
    for dx, dy in (
        (9, 4),
        (-9 - wide, 4),
        (-wide / 2, -9),
        (-wide / 2, 18),
        (9, -8),
        (9, 16),
        (-9 - wide, -8),
        (-9 - wide, 16),
    ):
        box = (at[0] + dx, at[1] + dy - 10, wide, 13.0)
        inside = (
            box[0] >= frame.left
            and box[0] + wide <= frame.width
            and frame.top - 8 <= box[1]
            and box[1] + 13 <= frame.bottom
        )
        if inside and not any(_overlap(box, other) for other in taken):
            taken.append(box)
            return f'<text x="{place(box[0])}" y="{place(at[1] + dy)}">{escape(name)}</text>'
    return ""


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[0] + b[2] and b[0] < a[0] + a[2] and a[1] < b[1] + b[3] and b[1] < a[1] + a[3]


def diagonal(width: int, x: Axis, y: Axis, points: Sequence[Point], label: str) -> str:
    """Draw points between 0 and 1 that should lie on the diagonal. The area of a point is its weight."""
    return _square(width, x, y, TENTHS, points, label)


def power_curve(width: int, names: tuple[str, str], values: Sequence[tuple[float, float]], label: str) -> str:
    """Draw a curve of shares between 0 and 1, both axes logarithmic.

    The diagonal is chance. Points at 0 are left out.
    """
    points = [Point(math.log10(x), math.log10(y)) for x, y in values if x > 0 and y > 0]
    lowest = min((min(p.x, p.y) for p in points), default=-1.0)
    ticks = tuple(float(e) for e in range(min(math.floor(lowest), -1), 1))
    x, y = (Axis(name, lambda e: f"{10**e:g}") for name in names)
    return _square(width, x, y, ticks, points, label, marked=False)


def _square(
    width: int, x: Axis, y: Axis, ticks: tuple[float, ...], points: Sequence[Point], label: str, marked: bool = True
) -> str:
    """Draw a line whose two axes are alike, and the diagonal."""
    left = svg.left_of([y.text(v) for v in ticks])
    frame = Frame(width, left, width - 14, 30, 30 + min(width - left - 14, 300.0), 40)
    across = Linear(ticks[0], ticks[-1], left, frame.right, ticks)
    up = across._replace(start=frame.bottom, end=frame.top)
    aim = f'<path class="aim" d="M{place(left)} {place(frame.bottom)}L{place(frame.right)} {place(frame.top)}"/>'
    places = [(across(p.x), up(p.y)) for p in points]
    marks = [svg.mark(*at, 0, p.tip, p.size) for at, p in zip(places, points, strict=True) if marked]
    axes = svg.y_axis(frame, up, y.text) + svg.x_axis(frame, across, x.text, x.title)
    return svg.drawing(frame, label, svg.heading(y.title), axes, aim, svg.line(places, 0, thin=marked), *marks)


TENTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
