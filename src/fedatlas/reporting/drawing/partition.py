"""The picture of a partition: one stacked bar per client, its classes as segments (S0, figure 1).

Drawn as a self-contained SVG, and as text for a terminal. Colours are never the only sign: segments follow the order of
the legend and carry the class's number if it fits. Unless there are thousands, each has a tooltip with all its values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from html import escape

import numpy as np

from fedatlas.data.dataset import Partition
from fedatlas.data.partition.common import Ints
from fedatlas.data.partition.figures import describe, histogram
from fedatlas.reporting.drawing.svg import short

# Paul Tol's qualitative scheme "muted" with its pale grey, safe for colour-blind eyes (personal.sron.nl/~pault).
MUTED = ("#332288", "#88ccee", "#44aa99", "#117733", "#999933", "#ddcc77", "#cc6677", "#882255", "#aa4499", "#dddddd")
# Stops of the colour map cividis (Nunez, Anderton, Renslow 2018), for more classes: lightness tells them apart.
CIVIDIS = ("#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838")
WIDTH, TOP, HEIGHT, LEFT = 760, 34, 300, 70  # of the figure and its plot area, in SVG units
DRAWN = 200  # most clients that still make a visible bar
TOLD = 2_000  # most segments with a tooltip each
LISTED = 24  # most classes that the legend lists by name
LINES = 40  # most clients in a terminal
BLOCKS = " ▁▂▃▄▅▆▇█"


def draw(partition: Partition, labels: np.ndarray, class_names: Sequence[str], unit: str = "rows") -> str:
    """Draw the class distribution per client as an SVG document: stacked bars, height = rows.

    labels: the training targets. Without class names (regression), or without one class per row, the bars show only
    sizes. Above 200 clients every m-th is drawn, with a note.
    """
    counts, names = _bars(partition, labels, class_names)
    apart = math.ceil(len(counts) / DRAWN)
    shown = np.arange(0, len(counts), apart)
    tallest = _ceiling(int(counts[shown].sum(axis=1).max()))
    body = _axes(len(counts), apart, tallest, unit) + _segments(counts[shown], shown, names, tallest)
    legend, bottom = _legend(names, TOP + HEIGHT + 62)
    title = f"{'Class distribution' if names else 'Rows'} per client, {len(partition.clients)} clients"
    if len(shown) < len(partition.clients):
        title += f" ({len(shown)} drawn)"
    text = _summary(partition, labels, class_names)
    key = blake2b((title + text + body).encode(), digest_size=4).hexdigest()  # ids stay apart on one page
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" role="img" '
        f'aria-labelledby="t{key} d{key}" font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13">'
        f'<title id="t{key}">{escape(title)}</title><desc id="d{key}">{escape(text)}</desc>'
        f'<rect width="{WIDTH}" height="{bottom}" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="600" fill="#222222">{escape(title)}</text>'
        f"{body}{legend}</svg>\n"
    )


def draw_text(partition: Partition, labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Draw the same for a terminal, one line per client.

    A line has its rows, one block per class (height = share of the client's largest class), its largest class with its
    share, and the total variation distance of its class mixture to the overall one.
    """
    facts = describe(partition, labels, len(class_names))
    sizes, lines = facts["sizes"], []
    widest, names = len(str(max(sizes))), partition.info.get("names", ())
    longest = max((len(str(name)) for name in names[:LINES]), default=0)
    for k in range(min(len(sizes), LINES)):
        who = f" {names[k]:<{longest}}" if names else ""
        line = f"client {k:>{len(str(len(sizes) - 1))}}{who}  {sizes[k]:>{widest}} rows  "
        if "histogram" not in facts:
            line += "█" * math.ceil(30 * sizes[k] / max(sizes))
        elif sizes[k]:
            row = np.array(facts["histogram"][k])
            if len(row) <= LISTED:
                line += "".join(BLOCKS[math.ceil(8 * v / row.max())] for v in row) + "  "
            name = class_names[int(row.argmax())]
            line += f"{facts['majority'][k]:>4.0%} {name}  TV {facts['tv'][k]:.2f}"
        lines.append(line.rstrip())
    if len(sizes) > LINES:
        rest = sizes[LINES:]
        lines.append(f"... and {len(rest)} more clients with {min(rest)} to {max(rest)} rows")
    return "\n".join([*lines, _summary(partition, labels, class_names)])


def _summary(partition: Partition, labels: np.ndarray, class_names: Sequence[str]) -> str:
    facts = describe(partition, labels, len(class_names))
    sizes = facts["sizes"]
    text = f"{len(sizes)} clients hold {sum(sizes)} rows, {min(sizes)} to {max(sizes)} each (Gini {facts['gini']:.2f})"
    if "tv_mean" in facts:
        text += f"; mean distance of the class mixtures to the overall one (total variation): {facts['tv_mean']:.2f}"
    return text + (f"; {partition.left_out} rows are left out." if partition.left_out else ".")


def _bars(partition: Partition, labels: np.ndarray, class_names: Sequence[str]) -> tuple[Ints, Sequence[str]]:
    if labels.ndim == 1 and class_names:
        return histogram(partition, labels, len(class_names)), class_names
    return np.array(partition.sizes)[:, None], ()


