"""Amounts of memory in readable form."""

from __future__ import annotations


def bytes_of(text: str) -> int:
    """Return the bytes of a text such as '4GiB'. ValueError for anything else."""
    units = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    for unit in sorted(units, key=len, reverse=True):
        number = text.removesuffix(unit).strip()
        if text.endswith(unit) and number.replace(".", "", 1).isdigit() and float(number) > 0:
            return int(float(number) * units[unit])
    raise ValueError(f"'{text}' is not a size: write a number above 0 and B, KiB, MiB, GiB or TiB, such as '4GiB'")
