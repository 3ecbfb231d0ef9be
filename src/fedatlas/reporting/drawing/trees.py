"""A decision tree as a picture: one box per node, each child below its parent, leaves at the bottom of their branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from fedatlas.reporting.drawing import svg
from fedatlas.reporting.drawing.svg import Frame, place, short

HIGH, APART = 30.0, 62.0  # height of a box, distance of two levels


class Node(NamedTuple):
    """A node: its text, its tooltip, its owner (a style), its children."""

    text: str
    tip: str
    style: int | None  # None: a leaf
    left: int | None = None
    right: int | None = None


def tree(width: int, nodes: Mapping[int, Node], owners: Sequence[tuple[str, int]], label: str) -> str:
    """Draw the tree whose root is node 0. ``owners``: names and styles of those that own nodes."""
    key, top = svg.legend(owners, width, 16, bars=True)
    slots = leaves(nodes, 0)
    step = (width - 8) / max(len(slots), 1)
    at: dict[int, tuple[float, int]] = {}
    settle(nodes, 0, 0, {k: 4 + (i + 0.5) * step for i, k in enumerate(slots)}, at)
    deep = max(level for _, level in at.values())
    bottom = top + deep * APART + HIGH
    frame = Frame(width, 0, width, top, bottom, 8)
    drawn = []
    for k, node in nodes.items():
        if k not in at:
            continue
        x, y = at[k][0], top + at[k][1] * APART
        for child, said in ((node.left, "yes"), (node.right, "no")):
            if child is not None:
                cx, cy = at[child][0], top + at[child][1] * APART
                drawn.append(
                    f'<path class="edge" fill="none" d="M{place(x)} {place(y + HIGH)}L{place(cx)} {place(cy)}"/>'
                )
                drawn.append(
                    f'<text x="{place((x + cx) / 2)}" y="{place((y + HIGH + cy) / 2 + 4)}" text-anchor="middle">{said}</text>'
                )
    boxes = [box(node, at[k][0], top + at[k][1] * APART, step, len(slots)) for k, node in nodes.items() if k in at]
    return svg.drawing(frame, label, key, *drawn, *boxes)


def box(node: Node, x: float, y: float, step: float, slots: int) -> str:
    """Return a node's box and text, as wide as its level allows."""
    room = step - 4 if node.style is None else min(step * max(slots / 4, 1.6), 190.0)
    text = short(node.text, max(int(room / svg.LETTER), 3))
    wide = min(svg.text_width(text) + 12, max(room, 20.0))
    body = ""
    if node.style is not None:
        body = (
            f'<rect class="node" x="{place(x - wide / 2)}" y="{place(y)}" width="{place(wide)}" height="{place(HIGH)}" rx="4"'
            f'{svg.tip(node.tip)}/><rect class="bar s{node.style % svg.COLOURS}" x="{place(x - wide / 2)}" y="{place(y)}" '
            f'width="{place(wide)}" height="4"/>'
        )
    ink = "axis" if node.style is not None else "leaf"
    return f'{body}<text class="{ink}" x="{place(x)}" y="{place(y + 20)}" text-anchor="middle"{svg.tip(node.tip)}>{escape(text)}</text>'


def leaves(nodes: Mapping[int, Node], k: int) -> list[int]:
    """Return the leaves under a node, from left to right."""
    node = nodes[k]
    if node.left is None or node.right is None:
        return [k]
    return leaves(nodes, node.left) + leaves(nodes, node.right)


def settle(
    nodes: Mapping[int, Node], k: int, level: int, slots: Mapping[int, float], at: dict[int, tuple[float, int]]
) -> float:
    """Place a node and all below it: leaves in their slots, others in the middle of their children.

    Return its horizontal place.
    """
    node = nodes[k]
    if node.left is None or node.right is None:
        x = slots[k]
    else:
        x = sum(settle(nodes, child, level + 1, slots, at) for child in (node.left, node.right)) / 2
    at[k] = (x, level)
    return x
