"""Small pictures inside a drawing."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from fedatlas.reporting.drawing import svg
from fedatlas.reporting.drawing.svg import Frame, place

Pixels = np.ndarray[Any, Any]
"""(channels, h, w) of 1 or 3 channels, 0 (black) to 1 (white)."""


def png(pixels: Pixels) -> bytes:
    """Return a picture as a PNG file: 8 bits per channel, grey or RGB, no filter."""
    x = np.round(np.clip(np.nan_to_num(pixels), 0, 1) * 255).astype(np.uint8)
    channels, height, width = x.shape
    rows = np.ascontiguousarray(np.moveaxis(x, 0, -1)).reshape(height, width * channels)
    body = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body, 9)) + chunk(b"IEND", b"")


def pairs(width: int, names: tuple[str, str], values: Sequence[tuple[Pixels, Pixels, str]], label: str) -> str:
    """Draw pairs of pictures (above, below, tooltip) side by side, as many as fit; ``names`` of the two rows."""
    left = svg.left_of(names) + 4
    fits = values[: max(2, int((width - left) / 46))]
    step = min((width - left - 6) / len(fits), 84.0)
    side = step - 6
    frame = Frame(width, left, width - 6, 6, 6 + 2 * step, 4)
    parts = [
        f'<text x="{place(left - 6)}" y="{place(6 + step * (row + 0.5))}" text-anchor="end">{escape(name)}</text>'
        for row, name in enumerate(names)
    ]
    for i, (*pair, said) in enumerate(fits):
        for row, pixels in enumerate(pair):
            data = base64.b64encode(png(pixels)).decode()
            parts.append(
                f'<image href="data:image/png;base64,{data}" x="{place(left + i * step)}" y="{place(6 + row * step)}" '
                f'width="{place(side)}" height="{place(side)}" style="image-rendering:pixelated"{svg.tip(said)}/>'
            )
    return svg.drawing(frame, label, *parts)
