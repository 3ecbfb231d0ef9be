"""The fields of a row of metrics.jsonl and of summary.json."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
