"""The cells of a study: the allowed combinations of levels, the design's selection of them, and held-out settings.

Every draw follows a hash of names, so the order of factors, levels and seeds in the file does not matter.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fedatlas.errors import ConfigError, unknown_name
from fedatlas.study.design import DesignTable, StudyFile, level_name
from fedatlas.study.levels import Factor

MOST = 1_000_000  # most combinations examined

Levels = tuple[tuple[str, str], ...]
"""(factor, level), sorted by factor."""


class Cell(NamedTuple):
    """A combination of levels; the setting is the given part, and all choices in it share its baseline."""

    levels: Levels
    setting: Levels
    holdout: bool


def cells_of(study: StudyFile, factors: Sequence[Factor]) -> list[Cell]:
    """Return the cells of a study, grouped by setting in the order drawn; ConfigError if none is allowed."""
    many = math.prod(len(factor.levels) for factor in factors)
    if many > MOST:
        raise ConfigError(f"the factors have {many:,} combinations, more than {MOST:,}: use fewer levels.")
    design, tables = study.table.design, [exclusion(table, factors) for table in study.table.exclude]
    excluded = [(one, len(dict(one))) for one in tables]  # and the number of factors each names
    given = sorted(factor.name for factor in factors if factor.role == "setting")
    ordered = sorted(factors, key=lambda factor: factor.name)
    pairs = ([(factor.name, name) for name in sorted(level.name for level in factor.levels)] for factor in ordered)
    allowed = [
        Cell(levels, tuple(pair for pair in levels if pair[0] in given), holdout=False)
        for levels in itertools.product(*pairs)
        if not any(len(one.intersection(levels)) == n for one, n in excluded)
    ]
    if not allowed:
        raise ConfigError("no cell is left: [[exclude]] removes all of them; remove one of its tables.")
    for name in design.evenly:
        if name not in given:
            raise unknown_name("factor with role setting in design.evenly", name, given)
    taken = drawn(allowed, design)
    rank = {setting: place for place, setting in enumerate(dict.fromkeys(cell.setting for cell in taken))}
    out = held_out(list(rank), design)
    found = (cell._replace(holdout=cell.setting in out) for cell in taken)
    return sorted(found, key=lambda cell: (rank[cell.setting], cell.levels))


def exclusion(table: Mapping[str, Any], factors: Sequence[Factor]) -> set[tuple[str, str]]:
    """Return the (factor, level) pairs of one ``[[exclude]]``; ConfigError for an unknown factor or level."""
    known = {factor.name: factor for factor in factors}
    out = set()
    for name, value in table.items():
        if name not in known:
            raise unknown_name("factor in [[exclude]]", name, known)
        out |= {(name, known[name].level(level_name(x)).name) for x in (value if isinstance(value, list) else [value])}
    if not out:
        raise ConfigError("[[exclude]] is empty: name a factor and its levels, or remove it.")
    return out


def ranked(design: DesignTable, what: str, found: Iterable[Levels]) -> list[Levels]:
    """Return combinations in a random order: by the SHA-256 of seed, purpose and names."""

    def rank(levels: Levels) -> str:
        return hashlib.sha256(json.dumps([design.seed, what, levels]).encode()).hexdigest()

    return sorted(found, key=rank)


def drawn(allowed: Sequence[Cell], design: DesignTable) -> list[Cell]:
    """Return all cells of a grid, or for `random` the number of cells asked, or of settings with every choice allowed in them."""
    if design.name == "grid":
        return list(allowed)
    whole, wanted = design.settings is not None, design.settings or design.cells or 0
    unit = [cell.setting if whole else cell.levels for cell in allowed]
    units = ranked(design, "setting" if whole else "cell", set(unit))
    if wanted > len(units):
        what = "settings" if whole else "cells"
        raise ConfigError(
            f"design.{what} = {wanted}: only {len(units)} are allowed; use a smaller number, or add levels."
        )
    kept = {one: place for place, one in enumerate(spread(units, design.evenly, wanted))}
    found = [(kept[one], cell) for one, cell in zip(unit, allowed, strict=True) if one in kept]
    return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]


def spread(units: Sequence[Levels], evenly: Collection[str], wanted: int) -> list[Levels]:
    """Return ``wanted`` combinations, ordered so that the levels of the factors ``evenly``, jointly and singly, occur equally often.

    The next one always has the joint combination used least so far, then the levels used least; among equals the earlier one.
    """
    if not evenly:
        return list(units[:wanted])
    often: Counter[Levels] = Counter()
    left = {one: tuple(pair for pair in one if pair[0] in evenly) for one in units}
    out: list[Levels] = []
    while len(out) < wanted:
        out.append(min(left, key=lambda one: (often[left[one]], sum(often[(pair,)] for pair in left[one]))))
        pairs = left.pop(out[-1])
        often.update({pairs, *((pair,) for pair in pairs)})
    return out


def held_out(settings: Sequence[Levels], design: DesignTable) -> set[Levels]:
    """Return the settings withheld from the recommender: a share of them, rounded, but never all."""
    many = min(round(design.holdout * len(settings)), len(settings) - 1)
    return set(ranked(design, "holdout", settings)[:many])
