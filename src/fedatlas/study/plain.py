"""Plain values by name, as JSON and TOML have them: rows, summaries, configurations, tables of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
Plain = dict[str, Any]