def _colour(c: int, classes: int) -> str:
    if classes <= len(MUTED):
        return MUTED[c]
    place = c / (classes - 1) * (len(CIVIDIS) - 1)
    low = min(int(place), len(CIVIDIS) - 2)
    pair = [[int(stop[i : i + 2], 16) for i in (1, 3, 5)] for stop in CIVIDIS[low : low + 2]]
    return "#" + "".join(f"{round(a + (place - low) * (b - a)):02x}" for a, b in zip(*pair, strict=True))


def _ink(colour: str) -> str:
    """Return black or white, the one that is readable on ``colour`` (WCAG 2 relative luminance; equal contrast near 0.18)."""
    part = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in part]
    return "#ffffff" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.18 else "#111111"


def _ceiling(value: int, steps: Sequence[float] = (1, 2, 3, 4, 6, 8, 10)) -> float:
    """Return the smallest number of the form step x 10^m that is not below ``value``."""
    scale = 10.0 ** math.floor(math.log10(max(value, 1)))
    return scale * next(step for step in steps if step * scale >= value)


def _axes(clients: int, apart: int, tallest: float, unit: str) -> str:
    parts = []
    for tick in range(5):
        value, y = tallest * tick / 4, TOP + HEIGHT * (1 - tick / 4)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - 10}" stroke="#d9d9d9"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{value:,.10g}</text>'
        )
    slot = (WIDTH - 10 - LEFT) / math.ceil(clients / apart)
    for client in range(0, clients, int(_ceiling(math.ceil(clients / 20), (1, 2, 5, 10)))):
        x = LEFT + slot * (client / apart + 0.5)
        parts.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 17}" text-anchor="middle" fill="#444444">{client}</text>')
    middle = (LEFT + WIDTH - 10) / 2
    parts.append(f'<text x="{middle}" y="{TOP + HEIGHT + 37}" text-anchor="middle" fill="#222222">client</text>')
    turn = f"translate(14 {TOP + HEIGHT / 2}) rotate(-90)"
    parts.append(f'<text transform="{turn}" text-anchor="middle" fill="#222222">{escape(unit)}</text>')
    return "".join(parts)


def _segments(counts: Ints, shown: Ints, names: Sequence[str], tallest: float) -> str:
    slot = (WIDTH - 10 - LEFT) / len(counts)
    bar = slot * (0.8 if len(counts) <= 60 else 1.0)
    tops = TOP + HEIGHT * (1 - np.cumsum(counts, axis=1) / tallest)
    heights = HEIGHT * counts / tallest
    told = np.count_nonzero(counts) <= TOLD
    edge = ' stroke="#ffffff" stroke-width="0.6"' if bar > 6 and counts.shape[1] <= LISTED else ""
    parts = []
    for c in range(counts.shape[1]):
        colour = _colour(c, counts.shape[1])
        parts.append(f'<g fill="{colour}"{edge}>')
        for i in np.flatnonzero(counts[:, c]):
            x, y, height = LEFT + slot * i + (slot - bar) / 2, tops[i, c], heights[i, c]
            if not told:
                parts.append(f'<path d="M{x:.1f} {y:.1f}h{bar:.1f}v{height:.1f}h{-bar:.1f}z"/>')
                continue
            note = f"client {shown[i]}{', ' + names[c] if names else ''}: {counts[i, c]} rows"
            note += f" ({counts[i, c] / counts[i].sum():.0%})" if names else ""
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.2f}" width="{bar:.2f}" height="{height:.2f}">'
                f"<title>{escape(note)}</title></rect>"
            )
            if names and height >= 13 and bar >= 16:
                parts.append(
                    f'<text x="{x + bar / 2:.1f}" y="{y + height / 2 + 4:.1f}" text-anchor="middle" font-size="11" '
                    f'stroke="none" fill="{_ink(colour)}">{c}</text>'
                )
        parts.append("</g>")
    return "".join(parts)


def _legend(names: Sequence[str], top: int) -> tuple[str, int]:
    """Return the legend and the y where the figure ends: names in columns, or the ends of the scale for many classes."""
    if not names:
        return "", top - 10
    if len(names) > LISTED:
        step = 200 / len(names)
        cells = "".join(
            f'<rect x="{LEFT + 90 + step * c:.2f}" y="{top - 11}" width="{step + 0.3:.2f}" height="13" '
            f'fill="{_colour(c, len(names))}"/>'
            for c in range(len(names))
        )
        ends = (
            f'<text x="{LEFT + 84}" y="{top}" text-anchor="end" fill="#222222">{escape(short(names[0], 12))}</text>'
            f'<text x="{LEFT + 297}" y="{top}" fill="#222222">{escape(short(names[-1], 30))} '
            f"({len(names)} classes)</text>"
        )
        return cells + ends, top + 16
    labels = [short(f"{c} {name}" if name != str(c) else name, 34) for c, name in enumerate(names)]
    column = max(len(label) for label in labels) * 7.6 + 36
    columns = max(1, int((WIDTH - LEFT) / column))
    parts = []
    for c, label in enumerate(labels):
        x, y = LEFT + column * (c % columns), top + 20 * (c // columns)
        parts.append(
            f'<rect x="{x:.1f}" y="{y - 11}" width="13" height="13" fill="{_colour(c, len(names))}" stroke="#666666" '
            f'stroke-width="0.5"/><text x="{x + 19:.1f}" y="{y}" fill="#222222">{escape(label)}</text>'
        )
    return "".join(parts), top + 20 * math.ceil(len(names) / columns)
