"""Quantities as people read them."""

from __future__ import annotations


def bytes_text(n: float) -> str:
    """1234567 -> '1.23 MB' (powers of ten)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.3g} {unit}"
        n /= 1000
    return ""


def seconds_text(s: float) -> str:
    """75 -> '1 min 15 s'."""
    if s < 10:
        return f"{s:.2f} s"
    if s < 60:
        return f"{s:.0f} s"
    minutes, rest = divmod(round(s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
