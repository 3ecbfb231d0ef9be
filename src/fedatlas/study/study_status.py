"""The progress of a study (``--status``), from its table only. Imports nothing from torch, so that a look takes no seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedatlas.study.measurements import levels_text
from fedatlas.study.plain import Plain, Row
from fedatlas.study.table import ENDED, STATUSES, Table
from fedatlas.wording import count

SHOWN = 20  # most sentences shown


def show_reasons(found: Iterable[Row], what: str) -> list[str]:
    """Return sentences with the cells they apply to."""
    by_reason: dict[str, dict[str, None]] = {}
    for one in found:
        by_reason.setdefault(one["reason"], {})[levels_text(sorted(one["levels"].items()))] = None
    out = []
    for reason, cells in list(by_reason.items())[:SHOWN]:
        more = f" and {len(cells) - 3} more" if len(cells) > 3 else ""
        out.append(f"{count(len(cells), 'cell')} {what} ({'; '.join(list(cells)[:3])}{more}): {reason}")
    if len(by_reason) > SHOWN:
        out.append(f"{len(by_reason) - SHOWN} more reasons; --json prints all of them.")
    return out


def reasons(table: Table, study: str, statuses: Sequence[str]) -> list[Plain]:
    """Return status, sentence, levels and seed of a study's runs with one of these statuses."""
    found = [
        {"status": one["status"], "reason": one["reason"], "levels": one["levels"], "seed": one["seed"]}
        for one in table.members(study, statuses)
    ]
    return sorted(found, key=lambda one: (one["status"], str(one["levels"]), one["seed"]))


def status(table: Table, study: str) -> Plain:
    """Return the progress of a study: runs by status, and the reasons of those without a result."""
    told = reasons(table, study, ENDED[1:])
    return {"study": study, "table": str(table.path), "runs": table.counts(study), "reasons": told}


def show_status(found: Row) -> list[str]:
    """Return `status` as text, one line per item."""
    runs = ", ".join(f"{number} {state}" for state, number in found["runs"].items() if number)
    out = [f"Study {found['study']} in {found['table']}: {runs or 'no runs'}."]
    for state in STATUSES:
        out += show_reasons([one for one in found["reasons"] if one["status"] == state], state)
    return [*out, *found.get("notices", ())]
