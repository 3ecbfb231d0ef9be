"""How much of a study's plan has ended."""

from __future__ import annotations

from collections.abc import Sequence

from fedatlas.study.cells import Cell
from fedatlas.study.plain import Plain, Row
from fedatlas.study.table import ENDED
from fedatlas.wording import count, share


def finished(cells: Sequence[Cell], seeds: Sequence[int], members: Sequence[Row]) -> Plain:
    """Return how much of a plan has ended: runs of cells, and settings all of whose cells have; refused runs have ended, too."""
    ended = {
        (tuple(sorted(row["levels"].items())), row["seed"])
        for row in members
        if row["kind"] in ("cell", "holdout") and row["status"] in ENDED
    }
    runs = [(cell.setting, (cell.levels, seed) in ended) for cell in cells for seed in seeds]
    waiting = {setting for setting, done in runs if not done}
    settings = {setting for setting, _ in runs}
    return {
        "runs": len(runs),
        "finished": sum(done for _, done in runs),
        "settings": len(settings),
        "settings_finished": len(settings - waiting),
    }


def show_finished(found: Row) -> list[str]:
    """Return a sentence on the part that has ended; none for a whole study."""
    if found["finished"] == found["runs"]:
        return []
    part = f"{found['finished']} of {count(found['runs'], 'run')} of cells have finished"
    whole = f"{found['settings_finished']} of {count(found['settings'], 'setting')} in full"
    return [f"This is a part of the plan ({share(found['finished'] / found['runs'])}): {part}, {whole}."]
