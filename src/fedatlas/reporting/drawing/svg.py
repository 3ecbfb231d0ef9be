"""The parts of a drawing: frame, axes, marks, legend, as SVG text whose colours are classes of chart.css.

Series differ by colour, by the shape of their marks and by their dashes, never only by colour. An element with
``data-tip`` shows its numbers under the pointer and for the arrow keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from fedatlas.reporting.drawing.scales import Band, Linear, nice_step

COLOURS = 6
LETTER = 7.0  # average width of a letter in a text of size 12
MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",  # circle
    "M-3.6 -3.6h7.2v7.2h-7.2z",  # square
    "M0 -4.8L4.5 3.3H-4.5z",  # triangle
    "M0 -5L5 0L0 5L-5 0z",  # diamond
    "M0 4.8L4.5 -3.3H-4.5z",  # triangle on its tip
    "M-4.5 -1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",  # cross
)
LINE = 18.0  # height of a line of the legend


class Frame(NamedTuple):
    """A drawing and the plot area inside it, in SVG units."""

    width: float
    left: float
    right: float
    top: float
    bottom: float  # y of the lower end of the plot area
    below: float  # room below it

    @property
    def height(self) -> float:
        """Height of the whole drawing."""
        return self.bottom + self.below


def place(v: float) -> str:
    """Return a coordinate with at most two decimals."""
    return f"{v:.2f}".rstrip("0").rstrip(".")


def text_width(text: str) -> float:
    """Return the approximate width of a text of size 12."""
    return LETTER * len(text)


def short(text: str, letters: int) -> str:
    """Return the text, cut if it is too long."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def shortened(texts: Sequence[str], letters: int) -> list[str]:
    """Return the texts, cut if they are too long: at their ends, or at their beginnings if they would then be alike."""
    cut = [short(text, letters) for text in texts]
    if len(set(cut)) == len(set(texts)):
        return cut
    return [text if len(text) <= letters else "…" + text[1 - letters :] for text in texts]


def drawing(frame: Frame, label: str, *parts: str) -> str:
    """Return the whole picture as one SVG element."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {place(frame.width)} {place(frame.height)}" '
        f'width="{place(frame.width)}" height="{place(frame.height)}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def heading(text: str) -> str:
    """Return the title of the vertical axis, written horizontally above it, which is easier to read."""
    return f'<text class="axis" x="2" y="13">{escape(text)}</text>'


def y_axis(frame: Frame, scale: Linear, text: Callable[[float], str]) -> str:
    """Return horizontal lines and their values."""
    return "".join(
        f'<g class="tick y" data-value="{v!r}" transform="translate(0 {place(scale(v))})">'
        f'<path class="grid" d="M{place(frame.left)} 0H{place(frame.right)}"/>'
        f'<text x="{place(frame.left - 6)}" y="4" text-anchor="end">{escape(text(v))}</text></g>'
        for v in scale.ticks
    )


def x_axis(frame: Frame, scale: Linear, text: Callable[[float], str], title: str) -> str:
    """Return ticks below and the title under them."""
    ticks = "".join(
        f'<g class="tick x" data-value="{v!r}" transform="translate({place(scale(v))} {place(frame.bottom)})">'
        f'<path class="edge" d="M0 0V4"/><text y="17" text-anchor="middle">{escape(text(v))}</text></g>'
        for v in scale.ticks
    )
    return f"{_base(frame)}{ticks}{_below(frame, title)}"


def band_axis(frame: Frame, band: Band, names: Sequence[str], title: str, *, slanted: bool = False) -> str:
    """Return the names of the slots, as many as fit; of whole numbers, round ones."""
    room = 14.0 if slanted else max(map(text_width, names), default=0.0) + 6
    every = int(nice_step(room / band.step, 1, whole=True))
    shown = list(range(0, len(names), every))
    if len(names) > 1 and all(name.isdigit() for name in names):
        apart = every * (int(names[1]) - int(names[0]))
        aligned = [i for i, name in enumerate(names) if apart > 0 and int(name) % apart == 0]  # 01 and 1 are not apart
        shown = aligned if len(aligned) > 1 else shown
    turn = ' transform="rotate(-45)" text-anchor="end" x="2" y="10"' if slanted else ' y="16" text-anchor="middle"'
    ticks = "".join(
        f'<g class="tick x" transform="translate({place(band(i))} {place(frame.bottom)})"><text{turn}>{escape(names[i])}</text></g>'
        for i in shown
    )
    return f"{_base(frame)}{ticks}{_below(frame, title)}"


def _base(frame: Frame) -> str:
    return f'<path class="edge" d="M{place(frame.left)} {place(frame.bottom)}H{place(frame.right)}"/>'


def _below(frame: Frame, title: str) -> str:
    middle = (frame.left + frame.right) / 2
    return f'<text class="axis" x="{place(middle)}" y="{place(frame.height - 5)}" text-anchor="middle">{escape(title)}</text>'


def tip(text: str) -> str:
    """Return the tooltip of a mark."""
    return f' data-tip="{escape(text)}"' if text else ""


def mark(x: float, y: float, style: int, said: str = "", size: float = 1.0) -> str:
    """Return a point."""
    scale = "" if size == 1 else f" scale({place(size)})"
    shape = MARKS[style % len(MARKS)]
    return f'<path class="mark s{style % COLOURS}" transform="translate({place(x)} {place(y)}){scale}" d="{shape}"{tip(said)}/>'


def ring(x: float, y: float, style: int) -> str:
    """Return a hollow mark, larger than the marks of a line in the same colour."""
    shape = MARKS[style % len(MARKS)]
    return f'<path class="whisker s{style % COLOURS}" transform="translate({place(x)} {place(y)}) scale(1.8)" d="{shape}"/>'


def line(points: Sequence[tuple[float, float]], style: int, *, thin: bool = False) -> str:
    """Return a line through points."""
    if len(points) < 2:
        return ""
    path = "M" + "L".join(f"{place(x)} {place(y)}" for x, y in points)
    dash = f" d{style // COLOURS % 3}" if style >= COLOURS else ""
    return f'<path class="line s{style % COLOURS}{dash}{" thin" if thin else ""}" d="{path}"/>'


def legend(entries: Sequence[tuple[str, int]], width: float, top: float, *, bars: bool = False) -> tuple[str, float]:
    """Return names of series from ``top`` on, in lines as wide as the drawing, and where they end.

    If a colour is used twice, a piece of the line is drawn behind each mark, because only its dashes tell the series
    apart.
    """
    dashed = not bars and any(style >= COLOURS for _, style in entries)
    wide = 30 if dashed else 12
    parts, x, y = [], 2.0, top
    for name, style in entries:
        name = short(name, int((width - wide - 18) / LETTER))
        long = wide + 8 + text_width(name) + 14
        if x + long > width and x > 2:
            x, y = 2.0, y + LINE
        sign = f'<rect class="bar s{style % COLOURS}" x="{place(x)}" y="{place(y - 9)}" width="11" height="11"/>'
        piece = line([(x, y - 4), (x + wide, y - 4)], style) if dashed else ""
        sign = sign if bars else piece + mark(x + wide / 2, y - 4, style)
        parts.append(f'{sign}<text x="{place(x + wide + 5)}" y="{place(y)}">{escape(name)}</text>')
        x += long
    return "".join(parts), y + 16 if entries else top - 4


def left_of(texts: Sequence[str]) -> float:
    """Return the room for the values of a vertical axis."""
    return max(map(text_width, texts), default=0.0) + 12
